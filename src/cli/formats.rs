//! The help of `-o` and `--format`, out of the table of formats.

use crate::export::Source;
use crate::export::format::{described, described_of_checks, described_of_traces, names_from};

/// The long help of `-o` of `run`, `attach` and `check`.
pub(super) fn output_of_a_run() -> String {
    format!(
        "File to write; repeatable\n\nThe end of the name says the format: {}; and for `check` only: {}. In names, %p stands for \
         the process id, %n for the program's name, %i for the number in a series. A file appears whole or not at all. Without -o: \
         heaptrace.%n.%p.pb.gz.",
        described(),
        described_of_checks()
    )
}

/// The long help of `-o` of `convert`.
pub(super) fn output_of_a_trace() -> String {
    format!(
        "File to write; repeatable\n\nThe end of the name says the format: {}, {}. In names, %p stands for the process id, %n for the \
         program's name. `-` is standard output, and needs --format. Without -o: heaptrace.%n.%p.pb.gz.",
        described(),
        described_of_traces()
    )
}

/// The help of `--format` of `run`, `attach` and `check`.
pub(super) fn names_of_a_run() -> String {
    named(&[Source::Run, Source::Check])
}

/// The help of `--format` of `convert`.
pub(super) fn names_of_a_trace() -> String {
    named(&[Source::Trace])
}

fn named(sources: &[Source]) -> String {
    format!("Format of all files, whatever their names say: {}", names_from(sources))
}
