//! The examples of docs/fleet.md, as they stand there, against a receiver that checks what arrives.

use crate::support::checks::pprof;
use crate::support::program::Program;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// An HTTP request.
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Answers requests with 200 and hands them on.
fn receiver() -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let mut words = line.split_whitespace();
            let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let query = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                headers.insert(name.to_lowercase(), value.to_owned());
            }
            if headers.contains_key("expect") {
                reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            }
            let mut body = vec![0; headers["content-length"].parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            reader.get_mut().write_all(answer).unwrap();
            if sender.send(Request { method, path: path.to_owned(), query, headers, body }).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

/// The script of an example, in a file.
fn example(name: &str, program: &Program) -> PathBuf {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/fleet.md")).unwrap();
    let (_, rest) = page.split_once(&format!("<!-- example: {name} -->\n```sh\n")).unwrap();
    let (script, _) = rest.split_once("\n```\n").unwrap();
    let path = program.outside(&format!("{name}.sh"));
    std::fs::write(&path, script).unwrap();
    path
}

/// Runs a program with an example as its --on-profile; three files besides.
fn run_with(name: &str, program: Program, variables: &[(&str, &str)]) -> (Program, i32, String) {
    let script = example(name, &program);
    let program = variables.iter().fold(program, |program, (name, value)| program.env(name, value));
    let profile = program.outside("pushed.pb.gz").display().to_string();
    let text = program.outside("pushed.txt").display().to_string();
    let command = format!("sh {}", script.display());
    let options = ["run", "-o", &profile, "-o", &text, "--on-profile", &command, "--"];
    // Only the profile is for servers.
    let options = if name == "crash" { options.to_vec() } else { [&options[..3], &options[5..]].concat() };
    let exe = program.exe().to_owned();
    let ended = program.start_heaptrace(options.into_iter().map(Into::into).chain([exe.into_os_string()])).wait();
    (program, ended.code(), ended.stderr)
}

/// The contents of the parts of a form, by name, each with its file name.
fn form(request: &Request) -> BTreeMap<String, (String, Vec<u8>)> {
    let content_type = &request.headers["content-type"];
    let boundary = content_type.strip_prefix("multipart/form-data; boundary=").expect(content_type);
    let mark = format!("--{boundary}");
    let find = |from: usize, what: &[u8]| {
        request.body[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let mut parts = BTreeMap::new();
    let mut at = find(0, mark.as_bytes()).unwrap() + mark.len();
    while !request.body[at..].starts_with(b"--") {
        let head_end = find(at, b"\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&request.body[at..head_end]).unwrap();
        let end = find(head_end, format!("\r\n{mark}").as_bytes()).unwrap();
        let value = |key: &str| head.split(key).nth(1).and_then(|rest| rest.split('"').nth(1)).map(str::to_owned);
        let name = value("name=").unwrap();
        let file = value("filename=").expect("Pyroscope reads files of the form only");
        parts.insert(name, (file, request.body[head_end + 4..end].to_vec()));
        at = end + 2 + mark.len();
    }
    parts
}

fn assert_is_the_profile(bytes: &[u8], program: &Program) {
    assert_eq!(bytes, std::fs::read(program.outside("pushed.pb.gz")).unwrap());
    let arrived = program.outside("arrived.pb.gz");
    std::fs::write(&arrived, bytes).unwrap();
    let top = pprof(&["-top", "-nodefraction=0", "-sample_index=alloc_objects"], &[&arrived]);
    assert!(top.contains("early"), "{top}");
}

#[test]
fn pyroscope_gets_a_form_of_profile_and_columns() {
    let (address, requests) = receiver();
    let variables = [("HEAPTRACE_SERVER", &*address), ("SERVICE", "shop%7Bregion=eu%7D")];
    let (program, status, stderr) = run_with("pyroscope", Program::fixture("peak"), &variables);
    assert_eq!(status, 0, "{stderr}");
    let request = requests.recv_timeout(Duration::from_secs(10)).expect(&stderr);
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/ingest"));
    assert_eq!(request.query["name"], "shop%7Bregion=eu%7D");
    assert_eq!(request.query["format"], "pprof");
    let [from, until] = ["from", "until"].map(|key| request.query[key].parse::<u64>().unwrap());
    assert!(from > 1_600_000_000 && from < until && until - from < 600, "{from} {until}");
    let parts = form(&request);
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["profile", "sample_type_config"]);
    assert_is_the_profile(&parts["profile"].1, &program);
    // as Pyroscope's SampleTypeConfig has it
    let columns: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&parts["sample_type_config"].1).unwrap();
    for (column, settings) in &columns {
        pprof(&["-top", &format!("-sample_index={column}")], &[&program.outside("pushed.pb.gz")]);
        for (name, value) in settings {
            match name.as_str() {
                "units" => assert_eq!(value, if column.ends_with("space") { "bytes" } else { "objects" }),
                "aggregation" => assert_eq!(value, if column.starts_with("alloc") { "sum" } else { "average" }),
                "cumulative" | "sampled" => assert_eq!(value, false),
                other => panic!("Pyroscope knows no {other}"),
            }
        }
    }
    assert_eq!(columns.len(), 4);
}

#[test]
fn parca_gets_a_series_as_json() {
    let (address, requests) = receiver();
    let variables = [("HEAPTRACE_SERVER", &*address), ("SERVICE", "shop")];
    let (program, status, stderr) = run_with("parca", Program::fixture("peak"), &variables);
    assert_eq!(status, 0, "{stderr}");
    let request = requests.recv_timeout(Duration::from_secs(10)).expect(&stderr);
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/api/profiles/writeraw"));
    assert_eq!(request.headers["content-type"], "application/json");
    // the JSON form of parca.profilestore.v1alpha1.WriteRawRequest
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&body), ["normalized", "series"]);
    let [series] = body["series"].as_array().unwrap().as_slice() else { panic!("{body}") };
    assert_eq!(keys(series), ["labels", "samples"]);
    let labels = series["labels"]["labels"].as_array().unwrap();
    let labels: BTreeMap<&str, &str> =
        labels.iter().map(|label| (label["name"].as_str().unwrap(), label["value"].as_str().unwrap())).collect();
    assert_eq!(labels, BTreeMap::from([("__name__", "memory"), ("job", "shop")]));
    let [sample] = series["samples"].as_array().unwrap().as_slice() else { panic!("{body}") };
    let packed = program.outside("raw.base64");
    std::fs::write(&packed, sample["rawProfile"].as_str().unwrap()).unwrap();
    let unpacked = Command::new("base64").arg("-d").arg(&packed).output().unwrap();
    assert!(unpacked.status.success());
    assert_is_the_profile(&unpacked.stdout, &program);
}

#[test]
fn a_crash_report_gets_the_last_profile() {
    for (fixture, argument, crashes) in [("ends", "abort", 1), ("ends", "return", 0)] {
        let program = Program::fixture(fixture).args([argument]);
        let folder = program.outside("crashes");
        std::fs::create_dir_all(&folder).unwrap();
        let exe_argument = argument.to_owned();
        let script = example("crash", &program);
        let program = program.env("CRASHES", &folder);
        let [profile, text] = ["pushed.pb.gz", "pushed.txt"].map(|name| program.outside(name).display().to_string());
        let command = format!("sh {}", script.display());
        let options = ["run", "-o", &profile, "-o", &text, "--on-profile", &command, "--"];
        let exe = program.exe().display().to_string();
        let ended = program.start_heaptrace(options.into_iter().chain([exe.as_str(), &exe_argument])).wait();
        let reports: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(reports.len(), crashes, "{argument}: {}", ended.stderr);
        for report in reports {
            assert_eq!(std::fs::read(report.join("heap.pb.gz")).unwrap(), std::fs::read(&profile).unwrap());
            assert!(std::fs::read_to_string(report.join("heap.txt")).unwrap().contains("killed by signal"));
            pprof(&["-top"], &[&report.join("heap.pb.gz")]);
        }
    }
}

/// A server that refuses: heaptrace says so, and goes on.
#[test]
fn a_refusal_is_told() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("http://{closed}");
    let variables = [("HEAPTRACE_SERVER", &*address), ("SERVICE", "shop")];
    let (program, status, stderr) = run_with("parca", Program::fixture("peak"), &variables);
    assert_eq!(status, 125);
    assert!(stderr.contains("curl: (7)") && stderr.contains("--on-profile failed for"), "{stderr}");
    pprof(&["-top"], &[&program.outside("pushed.pb.gz")]);
}
