//! Made-up interpreters. What real ones have is told by the suite `python`.

use super::layout::{LineFormat, ReleaseSymbol};
use super::lines::line_at;
use super::*;
use crate::base::addr::Addr;

mod interpreters;

const RUNTIME: u64 = 0x10_0000;
const INTERPRETER: u64 = 0x11_0000;
const THREAD: u64 = 0x12_0000;
const CODE_TYPE: u64 = 0x13_0000;
const TEXT_TYPE: u64 = 0x13_1000;
const VERSION: u64 = 0x13_2000;
/// The thread pointer.
const ID: u64 = 0x7f00_0000;

/// Memory byte by byte: what was not written can't be read.
#[derive(Clone, Default)]
struct Made(BTreeMap<u64, u8>);

impl ReadMemory for Made {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let mut n = 0;
        for (i, byte) in buf.iter_mut().enumerate() {
            let Some(&known) = self.0.get(&addr.0.wrapping_add(i as u64)) else { break };
            *byte = known;
            n += 1;
        }
        n
    }
}

impl Made {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.0.extend(bytes.iter().enumerate().map(|(i, byte)| (at + i as u64, *byte)));
    }

    fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    /// A string of one byte a character.
    fn text(&mut self, at: u64, text: &str, begin: u64) {
        self.put(at, &[0; 80]);
        self.word(at + 8, TEXT_TYPE);
        self.word(at + 16, text.len() as u64);
        self.word(at + 32, 1 << 2 | 1 << 5 | 1 << 6);
        self.put(at + begin, text.as_bytes());
    }

    fn line_table(&mut self, at: u64, table: &[u8]) {
        self.put(at, &[0; 40]);
        self.word(at + 16, table.len() as u64);
        self.put(at + 32, table);
    }

    fn thread(&mut self, at: u64, id: u64, previous: u64, next: u64, [id_at, frames_at]: [u64; 2], frames: u64) {
        self.put(at, &[0; 304]);
        self.word(at, previous);
        self.word(at + 8, next);
        self.word(at + 16, INTERPRETER);
        self.word(at + id_at, id);
        self.word(at + frames_at, frames);
    }
}

fn symbols(release: ReleaseSymbol) -> Symbols {
    Symbols { runtime: Addr(RUNTIME), code_type: Addr(CODE_TYPE), text_type: Addr(TEXT_TYPE), release }
}

fn native(ranges: &[(u64, u64, bool)]) -> Vec<NativeFrame> {
    let frame = |&(sp, cfa, is_loop): &(u64, u64, bool)| NativeFrame {
        sp: Addr(sp),
        cfa: Addr(cfa),
        is_loop,
        is_interpreter: is_loop,
    };
    ranges.iter().map(frame).collect()
}

/// What is told, as `native: name:line`.
fn told(runs: Result<Vec<PythonRun>, Unavailable>) -> Vec<String> {
    let Ok(runs) = runs else { return Vec::new() };
    let of_run = |run: PythonRun| {
        let frames: Vec<_> = run.frames.iter().map(|frame| format!("{}:{}", frame.function.name, frame.line)).collect();
        format!("{}: {}", run.native, frames.join(" < "))
    };
    runs.into_iter().map(of_run).collect()
}

/// Where the frames of [`new_world`] and their code objects are.
const FRAMES: [u64; 3] = [0x20_0000, 0x20_0100, 0x20_0200];
const CODES: [u64; 3] = [0x30_0000, 0x30_1000, 0x30_2000];
const ENTRIES: [u64; 2] = [0x7000_0180, 0x7000_0380];

/// CPython 3.12: `inner` called by `middle` in one native frame, below which `outer` runs in another; between them is a
/// function in C.
fn new_world() -> (Made, Vec<NativeFrame>) {
    let mut made = Made::default();
    made.word(VERSION, 0x030c_01f0);
    made.put(RUNTIME, &[0; 64]);
    made.word(RUNTIME + 40, INTERPRETER);
    made.put(INTERPRETER, &[0; 128]);
    made.word(INTERPRETER + 72, THREAD);
    const RECORD: u64 = 0x7000_0100;
    made.thread(THREAD, ID, 0, 0, [136, 56], RECORD);
    made.word(RECORD, FRAMES[0]);
    let chain = [
        (FRAMES[0], FRAMES[1], 0),
        (FRAMES[1], ENTRIES[0], 0),
        (ENTRIES[0], FRAMES[2], 3),
        (FRAMES[2], ENTRIES[1], 0),
        (ENTRIES[1], 0, 3),
    ];
    for (at, previous, owner) in chain {
        made.put(at, &[0; 120]);
        made.word(at + 8, previous);
        made.put(at + 70, &[owner]);
    }
    for (i, name) in ["inner", "middle", "outer"].into_iter().enumerate() {
        let code = CODES[i];
        made.put(code, &[0; 208]);
        made.word(code + 8, CODE_TYPE);
        made.word(code + 16, 8);
        made.put(code + 68, &(100 * (i as u32 + 1)).to_le_bytes());
        made.put(code + 92, &(7 + i as u32).to_le_bytes());
        made.word(code + 112, code + 0x400);
        made.word(code + 128, code + 0x500);
        made.word(code + 136, code + 0x600);
        // nothing counts before the second instruction
        made.put(code + 176, &1u32.to_le_bytes());
        made.text(code + 0x400, "file.py", 40);
        made.text(code + 0x500, name, 40);
        // four units in the first line, four in the one after the next
        made.line_table(code + 0x600, &[0x80 | 3, 0, 0x80 | 12 << 3 | 3, 0, 0]);
        made.word(FRAMES[i], code);
        made.word(FRAMES[i] + 56, code + 192 + 2 * (2 + 3 * i as u64));
    }
    let native = [(0x7000_0000, 0x7000_0080, false), (0x7000_0080, 0x7000_0200, true)];
    let outer = [(0x7000_0200, 0x7000_0300, false), (0x7000_0300, 0x7000_0400, true)];
    (made, self::native(&[native, outer].concat()))
}

fn new_interpreter(made: &mut Made) -> Interpreter {
    Interpreter::new(&symbols(ReleaseSymbol::Number(Addr(VERSION))), made).unwrap()
}

const ALL: [&str; 2] = ["1: inner:100 < middle:202", "3: outer:302"];

#[test]
fn functions_are_told_in_the_native_frames_that_run_them() {
    let (mut made, native) = new_world();
    // `outer` stands at its last instruction but none: unit 8 of 8 is behind the end
    made.word(FRAMES[2] + 56, CODES[2] + 192 + 2 * 7);
    assert_eq!(told(new_interpreter(&mut made).runs(&mut made, ID, &native)), ALL);
}

#[test]
fn a_position_behind_the_end_of_the_code_is_not_believed() {
    let (mut made, native) = new_world();
    assert_eq!(told(new_interpreter(&mut made).runs(&mut made, ID, &native)), ALL[..1]);
}

#[test]
fn a_frame_that_has_not_begun_is_passed_over_unless_it_is_a_generator_s() {
    let (mut made, native) = new_world();
    made.word(FRAMES[0] + 56, CODES[0] + 192 - 2);
    let mut interpreter = new_interpreter(&mut made);
    assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ["1: middle:202"]);
    made.put(FRAMES[0] + 70, &[1]);
    assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ALL[..1]);
}

/// Whatever a word of a frame says, each name that is told is one that runs there.
#[test]
fn torn_frames_give_no_wrong_name() {
    let (mut whole, native) = new_world();
    whole.word(FRAMES[2] + 56, CODES[2] + 192 + 2 * 7);
    let values = [0, 1, u64::MAX, THREAD, RUNTIME, FRAMES[0], FRAMES[2], CODES[0], CODES[1], CODES[2], ENTRIES[0]];
    let mut refused = 0;
    for frame in FRAMES {
        for offset in [0, 56, 64] {
            for value in values {
                let mut made = whole.clone();
                made.word(frame + offset, value);
                let told = told(new_interpreter(&mut made).runs(&mut made, ID, &native));
                refused += usize::from(told != ALL);
                for run in &told {
                    let (native, names) = run.split_once(": ").unwrap();
                    let may_be = ALL.iter().find_map(|run| run.strip_prefix(&format!("{native}: "))).unwrap();
                    let mut known = may_be.split(" < ").peekable();
                    for name in names.split(" < ") {
                        assert!(known.any(|known| known == name), "{run} for {value:#x} at {frame:#x}+{offset}");
                    }
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn frames_that_run_in_a_circle_end() {
    let (mut made, native) = new_world();
    made.word(FRAMES[1] + 8, FRAMES[0]);
    assert_eq!(new_interpreter(&mut made).runs(&mut made, ID, &native), Err(Unavailable::Frames));
    let (mut made, native) = new_world();
    made.word(THREAD + 8, THREAD);
    made.word(THREAD + 136, 1);
    assert_eq!(new_interpreter(&mut made).runs(&mut made, ID, &native), Err(Unavailable::Thread));
}

#[test]
fn what_lies_in_no_native_frame_of_the_interpreter_is_not_told() {
    let (mut made, mut native) = new_world();
    native[1].is_interpreter = false;
    assert_eq!(new_interpreter(&mut made).runs(&mut made, ID, &native), Err(Unavailable::Frames));
}

/// A thread's state may be freed and keep its words; another thread may get its pointer.
#[test]
fn a_state_that_is_in_no_list_any_more_is_not_believed() {
    let (mut made, native) = new_world();
    let mut interpreter = new_interpreter(&mut made);
    assert!(interpreter.runs(&mut made, ID, &native).is_ok());
    const OTHER: u64 = THREAD + 0x1000;
    made.thread(OTHER, ID + 8, 0, 0, [136, 56], 0x7000_0100);
    made.word(INTERPRETER + 72, OTHER);
    assert_eq!(interpreter.runs(&mut made, ID, &native), Err(Unavailable::Thread));
    assert!(interpreter.runs(&mut made, ID + 8, &native).is_ok());
}

/// Another object may get the address of one that was forgotten, and its texts those of the other's.
#[test]
fn a_code_object_in_the_place_of_another_one_has_its_own_name() {
    for has_number in [true, false] {
        let (mut made, native) = new_world();
        if !has_number {
            CODES.iter().for_each(|code| made.put(code + 92, &[0; 4]));
        }
        let mut interpreter = new_interpreter(&mut made);
        assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ALL[..1]);
        made.text(CODES[0] + 0x500, "other", 40);
        if has_number {
            made.put(CODES[0] + 92, &[200]);
        }
        assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ["1: other:100 < middle:202"]);
        made.line_table(CODES[0] + 0x600, &[0x80 | 11 << 3 | 7, 0, 0]);
        if has_number {
            made.put(CODES[0] + 92, &[201]);
        }
        assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ["1: other:101 < middle:202"]);
    }
}

/// CPython 3.10: as many frame objects as `names`, the innermost first.
fn old_world(names: &[&str]) -> Made {
    let mut made = Made::default();
    made.put(RUNTIME, &[0; 64]);
    made.word(RUNTIME + 32, INTERPRETER);
    made.put(INTERPRETER, &[0; 64]);
    made.word(INTERPRETER + 8, THREAD);
    let frame = |i: usize| 0x20_0000 + 0x100 * i as u64;
    made.thread(THREAD, ID, 0, 0, [176, 24], frame(0));
    for (i, name) in names.iter().enumerate() {
        let code = 0x30_0000 + 0x1000 * i as u64;
        made.put(frame(i), &[0; 128]);
        made.word(frame(i) + 24, if i + 1 < names.len() { frame(i + 1) } else { 0 });
        made.word(frame(i) + 32, code);
        made.put(frame(i) + 96, &3u32.to_le_bytes());
        made.put(code, &[0; 208]);
        made.word(code + 8, CODE_TYPE);
        made.put(code + 40, &[10]);
        made.word(code + 104, code + 0x400);
        made.word(code + 112, code + 0x500);
        made.word(code + 120, code + 0x600);
        made.text(code + 0x400, "file.py", 48);
        made.text(code + 0x500, name, 48);
        made.line_table(code + 0x600, &[6, 1, 4, 2]);
    }
    made
}

/// Nothing but their number ties frame objects to native frames.
#[test]
fn frame_objects_are_told_where_there_are_as_many_native_frames() {
    let native = |loops: usize| native(&vec![(0, 0, true); loops]);
    let mut made = old_world(&["inner", "outer"]);
    let mut interpreter = Interpreter::new(&symbols(ReleaseSymbol::Since310), &mut made).unwrap();
    assert_eq!(told(interpreter.runs(&mut made, ID, &native(2))), ["0: inner:13", "1: outer:13"]);
    for other in [1, 3] {
        assert_eq!(interpreter.runs(&mut made, ID, &native(other)), Err(Unavailable::Frames), "{other}");
    }
    // the line that it says itself
    made.put(0x20_0000 + 100, &[77]);
    assert_eq!(told(interpreter.runs(&mut made, ID, &native(2))), ["0: inner:77", "1: outer:13"]);
    // one that does not run is in no stack
    made.put(0x20_0000 + 108, &[2]);
    assert_eq!(interpreter.runs(&mut made, ID, &native(2)), Err(Unavailable::Frames));
}

#[test]
fn other_releases_are_named() {
    let refused = |number: u64| {
        let mut made = Made::default();
        made.word(VERSION, number);
        made.put(RUNTIME, &[0; 584]);
        made.put(RUNTIME, b"xdebugpy");
        made.word(RUNTIME + 8, 0x030d_00f0);
        made.word(RUNTIME + 16, 1);
        Interpreter::new(&symbols(ReleaseSymbol::Number(Addr(VERSION))), &mut made).unwrap_err()
    };
    assert_eq!(refused(0x030e_00f0).to_string(), "it is CPython 3.14, and heaptrace knows the frames of 3.8 to 3.13");
    assert_eq!(refused(0x030d_00f0), Unsupported::FreeThreaded);
    // what stands there is another release's
    assert_eq!(refused(0x030d_01f0), Unsupported::Table);
    let older = Interpreter::new(&symbols(ReleaseSymbol::Older), &mut Made::default()).unwrap_err();
    assert!(older.to_string().contains("3.7 or older"));
}

#[test]
fn strings_of_all_widths_are_read() {
    for (begin, layout) in
        [(72, layout::TextLayout { ascii: 48, compact: 72 }), (56, layout::TextLayout { ascii: 40, compact: 56 })]
    {
        let cases: [(u64, &[u8], &str); 4] = [
            (1, b"gr\xf6\xdfe", "größe"),
            (2, &[0xcf, 0x91, 0x6e, 0], "\u{91cf}n"),
            (4, &[0, 4, 1, 0], "\u{10400}"),
            (2, &[0, 0xd8], "\u{fffd}"),
        ];
        for (width, bytes, text) in cases {
            let mut made = Made::default();
            made.put(0x1000, &[0; 80]);
            made.word(0x1008, TEXT_TYPE);
            made.word(0x1010, bytes.len() as u64 / width);
            made.word(0x1020, width << 2 | 1 << 5);
            made.put(0x1000 + begin, bytes);
            let read =
                |made: &mut Made, of: u64| text::string(made, Addr(0x1000), Addr(of), layout).map(|(text, _)| text);
            assert_eq!(read(&mut made, TEXT_TYPE).as_deref(), Some(text));
            assert_eq!(read(&mut made, CODE_TYPE), None, "another type");
            made.word(0x1020, width << 2);
            assert_eq!(read(&mut made, TEXT_TYPE), None, "not compact");
        }
    }
}

/// Tables and what the interpreters themselves say of them: runs of code units, each with its line, 0 where there is
/// none (`dis.findlinestarts` of 3.8 and 3.9, `co_lines()` of the others).
#[test]
fn lines_are_those_that_the_interpreters_tell() {
    type Runs = &'static [(u32, u32)];
    let cases: [(LineFormat, &str, u32, Runs); 9] = [
        (
            LineFormat::Lnotab,
            "0003020102fe04060401020102ff0402020108010c02",
            2,
            &[(1, 5), (1, 6), (2, 4), (2, 10), (1, 11), (1, 12), (2, 11), (1, 13), (4, 14), (6, 15), (3, 17)],
        ),
        (LineFormat::Lnotab, "0001047f007f0030", 219, &[(2, 220), (2, 522)]),
        (
            LineFormat::Lnotab,
            "0003020102fe04060401020102ff0402020108010a02",
            2,
            &[(1, 5), (1, 6), (2, 4), (2, 10), (1, 11), (1, 12), (2, 11), (1, 13), (4, 14), (5, 15), (4, 17)],
        ),
        (
            LineFormat::Ranges,
            "02800203020104fe04060201020104ff02020801080102ff0603",
            2,
            &[
                (1, 0),
                (1, 5),
                (1, 6),
                (2, 4),
                (2, 10),
                (1, 11),
                (1, 12),
                (2, 11),
                (1, 13),
                (4, 14),
                (4, 15),
                (1, 14),
                (3, 17),
            ],
        ),
        (LineFormat::Ranges, "0401007f007f0430", 219, &[(2, 220), (2, 522)]),
        (
            LineFormat::Locations,
            "e800e8008000f00600090ad80809f0050309068041f00c000809f000020513d81011d81011f103011112f000010913f00404050dd81112f000010914f0000109148841d812138847884788478847f003010914f00600090d8804f88804880488048804",
            2,
            &[
                (3, 2),
                (1, 5),
                (1, 6),
                (2, 4),
                (2, 10),
                (1, 11),
                (1, 12),
                (3, 11),
                (1, 13),
                (4, 14),
                (5, 15),
                (1, 14),
                (2, 17),
                (1, 0),
                (4, 17),
            ],
        ),
        (LineFormat::Locations, "8000d808098041f05c09000c0d8048", 219, &[(1, 219), (2, 220), (2, 522)]),
        (
            LineFormat::Locations,
            "e800f88000f00600090ad80809f0050309068041f10c000809d81011d81011f103011112f000010913f00404050dd81112f2000109148841d812138b47f103010914f00600090df88804fc",
            2,
            &[
                (1, 2),
                (1, 0),
                (1, 2),
                (1, 5),
                (1, 6),
                (2, 4),
                (2, 10),
                (1, 11),
                (1, 12),
                (3, 11),
                (1, 13),
                (5, 14),
                (5, 15),
                (2, 14),
                (1, 17),
                (1, 0),
                (1, 17),
                (5, 0),
            ],
        ),
        (
            LineFormat::Locations,
            "e9008000f00600090ad80809f0050309068041f60c000809d81011d81011f103011112f000010913f00404050ddb11128841d812138c47f103001213f00600090df88804fc",
            2,
            &[
                (3, 2),
                (1, 5),
                (1, 6),
                (2, 4),
                (7, 10),
                (1, 11),
                (1, 12),
                (3, 11),
                (1, 13),
                (5, 14),
                (6, 15),
                (2, 14),
                (1, 17),
                (1, 0),
                (1, 17),
                (5, 0),
            ],
        ),
    ];
    for (format, hex, first, runs) in cases {
        let digits: Vec<u8> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
        let table: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let lines: Vec<u32> = runs.iter().flat_map(|&(units, line)| vec![line; units as usize]).collect();
        let found: Vec<u32> =
            (0..lines.len() as i64).map(|unit| line_at(format, &table, first, 2 * unit).unwrap_or(0)).collect();
        assert_eq!(found, lines, "{format:?} {hex}");
        assert_eq!(line_at(format, &table, first, -2), Some(first));
        // a table that is cut off anywhere ends
        for end in 0..table.len() {
            let _ = line_at(format, &table[..end], first, 1 << 40);
        }
    }
}
