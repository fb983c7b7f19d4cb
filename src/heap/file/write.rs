//! Writes a heap.

use super::{ALLOCATORS, CERTAINTIES, END, MAGIC, REMEDIES, STATES, SavedHeap, VERSION, WITH_CORES};
use crate::heap::graph::Held;
use crate::heap::graph::declared::Layouts;
use crate::heap::graph::types::Types;
use crate::heap::walk::census::{Amount, Use};
use crate::heap::walk::summary::Summary;
use crate::heap::walk::{Chunk, Fault};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// How hard zstd tries.
const LEVEL: i32 = 3;

/// Writes it.
///
/// # Errors
/// Those of `out`.
pub fn write(heap: &SavedHeap, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    // older readers understand what has no names of members
    let with_members =
        heap.held.as_ref().is_some_and(|held| !held.types.layouts.is_empty() || held.holdings.has_members());
    let version = if with_members { VERSION } else { WITH_CORES };
    out.write_all(&version.to_le_bytes())?;
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    encoder.include_checksum(true)?;
    let mut out = Out { out: io::BufWriter::with_capacity(64 << 10, encoder), with_members };
    out.heap(heap)?;
    out.number(END)?;
    let encoder = out.out.into_inner().map_err(io::IntoInnerError::into_error)?;
    encoder.finish()?;
    Ok(())
}

/// The place of `one` in one of the tables of enums.
fn code<T: PartialEq>(table: &[T], one: &T) -> u64 {
    table.iter().position(|other| other == one).unwrap_or(table.len()) as u64
}

/// A signed distance as a number: 0, -1, 1, -2, …
const fn zigzag(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)).cast_unsigned()
}

struct Out<W> {
    out: W,
    /// Whether the version is one with names of members.
    with_members: bool,
}

impl<W: Write> Out<W> {
    fn number(&mut self, mut number: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut used = 0;
        for byte in &mut bytes {
            used += 1;
            *byte = (number & 0x7f) as u8 | if number > 0x7f { 0x80 } else { 0 };
            number >>= 7;
            if number == 0 {
                break;
            }
        }
        self.out.write_all(bytes.get(..used).unwrap_or(&[]))
    }

    fn numbers(&mut self, numbers: &[u64]) -> io::Result<()> {
        numbers.iter().try_for_each(|number| self.number(*number))
    }

    fn maybe(&mut self, number: Option<u64>) -> io::Result<()> {
        self.number(u64::from(number.is_some()))?;
        number.map_or(Ok(()), |number| self.number(number))
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.number(text.len() as u64)?;
        self.out.write_all(text.as_bytes())
    }

    fn heap(&mut self, heap: &SavedHeap) -> io::Result<()> {
        let identity = &heap.identity;
        self.number(identity.pid.unsigned_abs().into())?;
        self.maybe(identity.started)?;
        self.text(&identity.boot)?;
        self.numbers(&[identity.taken_ns, identity.another_user.into()])?;
        self.number(heap.core.is_some().into())?;
        if let Some(core) = heap.core {
            self.numbers(&[core.stored, core.missing])?;
        }
        self.text(&heap.program)?;
        self.number(heap.threads as u64)?;
        self.maybe(heap.stood_ns)?;
        self.number(heap.copied.into())?;
        self.number(heap.in_motion.into())?;
        self.maybe(heap.trimmed)?;
        self.maybe(heap.resident)?;
        self.uses(&heap.census.uses)?;
        self.number(heap.census.arenas.len() as u64)?;
        heap.census.arenas.iter().try_for_each(|uses| self.uses(uses))?;
        self.number(heap.trim.is_some().into())?;
        if let Some(trim) = &heap.trim {
            self.numbers(&[trim.inside, trim.end])?;
        }
        self.number(heap.heap.is_some().into())?;
        if let Some(summary) = &heap.heap {
            self.summary(summary)?;
        }
        self.number(heap.held.is_some().into())?;
        heap.held.as_ref().map_or(Ok(()), |held| self.held(held))
    }

    fn uses(&mut self, uses: &BTreeMap<Use, Amount>) -> io::Result<()> {
        self.number(uses.len() as u64)?;
        uses.iter().try_for_each(|(of, Amount { reserved, resident, swapped })| {
            self.numbers(&[code(&Use::ALL, of), *reserved, *resident, *swapped])
        })
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.number(code(&ALLOCATORS, &summary.allocator))?;
        self.maybe(summary.mapped_bytes)?;
        self.number(summary.arenas.len() as u64)?;
        for arena in &summary.arenas {
            self.numbers(&[arena.at.0, arena.is_main.into(), arena.system_bytes])?;
            self.maybe(arena.threads)?;
        }
        self.number(summary.findings.len() as u64)?;
        for finding in &summary.findings {
            self.number(finding.at.0)?;
            self.numbers(&fault(finding.what))?;
            self.number(finding.before.is_some().into())?;
            if let Some(chunk) = finding.before {
                let Chunk { at, state, lead, tail, .. } = chunk;
                self.numbers(&[at.0, chunk.size(), code(&STATES, &state), lead.into(), zigzag(tail.into())])?;
            }
        }
        self.number(summary.chunks.len() as u64)?;
        for ((state, is_mapped), sum) in &summary.chunks {
            self.numbers(&[code(&STATES, state), (*is_mapped).into(), sum.count, sum.bytes, sum.usable])?;
        }
        self.number(summary.sizes.len() as u64)?;
        summary.sizes.iter().try_for_each(|row| self.numbers(&[row.usable, row.live, row.freed]))
    }

    /// The layouts of types, and of each type the number of its own, counted from 1; 0: it has none.
    fn layouts(&mut self, types: &Types) -> io::Result<()> {
        self.number(types.layouts.len() as u64)?;
        for layout in &types.layouts {
            self.text(&layout.name)?;
            self.numbers(&[layout.stride, layout.phase, layout.places.len() as u64])?;
            for (offset, path) in &layout.places {
                self.number(*offset)?;
                self.text(path)?;
            }
        }
        let numbers = types.layout_of.iter().chain(std::iter::repeat(&Layouts::NONE)).take(types.all.len());
        numbers.map(|number| u64::from(number.wrapping_add(1))).try_for_each(|number| self.number(number))
    }

    fn held(&mut self, held: &Held) -> io::Result<()> {
        let graph = &held.holdings.graph;
        let blocks = graph.blocks();
        self.number(held.types.all.len() as u64)?;
        for of in &held.types.all {
            self.text(&of.name)?;
            self.number(code(&CERTAINTIES, &of.certainty))?;
        }
        if self.with_members {
            self.layouts(&held.types)?;
        }
        self.number(blocks.len() as u64)?;
        let mut last = 0;
        for (block, of) in blocks.iter().zip(held.types.of_block.iter().chain(std::iter::repeat(&0))) {
            self.numbers(&[block.addr.0.wrapping_sub(last), block.size, u64::from(*of)])?;
            last = block.addr.0;
        }
        for block in 0..blocks.len() as u32 {
            self.number(graph.pointers(block).count() as u64)?;
            for pointer in graph.pointers(block) {
                let distance = zigzag(i64::from(pointer.target) - i64::from(block));
                self.numbers(&[distance, pointer.at.map_or(0, |at| at.saturating_add(1)), pointer.into])?;
            }
        }
        let holders = &held.holdings.holders;
        self.number(holders.len() as u64)?;
        for (number, holder) in holders.iter().enumerate() {
            self.text(&holder.name)?;
            self.number(held.holdings.held_by(number).count() as u64)?;
            let mut last = 0;
            for block in held.holdings.held_by(number) {
                self.number(u64::from(block - last))?;
                if self.with_members {
                    let member = held.holdings.member(number, block);
                    self.number(member.is_some().into())?;
                    member.map_or(Ok(()), |member| self.text(member))?;
                }
                last = block;
            }
        }
        let duplicates = &held.duplicates;
        self.numbers(&[duplicates.wasted, duplicates.wasted_text, duplicates.most.len() as u64])?;
        for (number, one) in duplicates.most.iter().enumerate() {
            self.numbers(&[one.block.into(), one.count, one.size, one.text.into()])?;
            let sample = held.samples.get(number).and_then(Option::as_ref);
            self.number(sample.is_some().into())?;
            sample.map_or(Ok(()), |sample| self.text(sample))?;
        }
        self.numbers(&[held.pinned.bytes, held.pinned.by_block.len() as u64])?;
        let mut last = 0;
        for (block, bytes) in &held.pinned.by_block {
            self.numbers(&[zigzag(i64::from(*block) - last), *bytes])?;
            last = (*block).into();
        }
        self.number(held.remedy.is_some().into())?;
        held.remedy.map_or(Ok(()), |(remedy, bytes)| self.numbers(&[code(&REMEDIES, &remedy), bytes]))
    }
}

/// Its number and what it tells.
const fn fault(of: Fault) -> [u64; 2] {
    match of {
        Fault::Size(size) => [0, size],
        Fault::Unreadable => [1, 0],
        Fault::End(size) => [2, size],
        Fault::List => [3, 0],
        Fault::Circle => [4, 0],
        Fault::Table => [5, 0],
        Fault::Entry => [6, 0],
        Fault::Group => [7, 0],
        Fault::Header => [8, 0],
        Fault::Overrun => [9, 0],
        Fault::Count => [10, 0],
    }
}
