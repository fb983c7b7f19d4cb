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
    /// The same with an overlayfs, as container engines have it.
    Overlay,
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

const OVERLAY: &str = r#"
    mount -t overlay overlay -o "lowerdir=$H/inside:$H/root" "$H"
    exec "$@"
"#;

/// What unshare(1) is told for a user, mounts and processes of its own.
pub const UNSHARE: [&str; 7] =
    ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation=private"];

impl Apart {
    /// All.
    pub const ALL: [Self; 4] = [Self::Container, Self::Chroot, Self::Overmount, Self::Overlay];

    fn unshare(self) -> &'static [&'static str] {
        match self {
            Self::Container => &UNSHARE,
            Self::Chroot | Self::Overmount | Self::Overlay => &["--mount", "--propagation=private"],
        }
    }

    fn script(self) -> String {
        let steps: &[&str] = match self {
            Self::Container => &[MAKE_ROOT, PIVOT],
            Self::Chroot => &[MAKE_ROOT, CHROOT],
            Self::Overmount => &[OVERMOUNT],
            Self::Overlay => &[OVERLAY],
        };
        format!("H=$1; R=$H/root; shift; {}", steps.concat())
    }
}

/// A command that runs `program` apart, with the files that `finish` puts into the folder that it is given. They are in
/// the folder of the program of the result then.
pub fn apart(apart: Apart, finish: &dyn Fn(&Path), command: &[&str]) -> Program {
    let program = Program::new("unshare");
    let folder = program.folder().to_owned();
    for name in ["root", "inside"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    finish(&folder.join("inside"));
    let inside = command.iter().map(|word| match word.strip_prefix("./") {
        Some(name) => folder.join(name).into_os_string(),
        None => word.into(),
    });
    program.args(apart.unshare()).args(["sh", "-ec", &apart.script(), "sh"]).args([&folder]).args(inside)
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
        let build = |to: &Path, place: &str| {
            let site = |name: &str| format!("-DSITE={place}_{name}");
            let copy = |from: PathBuf, name: &str| crate::support::copy_file(from, to.join(name)).unwrap();
            copy(fixtures::program_with("contained", &[&[site("allocate").as_str()], flags].concat()), "app");
            copy(Self::library(&[&[site("plugin").as_str()], flags].concat()), "plugin.so");
            copy(Self::library(&[&[site("late").as_str()], flags].concat()), "late.so");
        };
        let inside = |folder: &Path| {
            build(folder, "inside");
            finish(folder);
        };
        let program = self::apart(apart, &inside, &["./app", "./plugin.so", "./late.so"]);
        build(program.folder(), "outside");
        // one that exists inside only
        std::fs::remove_file(program.folder().join("late.so")).unwrap();
        Self { program, apart }
    }

    fn library(flags: &[&str]) -> PathBuf {
        fixtures::library_with("contained", &[&["-DLIBRARY"], flags].concat())
    }

    /// Starts it; returns its process id outside and the one inside.
    pub fn start(&self) -> (Running, i32, i32) {
        start(&self.program, self.apart)
    }
}

/// Starts a program apart, which says `ready ID`; returns its process id outside and the one inside.
pub fn start(program: &Program, apart: Apart) -> (Running, i32, i32) {
    let mut running = program.start();
    let inner = running.value("ready").parse().unwrap();
    let pid = match apart {
        Apart::Container => *procfs::children(running.pid()).first().unwrap(),
        Apart::Chroot | Apart::Overmount | Apart::Overlay => running.pid(),
    };
    (running, pid, inner)
}
