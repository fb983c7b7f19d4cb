//! Compiles the pprof schema to Rust. protox parses it, so no `protoc` has to be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=proto/profile.proto");
    let schema = protox::compile(["proto/profile.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(schema)?;
    Ok(())
}
