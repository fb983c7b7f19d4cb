//! When snapshots are taken by themselves, and which of them are kept. Pure: it is told what was read, and when.

use std::fmt;
use std::time::Duration;

/// A condition holds no longer when what it looks at has fallen below so much of its threshold: a value that wavers
/// around the threshold fires once.
const REARMED_AT: f64 = 0.95;

/// What a condition looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Resident memory of the traced processes, in bytes.
    Rss,
    /// Live bytes of their heaps.
    Live,
    /// Bytes allocated in a second.
    Rate,
    /// Memory pressure: the share of the last 10 seconds in which a task waited for memory, in percent (`avg10` of
    /// `some`).
    Psi,
}

impl Quantity {
    const ALL: [(&str, Self); 4] = [("rss", Self::Rss), ("live", Self::Live), ("rate", Self::Rate), ("psi", Self::Psi)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, quantity)| *quantity == self).map_or("", |(name, _)| name)
    }
}

/// What a quantity is compared with.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Threshold {
    /// Bytes, bytes in a second, or percent of pressure.
    Absolute(f64),
    /// Percent of the memory that the program may have.
    OfMemory(f64),
}

/// A condition: `rss>2GiB`, `rss>90%`, `live>1GiB`, `rate>100MiB/s`, `psi>20`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Condition {
    quantity: Quantity,
    threshold: Threshold,
}

// No threshold is NaN.
impl Eq for Condition {}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (self.quantity.name(), |value: f64| if value.fract() == 0.0 { 0 } else { 1 });
        match (self.threshold, self.quantity) {
            (Threshold::OfMemory(percent), _) => write!(f, "{name}>{percent:.*}%", value(percent)),
            (Threshold::Absolute(bytes), Quantity::Rate) => write!(f, "{name}>{bytes:.0}/s"),
            (Threshold::Absolute(amount), _) => write!(f, "{name}>{amount:.*}", value(amount)),
        }
    }
}

/// Why a condition can't be understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0}; write rss>2GiB, rss>90% (of the memory limit of the control group, else of the machine's memory), live>1GiB, \
     rate>100MiB/s (allocated) or psi>20 (percent of time that tasks wait for memory)"
)]
pub struct ConditionError(String);

impl Condition {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it, and what is possible.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        let error = |reason: &str| ConditionError(format!("`{text}`: {reason}"));
        let (name, value) = text.split_once('>').ok_or_else(|| error("there is no `>`"))?;
        let (name, value) = (name.trim(), value.trim());
        let known = Quantity::ALL.iter().find(|(known, _)| *known == name);
        let quantity = known.map(|(_, quantity)| *quantity).ok_or_else(|| error("there is no such quantity"))?;
        let number = |digits: &str| digits.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let threshold = match (quantity, value.strip_suffix('%')) {
            (Quantity::Psi, percent) => {
                let percent = number(percent.unwrap_or(value)).filter(|percent| *percent < 100.0);
                Threshold::Absolute(percent.ok_or_else(|| error("the pressure is a number from 0 to 100"))?)
            }
            (Quantity::Rate, Some(_)) => return Err(error("a rate can't be a share of the memory")),
            (_, Some(percent)) => {
                let percent = number(percent).filter(|percent| *percent <= 100.0);
                Threshold::OfMemory(percent.ok_or_else(|| error("a share is a number from 0 to 100"))?)
            }
            (Quantity::Rate, None) => {
                let bytes = value.strip_suffix("/s").ok_or_else(|| error("a rate ends in /s"))?;
                Threshold::Absolute(size(bytes).ok_or_else(|| error("this is not a number of bytes"))?)
            }
            (Quantity::Rss | Quantity::Live, None) => {
                Threshold::Absolute(size(value).ok_or_else(|| error("this is not a number of bytes"))?)
            }
        };
        Ok(Self { quantity, threshold })
    }

    /// What it looks at.
    pub const fn quantity(&self) -> Quantity {
        self.quantity
    }

    /// Whether it compares with the memory that the program may have.
    pub const fn needs_memory_limit(&self) -> bool {
        matches!(self.threshold, Threshold::OfMemory(_))
    }
}

/// A number of bytes with a unit, all of 1024.
fn size(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * (1u64 << shift) as f64)
}

/// What was read at one moment; None: it could not be read.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reading {
    /// Resident bytes of all traced processes.
    pub rss: Option<u64>,
    /// Bytes of memory that they may have.
    pub memory_limit: Option<u64>,
    /// Live bytes.
    pub live: u64,
    /// Bytes allocated since the beginning.
    pub allocated: u64,
    /// The pressure in percent.
    pub psi: Option<f64>,
    /// Time since the beginning.
    pub at: Duration,
}

/// Watches conditions.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    conditions: Vec<(Condition, bool)>,
    /// What was read about a second ago, and at times in between.
    before: Vec<Reading>,
}

/// Over so much time a rate is taken.
const RATE_WINDOW: Duration = Duration::from_secs(1);

impl Watch {
    /// Of these conditions, none of which holds yet.
    pub fn of(conditions: &[Condition]) -> Self {
        Self { conditions: conditions.iter().map(|condition| (*condition, false)).collect(), before: Vec::new() }
    }

    /// The conditions that begin to hold with this reading.
    pub fn look(&mut self, reading: Reading) -> Vec<Condition> {
        let rate = self.rate(reading);
        let mut begun = Vec::new();
        for (condition, holds) in &mut self.conditions {
            let value = match condition.quantity {
                Quantity::Rss => reading.rss.map(|bytes| bytes as f64),
                Quantity::Live => Some(reading.live as f64),
                Quantity::Rate => rate,
                Quantity::Psi => reading.psi,
            };
            let threshold = match condition.threshold {
                Threshold::Absolute(amount) => Some(amount),
                Threshold::OfMemory(percent) => reading.memory_limit.map(|limit| limit as f64 * percent / 100.0),
            };
            let Some((value, threshold)) = value.zip(threshold) else { continue };
            if !*holds && value > threshold {
                *holds = true;
                begun.push(*condition);
            } else if *holds && value <= threshold * REARMED_AT {
                *holds = false;
            }
        }
        begun
    }

    /// Bytes allocated in a second, as of the last one. None before the first has passed.
    fn rate(&mut self, reading: Reading) -> Option<f64> {
        let age = |before: &Reading| reading.at.saturating_sub(before.at);
        // The oldest that is kept is the youngest that is old enough.
        let enough = self.before.iter().take_while(|before| age(before) >= RATE_WINDOW).count();
        self.before.drain(..enough.saturating_sub(1));
        let oldest = self.before.first().copied().filter(|before| age(before) >= RATE_WINDOW);
        self.before.push(reading);
        let oldest = oldest?;
        Some(reading.allocated.saturating_sub(oldest.allocated) as f64 / age(&oldest).as_secs_f64())
    }
}

/// Which snapshots of a series are kept: the newest ones, and the largest.
#[derive(Clone, Debug)]
pub struct Kept<T> {
    most: Option<usize>,
    /// Live bytes, and what was written.
    snapshots: Vec<(u64, T)>,
}

impl<T> Kept<T> {
    /// Keeps the newest `most`; None: all.
    pub const fn newest(most: Option<usize>) -> Self {
        Self { most, snapshots: Vec::new() }
    }

    /// Adds a snapshot with so many live bytes. Returns those that are to go. Of equally large ones, the oldest counts
    /// as the largest.
    pub fn add(&mut self, live_bytes: u64, snapshot: T) -> Vec<T> {
        let Some(most) = self.most else { return Vec::new() };
        self.snapshots.push((live_bytes, snapshot));
        let mut gone = Vec::new();
        while let Some(older) = self.snapshots.len().checked_sub(most).filter(|older| *older > 0) {
            let largest = self.snapshots.iter().map(|(bytes, _)| *bytes).max();
            let is_largest = |at: usize| self.snapshots.get(at).map(|(bytes, _)| *bytes) == largest;
            let first_largest = (0..self.snapshots.len()).find(|at| is_largest(*at));
            match (0..older).find(|at| Some(*at) != first_largest) {
                Some(at) => gone.push(self.snapshots.remove(at).1),
                None => break,
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Condition {
        Condition::parse(text).unwrap()
    }

    #[test]
    fn conditions_are_read_and_what_is_none_is_refused_with_what_is_possible() {
        for (text, told) in [
            ("rss>2GiB", "rss>2147483648"),
            (" rss > 90 % ", "rss>90%"),
            ("live>1.5k", "live>1536"),
            ("live>0.5%", "live>0.5%"),
            ("rate>100MiB/s", "rate>104857600/s"),
            ("psi>20", "psi>20"),
            ("psi>2.5%", "psi>2.5"),
        ] {
            assert_eq!(parse(text).to_string(), told, "{text}");
        }
        for text in
            ["", "rss", "rss<2", "rss>", "rss>-1", "rss>101%", "rate>5M", "rate>5%", "psi>100", "swap>1", "live>1e9x"]
        {
            let error = Condition::parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("rate>100MiB/s"), "{error}");
        }
    }

    fn reading(at_ms: u64, rss: u64) -> Reading {
        Reading { rss: Some(rss), memory_limit: Some(1000), at: Duration::from_millis(at_ms), ..Reading::default() }
    }

    #[test]
    fn a_condition_fires_when_it_begins_to_hold_and_again_after_it_has_ended_clearly() {
        let mut watch = Watch::of(&[parse("rss>90%"), parse("live>5")]);
        let fired: Vec<usize> = [800, 901, 950, 899, 901, 856, 901, 855, 901, 10, 900, 901]
            .iter()
            .enumerate()
            .map(|(at, rss)| watch.look(reading(at as u64 * 100, *rss)).len())
            .collect();
        assert_eq!(fired, [0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]);
        let unknown = Reading { rss: Some(999), ..Reading::default() };
        assert_eq!(Watch::of(&[parse("rss>90%")]).look(unknown), [], "of what is not known nothing is said");
    }

    #[test]
    fn a_rate_is_that_of_the_last_second() {
        let mut watch = Watch::of(&[parse("rate>1000/s")]);
        let mut allocated = 0;
        let mut fired = Vec::new();
        for tick in 0..60u64 {
            // a burst of 2000 bytes a second from the third to the fourth second
            allocated += if (30..40).contains(&tick) { 200 } else { 10 };
            let reading = Reading { allocated, at: Duration::from_millis(tick * 100), ..Reading::default() };
            if !watch.look(reading).is_empty() {
                fired.push(tick);
            }
        }
        assert_eq!(fired, [34], "1000 bytes in a second are reached with the fifth tick");
        assert!(watch.before.len() <= 12, "{}", watch.before.len());
    }

    #[test]
    fn the_newest_and_the_largest_are_kept() {
        let mut kept = Kept::newest(Some(2));
        let sizes = [5, 9, 3, 9, 4, 10, 1, 1, 1];
        let gone: Vec<Vec<usize>> = sizes.iter().enumerate().map(|(at, size)| kept.add(*size, at)).collect();
        let expected: [&[usize]; 9] = [&[], &[], &[0], &[], &[2], &[1, 3], &[4], &[], &[6]];
        assert_eq!(gone, expected);
        let left: Vec<usize> = kept.snapshots.iter().map(|(_, at)| *at).collect();
        assert_eq!(left, [5, 7, 8], "the largest of all, and the last two");
        let mut all = Kept::newest(None);
        assert!((0..100).all(|at| all.add(at, at).is_empty()));
    }
}
