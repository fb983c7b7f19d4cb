//! What fills the memory of a process that runs, as a library finds it.
//!
//! ```text
//! cargo run --example heap -- 1234 now.heap
//! ```

use heaptrace::Heap;
use std::error::Error;
use std::fs::File;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, output] = &arguments[..] else { return Err("usage: heap PID OUTPUT.heap".into()) };
    let heap = Heap::of(pid.parse()?)?;
    heap.warnings().iter().for_each(|warning| eprintln!("{warning}"));
    if let Some(live) = heap.live() {
        println!("{}: {} blocks, {} bytes", heap.program(), live.blocks, live.bytes);
    }
    print!("{}", heap.text());
    heap.save(&mut File::create(output)?)?;
    Ok(())
}
