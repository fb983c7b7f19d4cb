//! For tests: programs built by the system's compiler, and what binutils says about them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that goes away with its value.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("heaptrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes `source` beside and compiles it into `name`.
    pub(crate) fn compile(&self, compiler: &str, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let extension = if compiler == "c++" { "cc" } else { "c" };
        let file = self.join(&format!("{name}.{extension}"));
        std::fs::write(&file, source).unwrap();
        let out = self.join(name);
        let mut arguments = vec![file.to_str().unwrap(), "-o", out.to_str().unwrap()];
        arguments.extend(options);
        tool(compiler, &arguments);
        out
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program that must succeed, and returns its output.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
