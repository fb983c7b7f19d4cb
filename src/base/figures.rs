//! The figures that the heap model counts and a profile shows: amounts, sums, points of the timeline, kinds of errors.

use serde::{Deserialize, Serialize};

/// A number for people: `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Objects and bytes, counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Amount {
    /// Number of blocks.
    pub objects: u64,
    /// Requested bytes.
    pub bytes: u64,
}

impl Amount {
    /// One block of so many bytes more.
    pub const fn count(&mut self, bytes: u64) {
        *self = self.plus(Self { objects: 1, bytes });
    }

    /// The sum; it does not overflow.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { objects: self.objects.saturating_add(other.objects), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// What is left without `other`; nothing where that is more.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self { objects: self.objects.saturating_sub(other.objects), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    /// What sampled blocks stand for that count `weight` times each.
    #[must_use]
    pub fn times(self, weight: f64) -> Self {
        // Not every whole number is a double.
        if weight == 1.0 {
            return self;
        }
        let times = |n: u64| (n as f64 * weight).round() as u64;
        Self { objects: times(self.objects), bytes: times(self.bytes) }
    }
}

/// How buffers have grown whose larger blocks were allocated at one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    /// How many buffers have.
    pub buffers: u64,
    /// How often in all.
    pub growths: u64,
    /// How often what they held was copied: a realloc may find room where the block is.
    pub copies: u64,
    /// So many bytes were copied, at most: what the blocks had before.
    pub copied_bytes: u64,
    /// The largest block that one has come to, in bytes.
    pub largest_bytes: u64,
    /// How many blocks from here a realloc elsewhere has made larger: they have not ended, they grow.
    pub outgrown: u64,
}

impl Growth {
    /// Both together; it does not overflow.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            buffers: self.buffers.saturating_add(other.buffers),
            growths: self.growths.saturating_add(other.growths),
            copies: self.copies.saturating_add(other.copies),
            copied_bytes: self.copied_bytes.saturating_add(other.copied_bytes),
            largest_bytes: self.largest_bytes.max(other.largest_bytes),
            outgrown: self.outgrown.saturating_add(other.outgrown),
        }
    }

    /// What has come to it since it was `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let growths = self.growths.saturating_sub(earlier.growths);
        Self {
            // one that had grown before has grown on
            buffers: self.buffers.saturating_sub(earlier.buffers).max(u64::from(growths > 0)),
            growths,
            copies: self.copies.saturating_sub(earlier.copies),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            largest_bytes: self.largest_bytes,
            outgrown: self.outgrown.saturating_sub(earlier.outgrown),
        }
    }
}

/// What one of glibc's arenas had at the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Arena {
    /// The address of its structure.
    #[serde(serialize_with = "as_hex")]
    pub address: u64,
    /// Whether it is the first one, which grows by brk(2).
    #[serde(rename = "main")]
    pub is_main: bool,
    /// All that it had from the kernel, in bytes.
    pub system_bytes: u64,
    /// That of live blocks, with their headers.
    pub live_bytes: u64,
    /// That which was free, and kept.
    pub free_bytes: u64,
}

/// Blocks that other threads have freed than those that had allocated them, and the arena that they lay in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CrossThreadFreed {
    /// How many they are.
    pub blocks: u64,
    /// What their arena had at the end.
    #[serde(flatten)]
    pub arena: Arena,
}

/// Addresses are text in JSON, as numbers of 64 bits are not safe there.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn as_hex<S: serde::Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#x}"))
}

/// How much of their blocks a program has not used, as far as the blocks of one site were looked at when they were
/// given back, or at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Capacity {
    /// How many blocks were looked at.
    pub blocks: u64,
    /// What was asked for in all of them, in bytes.
    pub bytes: u64,
    /// So many bytes at their ends were never written.
    pub never_written_bytes: u64,
}

impl Capacity {
    /// Both together; it does not overflow.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            bytes: self.bytes.saturating_add(other.bytes),
            never_written_bytes: self.never_written_bytes.saturating_add(other.never_written_bytes),
        }
    }

    /// What has come to it since it was `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(earlier.blocks),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            never_written_bytes: self.never_written_bytes.saturating_sub(earlier.never_written_bytes),
        }
    }
}

/// The sums over all sites. A realloc is one allocation and one free (Valgrind's convention).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names of report.json, explained in cli.md")]
pub struct Totals {
    pub allocations: u64,
    pub frees: u64,
    pub reallocations: u64,
    pub bytes_allocated: u64,
    pub bytes_freed: u64,
    pub live_blocks: u64,
    pub live_bytes: u64,
    pub peak_blocks: u64,
    pub peak_bytes: u64,
    pub peak_at_ns: u64,
    pub temporary: u64,
    pub failed: u64,
    pub preexisting_frees: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub counted_allocations: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub counted_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A point of the timeline.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Since tracing began, ns.
    pub t_ns: u64,
    /// Live bytes then.
    pub live_bytes: u64,
    /// Allocations so far.
    pub allocations: u64,
}

/// Log2 histograms: bucket 0 counts the value 0, bucket i the values from 2^(i−1) to 2^i − 1.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Histograms {
    /// Block sizes in bytes, one count per allocation.
    pub size: Vec<u64>,
    /// Lifetimes in allocations of the process between a block's birth and death, one count per freed block.
    pub lifetime: Vec<u64>,
}

/// What is wrong with a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// A block was freed twice.
    DoubleFree,
    /// A pointer was freed that the allocator never handed out.
    InvalidFree,
    /// A block was freed by another family than allocated it.
    MismatchedFree,
    /// A block was freed with another size than it was requested with.
    SizedDelete,
    /// A block was freed with another alignment than it was requested with.
    AlignedDelete,
}

impl FindingKind {
    /// The name in report.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DoubleFree => "double_free",
            Self::InvalidFree => "invalid_free",
            Self::MismatchedFree => "mismatched_free",
            Self::SizedDelete => "sized_delete",
            Self::AlignedDelete => "aligned_delete",
        }
    }
}

/// What could not be seen or did not fit: zero on well-behaved programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Anomalies {
    /// Events that are known to have been missed.
    pub lost: u64,
    /// Stacks that end before the outermost frame (counted per event).
    pub truncated_stacks: u64,
    /// Those of them that were deeper than `--max-depth`.
    #[serde(skip)]
    pub cut_stacks: u64,
    /// Stacks with a frame passed by frame pointer (counted per event).
    pub guessed_stacks: u64,
    /// Frees of pointers that were never allocated.
    pub unknown_frees: u64,
    /// Frees of blocks that had been freed before.
    pub double_frees: u64,
    /// Frees by another family than the allocation's (`new` and `free`).
    pub mismatched_frees: u64,
    /// Calls whose return was never seen (longjmp, exception, dead thread).
    #[serde(alias = "dropped_frames")]
    pub abandoned_calls: u64,
}

impl Anomalies {
    /// Those that came since `earlier`, of the same process.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            lost: self.lost.saturating_sub(earlier.lost),
            truncated_stacks: self.truncated_stacks.saturating_sub(earlier.truncated_stacks),
            cut_stacks: self.cut_stacks.saturating_sub(earlier.cut_stacks),
            guessed_stacks: self.guessed_stacks.saturating_sub(earlier.guessed_stacks),
            unknown_frees: self.unknown_frees.saturating_sub(earlier.unknown_frees),
            double_frees: self.double_frees.saturating_sub(earlier.double_frees),
            mismatched_frees: self.mismatched_frees.saturating_sub(earlier.mismatched_frees),
            abandoned_calls: self.abandoned_calls.saturating_sub(earlier.abandoned_calls),
        }
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.truncated_stacks += other.truncated_stacks;
        self.cut_stacks += other.cut_stacks;
        self.guessed_stacks += other.guessed_stacks;
        self.unknown_frees += other.unknown_frees;
        self.double_frees += other.double_frees;
        self.mismatched_frees += other.mismatched_frees;
        self.abandoned_calls += other.abandoned_calls;
    }
}

/// `1 block`, `1,200 blocks`: the noun takes an s.
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 999, 1000, 1_234_567, u64::MAX].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
    }
}
