//! The summary as a user sees it.

use super::*;
use crate::export::output::{Outcome, OutputError};
use crate::export::summary::{SummaryOptions, summary};

/// The summary as it is by default.
pub(super) fn summary_of(profile: &Profile) -> String {
    plain(profile, 100)
}

fn plain(profile: &Profile, width: usize) -> String {
    summary(profile, &SummaryOptions { width, ..SummaryOptions::default() })
}

#[test]
fn summary_of_a_run() {
    let failed = OutputError::from(io::Error::from_raw_os_error(28));
    let files = [
        Outcome { path: PathBuf::from("heaptrace.app.4242.pb.gz"), format: Format::PprofGz, result: Ok(12_345) },
        Outcome { path: PathBuf::from("/full/app.svg"), format: Format::Svg, result: Err(failed) },
    ];
    let options = SummaryOptions { files: &files, ..SummaryOptions::default() };
    insta::assert_snapshot!(summary(&sample_profile(), &options));
}

#[test]
fn summary_of_an_attach() {
    insta::assert_snapshot!(plain(&attach_profile(), 80));
}

#[test]
fn summary_of_nothing() {
    insta::assert_snapshot!(plain(&empty_profile(), 80));
}

#[test]
fn lines_keep_to_the_width() {
    for width in [80, 100, 160] {
        for profile in [sample_profile(), attach_profile()] {
            let text = plain(&profile, width);
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "wider than {width}: {wide:#?}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let colored = summary(&sample_profile(), &SummaryOptions { color: true, ..SummaryOptions::default() });
    assert!(colored.contains("\x1b["));
    let mut bare = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        bare.push_str(before);
        rest = after.split_once('m').expect("a complete sequence").1;
    }
    bare.push_str(rest);
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&bare), trimmed(&plain(&sample_profile(), 100)));
}

#[test]
fn help_comes_only_where_much_time_was_lost() {
    let mut profile = sample_profile();
    let says = |profile: &Profile, what: &str| {
        let text = plain(profile, 100);
        text.split_whitespace().collect::<Vec<_>>().join(" ").contains(what)
    };
    assert!(!says(&profile, "--pin"), "two threads");
    profile.samples.retain(|sample| sample.thread == 0);
    assert!(says(&profile, "--pin"));
    profile.cost.stopped_ns = profile.cost.wall_ns / 5;
    assert!(!says(&profile, "heaptrace attach --duration"));
    profile.cost.stopped_ns += 1;
    assert!(says(&profile, "heaptrace attach --duration"));
}

#[test]
fn the_target_can_t_write_to_the_terminal_through_names() {
    let mut profile = sample_profile();
    profile.functions[1].name = "evil\x1b[2J".to_owned();
    profile.meta.program = "evil\x1b]0;x\x07".to_owned();
    profile.warnings.push("evil\x1b[2J".to_owned());
    assert!(!plain(&profile, 100).contains('\x1b'));
}
