//! `go tool pprof` reads our files, and reads the right numbers. It is needed to run these tests.

use super::*;
use crate::export::proto;
use flate2::read::GzDecoder;
use prost::Message;
use std::fs;
use std::io::Read;
use std::process::Command;

/// A directory with profiles, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("heaptrace-pprof-{}-{test}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    fn add(&self, name: &str, profile: &Profile) -> String {
        self.add_with(name, profile, &ExportOptions::default())
    }

    fn add_with(&self, name: &str, profile: &Profile, options: &ExportOptions) -> String {
        let path = self.0.join(name);
        let mut file = fs::File::create(&path).expect("created");
        let format = Format::from_path(&path).expect("a format");
        write(format, profile, options, &mut file).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// What pprof prints.
    fn pprof(&self, arguments: &[&str]) -> String {
        let output = Command::new("go")
            .args(["tool", "pprof"])
            .args(arguments)
            .env("HOME", &self.0)
            .env("GOCACHE", &self.0)
            .env("GOFLAGS", "-mod=mod")
            .env("PPROF_TMPDIR", &self.0)
            .current_dir(&self.0)
            .output()
            .expect("go is installed: its pprof is the oracle of these tests");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pprof {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The sum of a column, as pprof counts it in its smallest unit.
    fn total(&self, column: &str, arguments: &[&str]) -> i64 {
        let mut all = vec!["-raw", column];
        all.extend(arguments);
        // -top rounds; -raw prints each sample's values in full, and the names of the columns before them
        let raw = self.pprof(&all);
        let name = column.trim_start_matches("-sample_index=");
        let mut lines = raw.lines().skip_while(|line| *line != "Samples:").skip(1);
        let columns: Vec<&str> = lines.next().expect("columns").split_whitespace().collect();
        let index = columns.iter().position(|column| column.split('/').next() == Some(name)).expect(name);
        let values = lines.take_while(|line| *line != "Locations").filter_map(|line| {
            let (values, _) = line.split_once(':')?;
            values.split_whitespace().nth(index)?.parse::<i64>().ok()
        });
        values.sum()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const COLUMNS: [(&str, i64); 12] = [
    ("residual_allocated_objects", 7),
    ("residual_allocated_space", 266_272),
    ("allocated_objects", 116),
    ("allocated_space", 1_065_248),
    ("deallocated_objects", 109),
    ("deallocated_space", 798_976),
    ("peak_objects", 64),
    ("peak_space", 1_060_000),
    ("alloc_objects", 116),
    ("alloc_space", 1_065_248),
    ("inuse_objects", 7),
    ("inuse_space", 266_272),
];

#[test]
fn all_columns_have_their_totals() {
    let files = Files::new("columns");
    for name in ["a.pb.gz", "a.pb"] {
        let path = files.add(name, &sample_profile());
        for (column, total) in COLUMNS {
            assert_eq!(files.total(&format!("-sample_index={column}"), &[&path]), total, "{column}");
        }
    }
}

#[test]
fn go_s_own_options_find_their_columns() {
    let files = Files::new("aliases");
    let path = files.add("a.pb.gz", &sample_profile());
    for (option, kind, total) in [
        ("-inuse_space", "inuse_space", "266272B total"),
        ("-alloc_space", "alloc_space", "1065248B total"),
        ("-inuse_objects", "inuse_objects", "of 7 total"),
        ("-alloc_objects", "alloc_objects", "of 116 total"),
    ] {
        let unit = if kind.ends_with("space") { "-unit=B" } else { "-unit=auto" };
        let top = files.pprof(&["-top", unit, option, &path]);
        assert!(top.contains(&format!("Type: {kind}")) && top.contains(total), "{top}");
    }
}

#[test]
fn the_default_column_is_the_peak_of_a_run_and_the_live_bytes_of_an_attach() {
    let files = Files::new("default");
    let run = files.add("run.pb.gz", &sample_profile());
    let attach = files.add("attach.pb.gz", &attach_profile());
    assert!(files.pprof(&["-top", &run]).contains("Type: peak_space"));
    assert!(files.pprof(&["-top", &attach]).contains("Type: inuse_space"));
}

#[test]
fn top_shows_names_whole_and_allocators_not_at_all() {
    let files = Files::new("top");
    let mut profile = sample_profile();
    profile.functions[4].name = "Table<int, std::allocator<int> >::reserve(unsigned long)".to_owned();
    let path = files.add("a.pb.gz", &profile);
    let top = files.pprof(&["-top", "-unit=B", "-nodefraction=0", "-sample_index=alloc_objects", &path]);
    for name in
        ["<alpha::Beta as core::clone::Clone>::clone", "libfoo.so.1+0x1234", "[unknown stack]", "new_node (inline)"]
    {
        assert!(top.contains(name), "{name} is not in {top}");
    }
    assert!(top.contains("Table<int, std::allocator<int> >::reserve(unsigned long)"), "{top}");
    assert!(!top.contains("operator new"), "{top}");
    assert!(top.contains("File: app"), "the first mapping is the program's: {top}");
    assert!(top.contains("Duration: 2.31s"), "{top}");
}

/// Functions that only hand memory on, of which nothing may be shown.
const HIDDEN: [&str; 38] = [
    "operator new(unsigned long)",
    "alloc::alloc::realloc",
    "alloc::alloc::exchange_malloc",
    "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
    "alloc::raw_vec::RawVec<T,A>::grow_one",
    "<alloc::raw_vec::RawVecInner>::finish_grow",
    "<alloc::raw_vec::RawVec<(u8, my::Type)>>::grow_one",
    "__rustc::__rdl_alloc",
    "std::sys::alloc::unix::<impl core::alloc::global::GlobalAlloc for std::alloc::System>::alloc",
    "<my::Counting as core::alloc::global::GlobalAlloc>::alloc_zeroed",
    "alloc::vec::Vec<T,A>::push",
    "<alloc::vec::Vec<[u8; 3], alloc::alloc::Global>>::with_capacity_in",
    "<alloc::vec::Vec<alloc::boxed::Box<dyn core::any::Any + core::marker::Send>>>::reserve",
    "<alloc::string::String>::push_str",
    "<alloc::string::String as core::fmt::Write>::write_str",
    "<str as alloc::borrow::ToOwned>::to_owned",
    "hashbrown::raw::RawTable<T,A>::reserve_rehash",
    "grow_amortized<alloc::alloc::Global>",
    "push_mut<(u64, my::Type), alloc::alloc::Global>",
    "std::__new_allocator<Row>::allocate(unsigned long, void const*)",
    "__gnu_cxx::new_allocator<std::_Sp_counted_ptr_inplace<Row, std::allocator<Row>, (__gnu_cxx::_Lock_policy)2> >::allocate(unsigned long)",
    "std::allocator_traits<std::allocator<Row> >::allocate(std::allocator<Row>&, unsigned long)",
    "std::_Vector_base<Row, std::allocator<Row> >::_M_allocate(unsigned long)",
    "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int const&>(int const&)",
    "std::__detail::_Hashtable_alloc<std::allocator<std::__detail::_Hash_node<Row, true> > >::_M_allocate_buckets(unsigned long)",
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_create(unsigned long&, unsigned long)",
    "void std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_construct<char const*>(char const*)",
    "std::string::_Rep::_S_create(unsigned long, unsigned long, std::allocator<char> const&)",
    "void* std::__1::__libcpp_operator_new[abi:ne180100]<unsigned long>(unsigned long)",
    "xmalloc",
    "x2nrealloc",
    "g_malloc0_n",
    "CRYPTO_zalloc",
    "_PyObject_Malloc",
    "ztrymalloc_usable",
    "sqlite3DbMallocRawNN",
    "jv_mem_alloc_unguarded",
    "QArrayData::allocate(unsigned long, unsigned long)",
];

/// Functions whose names look like it. They are the program's, or may call what is.
const SHOWN: [&str; 31] = [
    "my_alloc",
    "allocate",
    "alloc",
    "push",
    "my::alloc::alloc",
    "my::raw_vec::RawVec<T>::grow_one",
    "<alloc::vec::Vec<u8> as my::Stack>::push",
    "<alloc::vec::Vec<T> as alloc::vec::spec_from_iter::SpecFromIter<T,I>>::from_iter",
    "alloc::vec::Vec<T,A>::extend_desugared",
    "<alloc::string::String as core::convert::From<my::Name>>::from",
    "<alloc::boxed::Box<dyn core::ops::function::FnOnce()> as core::ops::function::FnOnce<()>>::call_once",
    "hashbrown::raw::RawTable<T,A>::clear",
    "core::ptr::drop_in_place<alloc::vec::Vec<my::Type>>",
    "my_operator new",
    "Pool::operator new(unsigned long)",
    "Pool<int>::allocate(unsigned long)",
    "std::_Vector_base<Row, Pool<Row> >::_M_allocate(unsigned long)",
    "void std::vector<Row, std::allocator<Row> >::_M_realloc_insert<int>(int)",
    "std::shared_ptr<Row> std::make_shared<Row>()",
    "void std::__new_allocator<Row>::construct<Row, int>(Row*, int)",
    "std::__new_allocator<Row>::construct<Row, int>(Row*, int)",
    "std::allocator_traits<std::allocator<Row> >::construct<Row, int>(std::allocator<Row>&, Row*, int)",
    "xmalloc_table",
    "zmallocs",
    "g_malloc_stats",
    "sqlite3VdbeSorterWrite",
    // an iterator, and a value, of the program's own
    "std::vector<int, std::allocator<int> >::_M_range_initialize<std::istream_iterator<int, char, std::char_traits<char>, long> >",
    "int& std::vector<int, std::allocator<int> >::emplace_back<Convertible>(Convertible&&)",
    "std::vector<int, std::allocator<int> >::vector<Numbers, void>(Numbers, Numbers)",
    // methods of the program that are called as the standard library's
    "push<alloc::vec::Vec<u8, alloc::alloc::Global>>",
    "reserve<",
];

#[test]
fn who_asked_for_memory_is_shown_and_not_the_way_to_it() {
    let files = Files::new("drop");
    let mut profile = sample_profile();
    let sample = profile.samples.row(0);
    let function =
        |name: &str| Function { name: name.to_owned(), system_name: String::new(), file: None, start_line: 0 };
    let location = |address: u64, lines: &[usize]| Location {
        module: Some(0),
        address: Addr(0x5555_5555_6000 + address),
        offset: 0x2000 + address,
        lines: lines.iter().map(|function| Line { function: *function, line: 1, inlined: false }).collect(),
    };
    profile.functions = vec![function("main"), function("deep")];
    profile.locations = vec![location(0, &[0]), location(1, &[1])];
    (profile.stacks, profile.samples) = Default::default();
    for name in HIDDEN.iter().chain(&SHOWN) {
        let (this, caller) = (profile.functions.len(), profile.functions.len() + 1);
        profile.functions.extend([function(name), function(&format!("caller of {this}"))]);
        let first = profile.locations.len();
        // a frame of its own, and inlined into its caller
        let address = first as u64;
        profile.locations.extend([
            location(address, &[this]),
            location(address + 1, &[caller]),
            location(address + 2, &[1, this, caller]),
        ]);
        for locations in [vec![1, first, first + 1, 0], vec![1, first + 2, 0]] {
            profile.samples.push(&Sample { stack: profile.stacks.len(), at_peak: amount(1, 100), ..sample });
            profile.stacks.push(Stack::new(&locations, Quality::Complete));
        }
    }
    // nothing is left of a stack of such functions alone: so it is shown
    let alone = profile.functions.iter().position(|function| function.name == "xmalloc").expect("a name");
    profile.locations.push(location(9_999, &[alone]));
    profile.stacks.push(Stack::new(&[profile.locations.len() - 1], Quality::Complete));
    profile.samples.push(&Sample { stack: profile.stacks.len() - 1, at_peak: amount(1, 7), ..sample });
    let path = files.add("a.pb.gz", &profile);
    let options = ["-top", "-sample_index=peak_space", "-unit=B", "-nodefraction=0", "-nodecount=1000000"];
    let top = files.pprof(&[&options[..], &[&path]].concat());
    // flat flat% sum% cum cum%, two spaces, the name, and whether it was inlined
    let row = |line: &str| {
        let (figures, name) = line.split_once("%  ").and_then(|_| line.rsplit_once("%  "))?;
        let name = name.trim_end_matches(" (inline)").trim_end_matches(" (partial-inline)");
        Some((name.to_owned(), figures.split_whitespace().next()?.trim_end_matches('B').parse::<usize>().ok()?))
    };
    let rows: std::collections::BTreeMap<String, usize> = top.lines().filter_map(row).collect();
    let flat = |name: &str| rows.get(name).copied().unwrap_or(0);
    for (index, name) in HIDDEN.iter().chain(&SHOWN).enumerate() {
        let hidden = index < HIDDEN.len();
        assert_eq!(flat(&format!("caller of {}", 2 + 2 * index)), if hidden { 200 } else { 0 }, "{name}\n{top}");
        assert_eq!(rows.contains_key(*name), !hidden || *name == "xmalloc", "{name}\n{top}");
    }
    assert_eq!(flat("xmalloc"), 7);
    assert_eq!(flat("deep"), 200 * SHOWN.len());
    let total = 200 * (HIDDEN.len() + SHOWN.len()) + 7;
    assert!(top.contains(&format!("{total}B total")), "{top}");
    assert_eq!(files.total("-sample_index=peak_space", &[&path]), total as i64);
}

#[test]
fn traces_and_peek_show_callers() {
    let files = Files::new("traces");
    let path = files.add("a.pb.gz", &sample_profile());
    let traces = files.pprof(&["-traces", "-unit=B", "-inuse_space", &path]);
    let names: Vec<&str> = traces.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let at = names.windows(3).any(|names| names[1..] == ["parse_document", "main"]);
    assert!(at && traces.contains("4096B   new_node"), "{traces}");
    assert!(traces.contains("bytes:  1kB") && traces.contains("alloc_fn:  malloc"), "{traces}");
    let peek = files.pprof(&["-peek=^parse_document$", "-unit=B", "-inuse_space", &path]);
    assert!(peek.contains("|   main") && peek.contains("|   new_node"), "{peek}");
}

#[test]
fn list_charges_lines_of_source() {
    let files = Files::new("list");
    let source: String = (1..=130).map(|line| format!("/* line {line} */\n")).collect();
    fs::write(files.0.join("parse.c"), source).expect("written");
    let mut profile = sample_profile();
    profile.functions[1].file = Some(files.0.join("parse.c").to_str().expect("UTF-8").to_owned());
    let path = files.add("a.pb.gz", &profile);
    let list = files.pprof(&["-list=^parse_document$", "-unit=B", "-inuse_space", &path]);
    let line = list.lines().find(|line| line.contains("/* line 120 */")).expect("the line is listed");
    assert!(line.contains("4096B"), "{list}");
}

#[test]
fn profiles_can_be_subtracted_across_modes() {
    let files = Files::new("diff");
    let mut more = sample_profile();
    more.samples.edit(|samples| {
        samples[0].live = amount(5, 5_120);
        samples[0].allocated = amount(11, 11_264);
        samples[0].at_peak = amount(9, 9_216);
    });
    let before = files.add("before.pb.gz", &attach_profile());
    let after = files.add("after.pb.gz", &more);
    let base = format!("-diff_base={before}");
    assert_eq!(files.total("-sample_index=inuse_space", &[&base, &after]), 1_024);
    assert_eq!(files.total("-sample_index=alloc_objects", &[&base, &after]), 1);
    let base = format!("-base={after}");
    assert_eq!(files.total("-sample_index=inuse_space", &[&base, &after]), 0);
}

#[test]
fn tags_select_sizes_threads_and_functions() {
    let files = Files::new("tags");
    let path = files.add("a.pb.gz", &sample_profile());
    let total = |focus: &str| files.total("-sample_index=alloc_space", &[&format!("-tagfocus={focus}"), &path]);
    assert_eq!(total("bytes=128kb:512kb"), 1_048_576);
    assert_eq!(total("bytes=1kb"), 10_240);
    assert_eq!(total("thread=worker"), 6_432);
    assert_eq!(total("alloc_fn=calloc"), 32);
    assert_eq!(total("stack=truncated"), 6_432);
    assert_eq!(files.total("-sample_index=deallocated_space", &["-tagfocus=alloc_fn=free", &path]), 798_976);
    let root = files.pprof(&["-top", "-cum", "-nodefraction=0", "-tagroot=thread", "-alloc_space", &path]);
    assert!(root.contains("worker") && root.contains("main"), "{root}");
}

#[test]
fn comments_tell_the_parts_of_a_session() {
    let files = Files::new("comments");
    let path = files.add("a.pb.gz", &sample_profile());
    let comments = files.pprof(&["-comments", &path]);
    let expected =
        ["command=./app --input 'a b.xml'", "session=0123456789abcdef", "part=1", "last=true", "engine=trap"];
    for comment in expected {
        assert!(comments.lines().any(|line| line == comment), "{comment} is not in {comments}");
    }
    assert!(comments.contains("anomalies: truncated_stacks=100 guessed_stacks=1 abandoned_calls=2"), "{comments}");
}

#[test]
fn columns_can_be_fewer() {
    let files = Files::new("fewer");
    for (pprof_columns, count, default) in
        [(PprofColumns::Sampler, 6, "residual_allocated_space"), (PprofColumns::Go, 4, "inuse_space")]
    {
        let options = ExportOptions { pprof_columns, ..ExportOptions::default() };
        let path = files.add_with(&format!("{default}.pb"), &sample_profile(), &options);
        let profile = proto::Profile::decode(fs::read(&path).expect("there").as_slice()).expect("decodes");
        assert_eq!(profile.sample_type.len(), count);
        assert!(files.pprof(&["-top", &path]).contains(&format!("Type: {default}")));
    }
}

#[test]
fn a_profile_of_nothing_is_readable() {
    let files = Files::new("empty");
    let path = files.add("a.pb.gz", &empty_profile());
    assert_eq!(files.total("-sample_index=peak_space", &[&path]), 0);
}

#[test]
fn decoded_pprof() {
    let mut bytes = Vec::new();
    GzDecoder::new(exported(Format::PprofGz, &sample_profile()).as_slice()).read_to_end(&mut bytes).expect("gzip");
    assert_eq!(bytes, exported(Format::Pprof, &sample_profile()));
    let profile = proto::Profile::decode(bytes.as_slice()).expect("decodes");
    assert_eq!(profile.string_table.first().map(String::as_str), Some(""));
    insta::assert_snapshot!(describe(&profile).replace(env!("CARGO_PKG_VERSION"), "[version]"));
}

/// The profile with strings in the place of their indices.
fn describe(profile: &proto::Profile) -> String {
    use std::fmt::Write as _;
    let string = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].as_str();
    let kind = |kind: &proto::ValueType| format!("{}/{}", string(kind.r#type), string(kind.unit));
    let mut out = String::new();
    let columns: Vec<String> = profile.sample_type.iter().map(kind).collect();
    let _ = writeln!(out, "columns {}", columns.join(" "));
    let _ = writeln!(out, "default {}", string(profile.default_sample_type));
    let _ = writeln!(out, "period {} {}", profile.period, profile.period_type.as_ref().map(kind).unwrap_or_default());
    let _ = writeln!(out, "time {} duration {}", profile.time_nanos, profile.duration_nanos);
    let _ = writeln!(out, "drop {}", string(profile.drop_frames));
    for comment in &profile.comment {
        let _ = writeln!(out, "comment {}", string(*comment));
    }
    for m in &profile.mapping {
        let has = [m.has_functions, m.has_filenames, m.has_line_numbers, m.has_inline_frames].map(u8::from);
        let (file, build_id) = (string(m.filename), string(m.build_id));
        let _ = writeln!(
            out,
            "mapping {} {:#x}-{:#x} @{:#x} {file} [{build_id}] {has:?}",
            m.id, m.memory_start, m.memory_limit, m.file_offset
        );
    }
    for f in &profile.function {
        let (name, system, file) = (string(f.name), string(f.system_name), string(f.filename));
        let _ = writeln!(out, "function {} `{name}` `{system}` {file}:{}", f.id, f.start_line);
    }
    for l in &profile.location {
        let lines: Vec<String> = l.line.iter().map(|line| format!("{}:{}", line.function_id, line.line)).collect();
        let _ = writeln!(out, "location {} mapping {} {:#x} {}", l.id, l.mapping_id, l.address, lines.join(" "));
    }
    for s in &profile.sample {
        let labels: Vec<String> = s
            .label
            .iter()
            .map(|l| match l.str {
                0 => format!("{}={}{}", string(l.key), l.num, string(l.num_unit)),
                text => format!("{}={}", string(l.key), string(text)),
            })
            .collect();
        let _ = writeln!(out, "sample {:?} {:?} {}", s.location_id, s.value, labels.join(" "));
    }
    out
}

#[test]
fn leaks_are_told_by_label() {
    let files = Files::new("leak");
    let check = files.add("check.pb.gz", &check_profile());
    let live = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.push(&check);
        files.total("-sample_index=inuse_space", &all)
    };
    assert_eq!(live(&["-tagfocus=leak=definite"]), 4096, "the stack's live bytes");
    assert_eq!(live(&["-tagfocus=leak=reachable"]), 262_144);
    assert_eq!(live(&["-tagfocus=leak=possible"]), 32);
    assert_eq!(live(&["-tagignore=leak"]), 0);
    let run = files.add("run.pb.gz", &sample_profile());
    assert!(!files.pprof(&["-tags", &run]).contains("leak"));
    assert!(files.pprof(&["-tags", &check]).contains("suppressed"));
}
