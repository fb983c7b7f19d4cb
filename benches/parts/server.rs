//! redis-server under redis-benchmark, attached to and not, in turn: requests a second.

use super::basics::{installed, median};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long requests are counted for. The machine's other users make it slower by up to a third at times, from one second to the next: of many short times in turn the middle ones
/// are not theirs.
const COUNTED: Duration = Duration::from_millis(500);

/// How long it is waited before, with heaptrace and without: in the first moments of an attach, stacks are new.
const BEFORE: Duration = Duration::from_millis(100);

/// Prints, for each way to attach, how many requests a second are left, and between what bounds the difference lies.
pub fn table() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        println!("\nredis-server or redis-benchmark is not installed");
        return;
    }
    println!("\n{:<34} {:>12} {:>12}   {:<22} limit", "redis-server, requests a second", "plain", "attached", "fewer");
    let server = Server::start();
    let middle = |values: &[f64]| median(values.iter().copied());
    // Each pair is the middle one of so many turns with heaptrace and without. An odd number has one.
    for (name, options, pairs, turns, limit) in [
        ("every call", &["--engine", "jump"][..], 20, 5, "20 %"),
        ("--sample-interval 512k", &["--engine", "jump", "--sample-interval", "512k"], 20, 33, "95 % of it under 2 %"),
        ("--max-overhead 3%", &["--engine", "jump", "--max-overhead", "3%"], 20, 5, "3 %"),
    ] {
        let (mut plain, mut attached, mut fewer) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..pairs {
            let mut parts = Vec::new();
            for turn in pair..pair + turns {
                let mut seen = [0.0; 2];
                // each goes first in half of the turns
                for with in [turn % 2 == 0, turn % 2 != 0] {
                    let tracer = with.then(|| server.attach(options));
                    seen[usize::from(with)] = server.requests_a_second();
                    if let Some(tracer) = tracer {
                        let pid = tracer.id().to_string();
                        let asked = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
                        assert!(asked.success() && tracer.wait_with_output().expect("it ends").status.success());
                    }
                }
                parts.push(1.0 - seen[1] / seen[0]);
                plain.push(seen[0]);
                attached.push(seen[1]);
            }
            fewer.push(middle(&parts));
        }
        let (mean, half) = interval(&fewer);
        let fewer = format!("{:.1} ± {:.1} %", mean * 100.0, half * 100.0);
        println!("{name:<34} {:>12.0} {:>12.0}   {fewer:<22} {limit}", middle(&plain), middle(&attached));
    }
}

/// The mean, and half of the interval that holds it in 95 of 100 cases (normal distribution; 20 values: 2.09 by Student's).
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, 2.09 * (variance / n).sqrt())
}

/// A server that is kept busy.
struct Server {
    child: Child,
    clients: Child,
    socket: PathBuf,
}

impl Server {
    fn start() -> Self {
        // a socket's path is limited to 107 bytes
        let socket = std::env::temp_dir().join(format!("heaptrace-bench-{}.sock", std::process::id()));
        let arguments = ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"];
        let child = Command::new("redis-server").args(arguments).arg(&socket).stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server");
        wait_until("redis-server listens", || UnixStream::connect(&socket).is_ok());
        let mut clients = Command::new("redis-benchmark");
        clients.arg("-s").arg(&socket).args(["--csv", "-c", "20", "-n", "1000000000", "-t", "set"]);
        let clients = clients.stdout(Stdio::null()).spawn().expect("redis-benchmark");
        let server = Self { child, clients, socket };
        let first = server.requests();
        wait_until("requests come", || server.requests() > first + 10_000);
        server
    }

    /// Attaches, and waits until its calls are recorded without stops.
    fn attach(&self, options: &[&str]) -> Child {
        let before = self.regions();
        let pid = self.child.id().to_string();
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-server.pb.gz");
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.args(["attach", "-q"]).args(options).arg("-o").arg(out).arg(&pid);
        let tracer = command.stdin(Stdio::null()).spawn().expect("heaptrace");
        let is_on = || {
            let is_traced = std::fs::read_to_string(format!("/proc/{pid}/status"))
                .is_ok_and(|status| !status.contains("TracerPid:\t0"));
            is_traced && self.regions().iter().any(|region| !before.contains(region))
        };
        wait_until("the engine is there", is_on);
        tracer
    }

    /// The lines of the maps of what the engine shares with it. The inode is another one with each attach; what stays when it is let go is the last one.
    fn regions(&self) -> Vec<String> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).expect("it runs");
        maps.lines().filter(|line| line.contains("memfd:heaptrace")).map(str::to_owned).collect()
    }

    fn requests_a_second(&self) -> f64 {
        std::thread::sleep(BEFORE);
        let (begin, first) = (Instant::now(), self.requests());
        std::thread::sleep(COUNTED);
        let (end, last) = (Instant::now(), self.requests());
        (last - first) as f64 / end.duration_since(begin).as_secs_f64()
    }

    /// How many requests it has answered so far.
    fn requests(&self) -> u64 {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.write_all(b"INFO stats\r\nQUIT\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let line = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.expect("a line of figures").trim().parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in [&mut self.clients, &mut self.child] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not so after 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
