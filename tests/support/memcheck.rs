//! Memcheck's leak check as an oracle: the classes of all live blocks, read from its XML output.

use super::leakcheck::{Amount, Found, Frame, Record};
use super::program::Program;
use super::report::plain;
use super::running::Ended;
use quick_xml::Reader;
use quick_xml::events::Event;
use std::path::PathBuf;
use std::process::Command;

/// Memcheck's names of the classes, in the order of `leakcheck::CLASSES`.
const KINDS: [&str; 4] = ["Leak_DefinitelyLost", "Leak_IndirectlyLost", "Leak_PossiblyLost", "Leak_StillReachable"];

impl Program {
    /// Runs it under Memcheck, set up to see what heaptrace sees: all classes with all stacks, interior pointers by its
    /// heuristics, and no release of what the C and C++ libraries keep.
    pub fn memcheck_leaks(&self, options: &[&str]) -> (Ended, Found) {
        let ended = self.run_under(self.memcheck_command(options));
        let found = self.memcheck_found();
        (ended, found)
    }

    /// Memcheck's command line, to which the program's is added.
    pub fn memcheck_command(&self, options: &[&str]) -> Command {
        let xml = self.memcheck_xml();
        let _ = std::fs::remove_file(&xml);
        let mut command = Command::new("valgrind");
        command.args(["-q", "--leak-check=full", "--show-leak-kinds=all", "--leak-check-heuristics=all"]);
        command.args(["--run-libc-freeres=no", "--run-cxx-freeres=no", "--undef-value-errors=yes"]);
        command.args(["--num-callers=100", "--child-silent-after-fork=yes", "--xml=yes"]);
        command.arg(format!("--xml-file={}", xml.display())).args(options);
        command
    }

    /// What Memcheck has written of a run that has ended.
    pub fn memcheck_found(&self) -> Found {
        let xml = self.memcheck_xml();
        let text = std::fs::read_to_string(&xml)
            .unwrap_or_else(|error| panic!("Memcheck wrote nothing: {error}; is valgrind installed?"));
        found(&text)
    }

    fn memcheck_xml(&self) -> PathBuf {
        self.outside("memcheck.xml")
    }
}

/// Reads Memcheck's XML, protocol version 4 (docs/internals/xml-output-protocol4.txt in Valgrind's source).
pub fn found(xml: &str) -> Found {
    let root = Element::parse(xml);
    assert!(root.children("status").any(|status| status.text("state") == "FINISHED"), "Memcheck did not finish\n{xml}");
    let mut found = Found::default();
    for error in root.children("error") {
        let Some(class) = KINDS.iter().position(|kind| *kind == error.text("kind")) else { continue };
        let what = error.child("xwhat");
        let number = |text: &str| text.replace(',', "").parse().unwrap_or_else(|_| panic!("not a number: {text}"));
        // The bytes include what hangs on the blocks; only the sentence tells them apart:
        // "1,104 (104 direct, 1,000 indirect) bytes in 1 blocks are definitely lost in loss record 3 of 3"
        let direct = what.text("text").split_once(" direct,").and_then(|(before, _)| before.split_once('('));
        let amount = Amount {
            blocks: number(what.text("leakedblocks")),
            bytes: direct.map_or_else(|| number(what.text("leakedbytes")), |(_, direct)| number(direct)),
        };
        let frames = error.child("stack").children("frame");
        // Memcheck's own malloc stands on top
        let stack = frames.skip_while(|frame| frame.text("obj").contains("/vgpreload_")).map(frame).collect();
        found.records.push(Record { class, amount, stack });
    }
    found
}

fn frame(frame: &Element) -> Frame {
    let function = plain(Some(frame.text("fn")).filter(|name| !name.is_empty()).unwrap_or("-")).to_owned();
    Frame { function, file: format!("{}/{}", frame.text("dir"), frame.text("file")) }
}

/// An element with what is inside it; attributes are left out, as Memcheck uses none.
#[derive(Default)]
struct Element {
    name: String,
    text: String,
    inside: Vec<Self>,
}

impl Element {
    fn parse(xml: &str) -> Self {
        let mut reader = Reader::from_str(xml);
        let mut open = vec![Self::default()];
        loop {
            let event = reader.read_event().unwrap_or_else(|error| panic!("not XML: {error}\n{xml}"));
            let top = open.last_mut().expect("the outermost stays");
            match event {
                Event::Start(start) => {
                    let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
                    open.push(Self { name, ..Self::default() });
                }
                Event::End(_) => {
                    let closed = open.pop().expect("tags match, as the reader checks");
                    open.last_mut().expect("the outermost stays").inside.push(closed);
                }
                Event::Text(text) => top.text.push_str(&text.decode().unwrap()),
                Event::GeneralRef(name) => top.text.push(match &*name.decode().unwrap() {
                    "lt" => '<',
                    "gt" => '>',
                    "amp" => '&',
                    "quot" => '"',
                    "apos" => '\'',
                    other => panic!("Memcheck wrote &{other};"),
                }),
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!(open.len(), 1, "the XML ends too early\n{xml}");
        let mut outermost = open.remove(0);
        outermost.inside.pop().expect("a root element")
    }

    fn children<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.inside.iter().filter(move |element| element.name == name)
    }

    fn child<'a>(&'a self, name: &'a str) -> &'a Self {
        self.children(name).next().unwrap_or_else(|| panic!("no <{name}> in <{}>", self.name))
    }

    /// The text of an inner element; empty if there is none.
    fn text(&self, name: &str) -> &str {
        self.inside.iter().find(|element| element.name == name).map_or("", |element| element.text.trim())
    }
}
