//! How numbers, names and places are written for people.

mod short;

pub(crate) use super::escape::printable;
pub(crate) use super::paint::Paint;
pub(crate) use crate::base::figures::{grouped, plural};
use crate::profile::Anomalies;
pub(crate) use short::short_name;
use std::path::Path;

/// `12.34 MiB`: at least three significant digits, in powers of 1024. Below 1 KiB `123 B`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.995 would be rounded to 1024.00
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS.get(unit).copied().unwrap_or_default())
}

/// `12.3 %`; a dash where there is no whole, `< 0.1 %` rather than a zero that is none.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    if part > 0 && share < 0.05 { "<0.1 %".to_owned() } else { format!("{share:.1} %") }
}

/// `1.23 s`, `45.6 ms`, `2 h 03 min`.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..999_950 => format!("{:.1} µs", ns as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", ns as f64 / 1e6),
        999_950_000..59_995_000_000 => format!("{seconds:.2} s"),
        _ => {
            let whole = (seconds.round()) as u64;
            let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
            if hours > 0 { format!("{hours} h {minutes:02} min") } else { format!("{minutes} min {seconds:02} s") }
        }
    }
}

/// The beginning of a sentence.
pub(crate) fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// Text with its width padded by spaces, counted in characters.
pub(crate) fn left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{:missing$}", "")
}

/// The same, padded in front.
pub(crate) fn right(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{:missing$}{text}", "")
}

/// The words of a text; a figure and its unit, or what it counts, are one.
fn words(text: &str) -> Vec<String> {
    let is_figure = |word: &str| {
        word.ends_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '.')
    };
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match words.last_mut() {
            Some(last) if is_figure(last.trim_start_matches('(')) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Wraps a paragraph at spaces: the first line as it comes, the others behind `indent` spaces.
pub(crate) fn wrap(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).max(20);
    let mut wrapped = String::new();
    let mut used = 0;
    for word in words(text) {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', indent));
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped.push_str(&word);
        used += length;
    }
    wrapped
}

/// Cuts a text in the middle of nowhere, with an ellipsis in front: the end of a path says most.
pub(crate) fn keep_end(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(length - width.saturating_sub(1)).collect();
    format!("…{kept}")
}

/// Cuts a path in front, between two folders if one of these may stay, else within the file's name.
pub(crate) fn keep_end_of_path(path: &str, width: usize) -> String {
    let end = keep_end(path, width);
    match end.strip_prefix('…').and_then(|kept| kept.find('/').map(|slash| &kept[slash..])) {
        Some(kept) => format!("…{kept}"),
        None => end,
    }
}

/// The last component of a path, or all of it.
pub(crate) fn basename(path: &Path) -> String {
    printable(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}

/// Whether the file probably came with the system.
pub(crate) fn is_system_file(path: &Path) -> bool {
    ["/usr", "/lib", "/lib64", "/bin", "/sbin"].iter().any(|folder| path.starts_with(folder))
        && !path.starts_with("/usr/local")
}

/// A command line as a shell would read it.
pub(crate) fn shell_words(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@%_+=:,./-".contains(&byte))
    };
    let quoted = words
        .iter()
        .map(|word| if plain(word) { word.clone() } else { format!("'{}'", printable(word).replace('\'', r"'\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

/// One kind of what could not be seen or did not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anomaly {
    /// The name in report.json.
    pub key: &'static str,
    /// How often.
    pub count: u64,
    /// The name for people.
    pub label: &'static str,
    /// What it means for the numbers.
    pub meaning: &'static str,
}

/// All kinds, in the order of report.json.
pub(crate) fn anomalies(anomalies: &Anomalies) -> [Anomaly; 7] {
    let anomaly = |key, count, label, meaning| Anomaly { key, count, label, meaning };
    [
        anomaly("lost", anomalies.lost, "lost events", "known to have been missed: the numbers are too low by these"),
        anomaly(
            "truncated_stacks",
            anomalies.truncated_stacks,
            "truncated stacks",
            match (anomalies.cut_stacks, anomalies.truncated_stacks) {
                (0, _) => "events whose stack ends before the outermost frame; the amounts are right",
                (cut, all) if cut == all => {
                    "events deeper than --max-depth: --max-depth 10000 keeps the outermost frames; the amounts are right"
                }
                _ => {
                    "events whose stack ends before the outermost frame, some only as they are deeper than --max-depth; the amounts \
                     are right"
                }
            },
        ),
        anomaly(
            "guessed_stacks",
            anomalies.guessed_stacks,
            "guessed stacks",
            "events with a frame passed by its frame pointer, for lack of unwind tables; callers may be wrong",
        ),
        anomaly(
            "unknown_frees",
            anomalies.unknown_frees,
            "unknown frees",
            "frees of pointers that no probed function handed out: another allocator, or an error",
        ),
        anomaly("double_frees", anomalies.double_frees, "double frees", "frees of blocks that had been freed before"),
        anomaly(
            "mismatched_frees",
            anomalies.mismatched_frees,
            "mismatched frees",
            "frees by another family than the allocation's, as delete of a malloc",
        ),
        anomaly(
            "abandoned_calls",
            anomalies.abandoned_calls,
            "unfinished calls",
            "allocator calls that never returned (longjmp, an exception, a thread that ended inside)",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_switch_units_without_showing_1024() {
        let shown = [0, 1023, 1024, 1536, 1_048_575, 1_048_576, u64::MAX].map(human_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "1.00 MiB", "16.00 EiB"]);
    }

    #[test]
    fn a_figure_and_its_unit_stay_on_one_line() {
        let text = "in all 12.5 %, of 1.20 MiB, and so (1,204 B) on. 5 more";
        assert_eq!(wrap(text, 2, 22), "in all 12.5 %, of\n  1.20 MiB, and so\n  (1,204 B) on. 5 more");
        assert_eq!(wrap("they lost 14,608 bytes in 2 blocks", 0, 20), "they lost\n14,608 bytes in\n2 blocks");
        assert_eq!(wrap("it was in 1999, 2012. And so on", 0, 20), "it was in 1999,\n2012. And so on");
    }

    #[test]
    fn paths_are_cut_between_folders() {
        let cut = |width| keep_end_of_path("/usr/include/c++/12/bits/invoke.h:61", width);
        assert_eq!(
            [cut(36), cut(35), cut(20)],
            ["/usr/include/c++/12/bits/invoke.h:61", "…/include/c++/12/bits/invoke.h:61", "…/bits/invoke.h:61"]
        );
        assert_eq!(cut(13), "…/invoke.h:61");
        assert_eq!(cut(12), "…invoke.h:61");
        assert_eq!(cut(6), "….h:61");
    }

    #[test]
    fn times_keep_three_digits() {
        let shown = [0, 999, 1500, 999_960, 1_000_000, 2_310_000_000, 61_000_000_000, 7_380_000_000_000].map(duration);
        assert_eq!(shown, ["0 s", "999 ns", "1.5 µs", "1.0 ms", "1.0 ms", "2.31 s", "1 min 01 s", "2 h 03 min"]);
    }

    #[test]
    fn a_small_share_is_not_shown_as_none() {
        let shown = [percent(0, 10), percent(1, 100_000), percent(1, 3), percent(5, 0)];
        assert_eq!(shown, ["0.0 %", "<0.1 %", "33.3 %", "-"]);
    }

    #[test]
    fn paragraphs_wrap_at_spaces() {
        assert_eq!(wrap("one two three four five six", 2, 22), "one two three four\n  five six");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["./app", "a b", "", "it's"].map(str::to_owned);
        assert_eq!(shell_words(&words), r"./app 'a b' '' 'it'\''s'");
    }
}
