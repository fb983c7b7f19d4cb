//! Programs that are started through the dynamic linker (`/lib64/ld-linux-x86-64.so.2 ./prog`), as Nix's and Bazel's
//! wrappers do: the kernel
//! executes the linker, and names that. The program is the first word of the command line that is none of the linker's
//! options (ld.so(8);
//! of musl: the usage that its linker prints).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Options of the linkers that have a value behind them, if it is not in the same word.
const WITH_VALUE: [&str; 7] = [
    "--library-path",
    "--glibc-hwcaps-prepend",
    "--glibc-hwcaps-mask",
    "--inhibit-rpath",
    "--audit",
    "--preload",
    "--argv0",
];

/// Whether this is the path of a dynamic linker, or the name of a thread that it has named.
pub fn is_linker(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    ["ld-linux", "ld-musl", "ld-2.", "ld.so"].iter().any(|beginning| name.starts_with(beginning))
}

/// The program that its command line asks a process to load, by that and its executable. None if the executable is
/// no dynamic linker, or names
/// none.
pub fn loaded_program<'a>(executable: &Path, command: &'a [String]) -> Option<&'a Path> {
    // musl's linker is its C library, by another name
    let first = command.first().map(Path::new);
    let is_musls = executable.file_name() == Some(OsStr::new("libc.so")) && first.is_some_and(is_linker);
    if !is_linker(executable) && !is_musls {
        return None;
    }
    let mut words = command.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" => return words.next().map(Path::new),
            option if WITH_VALUE.contains(&option) => {
                words.next();
            }
            option if option.starts_with("--") => {}
            _ => return Some(Path::new(word)),
        }
    }
    None
}

/// Where that program's file is, as the maps of task `tid` name it, if it is in our root folder.
pub fn loaded_file(tid: i32, executable: &Path, command: &[String]) -> Option<PathBuf> {
    let program = loaded_program(executable, command)?;
    let from = std::fs::read_link(format!("/proc/{tid}/cwd")).ok()?;
    std::fs::canonicalize(from.join(program)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(executable: &str, command: &str) -> Option<String> {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        loaded_program(Path::new(executable), &command).map(|path| path.display().to_string())
    }

    #[test]
    fn the_first_word_that_is_no_option_is_the_program() {
        let linker = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
        let of = |command: &str| loaded(linker, &format!("/lib64/ld-linux-x86-64.so.2 {command}"));
        assert_eq!(of("./prog a b").as_deref(), Some("./prog"));
        assert_eq!(of("--library-path /a:/b --inhibit-cache --argv0 x /opt/prog --list").as_deref(), Some("/opt/prog"));
        assert_eq!(of("--preload lib.so prog").as_deref(), Some("prog"));
        assert_eq!(of("--library-path"), None);
        assert_eq!(
            loaded("/lib/libc.so", "/lib/ld-musl-x86_64.so.1 --library-path=/x -- ./prog").as_deref(),
            Some("./prog")
        );
        assert_eq!(loaded("/bin/cat", "/bin/cat ./prog"), None);
        assert_eq!(loaded("/lib/libc.so", "ldd ./prog"), None);
    }
}
