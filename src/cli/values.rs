//! Values of options: text to what it means.

use super::{Engine, Unwinder, When};
use crate::export::{Format, PprofColumns};
use crate::tracer::control::UserSignal;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::time::Duration;

/// A parser of one of the given words.
fn one_of<T: Copy + Send + Sync + 'static>(choices: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.iter().map(|(name, _)| *name)).try_map(move |word| {
        choices.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or("no such choice")
    })
}

/// `auto`, `always` or `never`.
pub(super) fn when() -> impl TypedValueParser<Value = When> {
    one_of(&[("auto", When::Auto), ("always", When::Always), ("never", When::Never)])
}

/// `all`, `sampler` or `go`.
pub(super) fn pprof_columns() -> impl TypedValueParser<Value = PprofColumns> {
    one_of(&[("all", PprofColumns::All), ("sampler", PprofColumns::Sampler), ("go", PprofColumns::Go)])
}

/// The name of a format that exists.
pub(super) fn format(word: &str) -> Result<Format, String> {
    Format::from_name(word).map_err(|error| error.to_string())
}

/// `auto` or `trap`.
pub(super) fn engine(word: &str) -> Result<Engine, String> {
    match word {
        "auto" => Ok(Engine::Auto),
        "trap" => Ok(Engine::Trap),
        "jump" => Err("the jump engine does not exist yet in this version; there is `trap`".to_owned()),
        _ => Err("there are `auto` and `trap`".to_owned()),
    }
}

/// `own`, or `libunwind` if it was built in.
pub(super) fn unwinder(word: &str) -> Result<Unwinder, String> {
    match word {
        "own" => Ok(Unwinder::Own),
        "libunwind" if cfg!(feature = "libunwind") => Ok(Unwinder::Libunwind),
        "libunwind" => Err(
            "this heaptrace was built without libunwind: build it with `--features libunwind` (needs libunwind-dev)"
                .to_owned(),
        ),
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

/// A process id.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|&pid| pid > 0).ok_or_else(|| format!("`{text}` is no process id"))
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
    fn durations_that_are_none_are_refused() {
        for text in ["", "0", "0s", "-3", "inf", "nan", "1e300", "5 parsecs", "s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
