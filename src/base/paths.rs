//! Paths of another file tree: that of a process in a container, or a copy of one (`--sysroot`).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// So many symbolic links are followed in one path, as by the kernel (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// Where the file is that is called `path` in the tree below the folder `root`. Links and `..` are followed as one who
/// has `root` for its root folder would: none leads out of it, where a file of the same name may lie. Whether there is
/// a file is not told.
pub fn below(root: &Path, path: &Path) -> PathBuf {
    if root == Path::new("/") {
        // the kernel does the same
        return root.join(path);
    }
    let mut links = 0;
    let mut found = root.to_owned();
    let mut depth = 0u32;
    let mut rest: VecDeque<OsString> = names(path).collect();
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            if depth > 0 {
                found.pop();
                depth -= 1;
            }
            continue;
        }
        found.push(name);
        depth += 1;
        let Ok(target) = std::fs::read_link(&found) else { continue };
        links += 1;
        if links > MAX_LINKS {
            break;
        }
        if target.is_absolute() {
            root.clone_into(&mut found);
            depth = 0;
        } else {
            found.pop();
            depth -= 1;
        }
        for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(name);
        }
    }
    found
}

/// The names of a path, with `..` among them.
fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_where_they_lead_one_who_lives_there() {
        let dir = TempDir::new("paths");
        let root = dir.join("root");
        for folder in ["usr/lib", "opt/app/deep", "etc"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("usr/lib/real.so"), "").unwrap();
        fs::write(dir.join("outside.so"), "").unwrap();
        for (target, link) in [
            ("usr/lib", "lib"),
            ("/usr/lib", "lib64"),
            ("/lib/real.so", "opt/app/absolute.so"),
            ("../../lib64/real.so", "opt/app/relative.so"),
            ("../../../../../../lib/real.so", "opt/app/beyond.so"),
            ("/opt/../opt/app/absolute.so", "etc/twice.so"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let real = root.join("usr/lib/real.so");
        for path in [
            "/usr/lib/real.so",
            "/lib/real.so",
            "/lib64/real.so",
            "/opt/app/absolute.so",
            "/opt/app/relative.so",
            "/opt/app/beyond.so",
            "/etc/twice.so",
            "/../lib/./real.so",
            "opt/app/deep/../absolute.so",
        ] {
            assert_eq!(below(&root, Path::new(path)), real, "{path}");
        }
        assert_eq!(below(&root, Path::new("/../outside.so")), root.join("outside.so"));
        assert_eq!(below(&root, Path::new("/none/../at/all")), root.join("at/all"));
        symlink("/etc/loop", root.join("etc/loop")).unwrap();
        assert!(below(&root, Path::new("/etc/loop")).starts_with(&root));
        assert_eq!(below(Path::new("/"), Path::new("/lib/x.so")), Path::new("/lib/x.so"));
    }
}
