//! Which packages bring the debug information of a system's files: Debian's and its relatives'.

use rustc_hash::FxHashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where dpkg keeps the list of each package's files, one path a line (dpkg-query(1), deb(5)).
const LISTS: &str = "var/lib/dpkg/info";

/// For each of these files, as the system with that root folder names them, the package that would bring its debug information.
/// None where no package owns it. Reads the lists of all packages, if there is anything to look for.
pub fn debug_packages(root: &Path, files: &[&Path]) -> Vec<Option<String>> {
    let mut found: Vec<Option<String>> = vec![None; files.len()];
    let wanted: FxHashMap<PathBuf, usize> = files
        .iter()
        .enumerate()
        .filter(|(_, file)| file.is_absolute())
        .flat_map(|(index, file)| names_of(file).map(|name| (name, index)))
        .collect();
    if wanted.is_empty() {
        return found;
    }
    let wanted: FxHashMap<&[u8], usize> =
        wanted.iter().map(|(name, index)| (name.as_os_str().as_bytes(), *index)).collect();
    let Ok(entries) = std::fs::read_dir(root.join(LISTS)) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else { continue };
        let Ok(list) = std::fs::read(entry.path()) else { continue };
        for line in list.split(|byte| *byte == b'\n') {
            if let Some(found) = wanted.get(line).and_then(|index| found.get_mut(*index)) {
                *found = Some(debug_package(package));
            }
        }
    }
    found
}

/// What dpkg may call a file: /lib is a link to /usr/lib by now, but packages still list what they put there.
fn names_of(file: &Path) -> [PathBuf; 2] {
    let other = match file.strip_prefix("/usr") {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => Path::new("/usr").join(file.strip_prefix("/").unwrap_or(file)),
    };
    [file.to_owned(), other]
}

/// What the package with the debug information of `package` is called: PACKAGE-dbgsym as a rule, which Debian makes for each
/// (debhelper(7)). The C library and Python have one of their own instead.
fn debug_package(package: &str) -> String {
    let package = package.split(':').next().unwrap_or(package);
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
    use crate::elf::testing::TempDir;

    #[test]
    fn packages_are_found_by_their_lists() {
        let dir = TempDir::new("packages");
        let lists = dir.path().join(LISTS);
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
        let found = debug_packages(dir.path(), &files.map(Path::new));
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(found, [named("libjq1-dbgsym"), named("libc6-dbg"), named("python3.11-dbg"), None, None]);
        assert_eq!(debug_packages(Path::new("/does/not/exist"), &[Path::new("/bin/true")]), [None]);
    }
}
