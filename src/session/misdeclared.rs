//! Whether what `--alloc-fn` takes as a size can be one.

use super::recording::Recording;

/// No block is so large, in bytes; addresses of a program that lies where the kernel puts it are larger.
const LARGEST: u64 = 1 << 40;

impl Recording {
    /// Says of each declared function whose sizes look like pointers that its declaration names the wrong argument.
    pub fn doubtful_sizes(&self) -> Vec<String> {
        let is_doubtful = |size: u64| size >= LARGEST;
        let sites = || self.snapshot.sites.iter().filter(|site| is_doubtful(site.key.size));
        let mut functions: Vec<_> = sites().map(|site| site.key.function).collect();
        functions.sort_unstable();
        functions.dedup();
        functions.retain(|function| self.table.is_declared(*function));
        let sentence = |function| {
            let of_it = || sites().filter(move |site| site.key.function == function);
            let calls: u64 = of_it().map(|site| site.allocated.objects).sum();
            let size = of_it().map(|site| site.key.size).max().unwrap_or(0);
            let (name, times) = (self.table.name(function), if calls == 1 { "once" } else { "again and again" });
            format!(
                "--alloc-fn {name}: the argument that it takes as a size looks like a pointer ({size:#x}, {times}), so \
                 its amounts are wrong: say which argument has the size, as in {name}:size=arg2"
            )
        };
        functions.into_iter().map(sentence).collect()
    }
}
