//! A heap as memory shows it: the allocator's own structures ([`walk`]), what can still be reached ([`leaks`]), the
//! types of blocks ([`types`]), who holds whom ([`graph`]), and all of that in a file ([`file`]). Pure: memory is a
//! trait.

pub mod file;
pub mod graph;
pub mod leaks;
pub mod types;
pub mod walk;
