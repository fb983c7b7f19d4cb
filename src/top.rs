//! `heaptrace top`: which sites the tracer tells of (`watch.rs`, `groups.rs`), what the one who asks makes of its
//! answers (`state.rs`), how keys change it (`keys.rs`), and how it looks, on a screen (`draw.rs`) and in words
//! (`plain.rs`). Pure: the terminal and the conversation are `commands/top.rs`'s.

pub mod ctl;
mod draw;
mod groups;
mod keys;
mod plain;
mod state;
#[cfg(test)]
mod tests;
mod watch;

pub use draw::draw;
pub use groups::{Group, Labels};
pub use keys::{Key, KeyReader};
pub use plain::answer;
pub use state::{Action, State, Subject};
pub use watch::{Moment, Row, Watch, by_stack};
