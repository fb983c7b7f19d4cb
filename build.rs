//! Compiles the schemas of the formats to Rust. protox parses them, so no `protoc` has to be installed.

use std::error::Error;

/// The schemas, in `proto/`: one package each.
const SCHEMAS: [&str; 3] = ["profile.proto", "perfetto_trace.proto", "otlp_profiles.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    // for a test that bounds instructions
    println!("cargo::rustc-env=HEAPTRACE_OPT_LEVEL={}", std::env::var("OPT_LEVEL")?);
    for schema in SCHEMAS {
        println!("cargo::rerun-if-changed=proto/{schema}");
        prost_build::Config::new().compile_fds(protox::compile([schema], ["proto"])?)?;
    }
    Ok(())
}
