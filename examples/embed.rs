//! heaptrace as a library: run a program under trace, judge it, look at what was found, and write it in any format.
//!
//! ```text
//! cargo run --example embed -- report.json ./app --its-option
//! ```

use heaptrace::profile::Profile;
use heaptrace::{CheckRules, ExportOptions, Format, Profiler, Suppressions};
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(output), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("usage: embed OUTPUT PROGRAM [ARGUMENT…]".into());
    };
    let arguments: Vec<OsString> = arguments.collect();

    let rules =
        CheckRules { suppressions: Suppressions::read(b"leak:known_leak\n", "built in")?, ..CheckRules::default() };
    let profile = Profiler::new().max_depth(128).check(program, &arguments, &rules)?;

    print(&profile);
    let format = Format::from_path(Path::new(&output))?;
    heaptrace::write(format, &profile, &ExportOptions::default(), &mut File::create(&output)?)?;
    Ok(())
}

/// The verdict, and the stack that has allocated most.
fn print(profile: &Profile) {
    println!("{} bytes at the peak", profile.totals.peak_bytes);
    if let Some(verdict) = &profile.verdict {
        println!("{}", verdict.kind.name());
        verdict.reasons.iter().for_each(|reason| println!("    {reason}"));
    }
    if let Some(most) = profile.samples.iter().max_by_key(|sample| sample.allocated.bytes) {
        println!("{} bytes allocated in", most.allocated.bytes);
        profile.functions_of(most.stack).for_each(|function| println!("    {}", function.name));
    }
}
