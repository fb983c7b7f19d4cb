//! Source files, as far as they are here and may be shown.
//!
//! A path comes from the debug information of the program, or from a profile that somebody else has written: only what
//! has a name as source code has, and none as secrets have, is read, and only what its [readers](Readers) may read,
//! too.

mod readers;

pub use readers::Readers;
use rustc_hash::FxHashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

/// A larger file is no source that a person wrote, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// How names of source files end.
const ENDINGS: &str = "c cc cpp cxx c++ h hh hpp hxx h++ ipp inl tcc rs go zig d swift m mm f f90 f95 py pyx java kt cu S s asm y l ada adb ads nim cr v ml hs";

/// Names with these are taken for secrets, whatever their case.
const SECRET: [&str; 4] = ["secret", "credential", "password", "passwd"];

/// So are names of which one word is one of these.
const SECRET_WORDS: [&str; 7] = ["key", "keys", "apikey", "privatekey", "token", "tokens", "env"];

/// Opening a pipe that nobody writes to does not wait (`O_NONBLOCK` of open(2)).
const NONBLOCK: i32 = 0o4000;

/// Folders that begin with a dot and hold sources of other people.
const KNOWN_HIDDEN: [&str; 4] = [".cargo", ".rustup", ".conan", ".conan2"];

/// So many files are read for single lines.
const MAX_FILES: usize = 500;

/// So much text is kept of them, in bytes.
const MAX_TEXT: usize = 32 << 20;

/// Lines of source files, each of which is read once.
#[derive(Debug, Default)]
pub struct Lines {
    /// What they hold; None: it may not be read.
    texts: FxHashMap<(String, Readers), Option<Text>>,
    /// When the modules' files were changed last, and who can have written their debug information.
    built: FxHashMap<PathBuf, (Option<SystemTime>, Readers)>,
    /// So much text is kept.
    kept: usize,
}

#[derive(Debug)]
struct Text {
    text: String,
    /// Where its lines begin.
    starts: Vec<u32>,
    modified: SystemTime,
}

impl Text {
    fn of(path: &Path, readers: &Readers) -> io::Result<Self> {
        let (text, modified) = text_of(path, readers)?;
        let ends = text.bytes().zip(1u32..).filter(|(byte, _)| *byte == b'\n').map(|(_, end)| end);
        Ok(Self { starts: std::iter::once(0).chain(ends).collect(), text, modified })
    }

    fn line(&self, number: u32) -> Option<&str> {
        let start = *self.starts.get(usize::try_from(number).ok()?.checked_sub(1)?)?;
        self.text.get(usize::try_from(start).ok()?..)?.lines().next()
    }
}

impl Lines {
    /// A line of a file that module `module` was made of, if that is not younger than the module. `users`: those of the
    /// process.
    pub fn line(&mut self, module: &Path, file: &str, line: u32, users: &Readers) -> Option<String> {
        let of = |module: &PathBuf| {
            (std::fs::metadata(module).and_then(|of| of.modified()).ok(), Readers::default().of_module(module))
        };
        let (built, readers) = self.built.entry(module.to_owned()).or_insert_with_key(of);
        let mut readers = readers.clone();
        readers.join(&if module.as_os_str().is_empty() { users.of_module(module) } else { users.clone() });
        let key = (file.to_owned(), readers);
        if !self.texts.contains_key(&key) {
            if self.texts.len() >= MAX_FILES || self.kept >= MAX_TEXT {
                return None;
            }
            let text = Text::of(Path::new(file), &key.1).ok();
            self.kept += text.as_ref().map_or(0, |text| text.text.len());
            self.texts.insert(key.clone(), text);
        }
        let text = self.texts.get(&key)?.as_ref()?;
        if doubt(*built, text.modified).is_some() {
            return None;
        }
        text.line(line).map(str::to_owned)
    }
}

/// Why the text may not be what ran: `built` is when the program's file was, `modified` when that of the source.
pub fn doubt(built: Option<SystemTime>, modified: SystemTime) -> Option<&'static str> {
    match built {
        Some(built) if modified <= built => None,
        Some(_) => Some("changed since the program was built: its lines may have moved"),
        None => Some("the program's file is not here to compare with: this may be another version"),
    }
}

/// The text of a source file that may be shown, and when it was changed last.
///
/// # Errors
/// It is not here, can't be read, or must not be.
pub fn text_of(path: &Path, readers: &Readers) -> io::Result<(String, SystemTime)> {
    let file = opened(path, readers)?;
    let modified = file.metadata()?.modified()?;
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text)?;
    Ok((text, modified))
}

/// Opens a source file that may be shown.
///
/// # Errors
/// It is not here, can't be read by heaptrace or one of `readers`, or must not be.
pub fn opened(path: &Path, readers: &Readers) -> io::Result<File> {
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let real = path.canonicalize()?;
    if !path.is_absolute() || !may_be_shown(path) || !may_be_shown(&real) {
        return Err(refused());
    }
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&real)?;
    let about = file.metadata()?;
    // Folders may be somebody else's, who has put a link there meanwhile: what counts is what was opened.
    let is_it = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))? == real;
    let may = is_it && about.is_file() && about.len() <= LARGEST_FILE && readers.may_read(&file, &real);
    if may { Ok(file) } else { Err(refused()) }
}

/// Whether a name is that of source code, and of nothing secret.
fn may_be_shown(path: &Path) -> bool {
    let is_source = path
        .extension()
        .and_then(|ending| ending.to_str())
        .is_some_and(|ending| ENDINGS.split(' ').any(|known| known.eq_ignore_ascii_case(ending)));
    let may = |name: &str| {
        let lower = name.to_lowercase();
        let is_hidden = name.starts_with('.') && !KNOWN_HIDDEN.contains(&name);
        let is_secret = SECRET.iter().any(|secret| lower.contains(secret));
        !is_hidden && !is_secret && !words(name).iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
    };
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    is_source && parts.map(|part| part.as_os_str().to_str()).all(|name| name.is_some_and(may))
}

/// The words of a name, in small letters: `HostKey`, `host_key` and `host-key.c` have the same first ones.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in name.chars() {
        if !letter.is_alphabetic() || before.is_lowercase() && letter.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphabetic()) {
            word.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_no_source_or_looks_secret_is_not_shown() {
        for path in [
            "/src/main.c",
            "/a/b/lib.rs",
            "/root/.cargo/registry/src/x-1.0/src/lib.rs",
            "/a/x.y/B.CPP",
            "/home/monkey/keyboard.c",
            "/a/tokenizer.cc",
        ] {
            assert!(may_be_shown(Path::new(path)), "{path}");
        }
        for path in [
            "/etc/passwd",
            "/src/secrets.c",
            "/src/my-Secret/main.c",
            "/src/.env.c",
            "/src/id_key.rs",
            "/src/HostKey.java",
            "/home/a/.ssh/x.c",
            "/src/Credentials.java",
            "/src/password.py",
            "/src/server.pem",
            "/src/tokens/a.c",
            "/src/Makefile",
            "/src/a.txt",
        ] {
            assert!(!may_be_shown(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn younger_sources_are_doubted() {
        let early = SystemTime::UNIX_EPOCH;
        let late = early + Duration::from_secs(1);
        assert!(doubt(Some(late), early).is_none() && doubt(Some(late), late).is_none());
        assert!(doubt(Some(early), late).unwrap().contains("changed since"));
        assert!(doubt(None, early).unwrap().contains("not here"));
    }
}
