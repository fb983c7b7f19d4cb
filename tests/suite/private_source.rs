//! Debug information names any file. heaptrace that root has started shows what the process's user may read, too, and
//! nothing else.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const NOBODY: u32 = 65534;
const SECRET: &str = "hunter2";

/// Whether the text is in any of the page's compressed parts.
fn is_in_page(page: &Path) -> bool {
    let script = "
import re, sys, base64, zlib
page, secret = open(sys.argv[1], 'rb').read(), sys.argv[2].encode()
found = secret in page
for part in re.finditer(rb'[A-Za-z0-9+/=]{100,}', page):
    for window in (15, -15, 31):
        try: found |= secret in zlib.decompress(base64.b64decode(part.group(0) + b'=='), window)
        except Exception: pass
print(found)";
    let found = Command::new("python3").args(["-c", script]).arg(page).arg(SECRET).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(["True\n", "False\n"].contains(&found.as_str()), "{found}");
    found == "True\n"
}

/// A source, in a folder with these rights, and a program of nobody's that names it. In a folder that all may enter.
struct Named {
    source: PathBuf,
    program: Program,
}

impl Named {
    fn new(name: &str) -> Self {
        let folder = Path::new("/tmp").join(format!("heaptrace-{name}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("src")).unwrap();
        let source = folder.join("src/db.c");
        std::fs::write(
            &source,
            format!("int a;\nstruct {SECRET} *dsn = (struct {SECRET} *)malloc(sizeof(struct {SECRET}));\n"),
        )
        .unwrap();
        let built = fixtures::program_with("names_source", &[&format!("-DNAMED=\"{}\"", source.display())]);
        let program = folder.join("program");
        std::fs::copy(built, &program).unwrap();
        set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        chown(&program, Some(NOBODY), Some(NOBODY)).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(86400);
        std::fs::File::options().write(true).open(&program).unwrap().set_modified(later).unwrap();
        Self { source, program: Program::new(program) }
    }

    /// Who may enter the folder, and read the file.
    fn allow(&self, folder: u32, file: u32) {
        set_permissions(&self.source, Permissions::from_mode(file)).unwrap();
        set_permissions(self.source.parent().unwrap(), Permissions::from_mode(folder)).unwrap();
    }

    /// Runs the program as nobody, and tells where its text is: in a page, in a report, and in what is made of that
    /// report and of a trace afterwards.
    fn shown(&self) -> [bool; 4] {
        let out = |name: &str| self.program.outside(name);
        let options = ["-o", "p.html", "-o", "p.json", "--trace", "p.fxt"].map(|word| match word.strip_prefix("p.") {
            Some(_) => out(word).to_str().unwrap().to_owned(),
            None => word.to_owned(),
        });
        let args = ["run".to_owned()].into_iter().chain(options).chain(["--".to_owned()]);
        let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned);
        let exe = self.program.exe().to_str().unwrap().to_owned();
        self.program.start_heaptrace(args.chain(as_nobody).chain([exe])).wait().success();
        let [page, report, trace] = ["p.html", "p.json", "p.fxt"].map(out);
        let [again, converted] = ["again.html", "converted.html"].map(out);
        let make = |order: &str, from: &Path, to: &Path| {
            let args = [order, from.to_str().unwrap(), "-o", to.to_str().unwrap()];
            self.program.start_heaptrace(args).wait().success();
        };
        make("report", &report, &again);
        make("convert", &trace, &converted);
        let told = std::fs::read_to_string(&report).unwrap().contains(SECRET);
        [is_in_page(&page), told, is_in_page(&again), is_in_page(&converted)]
    }
}

#[test]
fn a_source_that_the_process_s_user_may_not_read_is_not_shown() {
    assert!(procfs::is_root(), "only root may read what is not for others");
    let named = Named::new("private-source");
    named.allow(0o755, 0o644);
    assert_eq!(named.shown(), [true; 4], "nothing is hidden: all are to show it");
    named.allow(0o755, 0o600);
    assert_eq!(named.shown(), [false; 4], "the file is private");
    named.allow(0o700, 0o644);
    assert_eq!(named.shown(), [false; 4], "the folder is private");
}

/// A process names the files of its scripts itself, and a saved profile or trace does not say whose process it was.
#[test]
fn a_script_that_a_process_names_is_shown_by_a_saved_profile_only_if_all_may_read_it() {
    assert!(procfs::is_root(), "only root may read what is not for others");
    let folder = Path::new("/tmp/heaptrace-private-script");
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    let named = folder.join("named.py");
    std::fs::write(&named, format!("# {SECRET}\n").repeat(9)).unwrap();
    let code = format!("exec(compile('\\n\\n\\nkept = bytearray(1 << 20)\\n', {:?}, 'exec'))", named.to_str().unwrap());
    let program = Program::new("/usr/bin/python3").args(["-c", &code]);
    let [report, trace] = ["p.json", "p.fxt"].map(|name| program.outside(name));
    let args = ["run", "--python", "-o", report.to_str().unwrap(), "--trace", trace.to_str().unwrap(), "--"];
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", &code];
    program.start_heaptrace(args.into_iter().chain(as_nobody)).wait().success();
    let [by_file, by_input, by_trace] = ["file.html", "input.html", "trace.html"].map(|name| program.outside(name));
    let shown = || {
        for (order, from, to) in [("report", &report, &by_file), ("convert", &trace, &by_trace)] {
            program.start_heaptrace([order, from.to_str().unwrap(), "-o", to.to_str().unwrap()]).wait().success();
        }
        let mut by_pipe = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        by_pipe.args(["report", "-", "-o"]).arg(&by_input).stdin(std::fs::File::open(&report).unwrap());
        assert!(by_pipe.output().unwrap().status.success());
        [&by_file, &by_input, &by_trace].map(|page| is_in_page(page))
    };
    for (mode, expected) in [(0o644, true), (0o600, false)] {
        set_permissions(&named, Permissions::from_mode(mode)).unwrap();
        assert_eq!(shown(), [expected; 3], "{mode:o}");
    }
}
