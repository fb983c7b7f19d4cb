//! What is advised where names are missing, and what live means.

use super::*;

/// The text report, with one place of the stacks in code of no module if `is_made`; one module or the program has
/// another name.
fn told(module: Option<&str>, program: Option<&str>, is_made: bool) -> String {
    let mut profile = sample_profile();
    if let Some(path) = module {
        let other = ModuleInfo { path: path.into(), ..profile.modules[2].clone() };
        profile.modules.push(other);
    }
    if let Some(path) = program {
        profile.modules[0].path = path.into();
    }
    if is_made {
        profile.locations[4].module = None;
    }
    exported_text(Format::Txt, &profile).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_runtime_is_known_by_its_library_or_its_program() {
    for (module, program, option) in [
        (Some("/usr/lib/jvm/lib/server/libjvm.so"), None, "-XX:+PreserveFramePointer"),
        (Some("/usr/share/dotnet/libcoreclr.so"), None, "DOTNET_PerfMapEnabled=1"),
        (None, Some("/usr/bin/node"), "--perf-basic-prof"),
    ] {
        assert!(told(module, program, true).contains(option), "{option}");
        assert!(!told(module, program, false).contains(option), "{option}: all its code has names");
    }
    assert!(!told(Some("/usr/lib/libnodejs.so"), Some("/home/user/nodes"), true).contains("--perf-basic-prof"));
}

#[test]
fn what_makes_code_and_is_not_known_is_asked_for_a_map() {
    assert!(told(None, None, true).contains("/tmp/perf-PID.map"));
    assert!(!told(None, None, false).contains("perf-PID"));
    let mut profile = sample_profile();
    profile.functions[6].name = "StgRun".to_owned();
    assert!(exported_text(Format::Txt, &profile).contains("ghc has built it with -g"));
    profile.functions[6].name = "php_module_startup".to_owned();
    let text = exported_text(Format::Txt, &profile);
    assert!(text.contains("USE_ZEND_ALLOC=0") && !text.contains("ghc"), "{text}");
}

/// Who has saved a snapshot has not run the program: the advice is for the heaptrace that traces it. Of profiles of
/// other tools there is none.
#[test]
fn debug_files_are_fetched_by_the_heaptrace_that_asks_for_names() {
    let told = |mode| {
        let mut profile = sample_profile();
        profile.meta.mode = mode;
        exported_text(Format::Txt, &profile).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(told(Mode::Run).contains("heaptrace run --debuginfod -- "));
    assert!(told(Mode::Attach).contains("heaptrace attach --debuginfod 4242"));
    for mode in [Mode::Snapshot, Mode::SnapshotOfAttached] {
        let text = told(mode);
        assert!(text.contains("start the heaptrace that traces the process with DEBUGINFOD_URLS="), "{text}");
        assert!(!text.contains("heaptrace run") && !text.contains("heaptrace attach"), "{text}");
    }
}

/// The sentence of `--since` is what tells such a profile from others.
#[test]
fn live_means_what_came_since_the_mark() {
    let since = crate::event::MarkName::new("warm");
    for generation in
        [crate::event::Generation { since, until: None }, crate::event::Generation { since, until: since }]
    {
        let mut profile = attach_profile();
        assert!(exported_text(Format::Txt, &profile).contains("since attach"));
        profile.warnings.extend(generation.in_words());
        let text = exported_text(Format::Txt, &profile);
        assert!(text.contains("allocated since the mark and") && !text.contains("since attach"), "{text}");
    }
}
