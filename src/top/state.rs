//! What the one who asks knows, and shows: the answers so far, and what the user has chosen to see of them.

use super::keys::Key;
use crate::export::escape::printable;
use crate::top::ctl::{Grouping, Order, TopAnswer, TopQuestion, TopSite};
use std::collections::VecDeque;

/// So many answers are remembered for the pictures.
const HISTORY: usize = 600;

/// The longest text that is looked for, in characters.
const LONGEST_FILTER: usize = 100;

/// Rows that PgUp and PgDn go.
const PAGE: usize = 10;

/// Whom it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// The process, as the user calls it.
    pub pid: i32,
    /// Whether it was attached to for this, and is let go at the end.
    pub attached: bool,
}

/// What is left for others to do when a key was pressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// To leave.
    Quit,
    /// To ask at once, as other sites are wanted.
    Ask,
    /// To set a mark of this name.
    Mark(String),
    /// To write a snapshot.
    Snapshot,
    /// To end the tracing.
    Detach,
}

/// One answer in the pictures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    /// Live bytes.
    pub(super) live: u64,
    /// Bytes allocated per second until then.
    pub(super) rate: u64,
    /// When it was, ns since tracing began.
    pub(super) at_ns: u64,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) subject: Subject,
    /// Whether colours are wanted.
    pub(super) color: bool,
    pub(super) order: Order,
    pub(super) group: Grouping,
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) is_typing: bool,
    /// The filter when it was last kept or dropped: the other side is not asked for each letter.
    kept_filter: String,
    pub(super) shows_help: bool,
    pub(super) shows_stack: bool,
    /// So many frames of the stack are above what is shown of it.
    pub(super) stack_from: usize,
    pub(super) is_held: bool,
    /// Whether the next `d` detaches.
    asks_to_detach: bool,
    pub(super) notice: String,
    pub(super) last: Option<TopAnswer>,
    /// Of the process, as the kernel counts it, bytes.
    pub(super) resident: Option<u64>,
    pub(super) history: VecDeque<Point>,
    /// The site that is chosen, by its id: rows change their places.
    chosen: Option<u64>,
    marks: u32,
}

/// An amount per second.
pub(super) fn per_second(amount: u64, span_ns: u64) -> u64 {
    let amount = u128::from(amount) * 1_000_000_000;
    amount.checked_div(u128::from(span_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}

impl State {
    /// Before the first answer.
    pub fn new(subject: Subject, order: Order, color: bool) -> Self {
        Self { subject, order, color, ..Self::default() }
    }

    /// What the sites are sorted by.
    #[cfg(test)]
    pub(super) const fn order(&self) -> Order {
        self.order
    }

    /// What to ask for: so many sites at most, as they are wanted.
    pub fn question(&self, sites: usize, mark: Option<String>) -> TopQuestion {
        TopQuestion { order: self.order, sites, filter: self.kept_filter.clone(), group: self.group, mark }
    }

    /// The newest answer.
    pub const fn last(&self) -> Option<&TopAnswer> {
        self.last.as_ref()
    }

    /// Takes an answer; `resident`: the process's memory at the same time, bytes.
    pub fn update(&mut self, mut answer: TopAnswer, resident: Option<u64>) {
        if self.is_held {
            return;
        }
        make_harmless(&mut answer);
        if let Some(last) = self.last.as_ref().filter(|last| last.image != answer.image) {
            self.notice = format!("{} has executed {}: counted anew from here", last.program, answer.program);
        }
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        let rate = per_second(answer.recent.bytes, answer.span_ns);
        self.history.push_back(Point { live: answer.live.bytes, rate, at_ns: answer.elapsed_ns });
        self.resident = resident;
        self.last = Some(answer);
    }

    /// Tells the user something in the last line of the screen.
    pub fn tell(&mut self, text: &str) {
        self.notice = printable(text);
    }

    /// The sites that are shown, in their order.
    pub(super) fn sites(&self) -> Vec<&TopSite> {
        let Some(answer) = &self.last else { return Vec::new() };
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let matches = |site: &&TopSite| {
            self.is_searched()
                || has(&site.name)
                || site.frames.iter().any(|frame| has(&frame.function) || has(&frame.place))
        };
        let mut sites: Vec<&TopSite> = answer.sites.iter().filter(matches).collect();
        // stable: the tracer's order decides between equal ones
        sites.sort_by_key(|site| std::cmp::Reverse(self.order.rank(site.live, site.grown, site.recent)));
        sites
    }

    /// Whether the sites of the newest answer are those with the filter's text, of all that there are.
    pub(super) fn is_searched(&self) -> bool {
        self.last.as_ref().is_some_and(|answer| answer.filter == self.filter)
    }

    /// The place of the chosen site among those that are shown.
    pub(super) fn chosen(&self, sites: &[&TopSite]) -> Option<usize> {
        sites.iter().position(|site| Some(site.id) == self.chosen)
    }

    /// What a key does. What is left to do for others is returned.
    pub fn press(&mut self, key: Key) -> Option<Action> {
        let asked_to_detach = std::mem::take(&mut self.asks_to_detach);
        if key == Key::Interrupt {
            return Some(Action::Quit);
        }
        if self.is_typing {
            return self.type_filter(key);
        }
        self.notice.clear();
        if self.shows_help {
            self.shows_help = false;
            return (key == Key::Char('q')).then_some(Action::Quit);
        }
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('?' | 'h') => self.shows_help = true,
            Key::Char('l') => return self.sort(Order::Live),
            Key::Char('g') => return self.sort(Order::Grown),
            Key::Char('b') => return self.sort(Order::Bytes),
            Key::Char('c') => return self.sort(Order::Calls),
            Key::Char('<') | Key::Left => return self.sort(neighbour(self.order, false)),
            Key::Char('>') | Key::Right => return self.sort(neighbour(self.order, true)),
            Key::Char('f') => {
                self.group = match self.group {
                    Grouping::Site => Grouping::Function,
                    Grouping::Function => Grouping::Module,
                    Grouping::Module => Grouping::Site,
                };
                return Some(Action::Ask);
            }
            Key::Char('/') => self.is_typing = true,
            Key::Char('p') => self.is_held = !self.is_held,
            Key::Char('s') => {
                "a snapshot is being written".clone_into(&mut self.notice);
                return Some(Action::Snapshot);
            }
            Key::Char('m') => {
                self.marks += 1;
                return Some(Action::Mark(format!("top-{}", self.marks)));
            }
            Key::Char('d' | 'D') if asked_to_detach => {
                "letting the process go".clone_into(&mut self.notice);
                return Some(Action::Detach);
            }
            Key::Char('d' | 'D') => {
                self.asks_to_detach = true;
                self.notice = if self.subject.attached {
                    "d once more lets the process go".to_owned()
                } else {
                    "d once more ends the tracing: the heaptrace that traces the process writes what it has, and lets it go"
                        .to_owned()
                };
            }
            Key::Enter => {
                self.shows_stack = !self.shows_stack;
                self.stack_from = 0;
            }
            Key::Escape if self.shows_stack => self.shows_stack = false,
            Key::Escape => return self.keep_filter(String::new()),
            Key::Char('K') if self.shows_stack => self.scroll(|from| from.saturating_sub(1)),
            Key::Char('J') if self.shows_stack => self.scroll(|from| from + 1),
            Key::PageUp if self.shows_stack => self.scroll(|from| from.saturating_sub(PAGE)),
            Key::PageDown if self.shows_stack => self.scroll(|from| from + PAGE),
            Key::Up | Key::Char('k') => self.choose(|at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.choose(|at, _| at + 1),
            Key::PageUp => self.choose(|at, _| at.saturating_sub(PAGE)),
            Key::PageDown => self.choose(|at, _| at + PAGE),
            Key::Home => self.choose(|_, _| 0),
            Key::End => self.choose(|_, count| count),
            Key::Char(_) | Key::Backspace | Key::Interrupt => {}
        }
        None
    }

    /// The mark that was asked for is set.
    pub fn marked(&mut self, name: &str) {
        self.is_held = false;
        self.tell(&format!(
            "mark {name} is set: growth counts from here; heaptrace snapshot {} --since {name}",
            self.subject.pid
        ));
    }

    fn type_filter(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => return self.keep_filter(self.filter.clone()),
            Key::Escape => return self.keep_filter(String::new()),
            _ => {}
        }
        None
    }

    /// The filter is this one until another one has been typed.
    fn keep_filter(&mut self, filter: String) -> Option<Action> {
        self.is_typing = false;
        let other = filter != self.kept_filter;
        self.kept_filter.clone_from(&filter);
        self.filter = filter;
        other.then_some(Action::Ask)
    }

    /// Another part of the chosen site's stack. Its last frame stays in sight.
    fn scroll(&mut self, go: impl Fn(usize) -> usize) {
        let sites = self.sites();
        let last = self.with_stack(&sites).map_or(0, |site| site.frames.len().saturating_sub(1));
        self.stack_from = go(self.stack_from).min(last);
    }

    /// The site whose stack is shown: the chosen one, or the first.
    pub(super) fn with_stack<'a>(&self, sites: &[&'a TopSite]) -> Option<&'a TopSite> {
        sites.get(self.chosen(sites).unwrap_or(0)).copied()
    }

    fn sort(&mut self, order: Order) -> Option<Action> {
        let other = order != self.order;
        self.stack_from = 0;
        self.order = order;
        // another order has other sites that come first
        other.then_some(Action::Ask)
    }

    /// The first time the first row is chosen, whatever the key.
    fn choose(&mut self, go: impl Fn(usize, usize) -> usize) {
        let sites = self.sites();
        let Some(last) = sites.len().checked_sub(1) else { return };
        let at = self.chosen(&sites).map_or(0, |at| go(at, last).min(last));
        let chosen = sites.get(at).map(|site| site.id);
        if chosen != self.chosen {
            self.stack_from = 0;
        }
        self.chosen = chosen;
    }
}

/// The columns from left to right, in a circle.
const COLUMNS: [Order; 4] = [Order::Live, Order::Grown, Order::Bytes, Order::Calls];

fn neighbour(order: Order, right: bool) -> Order {
    let at = COLUMNS.iter().position(|column| *column == order).unwrap_or_default();
    let step = if right { 1 } else { COLUMNS.len() - 1 };
    COLUMNS.get((at + step) % COLUMNS.len()).copied().unwrap_or_default()
}

/// The other side may be anybody's, and names are a program's: none of them does anything to the terminal.
fn make_harmless(answer: &mut TopAnswer) {
    let names = [&mut answer.program, &mut answer.engine].into_iter().chain(answer.base.mark.as_mut());
    for site in &mut answer.sites {
        site.name = printable(&site.name);
    }
    let frames = answer.sites.iter_mut().flat_map(|site| &mut site.frames);
    let names = names.chain(frames.flat_map(|frame| [&mut frame.function, &mut frame.place]));
    for name in names {
        *name = printable(name);
    }
}
