mod leaks;

use super::*;
use crate::base::addr::{Addr, FrameAddr, ObjAddr};
use crate::heapmodel::SiteKey;
use crate::profile::symbolize::{FunctionName, NoSymbols, Resolution, SymFrame};
use crate::profile::{Amount, FindingKind, Line, Mode, ProcessInfo};
use proptest::prelude::*;
use std::time::SystemTime;

const BIAS: LoadBias = LoadBias(0x7000_0000);

/// Stack 0 is empty; the others are what the test says.
struct TestStacks(Vec<(Vec<Frame>, Quality)>);

impl TestStacks {
    fn numbers(&self, stack: StackId) -> Vec<u32> {
        (0..self.0[stack.0 as usize].0.len() as u32).map(|at| stack.0 << 8 | at).collect()
    }
}

impl Stacks for TestStacks {
    fn follow(&self, stack: StackId, path: &mut StackPath) {
        *path = StackPath::of(self.numbers(stack));
    }
    fn frames_of_all(&self, stacks: &[StackId]) -> Vec<u32> {
        let stacks = stacks.iter().filter(|stack| **stack != StackId::EXISTING);
        stacks.flat_map(|stack| self.numbers(*stack)).collect()
    }
    fn frame(&self, number: u32) -> Option<Frame> {
        self.0[number as usize >> 8].0.get(number as usize & 0xff).copied()
    }
    fn quality(&self, stack: StackId) -> Quality {
        self.0[stack.0 as usize].1
    }
}

/// Names object addresses after a list, and counts how often it was asked for each.
#[derive(Default)]
struct TestSymbols {
    names: Vec<(u64, &'static str, &'static str)>,
    asked: Vec<(ModuleId, ObjAddr)>,
}

impl Symbolize for TestSymbols {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        assert!(addrs.is_sorted());
        self.asked.extend(addrs.iter().map(|&a| (module, a)));
        let mut status = SymbolStatus::default();
        let frames = addrs.iter().map(|addr| {
            let mut frames = Vec::new();
            for (_, name, system_name) in self.names.iter().filter(|n| n.0 == addr.0) {
                let function = Some(FunctionName { name: (*name).into(), system_name: (*system_name).into() });
                frames.push(SymFrame { function, file: Some("a.c".into()), line: 7, start_line: 5 });
                status = SymbolStatus { functions: true, files: true, lines: true, inlines: false };
            }
            frames
        });
        Resolution { frames: frames.collect(), status }
    }
    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        (module == ModuleId(0)).then(|| ("cache".to_owned(), addr.0 % 16))
    }
    fn take_warnings(&mut self) -> Vec<String> {
        vec!["a warning".into()]
    }
}

/// A return address whose look-up address is `offset` in the module.
fn frame(module: u32, offset: u64) -> Frame {
    Frame { addr: FrameAddr::Return(BIAS.to_process(ObjAddr(offset + 1))), module: ModuleId(module) }
}

fn module(id: u32, path: &str) -> LoadedModule {
    let (start, end) = (Addr(0x7000_0000), Addr(0x7100_0000));
    let symbols = SymbolStatus::default();
    let info = ModuleInfo {
        id: ModuleId(id),
        path: path.into(),
        build_id: None,
        start,
        end,
        file_offset: 0,
        symbols,
        debug_package: None,
    };
    LoadedModule { info, bias: BIAS }
}

fn site(stack: u32, task: u32, function: u16, size: u64, objects: u64) -> SiteStats {
    let amount = Amount { objects, bytes: objects * size };
    let key = SiteKey { stack: StackId(stack), task, function: FunctionId(function), size, interval: 0 };
    let zero = Amount::default();
    SiteStats {
        key,
        inherited: false,
        allocated: amount,
        freed: zero,
        deallocated: zero,
        live: amount,
        at_peak: amount,
        temporary: 0,
        lifetime_ns: 0,
        freed_elsewhere: 0,
    }
}

fn snapshot(sites: Vec<SiteStats>) -> Snapshot {
    Snapshot { sites: sites.into_iter().collect(), ..Snapshot::default() }
}

fn run(snapshot: &Snapshot, stacks: &TestStacks, symbols: &mut dyn Symbolize) -> Profile {
    run_with(snapshot, stacks, symbols, None)
}

fn run_with(
    snapshot: &Snapshot,
    stacks: &TestStacks,
    symbols: &mut dyn Symbolize,
    leaks: Option<LeakInput<'_>>,
) -> Profile {
    let process = ProcessInfo {
        pid: 1,
        pid_inside: None,
        program: "app".into(),
        command: vec![],
        cwd: "/".into(),
        started_at: SystemTime::UNIX_EPOCH,
        of_another_user: false,
        users: std::collections::BTreeSet::new(),
        user_is_unknown: false,
        exit: None,
        resident: None,
    };
    let meta = Meta {
        process,
        mode: Mode::Run,
        part: 1,
        duration_ns: 0,
        engine: "trap".into(),
        complete: true,
        session: String::new(),
        sample_interval: 0,
    };
    let input = BuildInput {
        course: HeapHistory::default(),
        meta,
        anomalies: Anomalies { lost: 2, double_frees: 3, ..Anomalies::default() },
        cost: Cost::default(),
        snapshot,
        sites: snapshot.sites.clone(),
        stacks,
        modules: vec![module(0, "/bin/app"), module(1, "/lib/libx.so.1")],
        allocators: vec![(ModuleId(1), vec!["malloc".into(), "free".into()])],
        thread_name: &|serial| format!("worker-{}", serial % 2),
        function_name: &|id| ["malloc", "free"][usize::from(id.0)].to_owned(),
        images: vec![],
        children: Children::default(),
        leaks,
        tests: None,
        warnings: vec!["first".into()],
    };
    let profile = build(input, symbols).ordered();
    assert_consistent(&profile);
    profile
}

fn assert_consistent(profile: &Profile) {
    for sample in profile.samples.iter() {
        assert!(profile.stacks.locations(sample.stack).len() > 0);
        assert!(sample.thread < profile.strings.len() && sample.alloc_fn < profile.strings.len());
    }
    for location in profile.stacks.iter().flat_map(|s| s.locations).map(|l| &profile.locations[l as usize]) {
        assert!(!location.lines.last().unwrap().inlined);
        assert!(location.lines.iter().all(|l| l.function < profile.functions.len()));
        assert!(location.module.is_none_or(|m| m < profile.modules.len()));
    }
}

/// Function names of a stack, innermost first.
fn names(profile: &Profile, stack: usize) -> Vec<&str> {
    let locations = profile.stacks.locations(stack).map(|l| &profile.locations[l as usize]);
    locations.flat_map(|l| &l.lines).map(|l| profile.functions[l.function].name.as_str()).collect()
}

fn string(profile: &Profile, index: usize) -> &str {
    &profile.strings[index]
}

/// Who looks names up before the profile is made asks what making it will ask.
#[test]
fn questions_are_known_before_they_are_asked() {
    /// Keeps what it is to expect.
    struct Expecting(Vec<Question>);
    impl Symbolize for Expecting {
        fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
            NoSymbols.resolve(module, addrs)
        }
        fn expect(&mut self, questions: &[Question]) {
            self.0.extend_from_slice(questions);
        }
    }
    let stacks = TestStacks(vec![
        (vec![], Quality::Complete),
        (vec![frame(1, 0x10), frame(0, 0x40)], Quality::Complete),
        (vec![frame(1, 0x10), frame(1, 0x20), frame(0, 0x30)], Quality::Complete),
        (vec![frame(0, 0x50)], Quality::Complete),
        (vec![frame(0, 0x60)], Quality::Complete),
    ]);
    // stack 3 is an error's, and nobody has stack 4
    let error = HeapError {
        kind: FindingKind::DoubleFree,
        count: 1,
        block: Addr(0x100),
        size: None,
        given_size: None,
        offset: None,
        align: None,
        given_align: None,
        function: FunctionId(1),
        operator: None,
        task: 1,
        stack: StackId(3),
        alloc_stack: Some(StackId(1)),
        free_stack: None,
    };
    let snapshot = Snapshot { errors: vec![error], ..snapshot(vec![site(2, 1, 0, 8, 1), site(1, 1, 0, 8, 1)]) };
    let mut expecting = Expecting(Vec::new());
    run(&snapshot, &stacks, &mut expecting);
    let in_order = [(ModuleId(0), vec![0x30, 0x40, 0x50]), (ModuleId(1), vec![0x10, 0x20])];
    let in_order = in_order.map(|(module, addrs)| (module, addrs.into_iter().map(ObjAddr).collect::<Vec<_>>()));
    assert_eq!(expecting.0, in_order);
    let modules = [module(0, "/bin/app"), module(1, "/lib/libx.so.1")];
    let ids = [2, 1, 3, 1, 2].map(StackId).to_vec();
    assert_eq!(questions(&modules, &stacks, ids), in_order);
}

#[test]
fn stacks_begin_at_the_allocator_s_caller() {
    let stacks = TestStacks(vec![
        (vec![], Quality::Truncated),
        (vec![frame(1, 0x10), frame(1, 0x20), frame(0, 0x30), frame(0, 0x40)], Quality::Complete),
        (vec![frame(1, 0x60), frame(1, 0x61), frame(0, 0x30)], Quality::Complete),
        // An operator further out is a frame like others.
        (vec![frame(0, 0x30), frame(1, 0x10)], Quality::Complete),
    ]);
    let mut symbols = TestSymbols {
        names: vec![
            (0x10, "operator new(unsigned long)", "_Znwm"),
            (0x20, "operator new[](unsigned long)", "_Znam"),
            (0x30, "make", "make"),
            (0x40, "main", "main"),
            (0x60, "__rdl_alloc", "__rdl_alloc"),
            (0x61, "__rustc::__rust_alloc", "_R"),
        ],
        asked: vec![],
    };
    let sites = snapshot(vec![site(1, 0, 0, 8, 3), site(2, 0, 0, 8, 2), site(3, 0, 0, 8, 1)]);
    let profile = &run(&sites, &stacks, &mut symbols);
    let rows: Vec<_> = profile.samples.iter().map(|s| (names(profile, s.stack), string(profile, s.alloc_fn))).collect();
    assert_eq!(
        rows,
        [
            (vec!["make", "main"], "operator new[](unsigned long)"),
            (vec!["make"], "malloc"),
            (vec!["make", "operator new(unsigned long)"], "malloc"),
        ]
    );
    // Each address is asked for once, though it is in several stacks.
    symbols.asked.sort_unstable();
    let mut once = symbols.asked.clone();
    once.dedup();
    assert_eq!(symbols.asked, once);
    let function = profile.functions.iter().find(|f| f.name == "make").unwrap();
    assert_eq!((function.file.as_deref(), function.start_line), (Some("a.c"), 5));
    let status = profile.modules[0].symbols;
    assert!(status.functions && status.lines && !status.inlines);
    assert_eq!(profile.warnings, ["first", "a warning"]);
    assert_eq!((profile.anomalies.lost, profile.anomalies.double_frees), (2, 3));
    assert_eq!(profile.allocators[0].functions, ["free", "malloc"]);
    assert!(profile.functions.iter().all(|f| !f.name.contains("rdl")), "dropped frames leave nothing behind");
}

#[test]
fn cut_off_and_empty_stacks_have_synthetic_frames() {
    let stacks = TestStacks(vec![
        (vec![], Quality::Truncated),
        (vec![frame(0, 0x30)], Quality::Truncated),
        (vec![frame(0, 0x10)], Quality::Complete),
    ]);
    let names_list = vec![(0x30, "make", "make"), (0x10, "operator new(unsigned long)", "_Znwm")];
    let sites = snapshot(vec![site(0, 0, 0, 8, 3), site(1, 0, 0, 8, 2), site(2, 0, 0, 8, 1)]);
    let profile = &run(&sites, &stacks, &mut TestSymbols { names: names_list, asked: vec![] });
    let stacks: Vec<_> = profile.samples.iter().map(|s| names(profile, s.stack)).collect();
    assert_eq!(stacks, [vec![UNKNOWN_STACK], vec!["make", TRUNCATED_STACK], vec![UNKNOWN_STACK]]);
    assert_eq!(profile.samples.row(0).stack, profile.samples.row(2).stack);
}

#[test]
fn what_becomes_equal_is_merged() {
    // Two ways through the shims to the same caller; two threads of one name; the worse quality is kept.
    let stacks = TestStacks(vec![
        (vec![], Quality::Truncated),
        (vec![frame(1, 0x60), frame(0, 0x30)], Quality::Complete),
        (vec![frame(1, 0x61), frame(0, 0x30)], Quality::Guessed),
    ]);
    let names_list = vec![(0x60, "__rdl_alloc", "x"), (0x61, "__rust_alloc", "x"), (0x30, "make", "make")];
    let mut sites = snapshot(vec![site(1, 1, 0, 8, 3), site(2, 3, 0, 8, 2), site(2, 2, 0, 8, 1), site(2, 1, 0, 9, 1)]);
    let error = |stack, count| HeapError {
        kind: FindingKind::DoubleFree,
        given_size: None,
        offset: None,
        align: None,
        given_align: None,
        count,
        block: Addr(0x1000),
        size: None,
        function: FunctionId(1),
        operator: None,
        task: 1,
        stack: StackId(stack),
        alloc_stack: Some(StackId(1)),
        free_stack: None,
    };
    sites.errors = vec![error(1, 2), error(2, 3)];
    let profile = &run(&sites, &stacks, &mut TestSymbols { names: names_list, asked: vec![] });
    assert_eq!(profile.stacks.len(), 1);
    assert_eq!(profile.stacks.row(0).quality, Quality::Guessed);
    let rows: Vec<_> = profile
        .samples
        .iter()
        .map(|s| (s.size, string(profile, s.thread), s.allocated.objects, s.live.bytes, s.at_peak.bytes))
        .collect();
    assert_eq!(rows, [(8, "worker-1", 5, 40, 40), (9, "worker-1", 1, 9, 9), (8, "worker-0", 1, 8, 8)]);
    assert_eq!(profile.findings.len(), 1);
    assert_eq!((profile.findings[0].count, profile.findings[0].function.as_str()), (5, "free"));
}

#[test]
fn unnamed_frames_are_module_and_offset() {
    let jit = Frame { addr: FrameAddr::Instruction(Addr(0x1234)), module: ModuleId::NONE };
    let stacks = TestStacks(vec![
        (vec![], Quality::Truncated),
        (vec![frame(1, 0x20), frame(0, 0x30), jit], Quality::Complete),
        (vec![frame(1, 0x21), frame(1, 0x20), frame(0, 0x30)], Quality::Complete),
    ]);
    let sites = snapshot(vec![site(1, 0, 0, 8, 3), site(2, 0, 0, 100, 1)]);
    let symbols = &mut TestSymbols { names: vec![(0x30, "make", "make")], asked: vec![] };
    let profile = &run(&sites, &stacks, symbols);
    assert_eq!(names(profile, profile.samples.row(1).stack), ["libx.so.1+0x20", "make", "[jit]+0x1234"]);
    assert_eq!(profile.modules[1].symbols, SymbolStatus::default());
    let place = &profile.locations[profile.stacks.row(profile.samples.row(1).stack).locations[0] as usize];
    assert_eq!((place.address, place.offset), (Addr(0x7000_0020), 0x20));

    let profile = &run(&sites, &stacks, &mut NoSymbols);
    let stack = profile.samples.row(1).stack;
    assert_eq!(names(profile, stack), ["libx.so.1+0x20", "app+0x30", "[jit]+0x1234"]);
    assert!(profile.modules.iter().all(|m| m.symbols == SymbolStatus::default()));
}

proptest! {
    /// Sums stay what they were, and the order of sites and numbers of stacks leave no trace.
    #[test]
    fn totals_are_kept_and_the_order_is_that_of_names(
        sites in proptest::collection::vec((0u32..6, 0u32..4, 0u16..2, 0u64..4, 1u64..5), 0..30),
        shuffled in proptest::collection::vec(any::<u32>(), 30),
    ) {
        let tails = [vec![0x30u64], vec![0x10, 0x30], vec![0x30, 0x40], vec![0x60, 0x30], vec![0x40, 0x30, 0x40]];
        let mut list = vec![(vec![], Quality::Truncated)];
        list.extend(tails.iter().map(|t| (t.iter().map(|&o| frame(0, o)).collect(), Quality::Complete)));
        let names = || TestSymbols {
            names: vec![(0x10, "operator new(unsigned long)", "_Znwm"), (0x60, "__rust_alloc", "x"), (0x30, "make", "m"), (0x40, "main", "n")],
            asked: vec![],
        };
        // One site for a key, as the model has it.
        let mut unique: Vec<SiteStats> = Vec::new();
        for (stack, task, function, size, objects) in sites {
            let site = site(stack, task, function, size, objects);
            if unique.iter().all(|s| s.key != site.key) {
                unique.push(site);
            }
        }
        let one = run(&snapshot(unique.clone()), &TestStacks(list.clone()), &mut names());
        let sum = |amounts: &mut dyn Iterator<Item = Amount>| amounts.fold((0, 0), |a, b| (a.0 + b.objects, a.1 + b.bytes));
        let expected = sum(&mut unique.iter().map(|s| s.live));
        prop_assert_eq!(sum(&mut one.samples.iter().map(|s| s.live)), expected);
        prop_assert!(one.samples.iter().is_sorted_by(|a, b| a.allocated.bytes >= b.allocated.bytes));

        let mut other = unique;
        let mut keys = shuffled.into_iter();
        other.sort_by_cached_key(|_| keys.next());
        for site in &mut other {
            // The stacks in reverse, behind the empty one.
            if site.key.stack != StackId::EMPTY {
                site.key.stack = StackId(6 - site.key.stack.0);
            }
        }
        list[1..].reverse();
        let two = run(&snapshot(other), &TestStacks(list), &mut names());
        prop_assert_eq!(format!("{:?}", one.samples), format!("{:?}", two.samples));
        let stacks = |profile: &Profile| profile.stacks.iter().map(crate::profile::Stack::from).collect::<Vec<_>>();
        prop_assert_eq!((stacks(&one), &one.strings), (stacks(&two), &two.strings));
        prop_assert_eq!(format!("{:?}", one.locations), format!("{:?}", two.locations));
        prop_assert_eq!(one.functions, two.functions);
    }
}

/// Debug packages bring the names of functions, and the lines of the program: nothing to a module that has lines
/// already.
#[test]
fn names_are_missing_where_a_package_would_bring_them() {
    let function =
        |name: &str| Function { name: name.to_owned(), system_name: name.to_owned(), file: None, start_line: 0 };
    let functions = [function("known"), function("lib+0x12")];
    let place = |module: Option<usize>, function: usize, line: u32| {
        let lines = vec![Line { function, line, inlined: false }];
        Location { module, address: Addr(1), offset: 1, lines }
    };
    let with_lines = SymbolStatus { lines: true, ..SymbolStatus::default() };
    let without = SymbolStatus::default();
    let lacking = |status: [SymbolStatus; 2], location: Location| lack_names(&status, &[location], &functions);
    assert_eq!(lacking([without; 2], place(Some(0), 0, 0)), [true, false], "the program's lines");
    assert_eq!(lacking([without; 2], place(Some(1), 0, 0)), [false, false], "not those of a library");
    assert_eq!(lacking([without; 2], place(Some(1), 1, 0)), [false, true], "a name");
    assert_eq!(lacking([with_lines; 2], place(Some(1), 1, 0)), [false, false], "its debug information does not say");
    assert_eq!(lacking([with_lines; 2], place(Some(0), 0, 0)), [false, false], "of start-up code, as a rule");
    assert_eq!(lacking([without; 2], place(None, 1, 0)), [false, false], "no module");
}
