//! `heaptrace view`: a saved profile in a browser.

use super::saved::{Destinations, load};
use super::{print, tell};
use crate::cli::{SavedFiles, ViewOptions};
use crate::export::{ExportOptions, Format, PprofColumns};
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A command that has not failed after this time shows the page: browsers stay, xdg-open(1) ends at once.
const SOON: Duration = Duration::from_millis(1500);
/// How often it is looked whether it has.
const POLL: Duration = Duration::from_millis(20);

/// Carries out `options` and returns the exit status.
///
/// # Errors
/// The file is no profile, the page can't be written, or there is nothing to show it with.
pub fn execute(options: &ViewOptions) -> anyhow::Result<u8> {
    if options.pprof {
        return by_pprof(&options.file);
    }
    let is_page = options.file.extension().is_some_and(|end| end == "html");
    if is_page && !options.source {
        bail!(
            "{}: --no-source is for pages that heaptrace makes now, and this file is already a page",
            options.file.display()
        );
    }
    let page = if is_page { options.file.clone() } else { written(&options.file, Format::Html, options.source)? };
    let page = std::path::absolute(&page).with_context(|| page.display().to_string())?;
    std::fs::metadata(&page).with_context(|| format!("{}: can't be read", page.display()))?;
    print(&format!("{}\n", page.display()))?;
    for words in browsers() {
        if shows(&words, &page) {
            return Ok(0);
        }
    }
    bail!("heaptrace could not start a browser ($BROWSER, xdg-open): open {} yourself", page.display())
}

/// `go tool pprof`, or pprof, as a server with a page of its own, until it is ended.
fn by_pprof(file: &Path) -> anyhow::Result<u8> {
    let is_pprof = file.to_str().is_some_and(|name| name.ends_with(".pb.gz") || name.ends_with(".pb"));
    let profile = if is_pprof { file.to_owned() } else { written(file, Format::PprofGz, false)? };
    for words in [&["go", "tool", "pprof"][..], &["pprof"]] {
        let [program, arguments @ ..] = words else { continue };
        match Command::new(program).args(arguments).arg("-http=:").arg(&profile).status() {
            Ok(status) => return Ok(u8::from(!status.success())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tell(&format!("{program}: {error}")),
        }
    }
    bail!("neither go nor pprof was found: go tool pprof -http=: {}", profile.display())
}

/// Writes the profile in `file` in another format, to where a browser in a sandbox may read it, too; with lines of
/// source files, if `source`.
fn written(file: &Path, format: Format, source: bool) -> anyhow::Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = cache.unwrap_or_else(std::env::temp_dir).join("heaptrace");
    // what it shows is nobody else's
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.with_context(|| format!("{}: the folder can't be made", folder.display()))?;
    let mut name = file.file_stem().map_or_else(|| OsString::from("profile"), OsString::from);
    name.push(if format == Format::Html { ".html" } else { ".pb.gz" });
    // a `%` in a name stands for something else
    let path = folder.join(name.to_string_lossy().replace('%', "_"));
    let files = SavedFiles { outputs: vec![path.clone()], format: None, pprof_columns: PprofColumns::All, source };
    let export = ExportOptions { source, ..ExportOptions::default() };
    Destinations::prepare(&files)?.write(&load(file)?, &export)?;
    Ok(path)
}

/// What may open a page: words of a command each, in the order in which they are tried. `$BROWSER` may name several,
/// between colons.
fn browsers() -> Vec<Vec<String>> {
    let wanted = std::env::var("BROWSER").unwrap_or_default();
    let wanted = wanted.split(':').chain(["xdg-open", "sensible-browser"]);
    let words = wanted.map(|one| one.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter(|words| !words.is_empty()).collect()
}

/// Has a command open the page; whether it does.
fn shows(words: &[String], page: &Path) -> bool {
    let [program, arguments @ ..] = words else { return false };
    let mut command = Command::new(program);
    command.args(arguments).arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::debug!("{program}: {error}");
            return false;
        }
    };
    let began = Instant::now();
    while began.elapsed() < SOON {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(POLL),
            Err(_) => return false,
        }
    }
    true
}
