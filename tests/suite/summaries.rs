//! What a user reads on the terminal: the rows of the summary, what is said of the cost, of missing names, and while it
//! runs.

use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The tables of stacks in a summary: of each row all lines, without the figures.
fn tables(summary: &str) -> Vec<Vec<String>> {
    let mut tables: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    for line in summary.lines() {
        let begins = line.starts_with("Live") || line.starts_with("Allocated in all") || line.starts_with("Temporary");
        if begins && line.contains(" in ") {
            tables.push(Vec::new());
        }
        inside = begins || inside && line.starts_with("  ");
        let Some(table) = tables.last_mut().filter(|_| inside && !begins) else { continue };
        match line.split_once(" ×  ") {
            Some((_, name)) => table.push(name.to_owned()),
            None => {
                if let Some(row) = table.last_mut() {
                    row.push('\n');
                    row.push_str(line.trim());
                }
            }
        }
    }
    tables
}

fn assert_rows_differ(summary: &str) {
    let tables = tables(summary);
    assert!(!tables.is_empty(), "{summary}");
    for rows in tables {
        for (index, row) in rows.iter().enumerate() {
            assert!(!rows[..index].contains(row), "twice {row:?}\n{summary}");
        }
    }
}

/// Rows of a summary on the terminal are told apart even where the program's own functions are the same for all.
#[test]
fn no_two_rows_look_alike() {
    let traced = Program::fixture("alike").traced();
    let summary = &traced.ended.stderr;
    assert_rows_differ(summary);
    // the program's own function is there, with its file and line
    assert!(summary.contains("Cache::fill(int)") && summary.contains("alike.cc:"), "{summary}");
}

/// Of real programs, too, with few names.
#[test]
fn no_two_rows_of_real_programs_look_alike() {
    let sqlite = Program::new("sqlite3").args([":memory:"]).input(
        "create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<500)
         insert into t select x, hex(randomblob(20)) from c; select count(*) from t group by a%7 order by b;",
    );
    let jq = Program::new("jq").args([".[].a"]).input(r#"[{"a":1,"b":["x",{"c":2.5}]},{"a":[3,4],"b":null}]"#);
    for program in [sqlite, jq] {
        assert_rows_differ(&program.traced_with(&["--top", "8"]).ended.stderr);
    }
}

/// Where nothing is left at the end, the summary tells where most was allocated, and what was freed at once.
#[test]
fn what_was_freed_is_told_where_little_is_left() {
    let traced = Program::fixture("alike").traced();
    let summary = &traced.ended.stderr;
    assert!(summary.contains("Allocated in all: ") && summary.contains("Temporary, about: "), "{summary}");
    let traced = Program::fixture("sites").traced();
    assert!(!traced.ended.stderr.contains("Allocated in all"), "{}", traced.ended.stderr);
}

/// What lacks names is told by places, with the package that would bring them.
#[test]
fn missing_names_lead_to_a_package() {
    let program = Program::new("jq").args(["."]).input("[1,{\"a\":\"b\"}]");
    let summary = program.traced().ended.stderr;
    if Path::new("/var/lib/dpkg/info/jq.list").exists() && !Path::new("/var/lib/dpkg/info/jq-dbgsym.list").exists() {
        assert!(
            summary.contains("apt install jq-dbgsym (if") && summary.contains("apt install libjq1-dbgsym (if"),
            "{summary}"
        );
    }
    assert!(!summary.contains("Without symbols") && summary.contains(" places"), "{summary}");
}

/// The lists of packages are read only where something shows what they say. Here they lie in a folder of the run's own,
/// whose time of access tells.
#[test]
fn lists_of_packages_are_read_only_where_their_answer_is_shown() {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o strictatime lists /var/lib
        mkdir -p /var/lib/dpkg/info
        touch /var/lib/dpkg/info/some.list
        touch -a -d @1 /var/lib/dpkg/info
        "$@" > /dev/null
        stat -c %X /var/lib/dpkg/info
    "#;
    let target = fixtures::program_with("alike", &["-g0"]);
    let is_read = |options: &[&str]| {
        let program = Program::new("unshare").args(["--user", "--map-root-user", "--mount", "--propagation=private"]);
        let program = program.args(["sh", "-ec", SCRIPT, "sh", env!("CARGO_BIN_EXE_heaptrace")]).args(options);
        program.args([target.as_os_str()]).plain().success().text() != "1\n"
    };
    for shows in [&["run", "-o", "x.json"][..], &["run", "-q", "-o", "x.txt"], &["run", "-q", "-o", "x.html"]] {
        assert!(is_read(shows), "{shows:?}");
    }
    for shows_not in [&["run", "-q", "-o", "x.json"][..], &["run", "-q", "-o", "x.pb.gz"]] {
        assert!(!is_read(shows_not), "{shows_not:?}");
    }
}

/// "Build it with -g" helps who has not: the libraries in a static program have no lines in any case.
#[test]
fn only_a_program_without_lines_is_to_be_built_with_them() {
    let says = |options: &[&str]| {
        // A static program has operators and malloc in one module.
        let program =
            Program::new(fixtures::program_with("alike", options)).stays_on_trap("recorded calls of operator");
        program.traced().ended.stderr.contains("build it with -g")
    };
    assert!(says(&["-static", "-g0"]) && says(&["-g0"]));
    assert!(!says(&["-static", "-g"]) && !says(&["-g"]));
}

/// How much slower report.json says that the program was, if the summary tells it in words, too: it does so where it is
/// known within a factor of two.
fn times_slower(traced: &Traced) -> Option<f64> {
    let text = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let cost = text.split_once("wall time; the program waited").expect("the cost").1;
    let number = |pointer: &str| traced.report.number(pointer);
    let wall = number("/cost/wall_ns");
    let times = |waited: u64| wall as f64 / (wall - waited).max(1) as f64;
    let reported = times(number("/cost/waited_ns"));
    let Some((sentence, _)) = cost.split_once(" than without") else {
        assert!(!cost.contains(" slower"), "{text}");
        if !traced.report.0["cost"]["waited_range_ns"].is_null() {
            let [least, most] = ["/0", "/1"].map(|bound| times(number(&format!("/cost/waited_range_ns{bound}"))));
            assert!(most > least * 1.9, "{least} to {most}: {text}");
        }
        return None;
    };
    let Some((before, _)) = sentence.split_once(" times slower") else {
        assert!(cost.contains("hardly slower") && reported < 1.15, "{reported}: {text}");
        return Some(reported);
    };
    let words: Vec<_> = before.rsplit(' ').take(3).collect();
    let number = |word: &str| -> f64 { word.replace(',', "").parse().unwrap() };
    let (least, most) = match words[..] {
        // a short run
        [most, "to", "up"] => (1.0, number(most)),
        [most, "to", least] => (number(least), number(most)),
        [told, ..] => (number(told), number(told)),
        [] => panic!("{text}"),
    };
    assert!(most <= least * 2.1, "{text}");
    assert!((least * 0.9..=most * 1.1).contains(&reported), "{least} to {most}, and {reported}");
    Some(reported)
}

/// What is told of a program's slowness in the middle of five runs that tell it, and the truth: how long it takes
/// without heaptrace.
fn told_and_true(program: &Program) -> Option<(f64, f64)> {
    // the least, as other programs use the machine, too
    let (began, mut alone) = (Instant::now(), Duration::MAX);
    while alone == Duration::MAX || began.elapsed() < Duration::from_millis(500) {
        let began = Instant::now();
        program.plain().success();
        alone = alone.min(began.elapsed());
    }
    // what is told rests on samples, of a machine that others use, too
    let told = (0..5).filter_map(|_| {
        let traced = program.traced();
        let truth = traced.report.number("/cost/wall_ns") as f64 / 1e9 / alone.as_secs_f64();
        Some((times_slower(&traced)?, truth))
    });
    let mut all: Vec<(f64, f64)> = told.collect();
    all.sort_by(|one, other| (one.0 / one.1).total_cmp(&(other.0 / other.1)));
    all.get(all.len() / 2).copied()
}

/// Whether the summary says at most twice the truth, and at least a `share` of it. Other programs that run meanwhile,
/// as other tests do, slow the program and heaptrace down: the truth has that in it, the summary has not. So the lower
/// bound can't be a half.
fn is_near(told: f64, truth: f64, share: f64) -> bool {
    told > truth * share && told < truth * 2.0
}

/// What is told of slowness is near the truth: of a program that does nothing but allocate, one that works and one that
/// sleeps.
#[test]
fn slowness_is_near_the_truth() {
    let paces = |pace: &str| told_and_true(&Program::fixture("pace").args([pace]));
    // Several threads at once wait for each other's stops, too.
    for busy in ["allocate", "crowd", "work"] {
        if let Some((told, truth)) = paces(busy) {
            assert!(is_near(told, truth, 0.25), "{busy}: told {told}, in truth {truth}");
        }
    }
    for calm in ["sleep", "threads"] {
        let (told, truth) = paces(calm).expect("it is known");
        assert!(told < truth * 1.5 + 0.5, "{calm}: told {told}, in truth {truth}");
    }
}

/// Threads that live for a moment run in the kernel, mostly, where their own work and that of their stops can't be told
/// apart: their slowness is not told by orders of magnitude too high.
#[test]
fn slowness_that_is_not_known_is_not_told() {
    let told = told_and_true(&Program::fixture("pace").args(["brief"]));
    if let Some((told, truth)) = told {
        assert!(is_near(told, truth, 0.25), "told {told}, in truth {truth}");
    }
}

/// Runs a shell command on a terminal of so many columns; what came there.
fn on_terminal(program: &Program, columns: u32, command: &str) -> String {
    let heaptrace = env!("CARGO_BIN_EXE_heaptrace");
    let folder = program.folder().to_str().unwrap();
    let shell = format!(
        "cd '{folder}'; stty cols {columns} rows 40; HT='{heaptrace}'; EXE='{}'; {command}",
        program.exe().display()
    );
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &shell, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("COLUMNS")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// The summary keeps to the width of the terminal that it is written to, whatever $COLUMNS says.
#[test]
fn the_terminal_s_own_width_is_kept() {
    let program = Program::fixture("alike");
    for columns in [72, 130] {
        let text = on_terminal(&program, columns, "COLUMNS=200 \"$HT\" run --color never -o a.txt \"$EXE\"");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(text.contains("Live at the peak") && widest <= columns as usize, "{widest} of {columns}\n{text}");
        assert!(columns < 100 || widest > 72, "{widest} of {columns}\n{text}");
    }
}

/// No line is wider than the terminal, however narrow that is, but for paths, which can't be parted.
#[test]
fn lines_of_real_programs_keep_to_the_width() {
    let bump = fixtures::library("bump");
    let programs: [(Program, &[&str]); 6] = [
        (
            Program::new("jq").args(["."]).input(r#"[{"a":1,"b":["x",{"c":2.5}]},{"a":[3,4],"b":null}]"#),
            &["--max-depth", "4"],
        ),
        (Program::new("sqlite3").args([":memory:", "select 1"]), &["--top", "6"]),
        (Program::new("python3").args(["-c", "print(1)"]), &[]),
        (Program::new("sh").args(["-c", "ls; ls -l; jq -n 1; exec ls"]), &["-f"]),
        (Program::fixture("alike"), &["--top", "6"]),
        (Program::new(fixtures::program_linked("bad_frees", &[&bump])), &["--top", "9"]),
    ];
    for (program, options) in programs {
        for columns in [60, 80, 120] {
            let program = program.clone().env("COLUMNS", columns.to_string());
            let summary = program.traced_with(options).ended.stderr;
            assert!(summary.contains("Cost"), "{summary}");
            let is_path = |word: &str| word.contains('/') && word.chars().count() > columns / 2;
            let told = summary.lines().filter(|line| !line.contains("looking up the names"));
            for line in told.filter(|line| line.chars().count() > columns) {
                assert!(line.split(' ').any(is_path), "{} of {columns}: {line}\n{summary}", line.chars().count());
            }
        }
    }
}

/// On a terminal that the program writes to: a line at the start, a hint when it takes long, and nothing of it in a
/// file.
#[test]
fn a_long_run_says_that_heaptrace_is_there() {
    let program = Program::fixture("pace").args(["sleep"]);
    let text = on_terminal(&program, 100, "\"$HT\" run --color never -o a.txt \"$EXE\" sleep");
    assert!(text.starts_with("heaptrace: profiling ") && !text.contains("Ctrl-C goes to"), "{text}");
    let began = Instant::now();
    let text = on_terminal(&program, 100, "\"$HT\" run --color never -o a.txt \"$EXE\" nap");
    assert!(began.elapsed() > Duration::from_secs(6) && text.contains("Ctrl-C goes to"), "{text}");
    let text = on_terminal(&program, 100, "\"$HT\" run -q --color never -o a.txt \"$EXE\" sleep");
    assert_eq!(text, "");
    let text = on_terminal(
        &program,
        100,
        "\"$HT\" run --color never -o a.txt \"$EXE\" sleep 2>err >out; grep -c profiling err",
    );
    assert_eq!(text.trim(), "0");
}

/// What is said while a program runs has its name as text, whatever is in that.
#[test]
fn a_hostile_name_is_text_on_the_terminal() {
    let folder = Program::new("/bin/true");
    let exe = folder.folder().join("pace\u{1b}]0;title\u{7}\u{9b}2J\nheaptrace: clean");
    crate::support::copy_file(fixtures::program("pace"), &exe).unwrap();
    let program = Program::new(&exe);
    for progress in ["auto", "always"] {
        let command = format!("\"$HT\" run --progress {progress} --color never -o a.txt \"$EXE\" sleep 2>&1 | cat -v");
        let text = on_terminal(&program, 100, &command);
        let text = format!("{text}{}", on_terminal(&program, 100, &command.replace(" 2>&1 | cat -v", "")));
        assert!(text.contains("pace?]0;title"), "{text:?}");
        for bad in ["\u{1b}]0", "\u{9b}", "\u{7}", "\nheaptrace: clean", "^["] {
            assert!(!text.contains(bad), "{bad:?} in {text:?}");
        }
    }
}

/// While a program has the whole terminal, as a pager does, or another job has it, nothing is written there.
#[test]
fn a_terminal_that_another_program_has_is_left_alone() {
    let program = Program::fixture("pace");
    // progress is drawn on stderr, as stdout is no terminal; the pager's mode is that of less
    let command =
        |setting: &str| format!("{setting} \"$HT\" run --color never -o a.txt \"$EXE\" sleep > /dev/null; stty icanon");
    let drawn = on_terminal(&program, 100, &command(""));
    assert!(drawn.contains("events/s"), "{drawn:?}");
    let left_alone = on_terminal(&program, 100, &command("stty -icanon;"));
    assert!(!left_alone.contains("events/s") && left_alone.contains("Cost"), "{left_alone:?}");
    // in the background, while another job is in the foreground
    let job = "set -m; \"$HT\" run --color never -o a.txt \"$EXE\" sleep > /dev/null & sleep 4; set +m; wait";
    let background = on_terminal(&program, 100, job);
    assert!(!background.contains("events/s"), "{background:?}");
}

/// A check that finds nothing is three lines: a test suite has many.
#[test]
fn a_clean_check_is_short() {
    let program = Program::new(fixtures::program("leaks/clean/tables"));
    let path = program.exe().to_str().unwrap().to_owned();
    let ended = program.start_heaptrace(["check", "--", &path]).wait().success();
    // A busy machine takes long to look names up, which is told.
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.contains("looking up the names")).collect();
    assert!(lines.len() == 3 && lines[2].contains("clean"), "{}", ended.stderr);
}

/// The tests of a Rust crate: three lines where they pass, and stacks that end at the test's function where one leaks.
#[test]
fn tests_of_a_rust_crate_are_told_shortly() {
    let program = Program::new(fixtures::program_with("rust_tests", &["--test"]));
    let passed = program.checked(&[]).ended;
    assert_eq!((passed.code(), passed.text().contains("2 passed")), (0, true), "{}", passed.stderr);
    let lines = passed.stderr.lines().filter(|line| !line.contains("looking up the names"));
    // those, and the line for the file that the test asks for
    let lines: Vec<&str> = lines.filter(|line| !line.trim_start().starts_with('/') && *line != "Files").collect();
    assert!(lines.iter().filter(|line| !line.is_empty()).count() == 3, "{}", passed.stderr);
    let failed = program.args(["--ignored"]).checked(&[]).ended;
    assert_eq!(failed.code(), 23, "{}", failed.stderr);
    let stack: Vec<&str> = failed.stderr.lines().skip_while(|line| !line.contains("rust_tests::forget")).collect();
    assert!(stack[1].contains("rust_tests::loses_a_block"), "{}", failed.stderr);
    for outside in ["call_once", "test::run_test", "catch_unwind", "thread_start", "clone3"] {
        assert!(!failed.stderr.contains(outside), "{outside}\n{}", failed.stderr);
    }
}
