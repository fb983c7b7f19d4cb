//! `--debuginfod` against a server of the test's own, through elfutils' client.

use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::report::functions_of;
use crate::support::tempdir::TempDir;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

const ID: &str = "abcdef01bb";

/// Makes elfutils' client give up soon.
const LIMITED: [(&str, &str); 3] =
    [("DEBUGINFOD_TIMEOUT", "1"), ("DEBUGINFOD_MAXTIME", "2"), ("DEBUGINFOD_RETRY_LIMIT", "0")];

/// What the server does with a request.
#[derive(Clone, Debug)]
enum Manner {
    /// It has this file for the one build id, and nothing else.
    Has(PathBuf),
    /// It takes connections and says nothing.
    Silent,
}

/// Serves until the test ends; keeps the paths that were asked for.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                let mut line = String::new();
                let _ = BufReader::new(&stream).read_line(&mut line);
                log.lock().unwrap().push(line.split(' ').nth(1).unwrap_or_default().to_owned());
                match &manner {
                    Manner::Has(file) => answer(&stream, &line, file),
                    Manner::Silent => open.push(stream),
                }
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(mut stream: &TcpStream, request: &str, file: &PathBuf) {
    let wanted = format!("GET /buildid/{ID}/debuginfo ");
    let _ = if request.starts_with(&wanted) {
        let bytes = std::fs::read(file).unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len())
            .and_then(|()| stream.write_all(&bytes))
    } else {
        write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
}

/// A stripped program, and its debug file elsewhere.
fn stripped() -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::new();
    let (program, debug) = (folder.path().join("layers"), folder.path().join("elsewhere"));
    crate::support::copy_file(fixtures::program_with("layers", &[&format!("-Wl,--build-id=0x{ID}")]), &program)
        .unwrap();
    for arguments in [
        &["objcopy", "--only-keep-debug", program.to_str().unwrap(), debug.to_str().unwrap()][..],
        &["strip", program.to_str().unwrap()],
    ] {
        assert!(Command::new(arguments[0]).args(&arguments[1..]).status().unwrap().success());
    }
    (folder, program, debug)
}

fn is_named(traced: &Traced) -> bool {
    let sites = traced.report.sites();
    sites.iter().any(|site| functions_of(site).starts_with(&["allocate".into(), "middle".into(), "outer".into()]))
}

fn warnings(traced: &Traced) -> String {
    traced.report.list("/warnings").iter().filter_map(|warning| warning.as_str()).collect::<Vec<_>>().join("\n")
}

/// What is not on this machine is fetched once, and only if the user asks for it.
#[test]
fn debug_files_are_fetched_on_request() {
    let (_folder, program, debug) = stripped();
    let server = Server::start(Manner::Has(debug));
    let program = Program::new(&program).env("DEBUGINFOD_URLS", &server.url);
    assert!(!is_named(&program.traced()) && server.asked().is_empty(), "nobody was asked without --debuginfod");
    let traced = program.traced_with(&["--debuginfod"]);
    assert!(is_named(&traced), "{}", traced.ended.stderr);
    assert!(traced.ended.stderr.contains("asking debuginfod"), "{}", traced.ended.stderr);
    assert_eq!(warnings(&traced), "");
    let path = format!("/buildid/{ID}/debuginfo");
    assert_eq!(server.asked().iter().filter(|asked| **asked == path).count(), 1, "{:?}", server.asked());
    // the client's cache is in $HOME, which the program's runs share
    assert!(is_named(&program.traced_with(&["--debuginfod", "-q"])));
    assert_eq!(server.asked().iter().filter(|asked| **asked == path).count(), 1, "{:?}", server.asked());
}

/// A server that has nothing is no failure; one that can't be reached, or says nothing, is told, and asked once only.
#[test]
fn servers_that_do_not_help() {
    let (_folder, program, debug) = stripped();
    let nothing = Server::start(Manner::Has(debug.with_file_name("no such file")));
    let other = Program::new("/bin/ls").env("DEBUGINFOD_URLS", &nothing.url);
    let traced = other.traced_with(&["--debuginfod"]);
    assert_eq!((traced.ended.code(), warnings(&traced).as_str()), (0, ""));
    assert!(different(nothing.asked()) > 1, "{:?}", nothing.asked());

    let silent = Server::start(Manner::Silent);
    let unreachable = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    for url in [&silent.url, &unreachable] {
        let program = Program::new(&program).env("DEBUGINFOD_URLS", url);
        let program = LIMITED.iter().fold(program, |program, (name, value)| program.env(name, value));
        let traced = program.traced_with(&["--debuginfod"]);
        assert_eq!(traced.ended.text(), "done\n");
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        assert!(warnings(&traced).contains("does not ask the servers again"), "{url}: {}", traced.ended.stderr);
        assert!(!is_named(&traced));
    }
    // another home, as the client remembers there what nobody had
    let other = Program::new("/bin/ls").env("DEBUGINFOD_URLS", &silent.url);
    let other = LIMITED.iter().fold(other, |other, (name, value)| other.env(name, value));
    let before = silent.asked().len();
    other.traced_with(&["--debuginfod"]);
    assert_eq!(different(silent.asked().split_off(before)), 1, "{:?}", silent.asked());
}

/// How many different files were asked for.
fn different(asked: Vec<String>) -> usize {
    asked.into_iter().collect::<std::collections::BTreeSet<_>>().len()
}

/// What is missing for it is said before the program starts.
#[test]
fn what_debuginfod_needs() {
    let program = Program::new("/bin/true").env("DEBUGINFOD_URLS", "  ");
    let ended = program.start_traced(&["--debuginfod"]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("$DEBUGINFOD_URLS"), "{}", ended.stderr);
    let program = Program::new("/bin/true").env("DEBUGINFOD_URLS", "http://localhost:1").env("PATH", "/nowhere");
    let ended = program.start_traced(&["--debuginfod"]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("debuginfod-find") && ended.stderr.contains("Debian package"), "{}", ended.stderr);
}
