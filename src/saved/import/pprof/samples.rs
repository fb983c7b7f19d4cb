//! The samples of the message.

use super::super::wire::{Fields, Value, numbers};
use super::tables::Tables;
use super::{Budget, Columns, Role, Trouble};
use crate::profile::build::UNKNOWN_STACK;
use crate::profile::objects::{Certainty, ObjectType};
use crate::profile::saved::LeakLabel;
use crate::profile::{Amount, Profile, Sample, Stack};
use crate::unwinder::Quality;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The most values that a sample may have.
const VALUES: usize = 64;

/// The labels that are understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Bytes,
    Thread,
    AllocFn,
    Quality,
    Leak,
    Program,
    Origin,
    Pid,
    Type,
    Certainty,
}

const KEYS: [(&str, Key); 10] = [
    ("bytes", Key::Bytes),
    ("thread", Key::Thread),
    ("alloc_fn", Key::AllocFn),
    ("stack", Key::Quality),
    ("leak", Key::Leak),
    ("program", Key::Program),
    ("origin", Key::Origin),
    ("pid", Key::Pid),
    ("type", Key::Type),
    ("type_certainty", Key::Certainty),
];

/// What makes two samples one.
type SampleKey = (usize, usize, usize, u64, Option<usize>, bool);

/// Reads samples into a profile.
pub(super) struct Samples<'t, 'a> {
    tables: &'t Tables<'a>,
    columns: &'t Columns,
    /// Whether what was freed is not what was allocated less what is live.
    is_partial: bool,
    keys: FxHashMap<u64, Key>,
    locations: FxHashMap<u64, u32>,
    /// The profile's texts, by the message's index, and by themselves: a message may have one twice.
    strings: FxHashMap<u64, usize>,
    /// Names of types, by the index of their text.
    names: FxHashMap<u64, Arc<str>>,
    texts: FxHashMap<&'a str, usize>,
    stacks: FxHashMap<Box<[u32]>, usize>,
    /// In the order of the message, each key once; packed when all are there.
    samples: Vec<Sample>,
    known: FxHashMap<SampleKey, usize>,
    /// For so many locations of one sample there is room.
    deepest: usize,
    /// The process that the labels name, if it is one.
    pub(super) pid: Option<i32>,
}

/// A sample's labels.
#[derive(Default)]
struct Labels {
    size: u64,
    thread: u64,
    alloc_fn: u64,
    program: u64,
    inherited: bool,
    quality: Option<Quality>,
    leak: Option<LeakLabel>,
    object: u64,
    certainty: Option<Certainty>,
}

impl<'t, 'a> Samples<'t, 'a> {
    pub(super) fn new(
        tables: &'t Tables<'a>,
        columns: &'t Columns,
        is_partial: bool,
        budget: &mut Budget,
    ) -> Result<Self, Trouble> {
        let mut keys = FxHashMap::default();
        for (index, text) in tables.texts() {
            if let Some((_, key)) = KEYS.iter().find(|(name, _)| *name == text) {
                budget.hashed::<u64, Key>()?;
                keys.insert(index, *key);
            }
        }
        Ok(Self {
            tables,
            columns,
            is_partial,
            keys,
            locations: tables.index(),
            strings: FxHashMap::default(),
            names: FxHashMap::default(),
            texts: FxHashMap::default(),
            stacks: FxHashMap::default(),
            samples: Vec::new(),
            known: FxHashMap::default(),
            deepest: 0,
            pid: None,
        })
    }

    pub(super) fn read(&mut self, message: &[u8], profile: &mut Profile, budget: &mut Budget) -> Result<(), Trouble> {
        // What stands for "none" in both tables of texts.
        self.strings.insert(0, 0);
        self.texts.insert("", 0);
        profile.strings.push(String::new());
        let mut locations: Vec<u32> = Vec::new();
        let mut values: Vec<i64> = Vec::new();
        for field in Fields::of(message) {
            if let (2, Value::Bytes(sample)) = field? {
                locations.clear();
                values.clear();
                self.sample(sample, &mut locations, &mut values, profile, budget)?;
            }
        }
        profile.samples = std::mem::take(&mut self.samples).into_iter().collect();
        Ok(())
    }

    fn sample(
        &mut self,
        bytes: &[u8],
        locations: &mut Vec<u32>,
        values: &mut Vec<i64>,
        profile: &mut Profile,
        budget: &mut Budget,
    ) -> Result<(), Trouble> {
        let mut labels = Labels::default();
        let mut unknown = None;
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => {
                    let depth = locations.len().saturating_add(value.numbers_at_most());
                    if depth > self.deepest {
                        budget.entries::<usize>(depth - self.deepest)?;
                        self.deepest = depth;
                    }
                    numbers(value, |id| match self.locations.get(&id) {
                        Some(index) => locations.push(*index),
                        None => unknown = Some(id),
                    })?
                }
                (2, value) => numbers(value, |number| values.extend((values.len() < VALUES).then_some(number as i64)))?,
                (3, Value::Bytes(label)) => self.label(label, &mut labels)?,
                _ => {}
            }
        }
        if let Some(id) = unknown {
            return Err(Trouble::Damaged(format!("a sample at the unknown location {id}")));
        }
        if values.len() != self.columns.all {
            let (found, all) = (values.len(), self.columns.all);
            return Err(Trouble::Damaged(format!("a sample of {found} values in a profile of {all} columns")));
        }
        let (live, allocated) = (self.amount(values, Role::Live)?, self.amount(values, Role::Allocated)?);
        let dead = Amount {
            objects: allocated.objects.saturating_sub(live.objects),
            bytes: allocated.bytes.saturating_sub(live.bytes),
        };
        let knows_freed = !self.is_partial && self.columns.has(Role::Live) && self.columns.has(Role::Allocated);
        let sample = Sample {
            interval: 0,
            stack: self.stack(locations, &labels, profile, budget)?,
            thread: self.string(labels.thread, profile, budget)?,
            alloc_fn: self.string(labels.alloc_fn, profile, budget)?,
            program: match labels.program {
                0 => None,
                program => Some(self.string(program, profile, budget)?),
            },
            inherited: labels.inherited,
            size: labels.size,
            allocated,
            freed: if knows_freed { dead } else { Amount::default() },
            deallocated: self.amount(values, Role::Deallocated)?,
            live,
            at_peak: self.amount(values, Role::Peak)?,
            temporary: 0,
            lifetime_ns: 0,
            freed_elsewhere: 0,
        };
        let key = (sample.stack, sample.thread, sample.alloc_fn, sample.size, sample.program, sample.inherited);
        match self.known.get(&key).and_then(|at| self.samples.get_mut(*at)) {
            Some(known) => known.add(&sample),
            None => {
                budget.entries::<Sample>(1)?;
                budget.hashed::<SampleKey, usize>()?;
                self.known.insert(key, self.samples.len());
                self.samples.push(sample);
            }
        }
        Ok(())
    }

    fn amount(&self, values: &[i64], role: Role) -> Result<Amount, Trouble> {
        let value = |column: Option<usize>| {
            let value = column.and_then(|column| values.get(column)).copied().unwrap_or(0);
            u64::try_from(value).map_err(|_| Trouble::Negative)
        };
        let [objects, bytes] = self.columns.of(role);
        Ok(Amount { objects: value(objects)?, bytes: value(bytes)? })
    }

    fn label(&mut self, bytes: &[u8], labels: &mut Labels) -> Result<(), Trouble> {
        let (mut key, mut text, mut number) = (0, 0, 0);
        for field in Fields::of(bytes) {
            match field? {
                (1, Value::Number(index)) => key = index,
                (2, Value::Number(index)) => text = index,
                (3, Value::Number(value)) => number = value,
                _ => {}
            }
        }
        match self.keys.get(&key) {
            Some(Key::Bytes) => labels.size = if number > i64::MAX as u64 { 0 } else { number },
            Some(Key::Thread) => labels.thread = text,
            Some(Key::AllocFn) => labels.alloc_fn = text,
            Some(Key::Program) => labels.program = text,
            Some(Key::Origin) => labels.inherited |= self.tables.text(text) == "inherited",
            Some(Key::Quality) => {
                labels.quality = match self.tables.text(text) {
                    "guessed" => Some(Quality::Guessed),
                    "truncated" => Some(Quality::Truncated),
                    _ => None,
                }
            }
            Some(Key::Leak) => labels.leak = LeakLabel::from_name(self.tables.text(text)),
            Some(Key::Type) => labels.object = text,
            Some(Key::Certainty) => {
                let told = self.tables.text(text);
                labels.certainty = Certainty::ALL.into_iter().find(|certainty| certainty.name() == told);
            }
            Some(Key::Pid) => self.pid = self.pid.or(i32::try_from(number).ok().filter(|pid| *pid > 0)),
            None => {}
        }
        Ok(())
    }

    /// The profile's index of a text.
    fn string(&mut self, index: u64, profile: &mut Profile, budget: &mut Budget) -> Result<usize, Trouble> {
        if let Some(known) = self.strings.get(&index) {
            return Ok(*known);
        }
        let text = self.tables.text(index);
        budget.copy(text.len())?;
        budget.entries::<String>(1)?;
        budget.hashed::<u64, usize>()?;
        budget.hashed::<&str, usize>()?;
        let at = *self.texts.entry(text).or_insert_with(|| {
            profile.strings.push(text.to_owned());
            profile.strings.len() - 1
        });
        self.strings.insert(index, at);
        Ok(at)
    }

    /// A type's name, each once.
    fn name(&mut self, index: u64, budget: &mut Budget) -> Result<Arc<str>, Trouble> {
        if let Some(known) = self.names.get(&index) {
            return Ok(known.clone());
        }
        let text = self.tables.text(index);
        budget.copy(text.len())?;
        budget.hashed::<u64, Arc<str>>()?;
        let name: Arc<str> = text.into();
        self.names.insert(index, name.clone());
        Ok(name)
    }

    fn stack(
        &mut self,
        locations: &[u32],
        labels: &Labels,
        profile: &mut Profile,
        budget: &mut Budget,
    ) -> Result<usize, Trouble> {
        let is_unknown = match locations {
            [] => true,
            [only] => is_unknown(profile, *only as usize),
            _ => false,
        };
        let locations = if is_unknown { &[][..] } else { locations };
        let quality = labels.quality.unwrap_or(if is_unknown { Quality::Truncated } else { Quality::Complete });
        if let Some(at) = self.stacks.get(locations).copied() {
            profile.stacks.trust_at_most(at, quality);
            if let Some(leak) = labels.leak {
                profile.stacks.add_leak(at, leak);
            }
            return Ok(at);
        }
        for _ in 0..2 {
            budget.copy(size_of_val(locations))?;
        }
        budget.entries::<Stack>(1)?;
        budget.hashed::<Box<[u32]>, usize>()?;
        let at = profile.stacks.len();
        self.stacks.insert(locations.into(), at);
        let object = match labels.certainty {
            Some(certainty) if labels.object != 0 => {
                Some(ObjectType { name: self.name(labels.object, budget)?, certainty })
            }
            _ => None,
        };
        profile.stacks.push(Stack { locations: locations.into(), quality, leak: labels.leak, object });
        Ok(at)
    }
}

/// Whether a location is the frame that stands for an unknown stack.
fn is_unknown(profile: &Profile, location: usize) -> bool {
    let lines = profile.locations.get(location).map(|location| location.lines.as_slice()).unwrap_or_default();
    let function = |line: &crate::profile::Line| profile.functions.get(line.function);
    lines.len() == 1 && lines.iter().filter_map(function).any(|function| function.name == UNKNOWN_STACK)
}
