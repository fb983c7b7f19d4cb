//! Processes in other namespaces or with another root folder, made with unshare(1) and chroot(1).
//!
//! At the paths of the program and its libraries there are other files outside: other builds, in which the allocating
//! functions have other names.

use super::program::Program;
use super::running::Running;
use super::{fixtures, procfs};
use std::path::{Path, PathBuf};

/// How the program is set apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Apart {
    /// User, mount and pid namespaces of its own, and a root file system of its own (pivot_root).
    Container,
    /// A mount namespace of its own, and another root folder in it (chroot).
    Chroot,
    /// A mount namespace of its own, in which something is mounted over the program's folder.
    Overmount,
}

/// Makes a root file system in $R with the system's /usr, and with the folder $H.
const MAKE_ROOT: &str = r#"
    mount -t tmpfs tmpfs "$R"
    mkdir -p "$R/$H" "$R/usr" "$R/proc" "$R/tmp" "$R/old"
    cp -a "$H/inside/." "$R/$H"
    mount --rbind /usr "$R/usr"
    for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$R/$folder"; done
"#;

const PIVOT: &str = r#"
    mount -t proc proc "$R/proc"
    cd "$R"
    pivot_root . old
    cd /
    umount -l /old
    exec "$@"
"#;

const CHROOT: &str = r#"exec chroot "$R" "$@""#;

const OVERMOUNT: &str = r#"mount --bind "$H/inside" "$H"; exec "$@""#;

impl Apart {
    fn unshare(self) -> &'static [&'static str] {
        match self {
            Self::Container => &[
                "--user",
                "--map-root-user",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child=KILL",
                "--propagation=private",
            ],
            Self::Chroot | Self::Overmount => &["--mount", "--propagation=private"],
        }
    }

    fn script(self) -> String {
        let steps: &[&str] = match self {
            Self::Container => &[MAKE_ROOT, PIVOT],
            Self::Chroot => &[MAKE_ROOT, CHROOT],
            Self::Overmount => &[OVERMOUNT],
        };
        format!("H=$1; R=$H/root; shift; {}", steps.concat())
    }
}

/// The fixture `contained` with a library that is loaded at once and one that is loaded later, to be run apart.
#[derive(Debug)]
pub struct Contained {
    /// The whole command.
    pub program: Program,
    apart: Apart,
}

impl Contained {
    /// Builds all with these flags of the linker.
    pub fn new(apart: Apart, flags: &[&str]) -> Self {
        Self::of(apart, flags, &|_| {})
    }

    /// The same; `finish` may change the files that are to be inside, in the folder that it is given.
    pub fn of(apart: Apart, flags: &[&str], finish: &dyn Fn(&Path)) -> Self {
        let program = Program::new("unshare");
        let folder = program.folder().to_owned();
        std::fs::create_dir(folder.join("root")).unwrap();
        let inside = folder.join("inside");
        std::fs::create_dir(&inside).unwrap();
        for (to, place) in [(&inside, "inside"), (&folder, "outside")] {
            let site = |name: &str| format!("-DSITE={place}_{name}");
            let copy = |from: PathBuf, name: &str| std::fs::copy(from, to.join(name)).unwrap();
            copy(fixtures::program_with("contained", &[&[site("allocate").as_str()], flags].concat()), "app");
            copy(Self::library(&[&[site("plugin").as_str()], flags].concat()), "plugin.so");
            copy(Self::library(&[&[site("late").as_str()], flags].concat()), "late.so");
        }
        // one that exists inside only
        std::fs::remove_file(folder.join("late.so")).unwrap();
        finish(&inside);
        let program = program.args(apart.unshare()).args(["sh", "-ec", &apart.script(), "sh"]).args([&folder]);
        let program = program.args(["app", "plugin.so", "late.so"].map(|name| folder.join(name)));
        Self { program, apart }
    }

    fn library(flags: &[&str]) -> PathBuf {
        fixtures::library_with("contained", &[&["-DLIBRARY"], flags].concat())
    }

    /// Starts it; returns its process id outside and the one inside.
    pub fn start(&self) -> (Running, i32, i32) {
        let mut running = self.program.start();
        let inner = running.value("ready").parse().unwrap();
        let pid = match self.apart {
            Apart::Container => *procfs::children(running.pid()).first().expect("unshare has a child"),
            Apart::Chroot | Apart::Overmount => running.pid(),
        };
        (running, pid, inner)
    }
}
