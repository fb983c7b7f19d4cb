//! The jump engine's pure part: what lies where in the memory that it adds to a process, what is read from there, and
//! what a thread's program counter in the routine means. The routine itself and all that touches a process is in
//! `tracer/jump`.
//!
//! The routine repeats what the tracer has established, and hands what it does not know to the tracer. Everything in
//! the shared region can be written by the program: what is read from there is input of a stranger.

pub mod frames;
pub mod layout;
pub mod lists;
pub mod load;
pub mod merge;
pub mod nodes;
pub mod rules;
pub mod sampling;
pub mod shared;
pub mod stub;
pub mod tails;
pub mod undo;
