//! What the jump engine's routine costs a call.

fn main() {}
