//! J01: programs with one thread have the same profile by both engines, sample by sample.

use super::{assert_same, by, told};
use crate::support::fixtures;
use crate::support::program::Program;
use std::process::Command;

/// What `steps` does: blocks of two functions, freed, resized and lost, in turn.
fn steps() -> String {
    let mut lines = String::new();
    for round in 1..=40 {
        lines += &format!("a 7 {}\nb 5 {}\nfree a 3\nrealloc b {}\nfree b 2\n", 10 * round, 900 + round, 50 * round);
        lines += "realloc a 3000\nlose a 1\n";
    }
    lines
}

#[test]
fn j01_fixtures_have_the_same_profile() {
    for name in ["sites", "peak", "fibers", "resizes", "library_containers", "operators", "basic"] {
        assert_same(&Program::fixture(name), &[]);
    }
    assert_same(&Program::fixture("known").args(["more"]), &[]);
    assert_same(&Program::fixture("steps").input(steps()), &[]);
    assert_same(&Program::fixture("recursion").args(["600"]), &[]);
    for name in ["resizes", "library_containers"] {
        assert_same(&Program::fixture(name), &["--no-free-stacks"]);
    }
}

/// J31: programs that hold their C library, at a fixed place or at any, and those of another one.
#[test]
fn j31_static_programs_have_the_same_profile() {
    for flags in [&["-static"][..], &["-static-pie"]] {
        for name in ["basic", "resizes"] {
            assert_same(&Program::new(fixtures::program_with(name, flags)), &[]);
        }
    }
    for flags in [&[][..], &["-static"]] {
        assert_same(&Program::new(fixtures::musl_program("sites", flags)), &[]);
        assert_same(&Program::new(fixtures::musl_program("recursion", flags)).args(["600"]), &[]);
    }
}

/// The depth cuts most of the stacks, by both engines at the same frame.
#[test]
fn j01_cut_stacks_are_the_same() {
    let program = Program::fixture("recursion").args(["100"]);
    assert_same(&program, &["--max-depth", "16"]);
    let traced = by("jump", &program, &["--max-depth", "16"]);
    // of 100 allocations and as many frees; four frames lead to the first
    assert_eq!(traced.report.anomaly("truncated_stacks"), 2 * (100 - (16 - 4)), "{}", traced.report.0["anomalies"]);
}

#[test]
fn j01_real_programs_have_the_same_profile() {
    let sql = "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 2000) \
               insert into t select x, x * x from c; create index i on t(b); select count(*) from t where b > 100;";
    assert_same(&Program::new("sqlite3").args([":memory:", sql]), &[]);
    assert_same(&Program::new("jq").args(["-n", "[range(3000)] | map(tostring) | add | length"]), &[]);
    assert_same(
        &Program::new("perl").args(["-e", "my %h; $h{$_} = \"x$_\" for 1 .. 2000; print 1"]).env("PERL_HASH_SEED", "0"),
        &[],
    );
    assert_same(&Program::new("ls").args(["-l", "/usr/bin"]), &[]);
    let script = "d = {str(i): [i] * 3 for i in range(2000)}; print(sum(len(x) for x in d))";
    assert_same(&Program::new("/usr/bin/python3").args(["-S", "-c", script]).env("PYTHONHASHSEED", "0"), &[]);
}

/// The same for a program whose runs differ in little by themselves: of some runs by each engine, two are the same in
/// all.
fn assert_same_at_times(program: &Program) {
    let (mut traps, mut jumps) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        traps.push(told(&by("trap", program, &[])));
        jumps.push(told(&by("jump", program, &[])));
        if traps.iter().any(|trap| jumps.contains(trap)) {
            return;
        }
    }
    panic!("{}: trap {:?}, jump {:?}", program.exe().display(), traps[0][0], jumps[0][0]);
}

/// Tables of libxml2 are seeded with the second in which it starts: the engines agree if they meet one that is as good.
#[test]
fn j01_xmllint_has_the_same_profile() {
    let program = Program::new("xmllint").args(["--noout", "--xpath", "count(//item)", "input.xml"]);
    let items: String =
        (0..300).map(|i| format!("<item id=\"{i}\"><name>n{i}</name><v a=\"b\">{i}</v></item>")).collect();
    std::fs::write(program.folder().join("input.xml"), format!("<r>{items}</r>")).unwrap();
    assert_same_at_times(&program);
}

/// The C compiler itself. Its garbage collector asks for what depends on where its memory lies: always at the same
/// place here. A few bytes differ all the same.
#[test]
fn j01_a_compiler_has_the_same_profile() {
    if !Command::new("setarch").args(["-R", "/bin/true"]).status().unwrap().success() {
        eprintln!("not tried: addresses can't be kept the same here");
        return;
    }
    let path = Command::new("gcc").arg("-print-prog-name=cc1").output().unwrap().stdout;
    let path = String::from_utf8(path).unwrap();
    let program = Program::new("setarch").args(["-R", path.trim(), "-quiet", "-fsyntax-only", "input.c"]);
    let functions: String =
        (0..3).map(|i| format!("static int f{i}(int a) {{ return a > {i} ? f{i}(a - 1) : a; }}\n")).collect();
    std::fs::write(
        program.folder().join("input.c"),
        format!("#include <stddef.h>\n{functions}int main(void) {{ return f0(1) + f1(2) + f2(3); }}\n"),
    )
    .unwrap();
    assert_same_at_times(&program);
}
