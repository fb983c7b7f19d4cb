//! redis-server under redis-benchmark, attached to and not, in turn: requests a second.

use super::basics::{installed, median};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Requests of a measurement, some 2 s of them. Longer ones differ as much from each other: other users of the machine come and go.
const REQUESTS: &str = "200000";

/// Prints, for each way to attach, how many requests a second are left, and between what bounds the difference lies.
pub fn table() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        println!("\nredis-server or redis-benchmark is not installed");
        return;
    }
    println!("\n{:<34} {:>12} {:>12}   {:<22} limit", "redis-server, requests a second", "plain", "attached", "fewer");
    let server = Server::start();
    // Each pair is the mean of so many turns with heaptrace and without.
    for (name, options, pairs, turns, limit) in [
        ("every call", &["--engine", "jump"][..], 8, 1, "20 %"),
        // the machine's other users make one turn differ from the next by some 8 %
        ("--sample-interval 512k", &["--engine", "jump", "--sample-interval", "512k"], 20, 8, "95 % of it under 2 %"),
        ("--max-overhead 3%", &["--engine", "jump", "--max-overhead", "3%"], 12, 4, "3 %"),
    ] {
        let mut plain = Vec::new();
        let mut attached = Vec::new();
        for pair in 0..pairs {
            let mut sums = [0.0; 2];
            for turn in pair..pair + turns {
                // each goes first in half of the turns
                for with in [turn % 2 == 0, turn % 2 != 0] {
                    let tracer = with.then(|| server.attach(options));
                    sums[usize::from(with)] += server.requests_a_second() / f64::from(turns);
                    if let Some(tracer) = tracer {
                        let pid = tracer.id().to_string();
                        let asked = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
                        assert!(asked.success() && tracer.wait_with_output().expect("it ends").status.success());
                    }
                }
            }
            plain.push(sums[0]);
            attached.push(sums[1]);
        }
        let fewer: Vec<f64> = plain.iter().zip(&attached).map(|(plain, with)| 1.0 - with / plain).collect();
        let (mean, half) = interval(&fewer);
        let fewer = format!("{:.1} ± {:.1} %", mean * 100.0, half * 100.0);
        let middle = |values: &[f64]| median(values.iter().copied());
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

struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start() -> Self {
        // a socket's path is limited to 107 bytes
        let socket = std::env::temp_dir().join(format!("heaptrace-bench-{}.sock", std::process::id()));
        let arguments = ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"];
        let child = Command::new("redis-server").args(arguments).arg(&socket).stdout(Stdio::null()).spawn();
        let server = Self { child: child.expect("redis-server"), socket };
        wait_until("redis-server listens", || UnixStream::connect(&server.socket).is_ok());
        server
    }

    /// Attaches, and waits until its calls are recorded without stops.
    fn attach(&self, options: &[&str]) -> Child {
        let pid = self.child.id().to_string();
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-server.pb.gz");
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.args(["attach", "-q"]).args(options).arg("-o").arg(out).arg(&pid);
        let tracer = command.stdin(Stdio::null()).spawn().expect("heaptrace");
        let maps = format!("/proc/{pid}/maps");
        let is_on = || {
            // a request makes it allocate, which is when it changes to the engine
            let mut stream = UnixStream::connect(&self.socket).expect("it listens");
            stream.write_all(b"SET a b\r\nGET a\r\n").expect("it reads");
            let is_traced = std::fs::read_to_string(format!("/proc/{pid}/status"))
                .is_ok_and(|status| !status.contains("TracerPid:\t0"));
            is_traced && std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("memfd:heaptrace"))
        };
        wait_until("the engine is there", is_on);
        tracer
    }

    fn requests_a_second(&self) -> f64 {
        let output = Command::new("redis-benchmark")
            .arg("-s")
            .arg(&self.socket)
            .args(["--csv", "-c", "20", "-n", REQUESTS, "-t", "set"])
            .output()
            .expect("redis-benchmark");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("\"SET\"")).expect("a line of figures");
        let figure = line.split(',').nth(1).expect("requests a second").trim_matches('"');
        figure.parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
