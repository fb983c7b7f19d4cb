//! Allocator functions that branch back to their own first byte, where heaptrace's probe is: each round hits it once
//! more, and is no call.

use crate::support::fixtures;
use crate::support::program::{Program, Traced};

const DECLARED: [&str; 4] = ["--alloc-fn", "take_node", "--free-fn", "drop_list"];

/// The fixture, built in a way, and why the jump engine leaves its functions to stops.
fn retries(flags: &[&str]) -> Program {
    let program = Program::new(fixtures::program_with("retries", flags));
    program.stays_on_trap("a branch leads back").stays_on_trap("--alloc-fn or --free-fn declares")
}

/// What the fixture says of itself, held against what was seen; `errors`: double frees of its own.
fn assert_account(traced: &Traced, errors: u64) {
    let numbers: Vec<u64> = traced.ended.text().split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [handed_out, given_back, moved, rounds, dropped, asked] = numbers[..] else { panic!("{numbers:?}") };
    assert!(rounds > 500 && moved > 100 && dropped > 40, "{numbers:?}");
    let seen = ["allocations", "frees"].map(|name| traced.report.total(name));
    let expected = [handed_out + moved + dropped, given_back - errors + moved + dropped];
    assert_eq!(seen, expected, "{}", traced.ended.stderr);
    // a static program's C library asks for some, too
    assert_eq!(traced.report.site_sum(&["main"], "/allocated/bytes"), asked, "{}", traced.ended.stderr);
    assert_eq!(traced.report.anomaly("double_frees"), errors, "{}", traced.ended.stderr);
    for name in ["unknown_frees", "abandoned_calls", "lost"] {
        assert_eq!(traced.report.anomaly(name), 0, "{name}: {}", traced.ended.stderr);
    }
}

/// By both engines: each call counts once, with what its caller asked for, however often it tries again; and each node
/// that a function frees by a jump to itself.
#[test]
fn each_round_is_part_of_its_call() {
    for flags in [&[][..], &["-DCOLD"], &["-DFREE_ONLY"], &["-static"], &["-no-pie", "-DCOLD"]] {
        for engine in ["trap", "jump"] {
            let traced = retries(flags).traced_with(&[&["--engine", engine][..], &DECLARED].concat());
            assert_eq!(traced.report.text("/engine"), engine, "{flags:?}");
            assert_account(&traced, 0);
            let told =
                traced.report.list("/warnings").iter().any(|one| one.to_string().contains("a branch leads back"));
            assert_eq!(told, engine == "jump", "{flags:?}: {}", traced.ended.stderr);
        }
    }
}

/// The program's own double free, from one place and with rounds in between, is one all the same.
#[test]
fn a_double_free_is_told_from_a_round() {
    for flags in [&[][..], &["-DFREE_ONLY"]] {
        for engine in ["trap", "jump"] {
            let program = retries(flags).args(["twice"]);
            assert_account(&program.traced_with(&[&["--engine", engine][..], &DECLARED].concat()), 1);
        }
    }
}
