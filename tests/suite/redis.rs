//! A server under load: attach, detach, and nobody notices.

use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::running::Running;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) struct Server {
    pub(super) running: Running,
    socket: PathBuf,
}

impl Server {
    /// Starts a redis-server without persistence on a socket of its own, on glibc's or its own allocator as packaged.
    pub(super) fn start(name: &str) -> Self {
        let exe = installed(Path::new("redis-server"));
        // a socket's path is limited to 107 bytes, which the build directory may exceed
        let socket = std::env::temp_dir().join(format!("heaptrace-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let program = Program::new(&exe);
        let program = program.args([
            "--port",
            "0",
            "--unixsocket",
            socket.to_str().unwrap(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
        ]);
        let running = program.start();
        procfs::wait_until("redis-server listens", || UnixStream::connect(&socket).is_ok());
        Self { running, socket }
    }

    /// What redis-cli answers.
    pub(super) fn client(&self, command: &[&str]) -> String {
        let client = installed(Path::new("redis-cli"));
        let output = Command::new(client).arg("-s").arg(&self.socket).args(command).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn end(self) {
        let writer = UnixStream::connect(&self.socket).and_then(|mut stream| stream.write_all(b"SHUTDOWN NOSAVE\r\n"));
        writer.unwrap();
        self.running.wait();
        let _ = std::fs::remove_file(&self.socket);
    }

    /// One command by the inline protocol; the first line of the answer.
    fn ask(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        writeln!(stream, "{command}\r").unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            answer.push(byte[0]);
        }
        String::from_utf8_lossy(&answer).trim().to_owned()
    }

    /// redis-benchmark with this many requests of each kind.
    fn benchmark(&self, requests: &str) -> (Program, Running) {
        let client = Program::new(installed(Path::new("redis-benchmark"))).args([
            "-s",
            self.socket.to_str().unwrap(),
            "-q",
            "-c",
            "20",
            "-n",
            requests,
            "-t",
            "set,get,lpush,lpop,hset",
            "-d",
            "100",
            "-r",
            "1000",
        ]);
        let running = client.start();
        (client, running)
    }
}

/// redis-server under redis-benchmark: no client error, the server lives, its code is intact, nobody traces it, and the
/// profile shows where it allocates.
#[test]
fn redis_under_load() {
    let server = Server::start("redis");
    let pid = server.running.pid();
    let tracer = Program::new("/bin/true");
    let (_client, load) = server.benchmark("20000");
    let attached = tracer.start_attached(&["--duration", "2s"], pid);
    procfs::wait_until_probed(pid);
    assert_eq!(server.ask("SET heaptrace value"), "+OK", "while it is traced");
    let traced = tracer.collect(attached.wait().success());
    procfs::assert_left_as_it_was(pid);
    let benchmark = load.wait().success();
    let errors: Vec<_> =
        benchmark.text().lines().filter(|line| line.to_lowercase().contains("error")).map(str::to_owned).collect();
    assert!(errors.is_empty() && !benchmark.stderr.contains("rror"), "{errors:?}\n{}", benchmark.stderr);
    for kind in ["SET:", "GET:", "LPUSH:", "LPOP:", "HSET:"] {
        assert!(benchmark.text().contains(kind), "{kind} in {}", benchmark.text());
    }
    assert_eq!(server.ask("GET heaptrace"), "$5");
    let report = &traced.report;
    assert!(report.total("allocations") > 100, "{}", traced.ended.stderr);
    assert_eq!(report.anomaly("lost"), 0);
    assert_eq!(report.anomaly("double_frees"), 0);
    assert_eq!(report.anomaly("unknown_frees"), 0);
    // Debian's redis-server is a link to redis-check-rdb
    assert_eq!(report.text("/program"), "redis-server");
    server.end();
}
