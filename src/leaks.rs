//! The leak check. Pure: what is live and reachable comes in, a judgement goes out.

pub mod baseline;
pub mod suppressions;
pub mod verdict;
