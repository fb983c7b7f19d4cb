//! Functions of which more than the first instruction must not be replaced, as something leads to the second one.

use super::by;
use crate::support::fixtures;
use crate::support::program::{Program, Traced};

/// Blocks that the fixture asks for.
const BLOCKS: u64 = 3001;

/// The fixture whose malloc goes back to its second instruction this way.
fn reentered(flags: &[&str]) -> Program {
    Program::new(fixtures::program_with("reentered", flags))
}

/// Besides the fixture's own blocks there are a few of the C library's.
fn assert_blocks(traced: &Traced) {
    let seen = traced.report.number("/totals/allocations");
    assert!((BLOCKS..BLOCKS + 10).contains(&seen), "{seen} blocks: {}", traced.ended.stderr);
    assert_eq!(traced.report.anomaly("unknown_frees"), 0, "{}", traced.ended.stderr);
}

/// A malloc that is re-entered behind its first instruction, by whatever way, is left to stops, and told: the program
/// runs as without heaptrace.
#[test]
fn a_function_that_is_entered_behind_its_first_instruction_is_left_at_stops() {
    let computed = "computed addresses";
    let led_into = "something else in the module";
    for (way, why) in [
        ("-DTABLE", computed),
        ("-DGOTO", led_into),
        ("-DTHUNK", computed),
        ("-DRETPOLINE", computed),
        ("-DINLINE", computed),
        ("-DPART", computed),
        ("-DPOINTER", led_into),
        ("-DNEIGHBOUR", led_into),
        ("-DSYMBOL", led_into),
        ("-DLANDING", led_into),
    ] {
        for linked in [&[][..], &["-no-pie"], &["-static"]] {
            let program = reentered(&[&[way], linked].concat()).stays_on_trap("the first instructions, which a jump");
            let plain = program.plain().success().text();
            assert_eq!(plain, format!("given {BLOCKS}\n"));
            let traced = program.traced_with(&["--engine", "jump"]);
            let shown = format!("{way} {linked:?}: {}", traced.ended.stderr);
            assert_eq!(traced.ended.text(), plain, "{shown}");
            assert_blocks(&traced);
            let told = traced.report.list("/warnings").iter().any(|one| {
                let one = one.to_string();
                one.contains("recorded calls of ") && one.contains("malloc") && one.contains(why)
            });
            assert!(told, "{shown}");
        }
    }
}

/// The same where the engine comes by itself.
#[test]
fn auto_leaves_such_a_function_alone() {
    let program = reentered(&["-DTABLE"]).env("HEAPTRACE_ENGINE", "auto").stays_on_trap("computed addresses");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), format!("given {BLOCKS}\n"), "{}", traced.ended.stderr);
    assert_blocks(&traced);
    assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
}

/// A jump to another function, whose address is read from memory, is none to the first instructions.
#[test]
fn a_function_that_ends_in_a_hook_is_recorded() {
    for linked in [&[][..], &["-no-pie"], &["-static"]] {
        let traced = by("jump", &reentered(linked), &[]);
        assert_eq!(traced.ended.text(), format!("given {BLOCKS}\n"), "{}", traced.ended.stderr);
        assert_blocks(&traced);
        assert!(traced.report.list("/warnings").is_empty(), "{}", traced.ended.stderr);
    }
}
