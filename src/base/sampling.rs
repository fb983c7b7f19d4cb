//! Poisson sampling by bytes: which blocks are recorded, and how many each of them stands for. Pure.
//!
//! A block of s bytes is picked with the probability p = 1 − e^(−s/interval), as if every byte were picked by itself
//! once in `interval` bytes on average: tcmalloc and Go's runtime sample so. A picked block then counts 1/p times
//! (Horvitz and Thompson, 1952), so that sums are right on average, whatever the sizes.

pub mod governor;

use std::hash::{BuildHasher, Hasher, RandomState};

/// Above so many intervals a block is as good as certain to be picked: its weight differs from 1 by less than e^(−32).
const CERTAIN: u64 = 32;

/// Decides block by block.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Mean distance of two picked bytes, in bytes.
    interval: f64,
    /// Bytes until the next picked one. Always exponentially distributed, as that distribution has no memory.
    left: f64,
    random: SplitMix,
}

impl Sampler {
    /// Picks one byte in `interval` (at least 1) on average; equal seeds give equal choices.
    pub fn new(interval: u64, seed: u64) -> Self {
        let mut sampler = Self { interval: interval.max(1) as f64, left: 0.0, random: SplitMix(seed) };
        sampler.left = sampler.distance();
        sampler
    }

    /// The same with a seed from the system's random numbers.
    pub fn seeded(interval: u64) -> Self {
        Self::new(interval, random_seed())
    }

    /// Whether the next block, of `size` bytes, is to be recorded. One of no bytes counts as one byte.
    pub fn picks(&mut self, size: u64) -> bool {
        let size = size.max(1) as f64;
        if self.left > size {
            self.left -= size;
            return false;
        }
        self.left = self.distance();
        true
    }

    /// An exponentially distributed number with the mean `interval`.
    fn distance(&mut self) -> f64 {
        -self.random.unit().ln() * self.interval
    }
}

/// So many numbers, exponentially distributed with the mean 1, in a random order: one from each of as many equally
/// likely ranges, its mean. Read round and round from a random place they serve who can't take logarithms.
pub fn unit_distances(count: usize, seed: u64) -> Vec<f64> {
    // The integral of -ln(u), from 0 on.
    let integral = |u: f64| u - u * u.ln();
    let mut begin = 0.0;
    let mut mean = |range: usize| {
        let end = integral((range + 1) as f64 / count as f64);
        (end - std::mem::replace(&mut begin, end)) * count as f64
    };
    let mut all: Vec<f64> = (0..count).map(&mut mean).collect();
    // Fisher and Yates
    let mut random = SplitMix(seed);
    for last in (1..count).rev() {
        all.swap(last, (random.next() % (last as u64 + 1)) as usize);
    }
    all
}

/// A random number of the system's.
pub fn random_seed() -> u64 {
    // The standard library's hasher is seeded so.
    RandomState::new().build_hasher().finish()
}

/// Steele, Lea and Flood's generator (2014), for simulation.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly distributed in (0, 1]: 53 bits.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// How many blocks a picked one of `size` bytes stands for; 1 where `interval` is 0, which means that every block is
/// recorded.
pub fn weight(size: u64, interval: u64) -> f64 {
    if interval == 0 {
        return 1.0;
    }
    // exp_m1 keeps the precision of small ratios, where 1 - exp(-x) would lose it
    1.0 / -(-(size.max(1) as f64) / interval as f64).exp_m1()
}

/// The bytes that a picked block of `size` bytes stands for, as a whole number.
pub fn weighted_bytes(size: u64, interval: u64) -> u64 {
    if interval == 0 { size } else { estimated_bytes(size, interval) }
}

/// Apart, so that the heap model is fast where nothing is sampled.
#[cold]
#[inline(never)]
fn estimated_bytes(size: u64, interval: u64) -> u64 {
    (size as f64 * weight(size, interval)).round() as u64
}

/// What one picked block of `size` bytes adds to the variance of an estimated sum of bytes, in bytes squared:
/// s²(1−p)/p².
pub fn variance(size: u64, interval: u64) -> f64 {
    let weight = weight(size, interval);
    let size = size as f64;
    size * size * (weight - 1.0) * weight
}

/// Blocks of so many bytes and more stand for themselves, so that their sizes need not be exact; 0 without sampling.
pub fn certain_from(interval: u64) -> u64 {
    interval.saturating_mul(CERTAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 1000;

    /// Three mixes of sizes: all alike and small; many small ones and few large ones; evenly spread over octaves.
    fn mixes() -> [Vec<u64>; 3] {
        let octaves = (0..4000u64).map(|n| 1 + (n * 37) % (16 << (n % 12)));
        let skewed = (0..4000u64).map(|n| if n % 97 == 0 { 100_000 + n } else { n % 3 * 24 });
        [vec![48; 5000], skewed.collect(), octaves.collect()]
    }

    /// Over many seeds the mean of the estimates of objects and of bytes is the truth, within three of its standard
    /// errors, which are measured; and the variance that is told is the one that they have.
    #[test]
    fn estimates_are_unbiased_and_their_error_is_the_one_told() {
        let interval = 4096;
        for (mix, sizes) in mixes().into_iter().enumerate() {
            let truth = [sizes.len() as f64, sizes.iter().sum::<u64>() as f64];
            let (mut sums, mut squares, mut told) = ([0.0; 2], [0.0; 2], 0.0);
            for seed in 0..SEEDS {
                let mut sampler = Sampler::new(interval, seed);
                let mut estimate = [0.0; 2];
                for &size in sizes.iter().filter(|size| sampler.picks(**size)) {
                    estimate[0] += weight(size, interval);
                    estimate[1] += size as f64 * weight(size, interval);
                    told += variance(size, interval);
                }
                for at in 0..2 {
                    sums[at] += estimate[at];
                    squares[at] += (estimate[at] - truth[at]).powi(2);
                }
            }
            let seeds = SEEDS as f64;
            for at in 0..2 {
                let (mean, error) = (sums[at] / seeds, (squares[at] / seeds / seeds).sqrt());
                assert!((mean - truth[at]).abs() <= 3.0 * error, "mix {mix}: {mean} ± {error}, not {}", truth[at]);
                assert!(error < truth[at] / 50.0, "mix {mix}: {error} says nothing of {}", truth[at]);
            }
            let ratio = (told / seeds) / (squares[1] / seeds);
            assert!((0.85..1.15).contains(&ratio), "mix {mix}: the variance told is {ratio} of the real one");
        }
    }

    #[test]
    fn an_interval_of_one_byte_picks_nearly_all_and_a_huge_one_nearly_none() {
        let mut all = Sampler::new(1, 7);
        assert!((0..1000).filter(|_| all.picks(64)).count() == 1000);
        let mut none = Sampler::new(u64::MAX, 7);
        assert!((0..1000).filter(|_| none.picks(64)).count() == 0);
    }

    #[test]
    fn weights_are_right_at_both_ends() {
        assert!((weight(512 * 1024, 512 * 1024) - 1.581_976_706_869_326_4).abs() < 1e-12);
        assert!((weight(8, 512 * 1024) - 65_536.5).abs() < 1e-3);
        assert_eq!((weight(u64::MAX, 1), weight(100, 0)), (1.0, 1.0));
        assert_eq!(weight(0, 100), weight(1, 100), "a block of no bytes is picked like one of one byte");
        assert_eq!((weighted_bytes(100, 0), weighted_bytes(1 << 30, 1024)), (100, 1 << 30));
        let certain = certain_from(4096);
        assert!(weight(certain, 4096) - 1.0 < 1e-12);
    }

    #[test]
    fn distances_are_exponentially_distributed() {
        let all = unit_distances(1 << 16, 5);
        let count = all.len() as f64;
        assert!((all.iter().sum::<f64>() / count - 1.0).abs() < 1e-9);
        for limit in [0.001, 0.1, 1.0, 3.0, 8.0] {
            let above = all.iter().filter(|distance| **distance > limit).count() as f64 / count;
            assert!((above - (-limit).exp()).abs() < 2.0 / count, "{above} above {limit}");
        }
        // in a random order: neighbours have nothing to do with each other
        let product = all.windows(2).map(|pair| (pair[0] - 1.0) * (pair[1] - 1.0)).sum::<f64>() / count;
        assert!(product.abs() < 0.02, "{product}");
    }

    #[test]
    fn two_samplers_from_the_system_differ() {
        let picks = |mut sampler: Sampler| (0..200).map(|_| sampler.picks(100)).collect::<Vec<_>>();
        assert_ne!(picks(Sampler::seeded(1000)), picks(Sampler::seeded(1000)));
        assert_eq!(picks(Sampler::new(1000, 3)), picks(Sampler::new(1000, 3)));
    }
}
