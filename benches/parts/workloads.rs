//! Real programs with inputs that are made here, and what their heaps see: the events of a run, recorded by heaptrace
//! itself.

use super::basics::installed;
use heaptrace::internal::trace::reader::{Item, Reader};
use heaptrace::internal::trace::{Event, EventKind, StackId, StackNode};
use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program with its arguments.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Program and arguments.
    pub words: Vec<String>,
}

/// The workloads that can be run here.
struct Found {
    /// Where their inputs and programs are.
    folder: PathBuf,
    workloads: Vec<Workload>,
}

impl Found {
    /// None yet; what they need is to be in the folder of this name.
    fn with_inputs_in(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { folder, workloads: Vec::new() }
    }

    /// Writes an input; its path.
    fn file(&self, name: &str, text: String) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    fn add(&mut self, name: &'static str, words: &[&str]) {
        self.workloads.push(Workload { name, words: words.iter().map(|word| (*word).to_owned()).collect() });
    }

    /// Adds those whose program, which has the workload's name, is installed.
    fn add_installed(&mut self, programs: &[(&'static str, &[&str])]) {
        for (name, words) in programs {
            if installed(name) {
                self.add(name, words);
            }
        }
    }
}

/// Those of jq, python3, sqlite3, xmllint and cc1 that are installed, and a program of objects.
pub fn workloads() -> Vec<Workload> {
    let mut found = Found::with_inputs_in("bench-inputs");
    let json = found.file("big.json", json(4_000));
    let sql = found.file("big.sql", sql(12_000));
    let xml = found.file("big.xml", xml(10_000));
    let c = found.file("big.c", c(40));
    // On one line: heaptrack takes what stands behind a line feed for its own.
    let parse = "import json,sys,re,collections; d=json.load(open(sys.argv[1])); t=json.dumps([x['tags'] for x in d]); \
                 print(len(collections.Counter(re.findall(r'\\w+',t))))";
    let jq = "[.[]|select(.id%2==0)|{id,name,t:(.tags|join(\",\"))}]|length";
    found.add_installed(&[
        ("jq", &["jq", jq, &json][..]),
        ("python3", &["/usr/bin/python3", "-c", parse, &json]),
        ("sqlite3", &["sqlite3", ":memory:", &format!(".read {sql}")]),
        ("xmllint", &["xmllint", "--noout", "--xpath", "count(//item[@id mod 3=0]/name)", &xml]),
    ]);
    if let Some(cc1) = compiler() {
        found.add("cc1", &[&cc1, "-quiet", "-O2", &c, "-o", "/dev/null"]);
    }
    let objects = objects("objects.cc", "c++", &["-O2", "-g", "-std=c++17"], &found.folder);
    found.add("objects.cc", &[&objects, "10"]);
    found.workloads
}

/// Builds a program of objects; its path.
fn objects(name: &str, compiler: &str, flags: &[&str], folder: &Path) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speed").join(name);
    let program = folder.join(name.replace('.', "-"));
    let built = Command::new(compiler).args(flags).arg("-o").arg(&program).arg(source).status();
    assert!(built.is_ok_and(|status| status.success()), "building {name}");
    program.display().to_string()
}

/// Those that run for 0.2 to 5 s, as far as they are installed: with larger inputs, and programs of objects.
pub fn long() -> Vec<Workload> {
    let mut found = Found::with_inputs_in("bench-long");
    let json = found.file("big.json", json(60_000));
    let sql = found.file("big.sql", sql(120_000));
    let xml = found.file("big.xml", xml(120_000));
    let headers = found.file("headers.cc", headers());
    let jq = "[.[]|select(.id%2==0)|{id,name,t:(.tags|join(\",\"))}]|length";
    // on one line: heaptrack takes what stands behind a line feed for its own
    let parse = "import json,sys,re,collections; d=json.load(open(sys.argv[1])); \
                 print(len(collections.Counter(re.findall(r'\\w+',json.dumps([x['tags'] for x in d])))))";
    let sort = "my %h; for my $i (0..600000) { push @{$h{$i * 7919 % 1009}}, \"row $i\" } \
                my $n = 0; for my $k (sort keys %h) { $n += length join ',', sort @{$h{$k}} } print $n";
    found.add_installed(&[
        ("jq", &["jq", jq, &json][..]),
        ("sqlite3", &["sqlite3", ":memory:", &format!(".read {sql}")]),
        ("xmllint", &["xmllint", "--noout", "--xpath", "count(//item[@id mod 3=0]/name)", &xml]),
        ("python3", &["/usr/bin/python3", "-c", parse, &json]),
        ("perl", &["perl", "-e", sort]),
    ]);
    if let Some(cc1plus) = proper("g++", "cc1plus") {
        let target =
            Command::new("g++").arg("-print-multiarch").output().map(|output| output.stdout).unwrap_or_default();
        let target = String::from_utf8_lossy(&target).trim().to_owned();
        found.add(
            "cc1plus -O0",
            &[&cc1plus, "-quiet", "-imultiarch", &target, "-D_GNU_SOURCE", "-O0", &headers, "-o", "/dev/null"],
        );
    }
    for (name, compiler, flags) in [
        ("objects.cc", "c++", &["-O2", "-g", "-std=c++17"][..]),
        ("objects.rs", "rustc", &["-O", "-g", "--edition", "2021"]),
    ] {
        found.add(name, &[&objects(name, compiler, flags, &found.folder), "80"]);
    }
    found.workloads
}

/// The C compiler proper, which gcc only starts.
fn compiler() -> Option<String> {
    proper("gcc", "cc1")
}

/// A compiler proper, which its driver only starts.
fn proper(driver: &str, name: &str) -> Option<String> {
    let output = Command::new(driver).arg(format!("-print-prog-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then(|| path.display().to_string())
}

/// The events of the workload's first process, as heaptrace sees them with the stacks of frees; None if the run fails.
pub fn record(workload: &Workload) -> Option<Vec<Event>> {
    record_with(workload, |_, _| {})
}

/// The same; `stacks` is told each node of the stacks, parents first.
pub fn record_with(workload: &Workload, mut stacks: impl FnMut(StackId, StackNode)) -> Option<Vec<Event>> {
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.fxt", workload.name));
    let status = Command::new(env!("CARGO_BIN_EXE_heaptrace"))
        .args(["run", "-q", "--no-symbolize", "--pin", "--trace"])
        .arg(&trace)
        .args(["-o", "/dev/null", "--format", "folded", "--"])
        .args(&workload.words)
        .stdout(Stdio::null())
        .status()
        .ok()?;
    if !status.success() {
        return None;
    }
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, File::open(trace).ok()?), false);
    let mut events = Vec::new();
    while let Some(item) = reader.next_item().ok()? {
        match item {
            Item::Event(told) => events.push(told.event),
            Item::Stacks(_, nodes) => nodes.for_each(|(id, node)| stacks(id, node)),
            _ => {}
        }
    }
    Some(events)
}

/// How many of the events are calls that allocate or free.
pub fn calls(events: &[Event]) -> usize {
    let is_call = |event: &&Event| {
        matches!(
            event.kind,
            EventKind::Allocated { .. }
                | EventKind::Freed { .. }
                | EventKind::ReallocBegan { .. }
                | EventKind::ReallocEnded { .. }
        )
    };
    events.iter().filter(is_call).count()
}

fn json(records: u32) -> String {
    let mut text = String::from("[");
    for id in 0..records {
        let separator = if id == 0 { "" } else { "," };
        let hash = id.wrapping_mul(2_654_435_761);
        writeln!(
            text,
            "{separator}{{\"id\":{id},\"name\":\"record {hash:08x}\",\"score\":{}.5,\"tags\":[\"tag{}\",\"tag{}\",\"t{hash}\"],\
             \"inner\":{{\"a\":[{id},{hash},null,true],\"b\":\"{hash:x}\"}}}}",
            hash % 1000,
            id % 17,
            hash % 29
        )
        .expect("a string takes all");
    }
    text + "]\n"
}

fn sql(rows: u32) -> String {
    let mut text = String::from("create table t(id integer primary key, name text, value real, tag text);\nbegin;\n");
    for id in 0..rows {
        let hash = id.wrapping_mul(2_654_435_761);
        writeln!(text, "insert into t values({id},'name {hash:x}',{}.25,'tag{}');", hash % 5000, hash % 31)
            .expect("a string takes all");
    }
    text + "commit;\ncreate index i on t(tag,name);\n\
            select tag,count(*),avg(value),group_concat(name) from t group by tag order by 2;\n\
            select a.id from t a join t b on a.tag=b.tag and a.id=b.id+31 where a.value>b.value limit 2000;\n"
}

fn xml(items: u32) -> String {
    let mut text = String::from("<?xml version=\"1.0\"?>\n<list>\n");
    for id in 0..items {
        let hash = id.wrapping_mul(2_654_435_761);
        writeln!(
            text,
            "<item id=\"{id}\" key=\"{hash:x}\"><name>item {hash}</name><tags><tag>t{}</tag><tag>t{}</tag></tags></item>",
            id % 13,
            hash % 97
        )
        .expect("a string takes all");
    }
    text + "</list>\n"
}

/// C++ that uses a few headers of the standard library.
fn headers() -> String {
    "#include <map>\n#include <regex>\n#include <string>\n#include <vector>\n\
     bool f(const std::map<std::string, std::vector<int>> &m) { return m.size() > 1; }\n\
     bool g(const std::string &t) { return std::regex_match(t, std::regex(\"a+b\")); }\n"
        .to_owned()
}

fn c(functions: u32) -> String {
    let mut text = String::from("typedef struct node { struct node *next; int value; double weight; } node;\n");
    for id in 0..functions {
        let (a, b) = (id % 7 + 1, id % 5 + 2);
        writeln!(
            text,
            "int f{id}(node *list, int n) {{ int sum = {id}; double w = 0; for (node *p = list; p; p = p->next) {{ \
             if (p->value % {a} == n) sum += p->value * {b}; else w += p->weight / {b}; \
             switch (sum & 7) {{ case 0: sum ^= n; break; case 1: sum += {a}; break; case {b}: w -= sum; break; default: sum--; }} }} \
             return sum + (int)w{}; }}",
            if id > 0 { format!(" + f{}(list, n - 1)", id - 1) } else { String::new() }
        )
        .expect("a string takes all");
    }
    text
}
