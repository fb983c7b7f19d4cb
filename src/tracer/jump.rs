//! The jump engine's edge: the routine as code, and the memory that it needs in a process.

pub mod region;
pub mod routine;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
