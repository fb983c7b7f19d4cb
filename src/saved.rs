//! What an earlier run has saved, read again: profiles ([`import`]) and traces ([`replay`]).

pub mod import;
pub mod replay;
