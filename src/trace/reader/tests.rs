//! Made-up streams through the writer and back.

use super::super::metadata::{FilePath, Module};
use super::super::recorder::Recorder;
use super::super::testing::{Memory, recorder, session};
use super::super::{TICK_NS, TraceMode, process_koid};
use super::*;
use crate::allocators::Family;
use crate::base::addr::{Addr, FunctionId, LoadBias, ProcessId, TaskId, TestId};
use crate::event::{
    Call, Definition, EventSink, Length, MapChange, MarkName, Missed, ModuleDefinition, Preexisting, ProcessDefinition,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// SplitMix64 (G. Steele et al., 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}

/// A process that is made up.
struct Made {
    koid: u64,
    number: u32,
    image: ImageId,
    reader: Box<dyn EventSink>,
    seq: u64,
    stacks: Vec<StackNode>,
    open: Vec<(Addr, Call)>,
}

/// A session that is made up: what was told, by process.
struct World {
    random: Random,
    recorder: Recorder,
    processes: Vec<Made>,
    events: BTreeMap<u64, Vec<Event>>,
    nodes: BTreeMap<ImageId, Vec<StackNode>>,
    next_image: u32,
    now_ns: u64,
}

impl World {
    fn new(seed: u64, memory: &Memory) -> Self {
        let recorder = recorder(memory);
        let mut world = Self {
            random: Random(seed),
            recorder,
            processes: Vec::new(),
            events: BTreeMap::new(),
            nodes: BTreeMap::new(),
            next_image: 0,
            now_ns: 0,
        };
        let id = ProcessId { pid: 100, number: 0 };
        let reader = world.recorder.reader(id);
        let image = world.new_image();
        let koid = process_koid(id);
        let made = Made { koid, number: 0, image, reader, seq: 0, stacks: Vec::new(), open: Vec::new() };
        world.processes.push(made);
        let preexisting = world.random.one_of(&[Preexisting::None, Preexisting::Unknown]);
        let free_stacks = world.random.below(2) == 0;
        world.tell(0, EventKind::Began { image, preexisting, free_stacks, sample_interval: seed % 3 });
        world.define(0);
        world
    }

    fn new_image(&mut self) -> ImageId {
        self.next_image += 1;
        ImageId(self.next_image)
    }

    fn tell(&mut self, process: usize, kind: EventKind) {
        self.now_ns += self.random.one_of(&[0, TICK_NS, 5000 * TICK_NS]);
        let made = &mut self.processes[process];
        let event = Event { seq: made.seq, time_ns: self.now_ns, kind };
        made.seq += 1;
        made.reader.take(&event);
        let live = self.random.next();
        made.reader.note_live(event.time_ns, live);
        self.events.entry(made.koid).or_default().push(event);
    }

    /// What a process is, its module, and some stacks.
    fn define(&mut self, process: usize) {
        let made = &mut self.processes[process];
        made.reader.define(&Definition::Process(ProcessDefinition {
            parent: None,
            program: "made up",
            command: &["made".to_owned(), "up".to_owned()],
            cwd: Path::new("/tmp"),
        }));
        made.reader.define(&Definition::Module(ModuleDefinition {
            id: ModuleId(0),
            path: Path::new("/bin/made"),
            build_id: Some("abcd"),
            start: Addr(0x1000),
            end: Addr(0x2000),
            file_offset: 0,
            bias: LoadBias(0),
            is_program: true,
            probed: &[FunctionId(3)],
        }));
        for _ in 0..self.random.below(5) {
            self.new_stack(process);
        }
    }

    fn new_stack(&mut self, process: usize) -> StackId {
        let made = &mut self.processes[process];
        let parent = StackId(u32::try_from(self.random.below(made.stacks.len() as u64 + 1)).unwrap());
        let word = self.random.next() >> 3;
        let node = StackNode { parent, word, module: self.random.one_of(&[ModuleId(0), ModuleId::NONE]) };
        made.stacks.push(node);
        let id = StackId(u32::try_from(made.stacks.len()).unwrap());
        made.reader.define(&Definition::Stack { id, node });
        self.nodes.insert(made.image, made.stacks.clone());
        id
    }

    fn call(&mut self, process: usize) -> Call {
        let stack = match self.random.below(4) {
            0 => self.new_stack(process),
            _ => StackId(u32::try_from(self.random.below(self.processes[process].stacks.len() as u64 + 1)).unwrap()),
        };
        // more threads than the format's table holds
        let serial = u32::try_from(1 + self.random.below(400)).unwrap() + self.processes[process].number * 1000;
        Call {
            function: FunctionId(u16::try_from(self.random.below(40)).unwrap()),
            task: TaskId { tid: i32::try_from(serial).unwrap() + 7, serial },
            stack,
            family: self.random.one_of(&[
                None,
                Some(Family::Malloc),
                Some(Family::New),
                Some(Family::NewArray),
                Some(Family::Other),
                Some(Family::Mapping),
            ]),
            align: self.random.one_of(&[None, None, Some(0), Some(16), Some(1 << 63), Some(24)]),
            interval: self.random.one_of(&[0, 0, 12_345, 1 << 40]),
        }
    }

    fn act(&mut self) {
        let process = usize::try_from(self.random.below(self.processes.len() as u64)).unwrap();
        let block = Addr(1 + (self.random.next() >> 17));
        let size = self.random.one_of(&[0, 1, 4096, u64::from(u32::MAX), 1 << 32, u64::MAX]);
        let by = self.call(process);
        let kind = match self.random.below(49) {
            0..10 => EventKind::Allocated { block, size, by },
            10..18 => {
                let given_size = self.random.one_of(&[None, Some(0), Some(u64::MAX)]);
                EventKind::Freed { block, internal: self.random.below(2) == 0, given_size, by }
            }
            18..24 => {
                // one at a time in each thread
                if self.processes[process].open.iter().any(|(_, open)| open.task == by.task) {
                    return;
                }
                self.processes[process].open.push((block, by));
                EventKind::ReallocBegan { old: block, by }
            }
            24..30 => {
                let new = self.random.one_of(&[Addr::NULL, block, Addr(block.0 + 64)]);
                let open = &mut self.processes[process].open;
                let Some((old, begun)) = open.pop() else { return };
                let other = Call { task: begun.task, ..by };
                EventKind::ReallocEnded { old, new, size, by: self.random.one_of(&[begun, begun, other]) }
            }
            30 => {
                let Some((old, by)) = self.processes[process].open.pop() else { return };
                EventKind::ReallocAbandoned { old, task: by.task }
            }
            31 => EventKind::AllocatedUnseen { size, by },
            32 => EventKind::Failed { size, by },
            33 => EventKind::Missed(self.random.one_of(&[
                Missed::Call,
                Missed::Return,
                Missed::UnwindRule,
                Missed::OuterFrames { cut: true },
                Missed::OuterFrames { cut: false },
            ])),
            34 => self.random.one_of(&[EventKind::UnknownFreesExpected, EventKind::Unobserved]),
            35 => EventKind::Paused(self.random.below(2) == 0),
            36 => self.random.one_of(&[
                EventKind::BlockIgnored(block),
                EventKind::Existing { block, size },
                EventKind::Unwritten { block, bytes: size },
                EventKind::ArenaPart {
                    arena: block,
                    is_main: size == 0,
                    start: block,
                    bytes: size,
                    live: 1,
                    free: size,
                },
            ]),
            37 => EventKind::NewBlocksIgnored { task: by.task, ignore: self.random.below(2) == 0 },
            38 => EventKind::NotRecorded { task: by.task },
            39 => {
                EventKind::Mark(MarkName::new(self.random.one_of(&["a", "warmed up \u{e4}", &"x".repeat(47)])).unwrap())
            }
            40 => EventKind::Counted { allocations: size, bytes: block.0 },
            41 => {
                let test = TestId(u32::try_from(self.random.below(5)).unwrap());
                EventKind::TestBegan { test, task: by.task, alone: self.random.below(2) == 0 }
            }
            42 => {
                let task = self.call(process).task;
                self.random.one_of(&[EventKind::TestEnded { task }, EventKind::TestJoined { task, parent: by.task }])
            }
            43 if self.processes.len() < 6 => return self.fork(process, by.task),
            44..47 => {
                let changes = [
                    MapChange::Mapped { start: block, bytes: size },
                    MapChange::Unmapped { start: block, bytes: size },
                    MapChange::MoveBegan { old: block, old_bytes: size },
                ];
                EventKind::Mapping { change: self.random.one_of(&changes), by }
            }
            47 => EventKind::Remapped {
                old: block,
                old_bytes: Length::of(size),
                new: self.random.one_of(&[Addr::NULL, Addr(size)]),
                new_bytes: Length::of(8192),
                by,
            },
            _ => return self.exec(process),
        };
        self.tell(process, kind);
    }

    fn fork(&mut self, process: usize, parent: TaskId) {
        let image = self.new_image();
        let number = u32::try_from(self.processes.len()).unwrap();
        let id = ProcessId { pid: 100 + i32::try_from(number).unwrap(), number };
        let made = &self.processes[process];
        let reader = made.reader.fork(id).unwrap();
        let child = TaskId { tid: id.pid, serial: number * 1000 };
        let koid = process_koid(id);
        let stacks = made.stacks.clone();
        self.nodes.insert(image, stacks.clone());
        self.processes.push(Made { koid, number, image, reader, seq: 0, stacks, open: Vec::new() });
        let among_threads = self.random.below(2) == 0;
        self.tell(usize::try_from(number).unwrap(), EventKind::Forked { image, parent, child, among_threads });
        self.define(usize::try_from(number).unwrap());
    }

    fn exec(&mut self, process: usize) {
        let image = self.new_image();
        let made = &mut self.processes[process];
        (made.image, made.stacks) = (image, Vec::new());
        made.open.clear();
        self.tell(process, EventKind::Exec { image });
        self.define(process);
    }
}

/// What was read of a trace.
#[derive(Debug, Default)]
struct Read {
    events: BTreeMap<u64, Vec<Event>>,
    nodes: BTreeMap<ImageId, BTreeMap<StackId, StackNode>>,
    modules: Vec<Module>,
    processes: BTreeSet<u64>,
    functions: usize,
    /// Forks that name no parent, and other events that name one.
    odd_parents: usize,
    gaps: Gaps,
}

fn read(bytes: &[u8]) -> Result<Read, TraceError> {
    let mut reader = Reader::new(bytes, false);
    let mut read = Read::default();
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Event(ProcessEvent { process, event, parent }) => {
                let is_fork = matches!(event.kind, EventKind::Forked { .. });
                read.odd_parents += usize::from(parent.is_some() != is_fork);
                read.events.entry(process).or_default().push(event);
            }
            Item::Stacks(image, nodes) => read.nodes.entry(image).or_default().extend(nodes),
            Item::Module(module) => read.modules.push(module),
            Item::Functions(functions) => read.functions = functions.len(),
            Item::Process(process) => drop(read.processes.insert(process.koid)),
            Item::Session(_) | Item::ProfileEnd(_) | Item::End(_) | Item::Names(_) => {}
        }
    }
    read.gaps = reader.gaps();
    Ok(read)
}

fn made(seed: u64, acts: usize, memory: &Memory) -> World {
    let mut world = World::new(seed, memory);
    for _ in 0..acts {
        world.act();
    }
    world.recorder.flush();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each event comes back as it was told, in its place, with the nodes of its stack before it.
    #[test]
    fn what_is_written_is_read(seed in any::<u64>(), acts in 1_usize..600) {
        let memory = Memory::default();
        let world = made(seed, acts, &memory);
        let read = read(&memory.since_segment(0)).unwrap();
        prop_assert_eq!(&read.events, &world.events);
        prop_assert_eq!(read.functions, 40);
        prop_assert_eq!(read.odd_parents, 0);
        prop_assert_eq!(read.gaps, Gaps::default());
        prop_assert!(read.modules.iter().all(|module| module.path == FilePath::Text("/bin/made".to_owned())));
        for (image, nodes) in &read.nodes {
            for (id, node) in nodes {
                prop_assert_eq!(Some(node), world.nodes[image].get(id.0 as usize - 1));
            }
        }
    }

    /// Whatever was overwritten, the rest is as it was told, and what is missing is known.
    #[test]
    fn the_rest_of_a_circular_trace_is_read(seed in any::<u64>(), acts in 100_usize..900, first in 0_usize..30) {
        let memory = Memory { segment: Some(4000), ..Memory::default() };
        let world = made(seed, acts, &memory);
        let segments = memory.segments();
        let read = read(&memory.since_segment(first.min(segments - 1))).unwrap();
        let mut missing = 0;
        for koid in read.processes.iter().chain(read.events.keys()).collect::<BTreeSet<_>>() {
            let events = read.events.get(koid).map_or(&[][..], Vec::as_slice);
            let all = &world.events[koid];
            let from = all.len() - events.len();
            prop_assert_eq!(events, &all[from..]);
            missing += from as u64;
        }
        prop_assert_eq!(read.gaps, Gaps { overwritten: missing, ..Gaps::default() });
    }

    /// Bytes that are changed give an error, or other events; nothing else.
    #[test]
    fn damaged_traces_do_no_harm(
        seed in 0_u64..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let memory = Memory::default();
        made(seed, 200, &memory);
        let mut bytes = memory.since_segment(0);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = read(&bytes);
    }
}

#[test]
fn a_cut_off_trace_is_read_to_its_end() {
    let memory = Memory::default();
    let world = made(7, 40, &memory);
    let bytes = memory.since_segment(0);
    for length in 8..bytes.len() {
        let events = read(&bytes[..length]).unwrap().events;
        for (koid, events) in &events {
            assert_eq!(events[..], world.events[koid][..events.len()], "{length}");
        }
    }
}

/// A trace that begins with this session.
fn trace_of(session: &str) -> Vec<u8> {
    let mut bytes = super::super::fxt::MAGIC.to_le_bytes().to_vec();
    let name = Word::SessionBlob.text();
    for text in [name, session] {
        let words = 1 + name.len().div_ceil(8) + session.len().div_ceil(8);
        if text == name {
            let header =
                5 | (words as u64) << 4 | (0x8000 | name.len() as u64) << 16 | (session.len() as u64) << 32 | 1 << 48;
            bytes.extend(header.to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

#[test]
fn a_later_format_is_refused_with_the_way_out() {
    let json = serde_json::to_string(&session(TraceMode::Streaming)).unwrap();
    assert!(read(&trace_of(&json)).is_ok());
    let later = r#"{"format": 2, "heaptrace": "3.4.5", "everything": "else"}"#;
    assert_eq!(
        read(&trace_of(later)).unwrap_err().to_string(),
        "this trace has format 2, written by heaptrace 3.4.5; this heaptrace knows formats up to 1: use that version, or a later one"
    );
    let unknown_field = json.replacen('{', r#"{"colour": "red", "#, 1);
    assert!(read(&trace_of(&unknown_field)).is_ok());
    let no_json = read(&trace_of("{")).unwrap_err().to_string();
    assert!(
        no_json.starts_with("the trace is damaged: before byte 48, heaptrace.session can't be read: "),
        "{no_json}"
    );
    let other = json.replace("0123456789abcdef", "ffffffffffffffff");
    let joined = [trace_of(&json), trace_of(&other)].concat();
    assert!(
        read(&joined).unwrap_err().to_string().contains("from session 0123456789abcdef to session ffffffffffffffff")
    );
}

#[test]
fn other_programs_traces_are_told_from_ours() {
    let mut bytes = super::super::fxt::MAGIC.to_le_bytes().to_vec();
    bytes.extend((5_u64 | 3 << 4 | 0x8003 << 16 | 1 << 32 | 1 << 48).to_le_bytes());
    bytes.extend(b"abc\0\0\0\0\0x\0\0\0\0\0\0\0");
    assert!(read(&bytes).unwrap().events.is_empty(), "an unknown blob is skipped");
    bytes.extend((4_u64 | 4 << 4).to_le_bytes());
    bytes.extend([0; 24]);
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, TraceError::NotOurs), "{error}");
}
