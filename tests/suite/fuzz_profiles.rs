//! Fuzzers of saved profiles, as `fuzz.rs` has them of other files: whatever the bytes, nothing panics, hangs, or takes
//! memory without bound, and what could be read can be written, compared and merged. The profiles are those of
//! tests/kept, whose fields change places.

use super::fuzz::{bounded, cases, change, edits};
use crate::support::allocations::peak_of;
use crate::support::program::Program;
use flate2::read::GzDecoder;
use heaptrace::internal::import::{Limits, read};
use heaptrace::profile::Profile;
use heaptrace::profile::diff::Diff;
use heaptrace::profile::series::{Head, Series, Share, plan};
use heaptrace::profile::value::Value as Amounts;
use heaptrace::{ExportOptions, Format, write};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const LIMITS: Limits = Limits { unpacked: 1 << 20, memory: 8 << 20 };
/// What the account of the limits may be off.
const SLACK: usize = 1 << 20;

/// Files as they are kept, and what comes out of them.
struct Seed {
    packed: Vec<u8>,
    bytes: Vec<u8>,
}

/// The kept files with one of these endings.
fn kept(endings: &[&str]) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/profiles");
    let files = ["0.1.0", "made-up"].map(|name| std::fs::read_dir(folder.join(name)).unwrap());
    let mut paths: Vec<PathBuf> = files.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| endings.iter().any(|ending| path.to_str().unwrap().ends_with(ending)));
    let seed = |path: &PathBuf| {
        let packed = std::fs::read(path).unwrap();
        let mut bytes = Vec::new();
        if GzDecoder::new(&packed[..]).read_to_end(&mut bytes).is_err() {
            bytes.clone_from(&packed);
        }
        Seed { packed, bytes }
    };
    paths.iter().map(seed).collect()
}

fn pprofs() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| kept(&[".pb.gz"]))
}

fn reports() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| kept(&[".json", ".json.gz"]))
}

/// Reads a file within the limits, and does with it what commands do. Whether it could be read.
fn use_of(bytes: &[u8]) -> bool {
    let mut result = None;
    let peak = peak_of(|| result = Some(read(bytes, "file", &LIMITS)));
    assert!(peak < LIMITS.memory as usize + SLACK, "{peak} bytes of memory for {} bytes", bytes.len());
    let profile = match result.unwrap() {
        Ok(profile) => profile,
        Err(error) => {
            assert!(error.to_string().starts_with("file: "), "{error}");
            return false;
        }
    };
    bounded(bytes.len(), || {
        for format in Format::ALL {
            let mut out = Vec::new();
            // Some formats refuse what they can't hold.
            let _ = write(format, &profile, &ExportOptions::default(), &mut out);
        }
    });
    bounded(bytes.len(), || {
        let other = read(&pprofs()[0].packed, "other", &LIMITS).unwrap();
        for value in Amounts::ALL {
            drop(Diff::new((&profile, &profile.samples), (&other, &other.samples), value));
        }
        merge(&[&profile, &other]);
        merge(&[&profile]);
    });
    true
}

fn merge(profiles: &[&Profile]) {
    let heads: Vec<Head> =
        (profiles.iter().enumerate()).map(|(n, profile)| Head::of(profile, &n.to_string())).collect();
    let Ok(plan) = plan(&heads, &[], false) else { return };
    let mut series = Series::new(plan.single, false);
    for (index, profile) in profiles.iter().enumerate() {
        series.add(profile, plan.shares.get(index).unwrap_or(&Share::ALL));
    }
    drop(series.finish(plan.open));
}

/// A field of a message of protocol buffers: its number and kind, and what comes behind (with its length, if it has
/// one).
#[derive(Clone, Debug)]
struct Field {
    tag: u64,
    content: Vec<u8>,
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The fields of a message that is whole; of others, or of texts, maybe none.
fn fields(message: &[u8]) -> Option<Vec<Field>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < message.len() {
        let tag = varint(message, &mut at)?;
        let content = match tag & 7 {
            0 => {
                let begin = at;
                varint(message, &mut at)?;
                &message[begin..at]
            }
            2 => {
                let length = usize::try_from(varint(message, &mut at)?).ok()?;
                let begin = at;
                at = at.checked_add(length)?;
                message.get(begin..at)?
            }
            _ => return None,
        };
        found.push(Field { tag, content: content.to_vec() });
    }
    Some(found)
}

/// The message, and where the heads of its fields are.
fn joined(fields: &[Field]) -> (Vec<u8>, Vec<Range<usize>>) {
    let (mut bytes, mut heads) = (Vec::new(), Vec::new());
    for field in fields {
        let begin = bytes.len();
        put(&mut bytes, field.tag);
        if field.tag & 7 == 2 {
            put(&mut bytes, field.content.len() as u64);
        }
        bytes.extend(&field.content);
        heads.push(begin..(begin + 12).min(bytes.len()));
    }
    (bytes, heads)
}

/// One change of the fields of a profile, or of a message in it.
#[derive(Clone, Debug)]
enum Change {
    Swap(Index, Index),
    Repeat(Index, u8),
    Remove(Index),
    /// It becomes another field of the same content.
    Rename(Index, u64),
    /// It becomes a number.
    Number(Index, u64),
    /// The content of one field stands in another.
    Copy(Index, Index),
}

fn one_change() -> impl Strategy<Value = Change> {
    let numbers = prop_oneof![0_u64..40, any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(i64::MAX as u64)];
    prop_oneof![
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Swap(a, b)),
        (any::<Index>(), 1_u8..40).prop_map(|(at, times)| Change::Repeat(at, times)),
        any::<Index>().prop_map(Change::Remove),
        (any::<Index>(), 1_u64..20).prop_map(|(at, number)| Change::Rename(at, number)),
        (any::<Index>(), numbers).prop_map(|(at, number)| Change::Number(at, number)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Copy(a, b)),
    ]
}

/// Changes, each of the profile's own fields or (with a second place) of those of a message in it.
fn changes() -> impl Strategy<Value = Vec<(Option<Index>, Change)>> {
    prop::collection::vec((prop::option::weighted(0.7, any::<Index>()), one_change()), 0..8)
}

fn carry_out(fields: &mut Vec<Field>, change: &Change) {
    if fields.is_empty() {
        return;
    }
    let at = |index: &Index| index.index(fields.len());
    match change {
        Change::Swap(a, b) => {
            let (a, b) = (at(a), at(b));
            fields.swap(a, b);
        }
        Change::Repeat(index, times) => {
            let at = at(index);
            let copies = vec![fields[at].clone(); usize::from(*times)];
            fields.splice(at..at, copies);
        }
        Change::Remove(index) => drop(fields.remove(at(index))),
        Change::Rename(index, number) => {
            let at = at(index);
            fields[at].tag = number << 3 | fields[at].tag & 7;
        }
        Change::Number(index, number) => {
            let at = at(index);
            let mut content = Vec::new();
            put(&mut content, *number);
            fields[at] = Field { tag: fields[at].tag & !7, content };
        }
        Change::Copy(from, to) => {
            let (from, to) = (at(from), at(to));
            fields[to] =
                Field { tag: fields[to].tag & !7 | fields[from].tag & 7, content: fields[from].content.clone() };
        }
    }
}

fn rearranged(profile: &[u8], changes: &[(Option<Index>, Change)]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut outer = fields(profile).unwrap();
    for (inside, change) in changes {
        let place = inside.filter(|_| !outer.is_empty()).map(|index| index.index(outer.len()));
        let inner = place.and_then(|place| fields(&outer[place].content));
        if let (Some(place), Some(mut inner)) = (place, inner) {
            carry_out(&mut inner, change);
            outer[place].content = joined(&inner).0;
        } else {
            carry_out(&mut outer, change);
        }
    }
    joined(&outer)
}

/// What a value of a report becomes.
#[derive(Clone, Debug)]
enum Turn {
    /// This one.
    Becomes(Value),
    /// A copy of the value at another place.
    Other(Index),
    /// It is not there.
    Gone,
    /// It is there so many times.
    Often(u8),
}

fn turn() -> impl Strategy<Value = Turn> {
    let values = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..40).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(Value::from(u64::MAX)),
        "[ -~]{0,12}".prop_map(Value::from),
        Just(Value::Array(Vec::new())),
        Just(Value::Object(Map::new())),
    ];
    prop_oneof![
        4 => values.prop_map(Turn::Becomes),
        3 => any::<Index>().prop_map(Turn::Other),
        2 => Just(Turn::Gone),
        1 => (2_u8..40).prop_map(Turn::Often),
    ]
}

/// All values inside of this one, each by its pointer.
fn places(value: &Value, here: &str, found: &mut Vec<String>) {
    let inside: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(n, item)| (n.to_string(), item)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        _ => Vec::new(),
    };
    for (key, item) in inside {
        let place = format!("{here}/{key}");
        places(item, &place, found);
        found.push(place);
    }
}

fn mutated(report: &[u8], turns: &[(Index, Turn)]) -> Vec<u8> {
    let mut report: Value = serde_json::from_slice(report).unwrap();
    for (index, turn) in turns {
        let mut found = Vec::new();
        places(&report, "", &mut found);
        if found.is_empty() {
            break;
        }
        let place = index.get(&found);
        let (outer, key) = place.rsplit_once('/').unwrap();
        let other = if let Turn::Other(other) = turn {
            report.pointer(&found[other.index(found.len())]).cloned()
        } else {
            None
        };
        let outer = report.pointer_mut(outer).unwrap();
        match (turn, outer) {
            (Turn::Gone, Value::Object(map)) => drop(map.remove(key)),
            (Turn::Gone, Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
            (Turn::Often(times), Value::Array(items)) => {
                let at = key.parse::<usize>().unwrap();
                let copies = vec![items[at].clone(); usize::from(*times)];
                items.splice(at..at, copies);
            }
            (Turn::Often(_), _) => {}
            (Turn::Becomes(value), _) => *report.pointer_mut(place).unwrap() = value.clone(),
            (Turn::Other(_), _) => *report.pointer_mut(place).unwrap() = other.unwrap(),
            (Turn::Gone, _) => {}
        }
    }
    serde_json::to_vec(&report).unwrap()
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn fuzz_pprof_files(which: Index, changes in changes(), edits in prop::option::of(edits())) {
        let (mut bytes, heads) = rearranged(&which.get(pprofs()).bytes, &changes);
        if let Some(edits) = edits {
            bytes = change(&bytes, &heads, &edits);
        }
        use_of(&bytes);
    }

    #[test]
    fn fuzz_reports(which: Index, turns in prop::collection::vec((any::<Index>(), turn()), 0..6), edits in prop::option::weighted(0.2, edits())) {
        let mut bytes = mutated(&which.get(reports()).bytes, &turns);
        if let Some(edits) = edits {
            bytes = change(&bytes, &[], &edits);
        }
        use_of(&bytes);
    }

    #[test]
    fn fuzz_packed_profiles(which: Index, of_report: bool, edits in edits()) {
        let seed = which.get(if of_report { reports() } else { pprofs() });
        let head = 0..10.min(seed.packed.len());
        use_of(&change(&seed.packed, &[head], &edits));
    }
}

/// The files themselves are read, also when taken apart and joined again: what the fuzzers do reaches what comes behind
/// reading.
#[test]
fn unchanged_seeds_are_read() {
    for seed in pprofs() {
        assert_eq!(rearranged(&seed.bytes, &[]).0, seed.bytes);
        assert!(use_of(&seed.bytes));
    }
    for seed in reports() {
        assert!(use_of(&mutated(&seed.bytes, &[])));
    }
    assert!(pprofs().len() >= 7 && reports().len() >= 5);
}

/// Sixty cuts of a file beside the whole one, through the command: they are left out.
#[test]
fn merge_goes_on_behind_damaged_files() {
    let program = Program::new("/bin/true");
    let seed = &pprofs()[0];
    let path = |name: String| program.outside(&name).to_str().unwrap().to_owned();
    let mut words: Vec<String> = ["merge", "--skip-unreadable", "-o"].map(str::to_owned).to_vec();
    let out = path("out.pb.gz".into());
    words.push(out.clone());
    for (n, at) in (0..seed.bytes.len()).step_by(seed.bytes.len() / 60).enumerate() {
        let cut = path(format!("cut{n}.pb"));
        std::fs::write(&cut, &seed.bytes[..at]).unwrap();
        words.push(cut);
    }
    let whole = path("whole.pb.gz".into());
    std::fs::write(&whole, &seed.packed).unwrap();
    words.push(whole);
    let ended = program.start_heaptrace(&words).wait();
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(ended.success().stderr.contains("damaged"));
    assert!(read(&std::fs::read(out).unwrap(), "out", &LIMITS).is_ok());
}
