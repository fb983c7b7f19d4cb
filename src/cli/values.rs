//! Values of options: text to what it means.

use super::{EngineChoice, LeakKinds, Unwinder, When};
use crate::base::addr::Addr;
use crate::event::MarkName;
use crate::export::report::By;
use crate::export::{Format, PprofColumns, Value};
use crate::heap::leaks::InteriorPointers;
use crate::profile::check::growth::GrowthLimit;
use crate::profile::leaks::LeakClass;
use crate::saved::replay::Moment;
use crate::top::ctl::Order;
use crate::trace::TraceMode;
use crate::tracer::control::UserSignal;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::time::Duration;

/// A parser of one of the given words.
fn one_of<T: Copy + Send + Sync + 'static>(choices: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.iter().map(|(name, _)| *name)).try_map(move |word| {
        choices.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or("no such choice")
    })
}

/// `5%`, or a number of bytes.
pub(super) fn growth_limit(text: &str) -> Result<GrowthLimit, String> {
    let Some(percent) = text.trim().strip_suffix('%') else { return size(text).map(GrowthLimit::Bytes) };
    match percent.trim().parse::<f64>() {
        Ok(percent) if percent >= 0.0 && percent.is_finite() => Ok(GrowthLimit::Percent(percent)),
        _ => Err("write it like 5%, 0.5% or 1MiB".to_owned()),
    }
}

/// `auto`, `always` or `never`.
pub(super) fn when() -> impl TypedValueParser<Value = When> {
    one_of(&[("auto", When::Auto), ("always", When::Always), ("never", When::Never)])
}

/// `all`, `sampler` or `go`.
pub(super) fn pprof_columns() -> impl TypedValueParser<Value = PprofColumns> {
    one_of(&PprofColumns::NAMES)
}

/// What of each stack is shown.
pub(super) fn value() -> impl TypedValueParser<Value = Value> {
    one_of(&[
        ("live", Value::Live),
        ("peak", Value::Peak),
        ("allocated", Value::Allocated),
        ("freed", Value::Freed),
        ("temporary", Value::Temporary),
    ])
}

/// What the sites of `heaptrace top` are sorted by.
pub(super) fn order() -> impl TypedValueParser<Value = Order> {
    one_of(&[("live", Order::Live), ("grown", Order::Grown), ("bytes", Order::Bytes), ("calls", Order::Calls)])
}

/// What sums are made by.
pub(super) fn by() -> impl TypedValueParser<Value = By> {
    one_of(&[
        ("function", By::Function),
        ("file", By::File),
        ("module", By::Module),
        ("thread", By::Thread),
        ("type", By::Type),
    ])
}

/// `none` or `all`: whether processes are followed.
pub(super) fn follow() -> impl TypedValueParser<Value = bool> {
    one_of(&[("none", false), ("all", true)])
}

/// What becomes of a trace that grows.
pub(super) fn trace_mode() -> impl TypedValueParser<Value = TraceMode> {
    one_of(&[("streaming", TraceMode::Streaming), ("oneshot", TraceMode::Oneshot), ("circular", TraceMode::Circular)])
}

/// `on` or `off`.
pub(super) fn on_off() -> impl TypedValueParser<Value = bool> {
    one_of(&[("on", true), ("off", false)])
}

/// `possible` or `reachable`.
pub(super) fn interior_pointers() -> impl TypedValueParser<Value = InteriorPointers> {
    one_of(&[("possible", InteriorPointers::Possible), ("reachable", InteriorPointers::Reachable)])
}

/// A class of leaks, `all` or `none`.
pub(super) fn leak_kind(word: &str) -> Result<LeakKinds, String> {
    let class = LeakClass::ALL.into_iter().find(|class| class.name() == word);
    match (class, word) {
        (Some(class), _) => Ok(LeakClass::ALL.map(|other| other == class)),
        (None, "all") => Ok([true; 4]),
        (None, "none") => Ok([false; 4]),
        _ => Err("there are definite, indirect, possible, reachable, all and none".to_owned()),
    }
}

/// The name of a mark.
pub(super) fn mark(text: &str) -> Result<MarkName, String> {
    let reason = || format!("the name of a mark has 1 to {} bytes, and no control characters", MarkName::LONGEST);
    MarkName::new(text).ok_or_else(reason)
}

/// A part of something in percent, like `3%`; in thousandths.
pub(super) fn permille(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok((percent * 10.0).round() as u32),
        Ok(_) => Err("from 0.1% to 100%".to_owned()),
        Err(_) => Err("write it like 3% or 0.5%".to_owned()),
    }
}

/// A number of bytes, or one with a unit: k, M, G, KiB, MiB, GiB (all of 1024).
pub(super) fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("write it like 4096, 512k, 10MiB or 1.5G (all of 1024)".to_owned()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| "it is too large".to_owned());
    }
    match number.parse::<f64>() {
        // More digits than a double holds make no difference for a limit.
        Ok(parts) if parts >= 0.0 && shift > 0 && parts < 1e9 => Ok((parts * f64::from(1u32 << shift)).round() as u64),
        _ => Err("it is not a number of bytes".to_owned()),
    }
}

/// The name of a format that exists.
pub(super) fn format(word: &str) -> Result<Format, String> {
    Format::from_name(word).map_err(|error| error.to_string())
}

/// `auto`, `trap` or `jump`.
pub(super) fn engine(word: &str) -> Result<EngineChoice, String> {
    let named = EngineChoice::ALL.into_iter().find(|engine| engine.name() == word);
    named.ok_or_else(|| "there are `auto`, `trap` and `jump`".to_owned())
}

/// `own` or `libunwind`.
pub(super) fn unwinder(word: &str) -> Result<Unwinder, String> {
    match word {
        "own" => Ok(Unwinder::Own),
        "libunwind" => Ok(Unwinder::Libunwind),
        _ => Err("there are `own` and `libunwind`".to_owned()),
    }
}

/// `USR1` or `USR2`, with or without SIG.
pub(super) fn user_signal() -> impl TypedValueParser<Value = UserSignal> {
    one_of(&[
        ("USR1", UserSignal::Usr1),
        ("USR2", UserSignal::Usr2),
        ("SIGUSR1", UserSignal::Usr1),
        ("SIGUSR2", UserSignal::Usr2),
    ])
}

/// An address in hexadecimal, with or without 0x.
pub(super) fn address(text: &str) -> Result<Addr, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16).map(Addr).map_err(|_| format!("`{text}` is not a hexadecimal address"))
}

/// A process, or a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PidOrFile {
    Pid(i32),
    File(PathBuf),
}

impl PidOrFile {
    /// A file, also one whose name is a number.
    pub(super) fn into_path(self) -> PathBuf {
        match self {
            Self::Pid(number) => PathBuf::from(number.to_string()),
            Self::File(path) => path,
        }
    }
}

/// What is a number is a process.
pub(super) fn pid_or_file(text: &str) -> Result<PidOrFile, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return pid(text).map(PidOrFile::Pid);
    }
    Ok(PidOrFile::File(PathBuf::from(text)))
}

/// A process id.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|&pid| pid > 0).ok_or_else(|| {
        let is_name = text.contains(|c: char| c.is_alphabetic());
        let advice = if is_name { format!("; did you mean `--by-name {text}`?") } else { String::new() };
        format!("`{text}` is not a process id{advice}")
    })
}

/// A span of time: a number of seconds, or numbers with units (`90s`, `1m 30s`, `500ms`). Never zero.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let duration = match text.parse::<f64>() {
        Ok(seconds) if seconds <= 0.0 => Duration::ZERO,
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| "no such span of time".to_owned())?,
        Err(_) => humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write it like 30, 30s, 500ms or `1m 30s`"))?,
    };
    if duration.is_zero() { Err("it must be longer than zero".to_owned()) } else { Ok(duration) }
}

/// A moment of a trace: a time after its beginning, or the mark behind an `@`.
pub(super) fn moment(text: &str) -> Result<Moment, String> {
    match text.strip_prefix('@') {
        Some(name) => Moment::of_mark(name).ok_or_else(|| format!("`{name}` can't be the name of a mark")),
        None => {
            let time = duration(text).map_err(|error| format!("{error}; or the name of a mark: @NAME"))?;
            Ok(Moment::Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_without_a_unit() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
    }

    #[test]
    fn sizes_are_bytes_or_multiples_of_1024() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("2k", 2048), ("10MiB", 10 << 20), ("1.5G", 3 << 29), ("1 KB", 1024)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1.5", "1e3", "20000000000G", "5 parsecs", "."] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn leak_kinds_are_classes_or_words_for_several() {
        assert_eq!(leak_kind("possible"), Ok([false, false, true, false]));
        assert_eq!(leak_kind("all"), Ok([true; 4]));
        assert_eq!(leak_kind("none"), Ok([false; 4]));
        assert!(leak_kind("lost").is_err());
    }

    #[test]
    fn durations_that_are_none_are_refused() {
        for text in ["", "0", "0s", "-3", "inf", "nan", "1e300", "5 parsecs", "s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
