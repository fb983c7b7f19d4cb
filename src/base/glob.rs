//! Patterns of names, in which `*` stands for any characters and `?` for one; and which executables they choose.

use std::path::Path;

/// A pattern of the whole name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob(Vec<char>);

impl Glob {
    /// From its text.
    pub fn new(text: &str) -> Self {
        Self(text.chars().collect())
    }

    /// Whether `name` is what it means.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut in_name) = (0, 0);
        // where to go on if what follows the last `*` does not fit: one character of the name later
        let mut retry: Option<(usize, usize)> = None;
        loop {
            match (self.0.get(at), name.get(in_name)) {
                (None, None) => return true,
                (Some('*'), _) => {
                    retry = Some((at + 1, in_name));
                    at += 1;
                }
                (Some(wanted), Some(found)) if *wanted == '?' || wanted == found => {
                    at += 1;
                    in_name += 1;
                }
                _ => match &mut retry {
                    Some((after, from)) if *from < name.len() => {
                        *from += 1;
                        (at, in_name) = (*after, *from);
                    }
                    _ => return false,
                },
            }
        }
    }
}

/// Patterns of executables: of the whole path if they have a slash, else of the basename.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Only these, if there are any.
    pub only: Vec<String>,
    /// Not these.
    pub skip: Vec<String>,
}

impl Selection {
    /// Whether an executable is to be traced. `name` is what it was started as, which may be a link's name.
    pub fn takes(&self, executable: &Path, name: &str) -> bool {
        let is = |pattern: &String| matches(pattern, executable, name);
        (self.only.is_empty() || self.only.iter().any(is)) && !self.skip.iter().any(is)
    }
}

fn matches(pattern: &str, executable: &Path, name: &str) -> bool {
    let glob = Glob::new(pattern);
    if pattern.contains('/') {
        return glob.matches(&executable.to_string_lossy());
    }
    let base = executable.file_name().unwrap_or_default().to_string_lossy();
    glob.matches(&base) || glob.matches(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_whole_name_with_wildcards() {
        let matches = |pattern: &str, name: &str| Glob::new(pattern).matches(name);
        for (pattern, name) in
            [("malloc", "malloc"), ("m*", "malloc"), ("*", ""), ("m?ll*c", "malloc"), ("*o*o*", "xoyoz"), ("**a", "a")]
        {
            assert!(matches(pattern, name), "{pattern} on {name}");
        }
        for (pattern, name) in
            [("alloc", "malloc"), ("malloc", "mallocx"), ("?", ""), ("*a", "ab"), ("a?", "a"), ("", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} on {name}");
        }
        // backtracking over the last star only: no blow-up
        assert!(!matches(&"a*".repeat(60), &"b".repeat(10_000)));
        assert!(!matches(&format!("{}b", "*a".repeat(60)), &"a".repeat(2_000)));
    }

    fn takes(only: &[&str], skip: &[&str], executable: &str, name: &str) -> bool {
        let texts = |patterns: &[&str]| patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Selection { only: texts(only), skip: texts(skip) }.takes(Path::new(executable), name)
    }

    #[test]
    fn patterns_choose_by_basename_or_path() {
        assert!(takes(&[], &[], "/usr/bin/gcc", "gcc"));
        assert!(takes(&["cc1*"], &[], "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "cc1plus"));
        assert!(!takes(&["cc1*"], &[], "/usr/bin/as", "as"));
        assert!(takes(&["as", "ld"], &["*/local/*"], "/usr/bin/ld", "ld"));
        assert!(!takes(&["as", "ld"], &["*/local/*"], "/usr/local/bin/ld", "ld"));
        assert!(!takes(&[], &["sh"], "/usr/bin/dash", "sh"), "a link counts by its own name, too");
        assert!(!takes(&[], &["dash"], "/usr/bin/dash", "sh"));
    }
}
