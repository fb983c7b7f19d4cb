//! redis-server under redis-benchmark, attached to and not, in turn: requests a second. And how long single requests
//! take while heaptrace attaches, records, and lets go.

use super::basics::{installed, median};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long requests are counted for. The machine's other users make it slower by up to a third at times, from one
/// second to the next: of many short times in turn the middle ones are not theirs.
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
    let server = Server::start(true);
    let middle = |values: &[f64]| median(values.iter().copied());
    // Each pair is the middle one of so many turns with heaptrace and without. An odd number has one.
    for (name, options, pairs, turns, limit) in [
        ("every call", &["--engine", "jump"][..], 20, 5, "8 %"),
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
                        let_go(tracer);
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

/// How often it is attached to for the table of latencies.
const ATTACHES: usize = 12;

/// Prints how long requests take before, while and after heaptrace attaches, and while it lets go: of a client that
/// waits for each answer before it asks again, alone and beside those of redis-benchmark.
pub fn latencies() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        println!("\nredis-server or redis-benchmark is not installed");
        return;
    }
    println!(
        "\n{:<34} {:>9} {:>9} {:>9} {:>9} {:>9}   limit",
        "redis-server, ms of a request", "requests", "median", "p99.9", "longest", "and middle"
    );
    for (clients, is_busy) in [("alone", false), ("beside 20 clients", true)] {
        let server = Server::start(is_busy);
        for engine in ["jump", "auto"] {
            let mut all: [Phase; 4] = Default::default();
            for _ in 0..ATTACHES {
                let client = Client::start(&server.socket);
                let mut times = vec![Instant::now()];
                let mut passes = || times.push(Instant::now());
                std::thread::sleep(COUNTED);
                passes();
                let tracer = server.attach(&["--engine", engine]);
                passes();
                std::thread::sleep(COUNTED);
                passes();
                let_go(tracer);
                passes();
                let requests = client.end();
                for (phase, time) in all.iter_mut().zip(times.windows(2)) {
                    phase.add(&requests, time[0], time[1]);
                }
            }
            let names = ["without heaptrace", "while it attaches", "while it records", "while it lets go"];
            for ((name, phase), limit) in names.into_iter().zip(all).zip(["", "p99.9 20 ms", "", ""]) {
                phase.print(&format!("{clients}, {engine}: {name}"), limit);
            }
        }
    }
}

/// Has heaptrace let go of what it traces, and waits for its end.
fn let_go(tracer: Child) {
    let pid = tracer.id().to_string();
    let asked = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
    assert!(asked.success() && tracer.wait_with_output().expect("it ends").status.success());
}

/// A request: when it was sent, and when its answer was there.
type Request = (Instant, Instant);

/// A client that sends one request after the other, each when it has the answer to the one before.
struct Client {
    ends: Arc<AtomicBool>,
    requests: JoinHandle<Vec<Request>>,
}

impl Client {
    fn start(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let requests = std::thread::spawn(move || {
            let mut requests = Vec::with_capacity(1 << 18);
            let mut answer = [0; 5];
            while !told.load(Ordering::Relaxed) {
                let sent = Instant::now();
                stream.write_all(b"*3\r\n$3\r\nSET\r\n$5\r\nbench\r\n$8\r\n01234567\r\n").expect("it reads");
                stream.read_exact(&mut answer).expect("it answers");
                requests.push((sent, Instant::now()));
                assert_eq!(&answer, b"+OK\r\n");
            }
            requests
        });
        Self { ends, requests }
    }

    fn end(self) -> Vec<Request> {
        self.ends.store(true, Ordering::Relaxed);
        self.requests.join().expect("no request fails")
    }
}

/// What requests took at a stage of the measurement, in milliseconds.
#[derive(Default)]
struct Phase {
    all: Vec<f64>,
    /// The longest of each turn.
    longest: Vec<f64>,
}

impl Phase {
    /// Takes the requests that were under way between two moments.
    fn add(&mut self, requests: &[Request], from: Instant, to: Instant) {
        let within = requests.iter().filter(|(sent, answered)| *answered >= from && *sent <= to);
        let took: Vec<f64> = within.map(|(sent, answered)| (*answered - *sent).as_secs_f64() * 1e3).collect();
        self.longest.push(took.iter().copied().fold(0.0, f64::max));
        self.all.extend(took);
    }

    fn print(mut self, name: &str, limit: &str) {
        self.all.sort_by(f64::total_cmp);
        let count = self.all.len();
        let at = |part: f64| self.all[((count as f64 * part) as usize).min(count - 1)];
        let longest = self.all[count - 1];
        println!(
            "{name:<44} {count:>9} {:>9.3} {:>9.3} {longest:>9.3} {:>9.3}   {limit}",
            at(0.5),
            at(0.999),
            median(self.longest.into_iter())
        );
    }
}

/// The mean, and half of the interval that holds it in 95 of 100 cases (normal distribution; 20 values: 2.09 by
/// Student's).
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, 2.09 * (variance / n).sqrt())
}

/// A server, and who keeps it busy.
struct Server {
    child: Child,
    clients: Option<Child>,
    socket: PathBuf,
}

impl Server {
    fn start(is_busy: bool) -> Self {
        // a socket's path is limited to 107 bytes
        let socket = std::env::temp_dir().join(format!("heaptrace-bench-{}.sock", std::process::id()));
        let arguments = ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"];
        let child = Command::new("redis-server").args(arguments).arg(&socket).stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server");
        wait_until("redis-server listens", || UnixStream::connect(&socket).is_ok());
        let mut server = Self { child, clients: None, socket };
        if is_busy {
            let mut clients = Command::new("redis-benchmark");
            clients.arg("-s").arg(&server.socket).args(["--csv", "-c", "20", "-n", "1000000000", "-t", "set"]);
            server.clients = Some(clients.stdout(Stdio::null()).spawn().expect("redis-benchmark"));
            let first = server.requests();
            wait_until("requests come", || server.requests() > first + 10_000);
        }
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

    /// The lines of the maps of what the engine shares with it. The inode is another one with each attach; what stays
    /// when it is let go is the last one.
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
        for child in self.clients.iter_mut().chain([&mut self.child]) {
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
