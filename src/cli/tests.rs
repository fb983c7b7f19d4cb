//! The command line as users type it.

mod documents;

use super::*;

fn parse_words(words: &str) -> Result<Command, Refusal> {
    let words = std::iter::once("heaptrace").chain(words.split_whitespace()).map(OsString::from);
    parse(words, false, |_| None)
}

fn run(words: &str) -> RunOptions {
    match parse_words(words) {
        Ok(Command::Run(options)) => options,
        other => panic!("{words}: {other:?}"),
    }
}

fn attach(words: &str) -> AttachOptions {
    match parse_words(words) {
        Ok(Command::Attach(options)) => options,
        other => panic!("{words}: {other:?}"),
    }
}

fn usage(words: &str) -> String {
    match parse_words(words) {
        Err(Refusal::Usage(text)) => text,
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn clap_finds_no_fault_with_the_definition() {
    command().debug_assert();
}

#[test]
fn a_plain_run_has_the_documented_defaults() {
    let options = run("run ./app");
    assert_eq!((options.program, options.arguments), (OsString::from("./app"), vec![]));
    let profile = options.profile;
    assert_eq!(profile.outputs, [PathBuf::from("heaptrace.%n.%p.pb.gz")]);
    assert_eq!((profile.engine, profile.max_depth, profile.duration), (EngineChoice::Auto, 512, None));
    assert!(profile.free_stacks && profile.symbolize && !profile.pin);
    assert_eq!((profile.pprof_columns, profile.top), (PprofColumns::All, None));
    assert_eq!((profile.verbosity, profile.progress, profile.color), (Verbosity::Normal, When::Auto, When::Auto));
}

#[test]
fn options_end_at_the_first_word_that_is_none() {
    let options = run("run -o heap.svg ./app -o x --pin -- -q --bogus");
    assert_eq!(options.profile.outputs, [PathBuf::from("heap.svg")]);
    assert_eq!(options.arguments, ["-o", "x", "--pin", "--", "-q", "--bogus"]);
    assert!(!options.profile.pin);
}

#[test]
fn a_double_dash_makes_everything_behind_it_the_program() {
    let options = run("run --pin -- -odd-name --pin -- x");
    assert_eq!(options.program, "-odd-name");
    assert_eq!(options.arguments, ["--pin", "--", "x"]);
    assert!(options.profile.pin);
}

#[test]
fn an_unknown_option_never_becomes_the_program() {
    assert!(usage("run --bogus ./app").contains("unexpected argument '--bogus'"));
    assert!(usage("run").contains("PROGRAM"));
}

#[test]
fn every_option_arrives() {
    let profile = run(
        "run -o a.pb --output b.json --format pb --engine trap --duration 2m --no-free-stacks --max-depth 64 \
         --alloc-fn pool_get:size=arg2 --free-fn pool_put --pin --no-symbolize --debug-dir d1 --debug-dir d2 --sysroot s --save-binaries bin --on-profile upload \
         --pprof-columns go --top 7 -vv --progress never --color always --unwinder own ./app",
    )
    .profile;
    assert_eq!(profile.outputs, [PathBuf::from("a.pb"), PathBuf::from("b.json")]);
    assert_eq!(profile.format, Some(Format::Pprof));
    assert_eq!((profile.engine, profile.duration), (EngineChoice::Trap, Some(Duration::from_secs(120))));
    assert_eq!((profile.free_stacks, profile.max_depth, profile.pin, profile.symbolize), (false, 64, true, false));
    assert_eq!((profile.alloc_fns, profile.free_fns), (vec!["pool_get:size=arg2".into()], vec!["pool_put".into()]));
    assert_eq!(profile.debug_dirs, [PathBuf::from("d1"), PathBuf::from("d2")]);
    assert_eq!(profile.sysroot, Some(PathBuf::from("s")));
    assert_eq!(profile.save_binaries, Some(PathBuf::from("bin")));
    assert_eq!(profile.on_profile, Some(OsString::from("upload")));
    assert_eq!((profile.pprof_columns, profile.top), (PprofColumns::Go, Some(7)));
    assert_eq!(profile.verbosity, Verbosity::Verbose(2));
    assert_eq!((profile.progress, profile.color), (When::Never, When::Always));
    assert_eq!(profile.unwinder, Unwinder::Own);
    assert_eq!(run("run -q ./app").profile.verbosity, Verbosity::Quiet);
}

#[test]
fn the_default_file_takes_the_ending_of_the_format() {
    assert_eq!(run("run --format json ./app").profile.outputs, [PathBuf::from("heaptrace.%n.%p.json")]);
}

#[test]
fn debug_folders_of_the_environment_come_after_those_of_the_options() {
    let words = ["heaptrace", "run", "--debug-dir", "mine", "./app"].map(OsString::from);
    let environment = |name: &str| (name == "HEAPTRACE_DEBUG_PATH").then(|| OsString::from("/a::/b"));
    let Ok(Command::Run(options)) = parse(words, false, environment) else { panic!("no run") };
    assert_eq!(options.profile.debug_dirs, ["mine", "/a", "/b"].map(PathBuf::from));
}

#[test]
fn attach_takes_exactly_one_target() {
    assert_eq!(attach("attach 1234 --duration 30s").target, AttachTarget::Pid(1234));
    assert_eq!(attach("attach --duration 30 -p 1234").target, AttachTarget::Pid(1234));
    assert_eq!(attach("attach --pid 1234").target, AttachTarget::Pid(1234));
    assert_eq!(attach("attach --by-name redis-server").target, AttachTarget::Name("redis-server".into()));
    let waits = |options| attach(&format!("attach --by-name x {options}")).wait;
    assert_eq!(
        ["", "--wait", "--again", "--wait --again"].map(waits),
        [Wait::No, Wait::ForFirst, Wait::ForEach, Wait::ForEach]
    );
    assert!(usage("attach --wait 1234").contains("--by-name"));
    usage("attach");
    usage("attach 1234 --by-name x");
    usage("attach -p 1 2");
    usage("attach 0");
    usage("attach -- -5");
    assert!(usage("attach redis-server").contains("did you mean `--by-name redis-server`?"));
    assert!(usage("leaks redis-server").contains("--by-name redis-server"));
}

#[test]
fn wrong_values_are_refused_with_the_right_ones() {
    assert!(usage("run --format dhat.json.gz ./app").contains("does not exist yet"));
    assert!(usage("run --format doc ./app").contains("there are .pb.gz .pb .svg"));
    assert!(usage("run --engine warp ./app").contains("`auto`, `trap` and `jump`"));
    assert!(usage("run --pprof-columns few ./app").contains("all, sampler, go"));
    assert!(usage("run --color maybe ./app").contains("auto, always, never"));
    assert!(usage("run --duration soon ./app").contains("500ms"));
    assert!(usage("run --max-depth 0 ./app").contains("--max-depth"));
    assert!(usage("run -q -v ./app").contains("cannot be used with"));
    assert!(usage("run --unwinder gdb ./app").contains("`own` and `libunwind`"));
}

#[test]
fn negative_values_are_refused_as_values() {
    for option in ["run --duration -5", "run --duration=-5", "attach --duration -0.5"] {
        let text = usage(&format!("{option} 1234"));
        assert!(text.contains("it must be longer than zero") && !text.contains("tip:"), "{option}: {text}");
    }
    for words in ["run --top -1 ./app", "run --max-depth -1 ./app"] {
        let text = usage(words);
        assert!(text.contains("is not in 1..") && !text.contains("tip:"), "{words}: {text}");
    }
    for words in ["attach -5", "attach -p -5", "attach --pid=-5"] {
        let text = usage(words);
        assert!(text.contains("`-5` is not a process id") && !text.contains("tip:"), "{words}: {text}");
    }
}

#[test]
fn help_shows_no_option_that_would_be_refused() {
    assert!(long_help(Some("run")).contains("--pin") && !long_help(Some("attach")).contains("--pin"));
    // a program that is linked statically can't load libunwind
    assert_ne!(long_help(Some("run")).contains("--unwinder"), cfg!(target_feature = "crt-static"));
}

#[test]
fn a_program_in_place_of_a_command_is_answered_with_the_command_to_type() {
    for program in ["/bin/sh", "sh"] {
        let text = usage(&format!("{program} -c true"));
        assert!(text.contains(&format!("did you mean `heaptrace run {program}`?")), "{text}");
    }
    let text = usage("rnu ./app");
    assert!(text.starts_with("unrecognized subcommand 'rnu'"), "{text}");
}

#[test]
fn help_and_version_are_answers_not_errors() {
    assert!(matches!(parse_words("--version"), Err(Refusal::Answer(text)) if text.starts_with("heaptrace ")));
    for words in ["--help", "help run", "run --help", "attach -h", "doctor --help"] {
        assert!(matches!(parse_words(words), Err(Refusal::Answer(_))), "{words}");
    }
    assert!(usage("").contains("Usage: heaptrace <COMMAND>"));
}

fn long_help(subcommand: Option<&str>) -> String {
    let mut command = command().term_width(100);
    command.build();
    match subcommand.and_then(|name| command.find_subcommand_mut(name)) {
        Some(subcommand) => subcommand.render_long_help().to_string(),
        None => command.render_long_help().to_string(),
    }
}

#[test]
fn help_texts() {
    insta::assert_snapshot!("help", long_help(None));
    insta::assert_snapshot!("help_run", long_help(Some("run")));
    insta::assert_snapshot!("help_attach", long_help(Some("attach")));
    insta::assert_snapshot!("help_doctor", long_help(Some("doctor")));
}

#[test]
fn no_help_line_is_wider_than_a_hundred_columns() {
    for name in [None, Some("run"), Some("attach"), Some("doctor")] {
        for line in long_help(name).lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
