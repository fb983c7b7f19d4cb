//! Tells the tests how the program is optimized: one of them bounds the instructions that it takes.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=HEAPTRACE_OPT_LEVEL={}", std::env::var("OPT_LEVEL")?);
    Ok(())
}
