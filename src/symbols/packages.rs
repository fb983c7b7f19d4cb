//! Which packages bring the debug information of a system's files: Debian's and its relatives'.
//!
//! The system may be a container's, who may have put anything there. What is no list is passed over, and what is made
//! of a list's name is a package's name: people paste it into a shell.

use super::beside::each;
use super::files::{NOFOLLOW, NONBLOCK};
use crate::base::paths::below;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where dpkg keeps the list of each package's files, one path a line (dpkg-query(1), deb(5)).
const LISTS: &str = "/var/lib/dpkg/info";

/// The largest list that is read, in bytes. Of Debian 12's, the largest has less than 3 MB.
const LARGEST_LIST: u64 = 16 << 20;

/// How many bytes of lists are read. A system of 5,000 packages has some 50 MB.
const LARGEST_SUM: usize = 512 << 20;

/// The longest package name.
const LONGEST_NAME: usize = 128;

/// So many lists are read first for each file: of those packages that are called most like it.
const LIKELY: usize = 4;

/// So much at least a package's name has in common with a file's, in bytes, to be called like it.
const SHORTEST_IN_COMMON: usize = 2;

/// So many lists are taken at a time by a thread.
const LISTS_AT_ONCE: usize = 16;

/// For each of these files, as the system with that root folder names them, the package that would bring its debug
/// information. None where no package owns it. Reads the lists of packages that are called like the files; where that
/// does not find all, those of all packages.
pub(super) fn debug_packages(root: &Path, files: &[PathBuf]) -> Vec<Option<String>> {
    let mut search = PackageSearch::of(files);
    if search.wanted.is_empty() {
        return search.found;
    }
    let Ok(entries) = std::fs::read_dir(below(root, Path::new(LISTS))) else { return search.found };
    let package_of = |list: &str| list.strip_suffix(".list").and_then(package_name).map(str::to_owned);
    let mut lists: Vec<List> = entries
        .flatten()
        .filter_map(|entry| Some(List { package: package_of(entry.file_name().to_str()?)?, path: entry.path() }))
        .collect();
    // which of several packages is named must not depend on the order of a folder
    lists.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let likely = likely(&mut lists, files);
    for list in &likely {
        search.look_through(list);
        if search.is_done() {
            return search.found;
        }
    }
    let pieces: Vec<&[List]> = lists.chunks(LISTS_AT_ONCE).collect();
    let owners = each(&pieces, |lists| lists.iter().flat_map(|list| search.owned_by(list)).collect::<Vec<_>>());
    owners.into_iter().flatten().for_each(|(index, package)| search.note(index, &package));
    search.found
}

/// The list of a package's files.
struct List {
    package: String,
    path: PathBuf,
}

/// Files whose packages are looked for.
struct PackageSearch {
    /// Which files are meant by the names that dpkg may have for them.
    wanted: FxHashMap<Vec<u8>, Vec<usize>>,
    /// How long such names are.
    lengths: FxHashSet<usize>,
    found: Vec<Option<String>>,
    /// How many bytes of lists may still be read.
    budget: AtomicUsize,
}

impl PackageSearch {
    fn of(files: &[PathBuf]) -> Self {
        let mut wanted: FxHashMap<Vec<u8>, Vec<usize>> = FxHashMap::default();
        for (index, file) in files.iter().enumerate().filter(|(_, file)| file.is_absolute()) {
            for name in names_of(file) {
                wanted.entry(name.into_os_string().into_vec()).or_default().push(index);
            }
        }
        let lengths = wanted.keys().map(Vec::len).collect();
        Self { wanted, lengths, found: vec![None; files.len()], budget: AtomicUsize::new(LARGEST_SUM) }
    }

    /// The files that a package owns, with that package.
    fn owned_by(&self, list: &List) -> Vec<(usize, String)> {
        let mut owned = Vec::new();
        let Some(bytes) = read_list(&list.path) else { return owned };
        let enough = |left: usize| left.checked_sub(bytes.len());
        if self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_err() {
            return owned;
        }
        for line in lines(&bytes).filter(|line| self.lengths.contains(&line.len())) {
            let files = self.wanted.get(line).into_iter().flatten();
            owned.extend(files.map(|index| (*index, list.package.clone())));
        }
        owned
    }

    fn look_through(&mut self, list: &List) {
        for (index, package) in self.owned_by(list) {
            self.note(index, &package);
        }
    }

    /// Of several packages that own a file the first one counts.
    fn note(&mut self, index: usize, package: &str) {
        if let Some(found) = self.found.get_mut(index).filter(|found| found.is_none()) {
            *found = Some(debug_package(package));
        }
    }

    /// Whether all that can have a package has one.
    fn is_done(&self) -> bool {
        self.wanted.values().flatten().all(|index| self.found.get(*index).is_none_or(Option::is_some))
    }
}

/// Takes the lists of packages out that are called most like these files, best first for each of them.
fn likely(lists: &mut Vec<List>, files: &[PathBuf]) -> Vec<List> {
    let mut chosen = Vec::new();
    for name in files.iter().filter_map(|file| file.file_name()).map(OsStr::as_bytes) {
        let in_common = |list: &List| name.iter().zip(list.package.as_bytes()).take_while(|(a, b)| a == b).count();
        let mut best: Vec<(usize, usize)> = lists.iter().map(in_common).enumerate().map(|(at, n)| (n, at)).collect();
        best.retain(|(in_common, _)| *in_common >= SHORTEST_IN_COMMON);
        // of packages that have as much in common the one with the shortest name is the library, not what belongs to it
        best.sort_by_key(|&(in_common, at)| (Reverse(in_common), lists.get(at).map_or(0, |list| list.package.len())));
        chosen.extend(best.into_iter().take(LIKELY).map(|(_, at)| at));
    }
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    for (place, at) in chosen.into_iter().enumerate() {
        places.entry(at).or_insert(place);
    }
    let mut taken = Vec::new();
    let mut others = Vec::new();
    for (at, list) in std::mem::take(lists).into_iter().enumerate() {
        match places.get(&at) {
            Some(place) => taken.push((*place, list)),
            None => others.push(list),
        }
    }
    *lists = others;
    taken.sort_unstable_by_key(|(place, _)| *place);
    taken.into_iter().map(|(_, list)| list).collect()
}

/// The lines of a list, found as the C library finds a byte: one by one takes most of the time.
fn lines(mut list: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (from, length) = (list, list.skip_until(b'\n').ok()?);
        let line = from.get(..length).filter(|line| !line.is_empty())?;
        Some(line.strip_suffix(b"\n").unwrap_or(line))
    })
}

/// The contents of a list, if it is a regular file of a list's size.
fn read_list(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW | NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && found.len() <= LARGEST_LIST).then_some(())?;
    // one byte more than there is: a read that does not fill it has come to the end
    let mut list = Vec::with_capacity(usize::try_from(found.len()).ok()? + 1);
    file.take(LARGEST_LIST).read_to_end(&mut list).ok()?;
    Some(list)
}

/// The package of a list's name, without its architecture. None if no package can be called so (Debian policy, section
/// 5.6.1).
fn package_name(list: &str) -> Option<&str> {
    let name = list.split(':').next()?;
    let is_usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let begins = name.starts_with(is_usual) && name.len() <= LONGEST_NAME;
    (begins && name.chars().all(|c| is_usual(c) || matches!(c, '+' | '-' | '.'))).then_some(name)
}

/// What dpkg may call a file: /lib is a link to /usr/lib by now, but packages still list what they put there.
fn names_of(file: &Path) -> [PathBuf; 2] {
    let other = match file.strip_prefix("/usr") {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => Path::new("/usr").join(file.strip_prefix("/").unwrap_or(file)),
    };
    [file.to_owned(), other]
}

/// What the package with the debug information of `package` is called: PACKAGE-dbgsym as a rule, which Debian makes for
/// each (debhelper(7)). The C library and Python have one of their own instead.
fn debug_package(package: &str) -> String {
    let python = package.strip_prefix("lib").unwrap_or(package).starts_with("python3.");
    match package {
        "libc6" => "libc6-dbg".to_owned(),
        _ if python => {
            let base = package.strip_suffix("-minimal").or(package.strip_suffix("-stdlib")).unwrap_or(package);
            format!("{base}-dbg")
        }
        _ => format!("{package}-dbgsym"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;

    #[test]
    fn packages_are_found_by_their_lists() {
        let dir = TempDir::new("packages");
        let lists = dir.path().join("var/lib/dpkg/info");
        std::fs::create_dir_all(&lists).unwrap();
        let write = |name: &str, text: &str| std::fs::write(lists.join(name), text).unwrap();
        write("libjq1:amd64.list", "/.\n/usr/lib/libjq.so.1.0.4\n/usr/lib/libjq.so.1\n");
        write("libc6:amd64.list", "/lib/x86_64-linux-gnu/libc.so.6\n");
        write("python3.11-minimal.list", "/usr/bin/python3.11\n");
        write("libjq1:amd64.md5sums", "/usr/bin/other\n");
        let files = [
            "/usr/lib/libjq.so.1.0.4",
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/bin/python3.11",
            "/usr/bin/other",
            "[vdso]",
        ];
        let found = debug_packages(dir.path(), &files.map(PathBuf::from));
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(found, [named("libjq1-dbgsym"), named("libc6-dbg"), named("python3.11-dbg"), None, None]);
        assert_eq!(debug_packages(Path::new("/does/not/exist"), &[PathBuf::from("/bin/true")]), [None]);
    }

    /// Lists that are called otherwise than the file are read, too: those of other packages are many, and some have no
    /// end of line.
    #[test]
    fn packages_are_found_whatever_they_are_called() {
        let dir = TempDir::new("packages-names");
        let lists = dir.path().join("var/lib/dpkg/info");
        std::fs::create_dir_all(&lists).unwrap();
        let write = |name: &str, text: &str| std::fs::write(lists.join(name), text).unwrap();
        for number in 0..100 {
            write(&format!("sorter{number}.list"), &format!("/usr/bin/sorter{number}\n/usr/bin/sort.other\n\n/usr"));
        }
        write("coreutils.list", "/.\n\n/bin/ls\n/usr/bin/sort");
        write("zlib1g:amd64.list", "/lib/x86_64-linux-gnu/libz.so.1.2.13\n");
        let files =
            ["/usr/bin/sort", "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13", "/usr/bin/sorter77", "/usr/bin/sorter"];
        let found = debug_packages(dir.path(), &files.map(PathBuf::from));
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(found, [named("coreutils-dbgsym"), named("zlib1g-dbgsym"), named("sorter77-dbgsym"), None]);
    }

    /// What belongs to a library is called like it, too. Of two packages with one file, the one is named that is called
    /// more like it.
    #[test]
    fn the_list_that_is_called_like_the_file_is_read_first() {
        let list = |package: &str| List { package: package.to_owned(), path: PathBuf::from(package) };
        let mut lists: Vec<List> = ["aptly", "libjq-dev", "libjq1", "libc6", "jq"].map(list).into();
        let files = ["/usr/lib/libjq.so.1.0.4", "/usr/bin/jq"].map(PathBuf::from);
        let chosen: Vec<String> = likely(&mut lists, &files).into_iter().map(|list| list.package).collect();
        assert_eq!(chosen, ["libjq1", "libjq-dev", "libc6", "jq"]);
        assert_eq!(lists.iter().map(|list| list.package.as_str()).collect::<Vec<_>>(), ["aptly"]);

        let dir = TempDir::new("packages-first");
        let folder = dir.path().join("var/lib/dpkg/info");
        std::fs::create_dir_all(&folder).unwrap();
        for package in ["aaa", "libjq1", "zzz"] {
            std::fs::write(folder.join(format!("{package}.list")), "/usr/lib/libjq.so.1.0.4\n").unwrap();
        }
        assert_eq!(debug_packages(dir.path(), &files[..1]), [Some("libjq1-dbgsym".to_owned())]);
    }

    /// Of what stands in another system's folder only lists are read, and only packages are named.
    #[test]
    fn strangers_lists_are_neither_waited_for_nor_believed() {
        let dir = TempDir::new("packages-strangers");
        let lists = dir.path().join("root/var/lib/dpkg/info");
        std::fs::create_dir_all(&lists).unwrap();
        let program = "/opt/app";
        for name in
            ["a;reboot", "x y", "-x", "Upper", "esc\u{1b}[31m", "new\nline", "\u{202e}x", ".hidden", "", ":amd64"]
        {
            std::fs::write(lists.join(format!("{name}.list")), program).unwrap();
        }
        std::fs::write(lists.join("n".repeat(200) + ".list"), program).unwrap();
        let status = std::process::Command::new("mkfifo").arg(lists.join("pipe.list")).status();
        assert!(status.unwrap().success());
        std::fs::write(dir.join("elsewhere"), program).unwrap();
        std::os::unix::fs::symlink(dir.join("elsewhere"), lists.join("link.list")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", lists.join("zero.list")).unwrap();
        std::fs::File::create(lists.join("sparse.list")).unwrap().set_len(30 << 30).unwrap();
        let wanted = [PathBuf::from(program)];
        assert_eq!(debug_packages(&dir.join("root"), &wanted), [None]);
        std::fs::write(lists.join("libapp1.0+g-x:amd64.list"), program).unwrap();
        assert_eq!(debug_packages(&dir.join("root"), &wanted), [Some("libapp1.0+g-x-dbgsym".to_owned())]);
    }

    /// A link out of the other system leads where it leads one who lives there.
    #[test]
    fn links_to_the_lists_stay_in_their_system() {
        let dir = TempDir::new("packages-links");
        let list = |folder: &str, name: &str| {
            let lists = dir.join(folder);
            std::fs::create_dir_all(&lists).unwrap();
            std::fs::write(lists.join(name), "/opt/app").unwrap();
        };
        std::fs::create_dir_all(dir.join("root/var/lib")).unwrap();
        let (target, link) = (dir.join("ours"), dir.join("root/var/lib/dpkg"));
        std::os::unix::fs::symlink(&target, link).unwrap();
        list("ours/info", "ours.list");
        let wanted = [PathBuf::from("/opt/app")];
        assert_eq!(debug_packages(&dir.join("root"), &wanted), [None]);
        list(&format!("root{}/info", target.display()), "inside.list");
        assert_eq!(debug_packages(&dir.join("root"), &wanted), [Some("inside-dbgsym".to_owned())]);
    }
}
