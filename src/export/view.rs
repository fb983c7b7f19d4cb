//! The profile as exporters look at it: stacks that begin at the allocator's caller, sampled figures scaled to
//! what they stand for, and *sites*, the sums over all threads and sizes of a stack.

use super::nametraits::NameTraits;
use super::text::{basename, keep_end, keep_end_of_path, printable};
use crate::base::packed::{Packed, PackedBuilder, Row};
use crate::base::sampling::weight;
pub(crate) use crate::profile::build::{TRUNCATED_STACK, UNKNOWN_STACK};
use crate::profile::identity::{UNKNOWN_FUNCTION, is_unresolved};
use crate::profile::leaks::LeakClass;
use crate::profile::objects::ObjectType;
use crate::profile::saved::LeakLabel;
use crate::profile::value::Value;
use crate::profile::{
    Amount, Capacity, Exit, Function, Location, Meta, ModuleInfo, Profile, Sample, Samples, signal_text,
};
use crate::unwinder::Quality;
use hashbrown::HashTable;
use rustc_hash::{FxHashMap, FxHasher};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::hash::Hasher;

mod types;

pub(crate) use types::TypeShare;

/// The amount that a profile is about in the first place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Headline {
    /// A run that ended: what was live at the peak.
    Peak,
    /// A program that lives on, or of which only a part was seen: what is live now.
    Live,
}

/// One function of a stack; several of the same location where calls were inlined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedFrame<'a> {
    /// For people; never empty.
    pub name: &'a str,
    /// The source file.
    pub file: Option<&'a str>,
    /// The line in it; 0 if unknown.
    pub line: u32,
    /// Whether the call of this function was inlined into the next frame.
    pub inlined: bool,
    /// Where it is; None for a synthetic frame.
    pub location: Option<&'a Location>,
    /// The module there.
    pub module: Option<&'a ModuleInfo>,
    /// What its name and file say of it.
    pub traits: NameTraits,
}

impl<'a> NamedFrame<'a> {
    /// What tells its function from others in a tree of calls: the name, and of a script's function the file.
    pub(crate) fn key(&self) -> (&'a str, Option<&'a str>) {
        (self.name, self.file.filter(|_| self.is_script()))
    }

    /// Whether it is a line of a script.
    pub(crate) fn is_script(&self) -> bool {
        self.location.is_some_and(Location::is_script)
    }

    /// The name for a picture, which has no room for places beside names: a script's function is `name (file.py:12)`,
    /// all others have their names alone.
    pub(crate) fn name_in_picture(&self) -> Cow<'a, str> {
        let (name, Some(file)) = self.key() else { return self.name.into() };
        let file = file.rsplit('/').next().unwrap_or(file);
        match self.line {
            0 => format!("{name} ({file})").into(),
            line => format!("{name} ({file}:{line})").into(),
        }
    }

    /// `file.c:12`, with the directories if there is room in `width` columns; the module where no file is known.
    pub(crate) fn place(&self, width: usize) -> String {
        match (self.file, self.line) {
            (Some(file), 0) => keep_end_of_path(&printable(file), width),
            (Some(file), line) => keep_end_of_path(&format!("{}:{line}", printable(file)), width),
            (None, _) if is_unresolved(self.name) => String::new(),
            (None, _) => {
                let module = self.module.map(|module| keep_end(&basename(&module.path), width.saturating_sub(2)));
                module.map(|module| format!("[{module}]")).unwrap_or_default()
            }
        }
    }
}

/// All that happened on one stack (on stacks with the same function names, strictly), over all threads and sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackTotals {
    /// The stack, or the first of those with equal names.
    pub stack: usize,
    /// The worst of them.
    pub quality: Quality,
    pub allocated: Amount,
    pub freed: Amount,
    pub live: Amount,
    pub at_peak: Amount,
    pub temporary: u64,
    /// See [`Sample::lifetime_ns`].
    pub lifetime_ns: u64,
    /// See [`Sample::freed_elsewhere`].
    pub freed_elsewhere: u64,
    /// Whether the stacks are of objects of different types: one function may allocate several.
    pub mixes_types: bool,
}

/// How many numbers a [`StackTotals`] has.
const TOTALS: usize = 14;

/// The sums of all sites, packed.
pub(crate) type SiteTotals = Packed<StackTotals, TOTALS>;

impl Row<TOTALS> for StackTotals {
    fn numbers(&self) -> [u64; TOTALS] {
        let Self { allocated, freed, live, at_peak, .. } = self;
        [
            self.stack as u64,
            self.quality as u64,
            u64::from(self.mixes_types),
            allocated.objects,
            allocated.bytes,
            freed.objects,
            freed.bytes,
            live.objects,
            live.bytes,
            at_peak.objects,
            at_peak.bytes,
            self.temporary,
            self.lifetime_ns,
            self.freed_elsewhere,
        ]
    }

    fn of_numbers(numbers: [u64; TOTALS]) -> Self {
        let [stack, quality, mixes_types, rest @ ..] = numbers;
        let [a, a_bytes, f, f_bytes, l, l_bytes, p, p_bytes, temporary, lifetime_ns, freed_elsewhere] = rest;
        let amount = |objects, bytes| Amount { objects, bytes };
        Self {
            stack: stack as usize,
            quality: match quality {
                0 => Quality::Complete,
                1 => Quality::Guessed,
                _ => Quality::Truncated,
            },
            allocated: amount(a, a_bytes),
            freed: amount(f, f_bytes),
            live: amount(l, l_bytes),
            at_peak: amount(p, p_bytes),
            temporary,
            lifetime_ns,
            freed_elsewhere,
            mixes_types: mixes_types != 0,
        }
    }
}

impl StackTotals {
    /// For how long the blocks lived that were freed, on average, in nanoseconds. None if none was.
    pub fn mean_lifetime_ns(&self) -> Option<u64> {
        self.lifetime_ns.checked_div(self.freed.objects)
    }

    /// What the site has of a value.
    pub fn of(&self, value: Value) -> Amount {
        value.choose(self.live, self.at_peak, self.allocated, self.freed, self.temporary)
    }
}

/// See [`Sites::of_stack`].
const NO_SITE: u32 = u32::MAX;

#[derive(Debug)]
struct Sites {
    list: SiteTotals,
    /// Of each stack the index of its site; [`NO_SITE`]: it has none.
    of_stack: Vec<u32>,
    /// By the site's stack, of those of which it is known.
    capacities: FxHashMap<usize, Capacity>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// The profile itself.
    pub profile: &'a Profile,
    /// The samples, scaled.
    pub samples: Cow<'a, Samples>,
    /// For each stack, see [`View::leak_label`]; empty without a leak scan.
    leak_labels: Vec<&'static str>,
    sites: OnceCell<Sites>,
    /// See [`View::types_of_site`].
    shares: OnceCell<types::Shares>,
    /// For each function.
    traits: OnceCell<Vec<NameTraits>>,
    has_scripts: OnceCell<bool>,
}

impl<'a> View<'a> {
    /// Looks at `profile`.
    pub fn new(profile: &'a Profile) -> Self {
        // What was read from a file is scaled already.
        let samples = if profile.meta.sample_interval == 0 || profile.saved.is_some() {
            Cow::Borrowed(&profile.samples)
        } else {
            Cow::Owned(profile.samples.iter().map(unsample).collect())
        };
        Self {
            profile,
            samples,
            leak_labels: leak_labels(profile),
            sites: OnceCell::new(),
            shares: OnceCell::new(),
            traits: OnceCell::new(),
            has_scripts: OnceCell::new(),
        }
    }

    /// What to show first.
    pub fn headline(&self) -> Headline {
        let meta = &self.profile.meta;
        if let Some(saved) = &self.profile.saved {
            return if saved.about_peak { Headline::Peak } else { Headline::Live };
        }
        let whole = !meta.mode.is_attached() && !meta.mode.is_snapshot();
        if whole && meta.process.exit.is_some() { Headline::Peak } else { Headline::Live }
    }

    /// The value that a picture shows: the one that was asked for; else the headline's, or where that is empty the next
    /// that is not.
    pub fn value(&self, asked: Option<Value>) -> Value {
        let headline = match self.headline() {
            Headline::Peak => Value::Peak,
            Headline::Live => Value::Live,
        };
        let has = |value: &Value| self.samples.iter().any(|sample| value.of(&sample).bytes > 0);
        let all = || std::iter::once(headline).chain(Value::ALL);
        asked.unwrap_or_else(|| all().find(has).unwrap_or(headline))
    }

    /// A string of the profile's table.
    pub fn string(&self, index: usize) -> &'a str {
        self.profile.strings.get(index).map_or("", String::as_str)
    }

    /// The locations of a stack, innermost first, from the allocator's caller on.
    pub fn locations(
        &self,
        stack: usize,
    ) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + Clone + use<'a> {
        self.profile.locations_of(stack).map(|location| location as usize)
    }

    /// How far to trust a stack.
    pub fn quality(&self, stack: usize) -> Quality {
        self.profile.stacks.get(stack).map_or(Quality::Truncated, |stack| stack.quality)
    }

    /// What a leak scan says of the live blocks of a stack: the worst class that is not suppressed, or `suppressed`;
    /// empty without a scan. Samples don't tell the blocks of one stack apart, so that there is one class for all.
    pub fn leak_label(&self, stack: usize) -> &'static str {
        let saved = || self.profile.stacks.get(stack).and_then(|stack| stack.leak).map_or("", LeakLabel::name);
        self.leak_labels.get(stack).copied().unwrap_or_else(saved)
    }

    /// The type of the objects in a stack's blocks, if it is known.
    pub fn object_type(&self, stack: usize) -> Option<&'a ObjectType> {
        self.profile.stacks.get(stack)?.object
    }

    /// The frames of a stack, innermost first; at least one.
    pub fn frames(&self, stack: usize) -> impl Iterator<Item = NamedFrame<'a>> {
        let locations = self.locations(stack);
        let synthetic = (locations.len() == 0).then(|| NamedFrame {
            name: UNKNOWN_STACK,
            file: None,
            line: 0,
            inlined: false,
            location: None,
            module: None,
            traits: NameTraits::of(UNKNOWN_STACK, None),
        });
        locations.flat_map(|index| self.location_frames(index)).chain(synthetic)
    }

    /// The frames of one location.
    pub fn location_frames(&self, index: usize) -> impl Iterator<Item = NamedFrame<'a>> {
        let profile = self.profile;
        let traits = self.traits.get_or_init(|| profile.functions.iter().map(traits).collect());
        profile.locations.get(index).into_iter().flat_map(move |location| {
            let module = location.module.and_then(|index| profile.modules.get(index));
            location.lines.iter().filter_map(move |line| {
                let function = profile.functions.get(line.function)?;
                let name = if function.name.is_empty() { UNKNOWN_FUNCTION } else { &function.name };
                let traits = traits.get(line.function).copied().unwrap_or_default();
                let (line, inlined) = (line.line, line.inlined);
                Some(NamedFrame {
                    traits,
                    name,
                    file: function.file.as_deref(),
                    line,
                    inlined,
                    location: Some(location),
                    module,
                })
            })
        })
    }

    /// Whether any stack has a line of a script.
    pub fn has_scripts(&self) -> bool {
        *self.has_scripts.get_or_init(|| self.profile.locations.iter().any(Location::is_script))
    }

    /// What a site is called by: [`Profile::site_id`].
    pub fn id_of(&self, site: &StackTotals) -> u64 {
        self.profile.site_id(site.stack)
    }

    /// The sites, in the order of their first sample. Samples that only freed what others allocated have none.
    pub fn sites(&self) -> &SiteTotals {
        &self.sites.get_or_init(|| self.sum_up()).list
    }

    /// How much of a site's blocks was never written, if that was looked at.
    pub fn capacity_of(&self, site: &StackTotals) -> Capacity {
        let sites = self.sites.get_or_init(|| self.sum_up());
        sites.capacities.get(&site.stack).copied().unwrap_or_default()
    }

    /// The index of a stack's site.
    pub fn site_of(&self, stack: usize) -> Option<usize> {
        let site = *self.sites.get_or_init(|| self.sum_up()).of_stack.get(stack)?;
        (site != NO_SITE).then_some(site as usize)
    }

    fn sum_up(&self) -> Sites {
        let names = self.names();
        let mut known: Vec<u32> = vec![NO_SITE; self.profile.stacks.len()];
        let mut sites: PackedBuilder<StackTotals, TOTALS> = PackedBuilder::default();
        // of each site, so that the table holds four bytes a site
        let mut hashes: Vec<u64> = Vec::new();
        let mut by_names: HashTable<u32> = HashTable::new();
        let mut index_of = |stack: usize| {
            let hash = self.hash_of_names(stack, &names);
            let hash_of = |site: &u32| hashes.get(*site as usize).copied().unwrap_or_default();
            if let Some(site) = by_names.find(hash, |site| hash_of(site) == hash) {
                return *site;
            }
            let next = hashes.len() as u32;
            by_names.insert_unique(hash, next, hash_of);
            hashes.push(hash);
            next
        };
        for sample in self.samples.iter() {
            let amounts = [sample.allocated, sample.freed, sample.live, sample.at_peak];
            if amounts.iter().all(|amount| *amount == Amount::default()) {
                continue;
            }
            let index = match known.get_mut(sample.stack) {
                Some(known) => {
                    if *known == NO_SITE {
                        *known = index_of(sample.stack);
                    }
                    *known as usize
                }
                None => index_of(sample.stack) as usize,
            };
            let quality = self.quality(sample.stack);
            if index < sites.len() {
                sites.change(index, |site| {
                    site.quality = site.quality.max(quality);
                    add(&mut site.allocated, sample.allocated);
                    add(&mut site.freed, sample.freed);
                    add(&mut site.live, sample.live);
                    add(&mut site.at_peak, sample.at_peak);
                    site.temporary = site.temporary.saturating_add(sample.temporary);
                    site.lifetime_ns = site.lifetime_ns.saturating_add(sample.lifetime_ns);
                    site.freed_elsewhere = site.freed_elsewhere.saturating_add(sample.freed_elsewhere);
                    site.mixes_types |= self.object_type(site.stack) != self.object_type(sample.stack);
                });
            } else {
                sites.push(&StackTotals {
                    stack: sample.stack,
                    quality,
                    allocated: sample.allocated,
                    freed: sample.freed,
                    live: sample.live,
                    at_peak: sample.at_peak,
                    temporary: sample.temporary,
                    mixes_types: false,
                    lifetime_ns: sample.lifetime_ns,
                    freed_elsewhere: sample.freed_elsewhere,
                });
            }
        }
        let sites = sites.finish();
        let mut capacities: FxHashMap<usize, Capacity> = FxHashMap::default();
        for (stack, capacity) in &self.profile.capacities {
            let site = known.get(*stack).and_then(|at| sites.get(*at as usize));
            if let Some(site) = site {
                let sum = capacities.entry(site.stack).or_default();
                *sum = sum.plus(*capacity);
            }
        }
        Sites { list: sites, of_stack: known, capacities }
    }

    /// A number for each function's name, from 1 on: functions of one name have one, if they are not of scripts with
    /// other names.
    fn names(&self) -> Vec<u32> {
        let mut of_scripts = vec![false; self.profile.functions.len()];
        let scripts = self.profile.locations.iter().filter(|location| location.is_script());
        for line in scripts.flat_map(|location| &location.lines) {
            if let Some(entry) = of_scripts.get_mut(line.function) {
                *entry = true;
            }
        }
        let mut numbers: FxHashMap<(&str, &str), u32> = FxHashMap::default();
        let number = |(function, is_script): (&'a Function, bool)| {
            let name = if function.name.is_empty() { UNKNOWN_FUNCTION } else { &function.name };
            let next = numbers.len() as u32 + 1;
            *numbers.entry((name, if is_script { function.script_file() } else { "" })).or_insert(next)
        };
        self.profile.functions.iter().zip(of_scripts).map(number).collect()
    }

    /// A hash of the names of a stack's functions. To hash their bytes for each stack takes longer than all else. The
    /// hash of nothing is that of zeros, too: so no name has the number 0.
    fn hash_of_names(&self, stack: usize, names: &[u32]) -> u64 {
        let mut hasher = FxHasher::default();
        for location in self.locations(stack).filter_map(|index| self.profile.locations.get(index)) {
            for line in &location.lines {
                hasher.write_u32(names.get(line.function).copied().unwrap_or(u32::MAX));
            }
        }
        hasher.finish()
    }
}

fn traits(function: &Function) -> NameTraits {
    let name = if function.name.is_empty() { UNKNOWN_FUNCTION } else { &function.name };
    NameTraits::of(name, function.file.as_deref())
}

/// For each stack the worst class of its live blocks.
fn leak_labels(profile: &Profile) -> Vec<&'static str> {
    let Some(leaks) = &profile.leaks else { return Vec::new() };
    let mut labels = vec![""; profile.stacks.len()];
    for site in &leaks.sites {
        let classes = LeakClass::ALL.into_iter().zip(site.amounts).zip(site.suppressed_by);
        let mut live = classes.filter(|((_, amount), _)| amount.objects > 0);
        let label = match live.clone().find(|(_, by)| by.is_none()) {
            Some(((class, _), _)) => class.name(),
            None if live.next().is_some() => "suppressed",
            None => "",
        };
        if let Some(entry) = labels.get_mut(site.stack) {
            *entry = label;
        }
    }
    labels
}

/// How the program was at the profile's end: alive, where it was traced on; else how it ended.
pub(crate) fn end_text(meta: &Meta) -> String {
    if meta.mode.is_snapshot() { "alive".to_owned() } else { exit_text(meta.process.exit) }
}

/// Whether the program ended, and with what; one that has not was let go while it ran.
pub(crate) fn exit_text(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Code(code)) => format!("exit status {code}"),
        Some(Exit::Signal(signal)) => format!("killed by {}", signal_text(signal)),
        None => "let go".to_owned(),
    }
}

fn add(sum: &mut Amount, amount: Amount) {
    sum.objects = sum.objects.saturating_add(amount.objects);
    sum.bytes = sum.bytes.saturating_add(amount.bytes);
}

fn unsample(sample: Sample) -> Sample {
    let weight = weight(sample.size, sample.interval);
    let times = |count: u64| (count as f64 * weight).round() as u64;
    Sample {
        allocated: sample.allocated.times(weight),
        freed: sample.freed.times(weight),
        deallocated: sample.deallocated.times(weight),
        live: sample.live.times(weight),
        at_peak: sample.at_peak.times(weight),
        temporary: times(sample.temporary),
        lifetime_ns: times(sample.lifetime_ns),
        freed_elsewhere: times(sample.freed_elsewhere),
        ..sample
    }
}
