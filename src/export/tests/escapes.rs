//! Every character that does something where it is shown, at every sink.

use super::*;
use crate::export::escape::is_active;
use crate::export::github::annotations;
use crate::export::leakreport::{CheckReportOptions, LeakScope, LivingLeaksOptions, check_report, living_leaks};
use crate::export::output::Outcome;
use crate::export::summary::{SummaryOptions, summary};
use crate::profile::check::verdict::{Completeness, Policy, judge};
use prost::Message;
use serde_json::Value;

/// All active characters, and all that is special in some sink's own syntax.
fn hostile() -> String {
    let active = (0..=0x10_ffff).filter_map(char::from_u32).filter(|&c| is_active(c));
    let text: String = active.chain("<>&\"'`%:;,|*_[]()#~\\ ]]>```::error::x##[x]$(x)".chars()).collect();
    for known in ['\0', '\t', '\n', '\r', '\x1b', '\x7f', '\u{80}', '\u{9b}', '\u{9f}', '\u{202e}', '\u{2066}'] {
        assert!(text.contains(known), "{known:?}");
    }
    text
}

/// A profile all of whose texts are hostile.
fn hostile_profile() -> Profile {
    let bad = &hostile();
    let spoil = |text: &mut String| text.push_str(bad);
    let mut profile = check_profile();
    profile.meta.process.program = format!("app{bad}");
    profile.meta.process.command.iter_mut().for_each(spoil);
    profile.meta.process.cwd.push(bad);
    profile.strings.iter_mut().skip(1).for_each(spoil);
    for function in &mut profile.functions {
        spoil(&mut function.name);
        spoil(&mut function.system_name);
        function.file.as_mut().map(spoil);
    }
    for module in &mut profile.modules {
        module.path.as_mut_os_string().push(bad);
        module.debug_package = Some(format!("app{bad}"));
    }
    profile.allocators.iter_mut().flat_map(|user| &mut user.functions).for_each(spoil);
    profile.images.iter_mut().for_each(|image| spoil(&mut image.program));
    profile.children.untraced_names.iter_mut().for_each(spoil);
    profile.warnings.push(bad.clone());
    for finding in &mut profile.findings {
        spoil(&mut finding.thread);
        spoil(&mut finding.function);
    }
    for rule in &mut profile.suppressions {
        spoil(&mut rule.rule);
        spoil(&mut rule.file);
    }
    if let Some(leaks) = &mut profile.leaks {
        leaks.sites.iter_mut().filter_map(|site| site.path.as_mut()).for_each(|path| spoil(&mut path.root));
    }
    judge(&mut profile, &Policy::default(), &Completeness::default());
    if let Some(verdict) = &mut profile.verdict {
        verdict.reasons.push(bad.clone());
    }
    profile
}

fn first_function(location: &Location) -> usize {
    location.lines[0].function
}

/// The first character that is not to be seen, with what stands before it.
fn first_active(text: &str) -> Option<String> {
    let (at, c) = text.char_indices().find(|&(_, c)| c != '\n' && is_active(c))?;
    let before: Vec<char> = text[..at].chars().rev().take(60).collect();
    Some(format!("{c:?} behind {:?}", before.into_iter().rev().collect::<String>()))
}

#[test]
fn no_file_has_an_active_character() {
    let mut profile = hostile_profile();
    for verdict in [true, false] {
        if !verdict {
            profile.verdict = None;
            profile.leaks = None;
        }
        for format in Format::ALL {
            match format {
                Format::PprofGz | Format::JsonGz | Format::FirefoxGz => continue,
                Format::Pprof => {
                    let decoded = proto::Profile::decode(exported(format, &profile).as_slice());
                    for text in decoded.expect("a profile").string_table {
                        assert_eq!(first_active(&text).or(text.contains('\n').then_some(text)), None, "{format:?}");
                    }
                }
                Format::Perfetto | Format::Otlp => foreign::texts(format, &profile, |text| {
                    assert_eq!(first_active(text).or(text.contains('\n').then(|| text.to_owned())), None, "{format:?}");
                }),
                Format::Heaptrack => assert_eq!(first_active(&foreign::heaptrack(&profile)), None, "{format:?}"),
                _ => assert_eq!(first_active(&exported_text(format, &profile)), None, "{format:?}"),
            }
        }
    }
}

#[test]
fn json_keeps_every_character() {
    let profile = hostile_profile();
    let report: Value = serde_json::from_str(&exported_text(Format::Json, &profile)).expect("JSON");
    assert_eq!(report["program"], profile.meta.process.program.as_str());
    serde_json::from_str::<Value>(&exported_text(Format::Sarif, &profile)).expect("JSON");
}

#[test]
fn xml_is_well_formed() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut empty = empty_profile();
    empty.meta.process.program = hostile();
    for (format, profile) in
        [(Format::Svg, &hostile_profile()), (Format::Svg, &empty), (Format::JUnit, &hostile_profile())]
    {
        let mut child = Command::new("xmllint").args(["--noout", "-"]).stdin(Stdio::piped()).spawn().expect("xmllint");
        child.stdin.take().expect("a pipe").write_all(exported_text(format, profile).as_bytes()).expect("read");
        assert!(child.wait().expect("an end").success(), "{format:?}");
    }
}

/// A name can't add lines: neither stacks nor commands.
#[test]
fn lines_are_as_many_as_with_plain_names() {
    let (mut plain, hostile) = (check_profile(), hostile_profile());
    judge(&mut plain, &Policy::default(), &Completeness::default());
    let count = |profile: &Profile| exported_text(Format::Folded, profile).lines().count();
    assert_eq!(count(&plain), count(&hostile));
    for line in exported_text(Format::Folded, &hostile).lines() {
        assert!(line.rsplit(' ').next().is_some_and(|number| number.parse::<u64>().is_ok()), "{line}");
    }
    let commands = annotations(&hostile);
    assert_eq!(first_active(&commands), None);
    assert_eq!(commands.lines().count(), annotations(&plain).lines().count());
    for line in commands.lines() {
        assert!(line.starts_with("::error ") || line.starts_with("::warning "), "{line}");
        let (properties, _) = line[2..].split_once("::").expect("a text");
        for property in properties.split_once(' ').expect("properties").1.split(',') {
            assert!(property.split_once('=').is_some_and(|(_, value)| !value.contains(':')), "{line}");
        }
    }
}

#[test]
fn no_terminal_gets_an_active_character() {
    let mut profile = hostile_profile();
    // names that are missing: what brings them is told
    let of_library: Vec<usize> =
        profile.locations.iter().filter(|place| place.module == Some(1)).map(first_function).collect();
    for function in of_library {
        profile.functions[function].name.push_str("+0x10");
    }
    let name = PathBuf::from(format!("out{}.json", hostile()));
    let failure = || output::OutputError::NoFile { path: name.clone() };
    let outcome = |result| Outcome { path: name.clone(), format: Format::Json, allocated_bytes: 1, result };
    let files = [outcome(Ok(1)), outcome(Err(failure()))];
    let explain = Some("main");
    let checked = CheckReportOptions { top: 10, color: false, width: 100, files: &files, explain };
    let living = LivingLeaksOptions { top: 10, color: false, width: 100, scope: LeakScope::All, block: None };
    let texts = [
        summary(&profile, &SummaryOptions { value: None, top: 10, color: false, width: 100, files: &files }),
        check_report(&profile, &checked),
        living_leaks(&profile, &living),
    ];
    assert!(texts[0].contains("apt install\n      app?"), "{}", texts[0]);
    for text in texts {
        assert_eq!(first_active(&text), None, "{text}");
    }
}
