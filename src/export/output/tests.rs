use super::*;
use crate::export::tests::sample_profile;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::PathBuf;

/// A directory for one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("heaptrace-output-{}-{test}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("readable");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Stands in for the operating system: opens files as they are, and lets nobody wait for long.
#[derive(Default)]
struct Channels {
    /// How often opening finds no reader.
    without_reader: usize,
    /// What was waited for, until patience ended.
    waited: Vec<(PathBuf, Pause)>,
    patience: usize,
}

impl DirectOutputs for Channels {
    fn open(&mut self, path: &Path) -> io::Result<Option<File>> {
        if self.without_reader > 0 {
            self.without_reader -= 1;
            return Ok(None);
        }
        OpenOptions::new().append(true).open(path).map(Some)
    }

    fn wait(&mut self, path: &Path, pause: Pause) -> io::Result<()> {
        self.waited.push((path.to_owned(), pause));
        if self.waited.len() > self.patience { Err(io::Error::other("patience has ended")) } else { Ok(()) }
    }
}

/// The user that runs the tests.
fn own() -> Owners {
    Owners { user: fs::metadata("/proc/self").expect("there").uid(), outside: None }
}

fn prepare(paths: &[PathBuf]) -> Result<Outputs, OutputError> {
    Outputs::prepare(paths, None, own())
}

fn refusal(paths: &[PathBuf]) -> String {
    prepare(paths).expect_err("refused").to_string()
}

#[test]
fn outputs_are_written_under_their_names_and_leave_nothing_else() {
    let dir = Dir::new("names");
    let outputs = prepare(&[dir.path("%n.%p.folded"), dir.path("r.json")]).expect("good outputs");
    assert_eq!(dir.names(), Vec::<String>::new(), "checking leaves no file");
    let outcomes = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    assert_eq!(dir.names(), ["app.4242.folded", "r.json"]);
    for outcome in outcomes {
        let written = fs::metadata(&outcome.path).expect("there").len();
        assert_eq!(outcome.result.expect("written"), written);
    }
}

#[test]
fn problems_are_found_before_the_start() {
    let dir = Dir::new("refused");
    fs::create_dir(dir.path("sub.svg")).expect("created");
    assert!(refusal(&[PathBuf::from("-")]).contains("stdout"));
    assert!(refusal(&[dir.path("a.xyz")]).contains(".pb.gz .pb .svg .html .folded .json .json.gz .txt"));
    assert!(refusal(&[dir.path("no/a.svg")]).contains("No such file"));
    assert!(refusal(&[dir.path("%p/a.svg")]).contains("the file's own name only"));
    assert!(refusal(&[dir.path("a%q.svg")]).contains("`%q` is not a pattern"));
    assert!(refusal(&[dir.path("sub.svg")]).contains("this is a directory; name a file in it"));
    assert!(refusal(&[dir.path("sub.svg/")]).contains("this is a directory"));
    assert!(refusal(&[PathBuf::from("/")]).contains("this is a directory"));
    assert!(refusal(&[dir.path("a.svg/")]).contains("does not name a file"));
    assert!(
        refusal(&[dir.path("a.svg"), dir.path("../").join(dir.0.file_name().expect("named")).join("a.svg")])
            .contains("twice")
    );
    assert!(refusal(&[dir.path("%p.svg"), dir.path("%p.svg")]).contains("twice"));
    assert!(refusal(&[PathBuf::from("/proc/self/fd/a.svg")]).contains("No such file"));
}

#[test]
fn format_overrides_the_name() {
    let dir = Dir::new("override");
    let outputs = Outputs::prepare(&[dir.path("data")], Some(Format::Folded), own()).expect("good");
    let outcomes = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    assert!(outcomes.iter().all(|outcome| outcome.format == Format::Folded && outcome.result.is_ok()));
}

#[test]
fn a_failed_write_leaves_the_older_file_and_no_other() {
    let dir = Dir::new("failed");
    fs::write(dir.path("a.txt"), "old").expect("written");
    let result = write_file(&dir.path("a.txt"), own(), false, |out| {
        out.write_all(&[b'x'; 1 << 20])?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    });
    assert!(result.is_err());
    assert_eq!(fs::read(dir.path("a.txt")).expect("there"), b"old");
    assert_eq!(dir.names(), ["a.txt"]);
}

#[test]
fn one_full_device_does_not_lose_the_others() {
    let dir = Dir::new("full");
    symlink("/dev/full", dir.path("a.json")).expect("linked");
    let outputs = prepare(&[dir.path("a.json"), dir.path("b.json")]).expect("good outputs");
    let outcomes = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    let results: Vec<String> = outcomes
        .iter()
        .map(|outcome| outcome.result.as_ref().map_or_else(ToString::to_string, |_| "ok".into()))
        .collect();
    assert!(results[0].contains("No space left on device"), "{results:?}");
    assert_eq!(results[1], "ok");
    assert!(fs::symlink_metadata(dir.path("a.json")).expect("there").is_symlink(), "the device is not replaced");
}

#[test]
fn the_file_behind_a_link_is_replaced_not_the_link() {
    let dir = Dir::new("link");
    symlink("b.txt", dir.path("a.txt")).expect("linked");
    // first a link to nothing yet, then one to an older file
    for text in ["one", "two"] {
        write_file(&dir.path("a.txt"), own(), false, |out| out.write_all(text.as_bytes())).expect("written");
        assert_eq!(fs::read_to_string(dir.path("b.txt")).expect("there"), text);
    }
    assert_eq!(dir.names(), ["a.txt", "b.txt"]);
    symlink("loop", dir.path("loop")).expect("linked");
    assert!(
        write_file(&dir.path("loop"), own(), false, |_| Ok(())).expect_err("endless").to_string().contains("links")
    );
}

#[test]
fn an_open_file_is_appended_to() {
    let dir = Dir::new("open");
    let file = File::create(dir.path("log")).expect("created");
    (&file).write_all(b"before ").expect("written");
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    let path = format!("/dev/fd/{descriptor}");
    let mut channels = Channels::default();
    write_anywhere(Path::new(&path), own(), BY_UMASK, |out| out.write_all(b"after"), &mut channels).expect("written");
    assert_eq!(fs::read(dir.path("log")).expect("there"), b"before after");
}

#[test]
fn new_files_have_the_permissions_that_the_umask_leaves() {
    let dir = Dir::new("mode");
    File::create(dir.path("plain")).expect("created");
    write_file(&dir.path("ours"), own(), false, |_| Ok(())).expect("written");
    let mode = |name: &str| fs::metadata(dir.path(name)).expect("there").permissions().mode();
    assert_eq!(mode("ours"), mode("plain"));
}

#[test]
fn names_that_become_one_are_written_once() {
    let dir = Dir::new("become");
    let outputs = prepare(&[dir.path("%n.folded"), dir.path("app.folded")]).expect("not known before");
    let outcomes = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    let results: Vec<bool> = outcomes.iter().map(|outcome| outcome.result.is_ok()).collect();
    assert_eq!(results, [true, false]);
}

#[test]
fn files_that_only_a_check_can_fill_are_refused_elsewhere() {
    let dir = Dir::new("verdict");
    let prepared = |name: &str| prepare(&[dir.path("a.json"), dir.path(name)]).expect("good");
    for name in ["a.junit.xml", "a.sarif", "a.md"] {
        let error = prepared(name).filled_from(Source::Trace).expect_err(name).to_string();
        assert!(error.contains("use `heaptrace check`"), "{error}");
    }
    prepared("a.txt").filled_from(Source::Trace).expect("good");
    prepared("a.heaptimeline").filled_from(Source::Trace).expect("good");
    for source in [Source::Run, Source::Check] {
        let error = prepared("a.heaptimeline").filled_from(source).expect_err("of a run").to_string();
        assert!(error.contains("use `heaptrace convert`"), "{error}");
    }
}

#[test]
fn a_device_needs_a_format_and_is_told_apart_from_a_wrong_name() {
    let refused = refusal(&[PathBuf::from("/dev/null")]);
    let begin = "/dev/null: the name of a pipe or device does not end in a format; choose one with --format: pb.gz pb ";
    assert!(refused.starts_with(begin), "{refused}");
    assert!(Outputs::prepare(&[PathBuf::from("/dev/null")], Some(Format::Txt), own()).is_ok());
}

#[test]
fn a_socket_is_refused_before_the_start() {
    let dir = Dir::new("socket");
    let _listener = std::os::unix::net::UnixListener::bind(dir.path("s.json")).expect("bound");
    assert!(refusal(&[dir.path("s.json")]).contains("this is a socket"));
}

/// What has to be waited for is written last, and lost alone, but reported in the order in which it was named.
#[test]
fn an_output_without_a_reader_does_not_delay_the_others() {
    let dir = Dir::new("waiting");
    // any device does: whether it is ready is the stand-in's affair
    symlink("/dev/null", dir.path("a.json")).expect("linked");
    let outputs = prepare(&[dir.path("a.json"), dir.path("b.json")]).expect("good outputs");
    let write = |channels: &mut Channels| {
        let outcomes = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), channels);
        outcomes.into_iter().map(|outcome| (outcome.path, outcome.result.map_err(|error| error.to_string()))).collect()
    };
    let mut channels = Channels { without_reader: 3, patience: 3, ..Channels::default() };
    let written: Vec<(PathBuf, Result<u64, String>)> = write(&mut channels);
    assert_eq!(channels.waited, vec![(dir.path("a.json").read_link().expect("a link"), Pause::NoReader); 3]);
    assert!(written.iter().all(|(_, result)| result.is_ok()), "{written:?}");

    fs::remove_file(dir.path("b.json")).expect("removed");
    let mut channels = Channels { without_reader: 3, patience: 2, ..Channels::default() };
    let lost: Vec<(PathBuf, Result<u64, String>)> = write(&mut channels);
    assert_eq!(lost[0], (dir.path("a.json"), Err("patience has ended".to_owned())));
    assert_eq!(lost[1].0, dir.path("b.json"));
    assert!(lost[1].1.is_ok() && dir.path("b.json").exists());
}

const STRANGER: u32 = 65533;

/// A folder as /tmp is, if files can be given away here: only root can.
fn shared(test: &str) -> Option<Dir> {
    let dir = Dir::new(test);
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o1777)).expect("ours");
    (own().user == 0).then_some(dir)
}

/// A stranger's link under the name of an output is refused before the start, and replaced, not followed, if it comes
/// later.
#[test]
fn a_link_of_another_user_is_never_followed() {
    let Some(dir) = shared("planted") else { return };
    let home = Dir::new("planted-home");
    let victim = home.path("victim.json");
    fs::write(&victim, "precious").expect("written");
    let name = dir.path("heap.json");
    let outputs = prepare(std::slice::from_ref(&name)).expect("nothing is there yet");
    for target in [victim.clone(), home.path("new.json")] {
        let _ = fs::remove_file(&name);
        symlink(&target, &name).expect("linked");
        lchown(&name, Some(STRANGER), None).expect("given away");
        let refused = refusal(std::slice::from_ref(&name));
        assert!(refused.contains("this link belongs to another user (uid 65533)"), "{refused}");
        let written = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
        assert!(written[0].result.is_ok(), "{written:?}");
        assert!(fs::symlink_metadata(&name).expect("there").is_file());
    }
    assert_eq!(home.names(), ["victim.json"]);
    assert_eq!(fs::read(&victim).expect("there"), b"precious");
    // root's own link is followed
    fs::remove_file(&name).expect("removed");
    symlink(home.path("new.json"), &name).expect("linked");
    outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    assert_eq!(home.names(), ["new.json", "victim.json"]);
}

#[test]
fn a_pipe_of_another_user_is_not_written() {
    let Some(dir) = shared("planted-pipe") else { return };
    let name = dir.path("heap.json");
    let outputs = prepare(std::slice::from_ref(&name)).expect("nothing is there yet");
    assert!(std::process::Command::new("mkfifo").arg(&name).status().expect("mkfifo").success());
    assert!(prepare(std::slice::from_ref(&name)).is_ok(), "one's own pipe");
    chown(&name, Some(STRANGER), None).expect("given away");
    let refused = refusal(std::slice::from_ref(&name));
    assert!(refused.contains("this pipe belongs to another user (uid 65533)"), "{refused}");
    let written = outputs.write(Scope::All, &sample_profile(), &ExportOptions::default(), &mut Channels::default());
    assert!(written[0].result.is_ok() && fs::metadata(&name).expect("there").is_file(), "{written:?}");
}

/// Links in the folders of a path are followed as fs.protected_symlinks has it.
#[test]
fn a_folder_that_another_user_links_to_in_a_shared_one_is_refused() {
    let Some(dir) = shared("planted-folder") else { return };
    let home = Dir::new("planted-folder-home");
    symlink(&home.0, dir.path("there")).expect("linked");
    let name = dir.path("there").join("heap.json");
    assert!(prepare(std::slice::from_ref(&name)).is_ok(), "one's own link");
    lchown(dir.path("there"), Some(STRANGER), None).expect("given away");
    let refused = refusal(std::slice::from_ref(&name));
    assert!(refused.contains("/there: this link belongs to another user"), "{refused}");
    // in a folder that is the link's owner's alone, it is no trap
    chown(&dir.0, Some(STRANGER), None).expect("given away");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o755)).expect("ours");
    assert!(prepare(std::slice::from_ref(&name)).is_ok());
}

#[test]
fn the_heap_of_another_user_is_for_the_owner_alone() {
    let dir = Dir::new("private");
    let outputs = prepare(&[dir.path("a.json")]).expect("good");
    let mut profile = sample_profile();
    profile.meta.process.of_another_user = true;
    outputs.write(Scope::All, &profile, &ExportOptions::default(), &mut Channels::default());
    assert_eq!(fs::metadata(dir.path("a.json")).expect("there").mode() & 0o777, 0o600);
}

/// A folder on the way becomes a link to another one: before the folder is opened, and after.
#[test]
fn a_link_that_has_come_in_the_way_leads_nowhere() {
    let dir = Dir::new("way");
    let root = dir.0.canonicalize().expect("there");
    for folder in ["way/sub", "other/sub"] {
        fs::create_dir_all(root.join(folder)).expect("made");
    }
    let mut temp = TempFile::beside(&root.join("way/sub"), 0o600).expect("opened");
    fs::rename(root.join("way"), root.join("moved")).expect("renamed");
    symlink(root.join("other"), root.join("way")).expect("linked");
    temp.file.write_all(b"profile").expect("written");
    temp.rename("out".as_ref()).expect("renamed");
    assert_eq!(fs::read(root.join("moved/sub/out")).expect("there"), b"profile");
    let error = TempFile::beside(&root.join("way/sub"), 0o600).expect_err("another folder").to_string();
    assert!(error.contains("has come to this place"), "{error}");
    assert_eq!(fs::read_dir(root.join("other/sub")).expect("there").count(), 0);
    assert_eq!(fs::read_dir(root.join("moved/sub")).expect("there").count(), 1);
}

/// What has come to an old file's place is not opened: neither a pipe that keeps who opens it waiting, nor what a link
/// leads to.
#[test]
fn what_has_come_to_an_old_file_s_place_is_not_opened() {
    let dir = Dir::new("came");
    let root = dir.0.canonicalize().expect("there");
    let (pipe, link) = (root.join("pipe"), root.join("link"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("run").success());
    fs::write(root.join("target"), "").expect("written");
    symlink(root.join("target"), &link).expect("linked");
    for path in [&pipe, &link] {
        assert!(matches!(check_file(path), Err(OutputError::NotWritable { .. })), "{}", path.display());
    }
    check_file(&root.join("target")).expect("writable");
    check_file(&root.join("none")).expect("can be made");
}
