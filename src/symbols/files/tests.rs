use super::*;
use crate::image::elf::testing::{TempDir, tool};
use std::fs;

const SOURCE: &str = "int main(void) { return 0; }";

struct Split {
    dir: TempDir,
    /// The stripped program.
    program: PathBuf,
    /// Its debug file, named `program.debug`, beside it.
    debug: PathBuf,
}

/// A program and its debug file, linked by name.
fn split(name: &str, options: &[&str]) -> Split {
    let dir = TempDir::new(name);
    let program = dir.compile("cc", "program", SOURCE, &[&["-g"], options].concat());
    let debug = dir.join("program.debug");
    tool("objcopy", &["--only-keep-debug", program.to_str().unwrap(), debug.to_str().unwrap()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &["--strip-all", &link, program.to_str().unwrap()]);
    Split { dir, program, debug }
}

fn find(search: &Search, program: &Path) -> (Option<PathBuf>, Vec<String>) {
    let bytes = Bytes::open(program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let mut warnings = Vec::new();
    let found = search.debug_file(program, elf.build_id(), Some(&elf), &mut |w| warnings.push(w));
    (found.map(|(place, _)| place), warnings)
}

fn move_to(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::rename(from, to).unwrap();
}

fn nowhere() -> Search {
    Search { debug_dirs: Vec::new(), ..Search::default() }
}

#[test]
fn debug_links_lead_beside_below_and_into_the_debug_folders() {
    let Split { dir, program, debug } = split("files-link", &["-Wl,--build-id=none"]);
    assert_eq!(find(&nowhere(), &program), (Some(debug.clone()), vec![]));
    let below_it = dir.join(".debug/program.debug");
    move_to(&debug, &below_it);
    assert_eq!(find(&nowhere(), &program), (Some(below_it.clone()), vec![]));
    let tree = dir.join("tree");
    let in_tree = below(&tree, &debug);
    move_to(&below_it, &in_tree);
    assert_eq!(find(&nowhere(), &program), (None, vec![]));
    let search = Search { debug_dirs: vec![tree], ..Search::default() };
    assert_eq!(find(&search, &program), (Some(in_tree.clone()), vec![]));

    let mut changed = fs::read(&in_tree).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&in_tree, changed).unwrap();
    let (found, warnings) = find(&search, &program);
    assert_eq!(found, None);
    assert!(warnings[0].contains("checksum"), "{warnings:?}");
}

/// A tree that `--save-binaries` has filled holds stripped programs under the names of debug files.
#[test]
fn a_copy_without_debug_information_hides_no_debug_file() {
    let Split { dir, program, debug } = split("files-copy", &["-Wl,--build-id=0xabcdef0123"]);
    let copy = dir.join("copies/.build-id/ab/cdef0123.debug");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(&program, &copy).unwrap();
    let search = Search { debug_dirs: vec![dir.join("copies"), dir.join("tree")], ..Search::default() };
    assert_eq!(find(&search, &program), (Some(debug.clone()), vec![]));
    let place = dir.join("tree/.build-id/ab/cdef0123.debug");
    move_to(&debug, &place);
    assert_eq!(find(&search, &program), (Some(place.clone()), vec![]));
    fs::remove_file(&place).unwrap();
    assert_eq!(find(&search, &program), (Some(copy), vec![]));
}

#[test]
fn build_ids_lead_into_the_tree_and_are_verified() {
    let Split { dir, program, debug } = split("files-id", &["-Wl,--build-id=0xabcdef0123"]);
    let place = dir.join("tree/.build-id/ab/cdef0123.debug");
    move_to(&debug, &place);
    let search = Search { debug_dirs: vec![dir.join("tree")], ..Search::default() };
    assert_eq!(find(&search, &program), (Some(place.clone()), vec![]));

    let other = split("files-other", &["-Wl,--build-id=0xabcdef0124"]);
    move_to(&other.debug, &place);
    let (found, warnings) = find(&search, &program);
    assert_eq!(found, None);
    assert!(warnings[0].contains("cdef0123.debug"), "{warnings:?}");
}

/// Where both have a build id, it decides, not the checksum: tools may have added sections to the debug file since.
#[test]
fn a_linked_debug_file_of_another_build_is_refused() {
    let Split { dir: _dir, program, debug } = split("files-link-id", &["-Wl,--build-id=0xabcdef0125"]);
    let mut longer = fs::read(&debug).unwrap();
    longer.push(0);
    fs::write(&debug, longer).unwrap();
    assert_eq!(find(&nowhere(), &program), (Some(debug.clone()), vec![]));

    let other = split("files-link-other", &["-Wl,--build-id=0xabcdef0126"]);
    move_to(&other.debug, &debug);
    let (found, warnings) = find(&nowhere(), &program);
    assert_eq!(found, None);
    assert!(warnings[0].contains("build id differ"), "{warnings:?}");
}

/// A server that gives the same file to everybody.
#[derive(Debug)]
struct Server(PathBuf);

impl DebugServers for Server {
    fn fetch(&self, build_id: &str) -> Result<Option<PathBuf>, String> {
        assert_eq!(build_id, "abcdef0127");
        Ok(Some(self.0.clone()))
    }
}

#[test]
fn what_a_server_gives_is_verified() {
    let Split { dir, program, debug } = split("files-server", &["-Wl,--build-id=0xabcdef0127"]);
    let fetched = dir.join("cache/debuginfo");
    move_to(&debug, &fetched);
    let search = Search { servers: Some(Arc::new(Server(fetched.clone()))), ..nowhere() };
    assert_eq!(find(&search, &program), (Some(fetched.clone()), vec![]));

    let other = split("files-server-other", &["-Wl,--build-id=0xabcdef0128"]);
    move_to(&other.debug, &fetched);
    let (found, warnings) = find(&search, &program);
    assert_eq!(found, None);
    assert!(warnings[0].contains("not the requested debug file"), "{warnings:?}");
}

#[test]
fn the_target_s_root_and_the_sysroot_are_searched() {
    let Split { dir, program, debug } = split("files-root", &["-Wl,--build-id=0xabcdef0123"]);
    let place = dir.join("root/usr/lib/debug/.build-id/ab/cdef0123.debug");
    move_to(&debug, &place);
    let root = Search { root: dir.join("root"), ..Search::default() };
    assert_eq!(find(&root, &program).0, Some(place.clone()));
    let sysroot = Search { sysroot: Some(dir.join("root")), ..Search::default() };
    assert_eq!(find(&sysroot, &program).0, Some(place));
    let places = sysroot.places("/usr/bin/x".as_ref());
    assert_eq!(places, [dir.join("root/usr/bin/x"), PathBuf::from("/usr/bin/x")]);
}

#[test]
fn the_command_line_goes_before_the_environment_and_the_default() {
    let search = Search::new(&["/a".into()], Some("/b::/a".as_ref()), None, "/".into());
    assert_eq!(search.debug_dirs, ["/a", "/b", "/usr/lib/debug"].map(PathBuf::from));
}

#[test]
fn shared_dwarf_is_found_by_its_link() {
    let Split { dir, program, debug } = split("files-alt", &["-Wl,--build-id=0xabcdef0123"]);
    // Any file with the right id will do for the search.
    let alt = dir.join(".dwz/shared");
    fs::create_dir_all(dir.join(".dwz")).unwrap();
    fs::copy(&debug, &alt).unwrap();
    let link = dir.join("link");
    fs::write(&link, b".dwz/shared\0\xab\xcd\xef\x01\x23").unwrap();
    let section = format!(".gnu_debugaltlink={}", link.display());
    tool("objcopy", &["--add-section", &section, program.to_str().unwrap()]);
    let bytes = Bytes::open(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let mut warnings = Vec::new();
    assert!(nowhere().alt_file(&program, &elf, &mut |w| warnings.push(w)).is_some());
    assert!(warnings.is_empty());
    fs::remove_file(&alt).unwrap();
    assert!(nowhere().alt_file(&program, &elf, &mut |w| warnings.push(w)).is_none());
    assert!(warnings[0].contains(".dwz/shared"), "{warnings:?}");
}

#[test]
fn only_regular_files_are_opened() {
    let dir = TempDir::new("files-special");
    let fifo = dir.join("fifo");
    tool("mkfifo", &[fifo.to_str().unwrap()]);
    for path in [&fifo, Path::new("/dev/zero"), Path::new("/tmp")] {
        assert!(Bytes::open(path).is_err(), "{path:?}");
    }
    // A large file is mapped, with the same bytes.
    crate::tracer::faults::survive_shortened_files().unwrap();
    let large = dir.join("large");
    let file = File::create(&large).unwrap();
    file.set_len(LARGEST_READ + 5).unwrap();
    let bytes = Bytes::open(&large).unwrap();
    assert!(matches!(bytes, Bytes::Mapped(_)));
    assert_eq!(bytes.len() as u64, LARGEST_READ + 5);
}

/// The sum is that of the file that was opened, whatever stands at its path by then.
#[test]
fn a_file_is_summed_though_a_pipe_has_taken_its_place() {
    crate::tracer::faults::survive_shortened_files().unwrap();
    let Split { dir: _dir, debug, .. } = split("files-summed", &["-Wl,--build-id=none"]);
    OpenOptions::new().write(true).open(&debug).unwrap().set_len(LARGEST_READ + 5).unwrap();
    let bytes = Bytes::open(&debug).unwrap();
    let wanted = {
        let mut crc = flate2::Crc::new();
        crc.update(&fs::read(&debug).unwrap());
        crc.sum()
    };
    fs::remove_file(&debug).unwrap();
    tool("mkfifo", &[debug.to_str().unwrap()]);
    for _ in 0..2 {
        assert!(has_checksum(&bytes, wanted).unwrap());
        assert!(!has_checksum(&bytes, wanted ^ 1).unwrap());
    }
}

/// The pages of a mapped file that is shortened read as zeros, and that is known.
#[test]
fn a_mapped_file_may_be_shortened() {
    crate::tracer::faults::survive_shortened_files().unwrap();
    let dir = TempDir::new("files-cut");
    let path = dir.join("large");
    let file = File::create(&path).unwrap();
    FileExt::write_all_at(&file, &[7; 8192], LARGEST_READ).unwrap();
    let bytes = Bytes::open(&path).unwrap();
    let last = bytes.len() - 1;
    assert_eq!((bytes[last], bytes.is_cut()), (7, false));
    file.set_len(LARGEST_READ + 1).unwrap();
    assert_eq!((bytes[last], bytes.is_cut()), (0, true));
    assert_eq!(bytes[last - 8191], 7, "what is left of it is still there");
    assert!(!Bytes::open(&path).unwrap().is_cut());
}
