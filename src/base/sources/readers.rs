//! Whose rights a source file is read with.
//!
//! Debug information is written by whoever has built the program, and names any file. heaptrace may be root, or another
//! user than the program's: what it shows must be
//! what they may read who can have put the name there.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const ROOT: u32 = 0;

/// The user of whom nothing is known (the kernel's overflow id), who has the rights that all have.
const NOBODY: u32 = 65534;

/// Bits of a file's mode, of the owner: the others' are six lower.
const READ: u32 = 0o400;
const SEARCH: u32 = 0o100;
const OTHERS: u32 = 6;

/// Users all of whom must be able to read a file that is shown.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Readers {
    users: BTreeSet<u32>,
    /// Whether nothing says who may have named the files of scripts.
    is_unknown: bool,
}

impl Readers {
    /// Those of a process that belonged to `users`. `is_unknown`: there may have been another one, which nothing says.
    pub fn of_process(users: &BTreeSet<u32>, is_unknown: bool) -> Self {
        Self { users: users.clone(), is_unknown }
    }

    /// Another one of them.
    pub fn add(&mut self, user: u32) {
        self.users.insert(user);
    }

    /// All of both.
    pub fn join(&mut self, other: &Self) {
        self.users.extend(&other.users);
        self.is_unknown |= other.is_unknown;
    }

    /// These, and who can have written the debug information of module `module`. Lines of scripts have none: only the
    /// process itself names their files.
    #[must_use]
    pub fn of_module(&self, module: &Path) -> Self {
        let mut readers = self.clone();
        if module.as_os_str().is_empty() {
            if self.is_unknown && own_user() == Some(ROOT) {
                readers.add(NOBODY);
            }
            return readers;
        }
        match std::fs::symlink_metadata(module) {
            // A folder on the way may have been replaced by a link since the file was mapped.
            Ok(about) if module.canonicalize().is_ok_and(|real| real == module) => readers.add(about.uid()),
            // Of another machine, or removed: to somebody without others' rights that does no harm.
            _ if own_user() != Some(ROOT) => {}
            _ => readers.add(NOBODY),
        }
        readers
    }

    /// Whether all of them may read the file that was opened at `real`, a path without links.
    pub(super) fn may_read(&self, file: &File, real: &Path) -> bool {
        let own = own_user();
        self.users.iter().filter(|user| **user != ROOT && Some(**user) != own).all(|user| {
            let may_search = |folder: &Path| std::fs::metadata(folder).is_ok_and(|about| has(*user, &about, SEARCH));
            file.metadata().is_ok_and(|about| has(*user, &about, READ)) && real.ancestors().skip(1).all(may_search)
        })
    }
}

/// The user that heaptrace acts as.
fn own_user() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|about| about.uid())
}

/// Whether a user has a right as the owner, or as all others have it. Rights of groups, and access lists, are left out:
/// they may only be more.
fn has(user: u32, about: &Metadata, right: u32) -> bool {
    allows(about.mode(), about.uid() == user, right)
}

const fn allows(mode: u32, is_owner: bool, right: u32) -> bool {
    // What an owner is denied others may not make good: the kernel looks at one class only.
    let right = if is_owner { right } else { right >> OTHERS };
    mode & right != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_one_class_of_rights_counts() {
        for (mode, is_owner, expected) in [
            (0o600, true, true),
            (0o600, false, false),
            (0o640, false, false),
            (0o644, false, true),
            (0o044, true, false),
            (0o004, false, true),
        ] {
            assert_eq!(allows(mode, is_owner, READ), expected, "{mode:o} {is_owner}");
        }
        assert!(allows(0o711, false, SEARCH) && !allows(0o744, false, SEARCH));
    }

    #[test]
    fn a_file_that_one_of_them_may_not_read_is_refused_and_so_is_one_in_a_closed_folder() {
        let folder = TempDir::new("readers");
        let real = folder.path().canonicalize().unwrap();
        std::fs::set_permissions(&real, Permissions::from_mode(0o755)).unwrap();
        let path = real.join("a.c");
        std::fs::write(&path, "int a;").unwrap();
        let file = File::open(&path).unwrap();
        let with = |users: &[u32]| {
            let mut readers = Readers::default();
            users.iter().for_each(|user| readers.add(*user));
            readers.may_read(&file, &path)
        };
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(&path, 0o644);
        assert!(with(&[]) && with(&[ROOT]) && with(&[NOBODY]) && with(&[NOBODY, ROOT]));
        set(&path, 0o640);
        assert!(with(&[]) && with(&[ROOT]) && !with(&[NOBODY]) && !with(&[ROOT, NOBODY]));
        set(&path, 0o644);
        set(&real, 0o750);
        assert!(with(&[ROOT]) && !with(&[NOBODY]));
    }

    #[test]
    fn a_module_that_is_reached_by_a_link_is_nobody_s_word() {
        let folder = TempDir::new("readers-module");
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("there")).unwrap();
        std::fs::write(real.join("there/program"), "").unwrap();
        std::os::unix::fs::symlink(real.join("there"), real.join("way")).unwrap();
        let own = own_user().unwrap();
        let readers =
            |path: &str| Readers::default().of_module(&real.join(path)).users.into_iter().collect::<Vec<u32>>();
        assert_eq!(readers("there/program"), [own]);
        let strangers: &[u32] = if own == ROOT { &[NOBODY] } else { &[] };
        assert_eq!((readers("way/program"), readers("none")), (strangers.to_vec(), strangers.to_vec()));
        assert_eq!(Readers::default().of_module(Path::new("")), Readers::default(), "a script");
        let saved = Readers::of_process(&BTreeSet::new(), true).of_module(Path::new(""));
        assert_eq!(saved.users.contains(&NOBODY), own_user() == Some(ROOT), "a script of nobody knows whom");
    }
}
