//! A program alone and under each tool, by turns, so that a machine whose speed changes is as slow for each. Turns in
//! which somebody else used the machine do not count: what they took would be added to one and missing at another.

use super::basics::median;
use super::measured::{Cost, Sharing, Tool};

/// So many turns count.
const TURNS: usize = 3;

/// So many are taken at most to find them.
const MAX_TURNS: usize = 8;

/// A turn does not count if the program alone took so much longer in it than in its fastest turn.
const MAX_LONGER: f64 = 1.12;

/// Which turns count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Those in which nobody else used the machine.
    Quiet,
    /// Each: somebody uses it all the time, or the program alone ends too soon to tell.
    Each,
}

impl Counting {
    /// Of turns on a machine that is shared so.
    pub fn on(sharing: Sharing) -> Self {
        if sharing == Sharing::BusyLoops { Self::Each } else { Self::Quiet }
    }
}

/// What one turn has measured: the program alone, and then under each tool.
pub struct Turn<T> {
    pub alone: T,
    pub tools: Vec<T>,
}

/// The turns that count.
pub struct Turns<T> {
    pub turns: Vec<Turn<T>>,
    /// Too few turns were alike: these are all that there were.
    pub is_disturbed: bool,
}

/// Takes turns; `measure` has the words of a tool, and `wall` tells the wall time of what it measured.
pub fn take<T>(
    counting: Counting,
    tools: &[Tool],
    mut measure: impl FnMut(&[String]) -> T,
    wall: impl Fn(&T) -> f64,
) -> Turns<T> {
    let mut turns: Vec<Turn<T>> = Vec::new();
    loop {
        let alone = measure(&[]);
        turns.push(Turn { alone, tools: tools.iter().map(|tool| measure(&tool.words)).collect() });
        let fastest = turns.iter().map(|turn| wall(&turn.alone)).fold(f64::MAX, f64::min);
        let counts = |turn: &Turn<T>| counting == Counting::Each || wall(&turn.alone) <= fastest * MAX_LONGER;
        if turns.iter().filter(|turn| counts(turn)).count() == TURNS {
            turns.retain(|turn| counts(turn));
            return Turns { turns, is_disturbed: false };
        }
        if turns.len() == MAX_TURNS {
            return Turns { turns, is_disturbed: true };
        }
    }
}

impl<T> Turns<T> {
    /// What the program alone has measured, turn by turn.
    pub fn alone(&self) -> impl Iterator<Item = &T> {
        self.turns.iter().map(|turn| &turn.alone)
    }

    /// The same under the tool of this number.
    pub fn of(&self, tool: usize) -> impl Iterator<Item = &T> {
        self.turns.iter().map(move |turn| &turn.tools[tool])
    }

    /// What a tool adds as a part of what another one adds, the middle one of the turns: each is a pair of its own.
    pub fn part(&self, tool: usize, of: usize, cost: impl Fn(&T) -> Cost) -> Cost {
        let part = |figure: fn(Cost) -> f64| {
            median(self.turns.iter().map(|turn| {
                let [alone, tool, of] = [&turn.alone, &turn.tools[tool], &turn.tools[of]].map(|one| figure(cost(one)));
                (tool - alone) / (of - alone)
            }))
        };
        Cost { wall: part(|cost| cost.wall), cpu: part(|cost| cost.cpu) }
    }

    /// A mark for the name of a row whose figures say little.
    pub fn mark(&self) -> &'static str {
        if self.is_disturbed { DISTURBED } else { "" }
    }
}

/// See [`Turns::mark`]; the page says what it means.
pub const DISTURBED: &str = " (disturbed)";
