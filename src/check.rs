//! What `check` makes of a profile: suppressions and a baseline mark what does not count, the verdict judges the rest.
//!
//! Pure. The order matters: [`suppressions::Suppressions::apply`], [`baseline::Baseline::apply`], then [`verdict::judge`].

pub mod baseline;
pub mod suppressions;
pub mod verdict;
