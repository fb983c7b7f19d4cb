//! Scratch folders that vanish with the test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A fresh folder, removed on drop (kept when the test panics, for a look at what it wrote).
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates one. All paths have the same length, so that a program whose allocations depend on the length of its
    /// arguments or environment behaves the same in each.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("runs").join(format!("{:08}-{number:06}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates a second one beside it, of the same name with an ending.
    pub fn beside(&self, ending: &str) -> Self {
        let mut path = self.0.as_os_str().to_owned();
        path.push(ending);
        let path = PathBuf::from(path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
