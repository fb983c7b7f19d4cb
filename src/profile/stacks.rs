//! The table of a profile's stacks. There may be a million of 30 frames each: their locations stand one behind the
//! other, two bytes each as long as there are few locations, else four; and what few stacks have is apart.

use super::objects::ObjectType;
use super::saved::LeakLabel;
use crate::unwinder::Quality;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// One stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Indices into [`super::Profile::locations`], innermost (the allocator's caller) first.
    pub locations: Vec<u32>,
    /// How far to trust it.
    pub quality: Quality,
    /// What the file says of its live blocks that the profile was read from, if a leak check was made: see
    /// [`super::leaks::Leaks`] for others.
    pub leak: Option<LeakLabel>,
    /// The type of the objects in its blocks, if it is known.
    pub object: Option<ObjectType>,
}

impl Stack {
    /// One of these locations, of which nothing else is known.
    pub fn new(locations: &[usize], quality: Quality) -> Self {
        let locations = locations.iter().map(|location| *location as u32).collect();
        Self { locations, quality, leak: None, object: None }
    }
}

/// One stack of a table.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "see Stack")]
pub struct StackRef<'a> {
    pub locations: Locations<'a>,
    pub quality: Quality,
    pub leak: Option<LeakLabel>,
    pub object: Option<&'a ObjectType>,
}

impl From<StackRef<'_>> for Stack {
    fn from(stack: StackRef<'_>) -> Self {
        let StackRef { locations, quality, leak, object } = stack;
        Self { locations: locations.collect(), quality, leak, object: object.cloned() }
    }
}

/// The locations of a stack, innermost first.
#[derive(Clone, Debug)]
pub struct Locations<'a>(Slice<'a>);

#[derive(Clone, Debug)]
enum Slice<'a> {
    Narrow(std::slice::Iter<'a, u16>),
    Wide(std::slice::Iter<'a, u32>),
}

impl Iterator for Locations<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        match &mut self.0 {
            Slice::Narrow(slice) => slice.next().map(|location| u32::from(*location)),
            Slice::Wide(slice) => slice.next().copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Slice::Narrow(slice) => slice.size_hint(),
            Slice::Wide(slice) => slice.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Locations<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<u32> {
        match &mut self.0 {
            Slice::Narrow(slice) => slice.next_back().map(|location| u32::from(*location)),
            Slice::Wide(slice) => slice.next_back().copied(),
        }
    }
}

impl ExactSizeIterator for Locations<'_> {}

/// Numbers of locations, one behind the other.
#[derive(Clone, Debug)]
enum Numbers {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Narrow(Vec::new())
    }
}

impl Numbers {
    const fn len(&self) -> usize {
        match self {
            Self::Narrow(numbers) => numbers.len(),
            Self::Wide(numbers) => numbers.len(),
        }
    }

    fn extend(&mut self, more: &[u32]) {
        if more.iter().fold(0, |all, number| all | number) > u32::from(u16::MAX) {
            self.widen();
        }
        match self {
            Self::Narrow(numbers) => numbers.extend(more.iter().map(|number| *number as u16)),
            Self::Wide(numbers) => numbers.extend_from_slice(more),
        }
    }

    fn widen(&mut self) {
        if let Self::Narrow(numbers) = self {
            *self = Self::Wide(numbers.iter().map(|number| u32::from(*number)).collect());
        }
    }

    /// Changes those of a range, the first one first.
    fn change(&mut self, range: Range<usize>, change: &mut impl FnMut(u32) -> u32) {
        let mut start = range.start;
        if let Self::Narrow(numbers) = self {
            let mut too_wide = None;
            for place in numbers.get_mut(range.clone()).unwrap_or_default() {
                let number = change(u32::from(*place));
                let Ok(narrow) = u16::try_from(number) else {
                    too_wide = Some(number);
                    break;
                };
                *place = narrow;
                start += 1;
            }
            let Some(number) = too_wide else { return };
            self.widen();
            if let Self::Wide(numbers) = self {
                numbers.get_mut(start).into_iter().for_each(|place| *place = number);
            }
            start += 1;
        }
        if let Self::Wide(numbers) = self {
            numbers.get_mut(start..range.end).unwrap_or_default().iter_mut().for_each(|place| *place = change(*place));
        }
    }

    fn slice(&self, range: Range<usize>) -> Locations<'_> {
        Locations(match self {
            Self::Narrow(numbers) => Slice::Narrow(numbers.get(range).unwrap_or_default().iter()),
            Self::Wide(numbers) => Slice::Wide(numbers.get(range).unwrap_or_default().iter()),
        })
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::Narrow(numbers) => numbers.capacity() * size_of::<u16>(),
            Self::Wide(numbers) => numbers.capacity() * size_of::<u32>(),
        }
    }
}

/// Stacks by their numbers, from 0 on.
#[derive(Clone, Default, Debug)]
pub struct Stacks {
    /// The locations of all stacks, and of some that were replaced.
    locations: Numbers,
    entries: Vec<Entry>,
    leaks: FxHashMap<u32, LeakLabel>,
    objects: FxHashMap<u32, ObjectType>,
}

/// Where the locations of a stack are.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    /// How many there are, times [`QUALITIES`], plus the stack's quality.
    length: u32,
}

/// How many values a [`Quality`] may have here.
const QUALITIES: u32 = 4;

impl Entry {
    fn new(start: usize, length: usize, quality: Quality) -> Self {
        Self { start: start as u32, length: length as u32 * QUALITIES + quality as u32 }
    }

    const fn quality(self) -> Quality {
        match self.length % QUALITIES {
            0 => Quality::Complete,
            1 => Quality::Guessed,
            _ => Quality::Truncated,
        }
    }

    const fn len(self) -> usize {
        (self.length / QUALITIES) as usize
    }

    const fn range(self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.len()
    }
}

impl Stacks {
    /// With room for so many.
    pub fn with_capacity(stacks: usize) -> Self {
        Self { entries: Vec::with_capacity(stacks), ..Self::default() }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The stack with this number.
    pub fn get(&self, stack: usize) -> Option<StackRef<'_>> {
        let entry = *self.entries.get(stack)?;
        let key = stack as u32;
        Some(StackRef {
            locations: self.locations.slice(entry.range()),
            quality: entry.quality(),
            leak: self.leaks.get(&key).copied(),
            object: self.objects.get(&key),
        })
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = StackRef<'_>> {
        (0..self.len()).filter_map(|stack| self.get(stack))
    }

    /// The locations of a stack, innermost first; none of one that is not there.
    pub fn locations(&self, stack: usize) -> Locations<'_> {
        self.locations.slice(self.entries.get(stack).map_or(0..0, |entry| entry.range()))
    }

    /// Adds a stack of which nothing else is known; gives its number. Behind four billion locations stacks have none.
    pub fn add(&mut self, locations: &[u32], quality: Quality) -> usize {
        let has_room = self.locations.len() + locations.len() <= u32::MAX as usize;
        // one of which nothing is known
        let (locations, quality) = if has_room { (locations, quality) } else { (&[][..], Quality::Truncated) };
        self.entries.push(Entry::new(self.locations.len(), locations.len(), quality));
        self.locations.extend(locations);
        self.entries.len() - 1
    }

    /// Adds a stack; gives its number.
    pub fn push(&mut self, stack: Stack) -> usize {
        let number = self.add(&stack.locations, stack.quality);
        self.note(number, stack);
        number
    }

    /// Puts another stack in the place of one that is there.
    #[cfg(test)]
    pub fn replace(&mut self, number: usize, stack: Stack) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        *entry = Entry::new(self.locations.len(), stack.locations.len(), stack.quality);
        self.locations.extend(&stack.locations);
        self.note(number, stack);
    }

    fn note(&mut self, number: usize, stack: Stack) {
        match stack.leak {
            Some(leak) => self.leaks.insert(number as u32, leak),
            None => self.leaks.remove(&(number as u32)),
        };
        match stack.object {
            Some(object) => self.objects.insert(number as u32, object),
            None => self.objects.remove(&(number as u32)),
        };
    }

    /// Changes them as a plain list.
    #[cfg(test)]
    pub fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<Stack>) -> T) -> T {
        let mut stacks = self.iter().map(Stack::from).collect();
        let outcome = edit(&mut stacks);
        *self = stacks.into_iter().collect();
        outcome
    }

    /// The stack with this number, which must be there.
    #[cfg(test)]
    pub fn row(&self, stack: usize) -> Stack {
        self.get(stack).expect("a stack").into()
    }

    /// The stack is not to be trusted more than this.
    pub fn trust_at_most(&mut self, stack: usize, quality: Quality) {
        if let Some(entry) = self.entries.get_mut(stack) {
            *entry = Entry { start: entry.start, ..Entry::new(0, entry.len(), entry.quality().max(quality)) };
        }
    }

    /// Sets the type of the objects in a stack's blocks.
    pub fn set_object(&mut self, stack: usize, object: ObjectType) {
        self.objects.insert(stack as u32, object);
    }

    /// Notes what the file says of some of a stack's live blocks; the worst stays.
    pub fn add_leak(&mut self, stack: usize, leak: LeakLabel) {
        let known = self.leaks.entry(stack as u32).or_insert(leak);
        *known = leak.min(*known);
    }

    /// Changes all locations, those of the first stack first. They stay where they are, which takes no other table.
    pub(super) fn change_locations(&mut self, mut change: impl FnMut(u32) -> u32) {
        for entry in &self.entries {
            self.locations.change(entry.range(), &mut change);
        }
    }

    /// Gives each stack a new number, of which the first `kept` stay. `new` has each number once.
    pub(super) fn renumber(&mut self, new: Vec<u32>, kept: usize) {
        let place = |old: u32| new.get(old as usize).copied().filter(|new| (*new as usize) < kept);
        fn renumbered<T>(of_stacks: &mut FxHashMap<u32, T>, place: impl Fn(u32) -> Option<u32>) {
            let before = std::mem::take(of_stacks);
            of_stacks.extend(before.into_iter().filter_map(|(stack, of_it)| Some((place(stack)?, of_it))));
        }
        renumbered(&mut self.leaks, place);
        renumbered(&mut self.objects, place);
        permute(&mut self.entries, new);
        self.entries.truncate(kept);
    }

    /// About how much memory it takes, in bytes.
    pub(super) fn size(&self) -> usize {
        let of_leaks = self.leaks.capacity() * size_of::<(u32, LeakLabel)>();
        let of_objects = self.objects.capacity() * size_of::<(u32, ObjectType)>();
        self.locations.bytes() + self.entries.capacity() * size_of::<Entry>() + of_leaks + of_objects
    }
}

impl FromIterator<Stack> for Stacks {
    fn from_iter<I: IntoIterator<Item = Stack>>(stacks: I) -> Self {
        let mut table = Self::default();
        stacks.into_iter().for_each(|stack| {
            table.push(stack);
        });
        table
    }
}

/// Moves each entry of a table to its new place, without a second table. `new` has each place once.
pub(super) fn permute<T>(table: &mut [T], mut new: Vec<u32>) {
    for at in 0..table.len().min(new.len()) {
        while let Some(&place) = new.get(at)
            && place as usize != at
            && (place as usize) < table.len()
        {
            table.swap(at, place as usize);
            new.swap(at, place as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::Certainty;
    use super::*;
    use crate::base::leakclass::LeakClass;
    use proptest::prelude::*;

    fn stack() -> impl Strategy<Value = Stack> {
        let quality = prop::sample::select(vec![Quality::Complete, Quality::Guessed, Quality::Truncated]);
        let leak =
            prop::option::of(prop::sample::select(vec![LeakLabel::Suppressed, LeakLabel::Class(LeakClass::Definite)]));
        let name = prop::option::of(prop::sample::select(vec!["int", "Point"]));
        (prop::collection::vec(prop_oneof![0..99u32, any::<u32>()], 0..5), quality, leak, name).prop_map(
            |(locations, quality, leak, name)| {
                let object = name.map(|name| ObjectType { name: name.into(), certainty: Certainty::Exact });
                Stack { locations, quality, leak, object }
            },
        )
    }

    fn list(stacks: &Stacks) -> Vec<Stack> {
        stacks.iter().map(Stack::from).collect()
    }

    proptest! {
        #[test]
        fn it_is_as_a_plain_list(
            mut plain in prop::collection::vec(stack(), 1..20),
            other in stack(),
            at in any::<prop::sample::Index>(),
            least in prop::sample::select(vec![Quality::Complete, Quality::Guessed, Quality::Truncated]),
        ) {
            let mut stacks: Stacks = plain.iter().cloned().collect();
            prop_assert_eq!(&list(&stacks), &plain);
            let at = at.index(plain.len());
            stacks.replace(at, other.clone());
            plain[at] = other;
            prop_assert_eq!(&list(&stacks), &plain);
            stacks.trust_at_most(at, least);
            plain[at].quality = plain[at].quality.max(least);
            stacks.change_locations(|location| location.wrapping_add(1));
            plain.iter_mut().flat_map(|stack| &mut stack.locations).for_each(|at| *at = at.wrapping_add(1));
            prop_assert_eq!(&list(&stacks), &plain);
            prop_assert!(stacks.get(plain.len()).is_none() && stacks.locations(plain.len()).len() == 0);
            // backwards, without the first
            let last = plain.len() as u32 - 1;
            stacks.renumber((0..=last).rev().collect(), last as usize);
            plain.reverse();
            plain.truncate(last as usize);
            prop_assert_eq!(&list(&stacks), &plain);
        }
    }
}
