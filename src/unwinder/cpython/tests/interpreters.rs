//! Threads that have states in several interpreters.

use super::*;

const LATER: u64 = 0x11_1000;
const STATE: u64 = 0x12_1000;
const OUTER_RECORD: u64 = 0x7000_0310;

/// [`new_world`], in which `outer` runs in the first interpreter and what it calls in a later one, by a state with this
/// thread pointer.
fn nested_world(id: u64) -> (Made, Vec<NativeFrame>) {
    let (mut made, native) = new_world();
    made.word(FRAMES[2] + 56, CODES[2] + 192 + 2 * 7);
    // what runs in an interpreter knows nothing of what runs in another one
    made.word(ENTRIES[0] + 8, 0);
    made.word(THREAD + 56, OUTER_RECORD);
    made.word(OUTER_RECORD, FRAMES[2]);
    made.put(LATER, &[0; 128]);
    made.word(LATER, INTERPRETER);
    made.word(LATER + 72, STATE);
    made.word(RUNTIME + 40, LATER);
    made.thread(STATE, id, 0, 0, [136, 56], 0x7000_0100);
    made.word(STATE + 16, LATER);
    (made, native)
}

#[test]
fn functions_of_all_interpreters_are_told() {
    // its own state there, or one that another thread has made, which it runs with
    for id in [ID, ID + 8] {
        let (mut made, native) = nested_world(id);
        assert_eq!(told(new_interpreter(&mut made).runs(&mut made, ID, &native)), ALL, "{id:x}");
        // nor does it matter who came first
        let mut known = new_interpreter(&mut made);
        assert_eq!(told(known.runs(&mut made, ID, &native[2..])), ["1: outer:302"]);
        assert_eq!(told(known.runs(&mut made, ID, &native)), ALL, "{id:x}");
    }
}

#[test]
fn what_two_states_claim_is_not_told() {
    let (mut made, native) = nested_world(ID);
    made.word(STATE + 56, OUTER_RECORD);
    assert_eq!(new_interpreter(&mut made).runs(&mut made, ID, &native), Err(Unavailable::Frames));
}

/// Later interpreters count their code objects anew.
#[test]
fn numbers_of_code_objects_count_in_the_first_interpreter_only() {
    let (mut made, native) = nested_world(ID);
    let mut interpreter = new_interpreter(&mut made);
    assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ALL);
    made.text(CODES[0] + 0x500, "other", 40);
    assert_eq!(told(interpreter.runs(&mut made, ID, &native)), ["1: other:100 < middle:202", ALL[1]]);
}

/// Until 3.10 a state in another interpreter says that the thread may be there, and its frames' number that it is not.
#[test]
fn frame_objects_of_the_first_interpreter_are_told_while_they_are_all() {
    let native = |loops: usize| native(&vec![(0, 0, true); loops]);
    let mut made = old_world(&["inner", "outer"]);
    made.put(LATER, &[0; 64]);
    made.word(LATER, INTERPRETER);
    made.word(LATER + 8, STATE);
    made.word(RUNTIME + 32, LATER);
    made.thread(STATE, ID, 0, 0, [176, 24], 0x20_0100);
    made.word(STATE + 16, LATER);
    let mut interpreter = Interpreter::new(&symbols(ReleaseSymbol::Since310), &mut made).unwrap();
    assert_eq!(told(interpreter.runs(&mut made, ID, &native(2))), ["0: inner:13", "1: outer:13"]);
    // a frame of the other one, which is as long
    assert_eq!(interpreter.runs(&mut made, ID, &native(1)), Err(Unavailable::Frames));
    assert_eq!(interpreter.runs(&mut made, ID, &native(3)), Err(Unavailable::Frames));
    // two states of the first one
    made.thread(STATE, ID, 0, THREAD, [176, 24], 0);
    made.word(THREAD, STATE);
    made.word(LATER + 8, 0);
    made.word(INTERPRETER + 8, STATE);
    assert_eq!(interpreter.runs(&mut made, ID, &native(2)), Err(Unavailable::Thread));
}
