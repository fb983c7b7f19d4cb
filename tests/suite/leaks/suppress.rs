//! Suppressions: one file, given to the tool for which it was written and to heaptrace, hides the same.

use super::fixture;
use crate::support::fixtures;
use crate::support::leakcheck::{Amount, Found};
use crate::support::program::Program;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A fixture that loses blocks in functions of many kinds, linked with a library that does so, too.
fn program(flags: &[&str]) -> PathBuf {
    let library = fixtures::library("leaks/vendor");
    let run_path = format!("-Wl,-rpath,{}", library.parent().unwrap().display());
    let mut all = vec!["-Wl,--no-as-needed", library.to_str().unwrap(), &run_path];
    all.extend(flags);
    fixtures::program_with("leaks/suppressed", &all)
}

/// Lost and possibly lost blocks by function. What hangs on lost ones is left out: Memcheck shows it apart, and a rule
/// for the lost block does not hide it there; heaptrace takes it as part of what is hidden.
fn shown(found: &Found) -> BTreeMap<String, [Amount; 2]> {
    let functions = found.by_function().into_iter();
    let shown = functions.map(|(name, [definite, _, possible, _])| (name, [definite, possible]));
    shown.filter(|(_, amounts)| *amounts != <[Amount; 2]>::default()).collect()
}

/// An entry of a Valgrind suppression file with these lines.
fn entry(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| format!("   {line}\n")).collect();
    format!("{{\n   a_name\n   Memcheck:Leak\n{}}}\n", lines.concat())
}

/// Errors are hidden by entries of their kind; kinds that are not looked for are no mistake.
#[test]
fn valgrind_suppressions_hide_errors() {
    let program = Program::fixture("mismatched");
    let (plain, rules) = (program.checked(&[]), program.outside("errors.supp"));
    let of_kind = plain.report.list("/findings").iter().filter(|finding| finding["kind"] == "mismatched_free");
    let errors: u64 = of_kind.map(|finding| finding["count"].as_u64().unwrap()).sum();
    assert!(errors > 0 && plain.ended.code() == 23, "{}", plain.ended.stderr);
    let entry = |kind: &str| format!("{{\n   known\n   Memcheck:{kind}\n   fun:*\n   ...\n   fun:main\n}}\n");
    for (kinds, status) in [(&["UnsafeZeroSize", "Value32", "Free"][..], 0), (&["SizeMismatch", "Whatever"], 23)] {
        std::fs::write(&rules, kinds.iter().map(|kind| entry(kind)).collect::<String>()).unwrap();
        let checked = program.checked(&["--suppressions", rules.to_str().unwrap()]);
        assert_eq!(checked.ended.code(), status, "{kinds:?}\n{}", checked.ended.stderr);
        let hidden: u64 =
            checked.report.list("/suppressions").iter().map(|rule| rule["errors"].as_u64().unwrap()).sum();
        let told = checked.ended.stderr.contains(&format!("{errors} errors suppressed"));
        assert_eq!((hidden, told), if status == 0 { (errors, true) } else { (0, false) }, "{}", checked.ended.stderr);
    }
}

/// What Memcheck itself writes to hide an error hides it here: at operator delete, too, which libstdc++ ends by a jump
/// to free.
#[test]
fn suppressions_that_memcheck_writes_for_errors_hide_them() {
    let program = Program::fixture("mismatched");
    let mut memcheck = std::process::Command::new("valgrind");
    memcheck.args(["-q", "--gen-suppressions=all"]);
    let told = program.run_under(memcheck).stderr;
    let rules: Vec<&str> = told
        .lines()
        .scan(false, |inside, line| {
            let was_inside = *inside;
            *inside = line == "{" || was_inside && line != "}";
            Some((was_inside || *inside).then_some(line))
        })
        .flatten()
        .collect();
    assert_eq!(rules.iter().filter(|line| **line == "{").count(), 3, "{told}");
    assert!(rules.iter().any(|line| line.trim() == "fun:_ZdlPv"), "{told}");
    let file = program.outside("errors.supp");
    std::fs::write(&file, rules.join("\n")).unwrap();
    let plain = program.checked(&[]);
    let functions: Vec<_> = plain.report.list("/findings").iter().filter_map(|f| f["alloc_fn"].as_str()).collect();
    assert_eq!(functions.iter().filter(|name| **name == "operator delete(void*)").count(), 2, "{functions:?}");
    let checked = program.checked(&["--suppressions", file.to_str().unwrap()]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
}

/// A program that tells LeakSanitizer not to look has its leaks hidden, and that is told.
#[test]
fn a_program_that_turns_the_check_off_has_its_leaks_hidden() {
    let checked = fixture("turned_off").checked(&[]);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    assert_eq!(checked.report.number("/suppressions/0/blocks"), 1, "{}", checked.ended.stderr);
    assert!(checked.report.text("/suppressions/0/file").starts_with("__lsan_is_turned_off of"));
    let program = Program::new(fixtures::program_with("leaks/turned_off", &["-DON"]));
    assert_eq!(program.checked(&[]).ended.code(), 23);
    // of several processes, for the one alone that has turned it off
    let off = fixture("turned_off");
    for other in [off.exe(), program.exe()] {
        let both = format!("{}; {}; true", off.exe().display(), other.display());
        let code = Program::new("/bin/sh").args(["-c", &both]).checked(&["-f"]).ended.code();
        assert_eq!(code, if other == off.exe() { 0 } else { 23 });
    }
}

/// Memcheck reads the same file. One thing differs, and no case is made of it: libstdc++'s `new[]` jumps to its `new`,
/// so that heaptrace sees the latter only, and lets a rule for either hide it.
#[test]
fn valgrind_suppressions_hide_what_they_hide_in_memcheck() {
    let line = format!("src:suppressed.cc:{}", fixtures::site_line("leaks/suppressed", "number"));
    // the entries, and how many of the functions they must hide: a rule that hides nothing proves nothing
    let cases: Vec<(Vec<String>, usize)> = vec![
        (vec![entry(&["fun:calloc", "fun:vendor_buffer"])], 1),
        (vec![entry(&["fun:*alloc", "...", "fun:vendor_open"])], 1),
        (vec![entry(&["...", "fun:vendor_open_all"])], 2),
        (vec![entry(&["...", "obj:*/vendor.so"])], 2),
        (vec![entry(&["fun:_Znwm", "fun:_ZN3app6numberEv"])], 1),
        (vec![entry(&["fun:_Znam", "fun:_ZN3app5Table*4growEm", "..."])], 2),
        (vec![entry(&["fun:_Zna?", "fun:_ZN3app5TableIiE4growEm"])], 1),
        (vec![entry(&["fun:malloc", "fun:strdup", "fun:_ZN3app5parseEPKc"])], 1),
        (vec![entry(&["fun:malloc", "obj:*/libc.so*"])], 2),
        (vec![entry(&["fun:realloc", "..."])], 1),
        (vec![entry(&["fun:*", "..."])], 8),
        (vec![entry(&["match-leak-kinds: possible", "fun:*alloc", "..."])], 1),
        (vec![entry(&["match-leak-kinds: definite", "...", "fun:_Z3runv"])], 7),
        (vec![entry(&["match-leak-kinds: definite,possible", "...", "fun:main"])], 8),
        (vec![entry(&["match-leak-kinds: reachable", "fun:*", "..."])], 0),
        (vec![entry(&["fun:malloc", "...", "fun:_ZN3app7recurseEi", "...", "fun:main"])], 0),
        (vec![entry(&["...", &line])], 1),
        (vec![entry(&["fun:calloc", "fun:main"])], 0),
        (vec![entry(&["fun:vendor_buffer"])], 0),
        (vec!["# a comment\n\n".to_owned(), entry(&["fun:realloc", "..."]), entry(&["fun:_Znwm", "fun:_ZN3app6*"])], 2),
        (vec!["{\n   other\n   Memcheck:Cond\n   fun:main\n}\n".to_owned(), entry(&["fun:_Znwm", "fun:_ZN3app6*"])], 1),
        (vec!["{\n   other\n   Helgrind:Race\n   fun:main\n}\n".to_owned()], 0),
    ];
    let program = Program::new(program(&[]));
    let all = shown(&Found::from_report(&program.checked(&[]).report));
    let (_, found) = program.memcheck_leaks(&[]);
    assert_eq!(all, shown(&found));
    let file = program.outside("rules.supp");
    let file = file.to_str().unwrap();
    let mut wrong = Vec::new();
    for (entries, hidden) in cases {
        let text = entries.concat();
        std::fs::write(file, &text).unwrap();
        let (_, found) = program.memcheck_leaks(&[&format!("--suppressions={file}")]);
        let memcheck = shown(&found);
        let ours = shown(&Found::from_report(&program.checked(&["--suppressions", file]).report));
        if memcheck != ours {
            wrong.push(format!("{text}Memcheck shows {memcheck:#?}\nheaptrace shows {ours:#?}"));
        }
        if all.len() - memcheck.len() != hidden {
            wrong.push(format!("{text}Memcheck hides {} functions", all.len() - memcheck.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a program with LeakSanitizer says of its own leaks, by function.
struct LeakSanitizer {
    functions: BTreeMap<String, Amount>,
    total: Amount,
}

fn leak_sanitizer(suppressions: &str) -> LeakSanitizer {
    let program = Program::new(program(&["-fsanitize=leak"]));
    let options = format!("suppressions={suppressions}:fast_unwind_on_malloc=0");
    let ended = program.env("LSAN_OPTIONS", options).plain();
    parse(&ended.stderr)
}

/// Reads `Direct leak of 47 byte(s) in 3 object(s) allocated from:` with the `#1 0x… in FUNCTION FILE` below it, and
/// `SUMMARY: LeakSanitizer: 955 byte(s) leaked in 9 allocation(s).`
fn parse(text: &str) -> LeakSanitizer {
    let numbers = |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let mut result = LeakSanitizer { functions: BTreeMap::new(), total: Amount::default() };
    let mut open: Option<Amount> = None;
    for line in text.lines() {
        if line.starts_with("Direct leak") || line.starts_with("Indirect leak") {
            let numbers = numbers(line);
            open = Some(Amount { bytes: numbers[0], blocks: numbers[1] });
        } else if line.contains("tests/fixtures/leaks/")
            && let Some(amount) = open.take()
        {
            let (_, named) = line.split_once(" in ").expect("a function");
            let name = named.split("(").next().and_then(|name| name.split(" /").next()).expect("a name");
            result.functions.entry(name.to_owned()).or_default().add(amount);
        } else if let Some(summary) = line.strip_prefix("SUMMARY: LeakSanitizer:") {
            let numbers = numbers(summary);
            result.total = Amount { bytes: numbers[0], blocks: numbers[1] };
        }
    }
    result
}

/// The last part of a C++ name: LeakSanitizer writes some without their namespace.
fn last(name: &str) -> String {
    name.rsplit("::").next().unwrap_or(name).to_owned()
}

/// LeakSanitizer reads the same file, in a program built with it; heaptrace judges the plain program.
#[test]
fn leak_sanitizer_suppressions_hide_what_they_hide_there() {
    let rules = [
        "leak:^app::parse",
        "leak:vendor_open$",
        "leak:vendor.so",
        "leak:suppressed.cc",
        "leak:app::Table<*>::grow",
        "leak:strdup",
        "leak:recurse",
        "leak:vendor_buffer",
        "leak:*Session*",
        "leak:operator new",
        "leak:no_such_function",
        "leak:^run()$",
        "leak:run$",
        "leak:^app::parse$",
        "leak:parse(char const*)$",
        "leak:libc.so",
        "# a comment\n\nleak:vendor_open$\nleak:recurse\n",
    ];
    let plain = Program::new(program(&[]));
    let file = plain.outside("rules.lsan");
    let file = file.to_str().unwrap();
    let mut wrong = Vec::new();
    let mut totals = std::collections::BTreeSet::new();
    for rule in rules {
        std::fs::write(file, format!("{rule}\n")).unwrap();
        let theirs = leak_sanitizer(file);
        let options = ["--interior-pointers", "reachable", "--suppressions", file];
        let found = Found::from_report(&plain.checked(&options).report);
        let mut total = Amount::default();
        let mut functions: BTreeMap<String, Amount> = BTreeMap::new();
        for (name, [definite, indirect, ..]) in found.by_function() {
            for amount in [definite, indirect].into_iter().filter(|amount| amount.blocks > 0) {
                total.add(amount);
                functions.entry(last(&name)).or_default().add(amount);
            }
        }
        let mut expected: BTreeMap<String, Amount> = BTreeMap::new();
        for (name, amount) in theirs.functions {
            expected.entry(last(&name)).or_default().add(amount);
        }
        if (&expected, theirs.total) != (&functions, total) {
            wrong.push(format!(
                "{rule}\nLeakSanitizer {expected:#?} {:?}\nheaptrace {functions:#?} {total:?}",
                theirs.total
            ));
        }
        totals.insert(theirs.total.bytes);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(totals.len() > 8, "the rules differ too little: {totals:?}");
}

/// What `--gen-suppressions` writes hides all leaks, in the next check as in Memcheck.
#[test]
fn generated_suppressions_hide_everything() {
    let program = Program::new(program(&[]));
    let file = program.outside("generated.supp");
    let file = file.to_str().unwrap();
    let checked = program.checked(&["--gen-suppressions", file, "--leak-kinds", "definite,indirect,possible"]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let options = ["--suppressions", file, "--leak-kinds", "definite,indirect,possible"];
    let checked = program.checked(&options);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
    let (_, memcheck) = program.memcheck_leaks(&[&format!("--suppressions={file}")]);
    assert_eq!(shown(&memcheck), BTreeMap::new());
}

/// A file that can't be read as either kind stops the check before the program starts, with file, line and reason.
#[test]
fn bad_files_are_errors() {
    for (text, line) in
        [("{\n   name\n   Memcheck:Leak\n   fun:x\n", 4), ("leak:a\nnonsense\n", 2), ("{\n   name\n}\n", 3)]
    {
        let program = fixture("chains");
        let file = program.outside("bad.supp");
        std::fs::write(&file, text).unwrap();
        let command = ["check", "--suppressions", file.to_str().unwrap(), "--", program.exe().to_str().unwrap()];
        let ended = program.start_heaptrace(command).wait();
        assert_eq!(ended.code(), 125, "{text}{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("bad.supp, line {line}: ")), "{text}{}", ended.stderr);
    }
}
