//! Rules on the sample profile: its sites 0 (definite and possible, in new_node inlined into parse_document), 1
//! (indirect, in a stripped library), 2 (reachable, in a C++ template), 3 (definite, in Rust), 4 (possible, unknown
//! stack).

use super::*;
use crate::export::tests::check_profile;
use crate::profile::check::verdict::Policy;
use proptest::prelude::*;

fn rules(text: &str) -> Suppressions {
    Suppressions::read(text.as_bytes(), "test.supp").expect(text)
}

/// The sample with nothing suppressed; its second site is reachable memory of `operator new`.
fn sample() -> Profile {
    let mut profile = check_profile();
    profile.warnings.clear();
    profile.suppressions.clear();
    profile.strings.push("operator new(unsigned long)".to_owned());
    if let Some(leaks) = &mut profile.leaks {
        for site in &mut leaks.sites {
            (site.suppressed_by, site.baseline) = ([None; 4], [None; 4]);
        }
        leaks.sites[2].alloc_fn = profile.strings.len() - 1;
    }
    profile
}

/// Which classes of which sites a text hides: `0d` for the definite blocks of the first site.
fn hidden(text: &str) -> String {
    let mut profile = sample();
    rules(text).apply(&mut profile);
    let mut found = Vec::new();
    for (index, site) in profile.leaks.as_ref().expect("leaks").sites.iter().enumerate() {
        for (class, by) in LeakClass::ALL.into_iter().zip(site.suppressed_by) {
            if by.is_some() {
                found.push(format!("{index}{}", &class.name()[..1]));
            }
        }
    }
    found.join(" ")
}

#[test]
fn leak_sanitizer_s_lines_look_at_functions_files_and_modules() {
    assert_eq!(hidden("leak:new_node"), "0d 0p");
    assert_eq!(hidden("leak:^new_node$"), "0d 0p");
    assert_eq!(hidden("leak:^node$"), "");
    assert_eq!(hidden("leak:src/node.c"), "0d 0p");
    assert_eq!(hidden("leak:libfoo.so"), "1i");
    assert_eq!(hidden("leak:std::vector<*>::reserve"), "2r");
    assert_eq!(hidden("leak:^calloc$"), "4p");
    assert_eq!(hidden("leak:main"), "0d 0p 1i 2r 3d", "worker_main too");
    assert_eq!(hidden("# a comment\n\n  leak:clone \r\nrace:x\n"), "3d");
}

fn entry(lines: &str) -> String {
    format!("{{\n  name\n  Memcheck:Leak\n{lines}\n}}\n")
}

#[test]
fn valgrind_s_entries_match_from_the_allocator_on() {
    let hides = |lines: &str| hidden(&entry(lines));
    assert_eq!(hides("fun:malloc\nfun:new_node"), "0d 0p");
    assert_eq!(hides("fun:new_node"), "", "Memcheck's stacks begin with malloc");
    assert_eq!(hides("...\nfun:new_node"), "0d 0p");
    assert_eq!(hides("fun:malloc\nfun:parse_document"), "", "inlined calls are frames");
    assert_eq!(hides("fun:malloc\n...\nfun:main"), "0d 0p 3d");
    assert_eq!(hides("match-leak-kinds: possible\nfun:malloc\n...\nfun:main"), "0p");
    assert_eq!(hides("match-leak-kinds:definite,reachable\n...\nfun:main"), "0d 2r 3d");
    assert_eq!(hides("match-leak-kinds: none\n...\nfun:main"), "");
    assert_eq!(hides("fun:_Znwm\nfun:_ZNSt6vector*reserve*"), "2r", "mangled names");
    assert_eq!(hides("fun:*alloc\nfun:new?node"), "0d 0p");
    assert_eq!(hides("fun:malloc\nobj:*/libfoo.so.1"), "1i");
    assert_eq!(hides("obj:*vgpreload_memcheck*\nobj:/usr/lib/libfoo.so.?"), "1i");
    assert_eq!(hides("fun:malloc\nfun:???"), "1i", "Valgrind's name for no name");
    assert_eq!(hides("fun:malloc\nsrc:node.c"), "0d 0p");
    assert_eq!(hides("fun:malloc\nsrc:src/node.c:9"), "0d 0p");
    assert_eq!(hides("fun:malloc\nsrc:node.c:10"), "");
    assert_eq!(hides("fun:malloc\nfun:__rdl_alloc\nfun:*GlobalAlloc*System*\nfun:*Clone*"), "3d");
}

#[test]
fn entries_for_others_are_left_out() {
    let text = "{\n a\n Helgrind:Race\n fun:x\n}\n{\n b\n Memcheck:Cond\n fun:*\n}\n{\n c\n core,Memcheck:Leak\n fun:malloc\n fun:new_node\n}\nleak:clone\n";
    assert_eq!(rules(text).rules.len(), 2);
    assert_eq!(hidden(text), "0d 0p 3d");
}

/// Kinds that are not looked for, those that no Valgrind has yet among them, are no mistake.
#[test]
fn kinds_of_other_errors_are_left_out() {
    for kind in ["UnsafeZeroSize", "Value32", "Param", "BadAlign", "SomethingNew"] {
        let text = format!("{{\n a\n Memcheck:{kind}\n realloc(ptr)\n fun:x\n}}\nleak:clone\n");
        assert_eq!(rules(&text).rules.len(), 1, "{kind}");
    }
}

#[test]
fn errors_are_hidden_by_entries_of_their_kind() {
    let left = |lines: &str| {
        let mut profile = sample();
        let before = profile.findings.len();
        rules(&format!("{{\n name\n {lines}\n}}\n")).apply(&mut profile);
        let hidden = profile.suppressions[0].hidden_errors;
        if !lines.starts_with("Memcheck:Leak") {
            assert_eq!(hidden == 0, before == profile.findings.len(), "{lines}");
        }
        profile.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    let all: Vec<_> = sample().findings.iter().map(|finding| finding.kind).collect();
    assert!(all.contains(&FindingKind::DoubleFree), "{all:?}");
    let others: Vec<_> = all.iter().copied().filter(|kind| *kind == FindingKind::SizedDelete).collect();
    assert_eq!(left("Memcheck:Free\n obj:*\n ..."), others);
    assert_eq!(left("Memcheck:Free\n fun:nobody\n ..."), all);
    assert_eq!(left("Memcheck:Leak\n obj:*\n ..."), all);
    let sized: Vec<_> = all.iter().copied().filter(|kind| *kind != FindingKind::SizedDelete).collect();
    if sized.len() < all.len() {
        assert_eq!(left("Memcheck:SizeMismatch\n obj:*\n ..."), sized);
    }
}

#[test]
fn mistakes_are_told_with_their_line() {
    let cases = [
        ("\nleek:x", 2, "not a kind of suppression"),
        ("foo", 1, "neither"),
        ("leak:", 1, "every leak"),
        ("fun:malloc", 1, "outside of an entry"),
        ("{\n}", 2, "empty entry"),
        ("# c\n{\n name", 3, "ends here"),
        ("{\nname\nMemcheck", 3, "TOOL:KIND"),
        ("{\nname\n:Leak\n}", 3, "TOOL:KIND"),
        ("{\nname\nMemcheck:Leek\nfun:a\n}", 3, "not a kind of error"),
        ("{\nname\nMemcheck:Leak\n}", 4, "without a stack"),
        ("{\nname\nMemcheck:Leak\n...\n}", 5, "every leak"),
        ("{\nname\nMemcheck:Leak\nfun:\n}", 4, "without a name"),
        ("{\nname\nMemcheck:Leak\nfan:x\n}", 4, "should be"),
        ("{\nname\nMemcheck:Leak\nmatch-leak-kinds: definitely\nfun:x\n}", 4, "not a kind of leak"),
        ("{\nname\nMemcheck:Leak\nfun:x\nmatch-leak-kinds: all\n}", 5, "before the stack"),
        ("{\nname\nMemcheck:Cond\nfun:x\n{\nname", 5, "is missing"),
        ("{\nname\nMemcheck:Leak\nfun:x", 4, "ends here"),
    ];
    for (text, line, reason) in cases {
        let error = Suppressions::read(text.as_bytes(), "ci/x.supp").expect_err(text);
        assert_eq!((error.line, error.file.as_str()), (line, "ci/x.supp"), "{text}: {error}");
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert!(error.to_string().starts_with(&format!("suppressions in ci/x.supp, line {line}: ")), "{error}");
    }
}

#[test]
fn the_first_matching_rule_counts_and_unused_and_broad_ones_are_told() {
    let mut profile = sample();
    let mut all = rules("leak:new_node\n");
    all.extend(rules("leak:parse_document\nleak:nothing\n"));
    all.apply(&mut profile);
    let leaks = profile.leaks.as_ref().expect("leaks");
    let hidden: Vec<(u64, u64)> =
        profile.suppressions.iter().map(|rule| (rule.hidden.objects, rule.hidden.bytes)).collect();
    assert_eq!(hidden, [(6, 4224), (0, 0), (0, 0)], "3072 definite, 128 on them, 1024 possible");
    assert_eq!(leaks.suppressed(), Amount { objects: 6, bytes: 4224 });
    assert_eq!(
        profile.warnings,
        [
            "2 of 3 suppression rules hid nothing: `parse_document` (test.supp:1), `nothing` (test.supp:2)",
            "the suppression rule `new_node` (test.supp:1) hides 100 % of all leaked bytes",
        ]
    );
}

#[test]
fn a_rule_that_hides_half_of_the_bytes_is_not_broad() {
    let mut profile = sample();
    if let Some(leaks) = &mut profile.leaks {
        leaks.sites[3].amounts[0] = Amount { objects: 1, bytes: 3200 };
    }
    rules("leak:new_node").apply(&mut profile);
    assert_eq!(profile.warnings, Vec::<String>::new());
}

#[test]
fn generated_entries_hide_what_they_were_made_for_and_nothing_else() {
    let policy = Policy { leak_kinds: [true, true, false, true], ..Policy::default() };
    let text = generate(&sample(), &policy);
    insta::assert_snapshot!(text);
    assert_eq!(hidden(&text), "0d 2r 3d");
    let mut profile = sample();
    rules(&text).apply(&mut profile);
    assert_eq!(generate(&profile, &policy), "", "nothing is left");
}

proptest! {
    /// No file makes us panic, whatever is in it.
    #[test]
    fn any_bytes_are_rules_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(rules) = Suppressions::read(&bytes, "f") {
            rules.apply(&mut sample());
        }
    }

    /// The same with what comes near to rules.
    #[test]
    fn any_lines_are_rules_or_an_error(lines in prop::collection::vec(prop::sample::select(vec![
        "{", "}", "name", "Memcheck:Leak", "Memcheck:Cond", "Helgrind:Race", "match-leak-kinds: definite", "match-leak-kinds:",
        "fun:malloc", "fun:*", "obj:*", "src:*:1", "src:", "...", "leak:*", "leak:^$", "leak:^*$*", "leak:$$", "# c", "", "fun:?*?",
    ]), 0..24)) {
        if let Ok(rules) = Suppressions::read(lines.join("\n").as_bytes(), "f") {
            rules.apply(&mut sample());
        }
    }

    /// Wildcards match as their plain definition says.
    #[test]
    fn globs_agree_with_their_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
        fn slow(pattern: &[u8], name: &[u8]) -> bool {
            match (pattern.split_first(), name.split_first()) {
                (None, None) => true,
                (Some((b'*', rest)), _) => (0..=name.len()).any(|skip| slow(rest, &name[skip..])),
                (Some((b'?', rest)), Some((_, behind))) => slow(rest, behind),
                (Some((a, rest)), Some((b, behind))) => a == b && slow(rest, behind),
                _ => false,
            }
        }
        prop_assert_eq!(crate::base::glob::Glob::new(&pattern).matches(&name), slow(pattern.as_bytes(), name.as_bytes()));
    }
}
