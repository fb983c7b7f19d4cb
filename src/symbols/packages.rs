//! Which packages bring the debug information of a system's files: Debian's and its relatives'.
//!
//! The system may be a container's, who may have put anything there. What is no list is passed over, and what is made of a list's
//! name is a package's name: people paste it into a shell.

use super::files::{NOFOLLOW, NONBLOCK};
use crate::paths::below;
use rustc_hash::FxHashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where dpkg keeps the list of each package's files, one path a line (dpkg-query(1), deb(5)).
const LISTS: &str = "/var/lib/dpkg/info";

/// The largest list that is read, in bytes. Of Debian 12's, the largest has less than 3 MB.
const LARGEST_LIST: u64 = 16 << 20;

/// How many bytes of lists are read. A system of 5,000 packages has some 50 MB.
const LARGEST_SUM: usize = 512 << 20;

/// The longest package name.
const LONGEST_NAME: usize = 128;

/// For each of these files, as the system with that root folder names them, the package that would bring its debug information.
/// None where no package owns it. Reads the lists of all packages, if there is anything to look for.
pub(super) fn debug_packages(root: &Path, files: &[PathBuf]) -> Vec<Option<String>> {
    let mut found: Vec<Option<String>> = vec![None; files.len()];
    let mut wanted: FxHashMap<Vec<u8>, Vec<usize>> = FxHashMap::default();
    for (index, file) in files.iter().enumerate().filter(|(_, file)| file.is_absolute()) {
        for name in names_of(file) {
            wanted.entry(name.into_os_string().into_vec()).or_default().push(index);
        }
    }
    if wanted.is_empty() {
        return found;
    }
    let Ok(entries) = std::fs::read_dir(below(root, Path::new(LISTS))) else { return found };
    let mut budget = LARGEST_SUM;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")).and_then(package_name) else {
            continue;
        };
        let Some(list) = read_list(&entry.path()) else { continue };
        let Some(left) = budget.checked_sub(list.len()) else { break };
        budget = left;
        for line in list.split(|byte| *byte == b'\n') {
            for index in wanted.get(line).into_iter().flatten() {
                if let Some(found) = found.get_mut(*index) {
                    *found = Some(debug_package(package));
                }
            }
        }
    }
    found
}

/// The contents of a list, if it is a regular file of a list's size.
fn read_list(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW | NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    let mut list = Vec::new();
    (found.is_file() && found.len() <= LARGEST_LIST).then_some(())?;
    file.take(LARGEST_LIST).read_to_end(&mut list).ok()?;
    Some(list)
}

/// The package of a list's name, without its architecture. None if no package can be called so (Debian policy, section 5.6.1).
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

/// What the package with the debug information of `package` is called: PACKAGE-dbgsym as a rule, which Debian makes for each
/// (debhelper(7)). The C library and Python have one of their own instead.
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
    use crate::elf::testing::TempDir;

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
