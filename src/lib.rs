//! heaptrace: a heap profiler and leak checker for native Linux x86-64 programs that works from outside the target.
//!
//! The program of that name is what most will use; this is what it is made of. Whoever may trace a process (ptrace(2))
//! can do the following.
//!
//! # Run a command
//!
//! A [`Profiler`] runs a program under trace to its end. The [`profile::Profile`] that it returns says where memory was
//! allocated, what was live at the peak, and what was never freed:
//!
//! ```
//! let profile = heaptrace::Profiler::new().run("ls", &["/".into()])?;
//! println!("{} bytes in {} blocks at the peak", profile.totals.peak_bytes, profile.totals.peak_blocks);
//! if let Some(most) = profile.samples.iter().max_by_key(|sample| sample.at_peak.bytes) {
//!     profile.functions_of(most.stack).for_each(|function| println!("    {}", function.name));
//! }
//! # Ok::<(), heaptrace::ProfilerError>(())
//! ```
//!
//! Where a program calls its allocator millions of times a second, the jump engine records the calls without stops, and
//! a sample costs less still:
//!
//! ```
//! use heaptrace::{EngineChoice, Profiler};
//!
//! let sampled = Profiler::new().engine(EngineChoice::Jump).sample_interval(512 << 10).run("ls", &[])?;
//! assert_eq!(sampled.meta.sample_interval, 512 << 10);
//! # Ok::<(), heaptrace::ProfilerError>(())
//! ```
//!
//! # Judge it
//!
//! [`Profiler::check`] looks for leaks at the end, and judges them by [`CheckRules`]: suppressions, limits, a baseline.
//!
//! ```
//! use heaptrace::{CheckRules, Profiler, Suppressions};
//!
//! let suppressions = Suppressions::read(b"leak:known_leak\n", "built in")?;
//! let rules = CheckRules { suppressions, ..CheckRules::default() };
//! let profile = Profiler::new().check("true", &[], &rules)?;
//! println!("{}", profile.verdict.expect("a check has a verdict").kind.name());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Write it
//!
//! [`write()`] knows all formats of the command line, [`Format::from_path`] tells which one a file's name means:
//!
//! ```
//! use heaptrace::{ExportOptions, Format, Profiler};
//!
//! let profile = Profiler::new().run("true", &[])?;
//! let mut page = Vec::new();
//! heaptrace::write(Format::from_path("profile.html".as_ref())?, &profile, &ExportOptions::default(), &mut page)?;
//! assert!(page.starts_with(b"<!"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Look at a process that runs
//!
//! [`Heap`] walks the heap of a process that nobody has traced, by its allocator's own structures, and leaves it as it
//! was:
//!
//! ```
//! let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn()?;
//! # std::thread::sleep(std::time::Duration::from_millis(200));
//! let heap = heaptrace::Heap::of(child.id() as i32);
//! drop(child.stdin.take());
//! child.wait()?;
//! println!("{}", heap?.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To record what a running process allocates from now on (`heaptrace attach`) is the command's alone: it keeps a
//! second process that gives the target its own code back if the first one is killed, and a library has no such
//! process.
//!
//! # The flow
//!
//! ```text
//! kernel stop
//!   -> tracer/        what stopped, why, with which registers                      the OS edge
//!   -> session        decides what the stop means, carries out the answer
//!   -> unwinder       registers + memory -> an interned stack                      at entries only
//!   -> calls          entry and return, per thread -> heap event                   pure
//!   -> heapmodel      live blocks, totals per site, the peak, errors               pure
//!   -> leaks          at the end: which live blocks can still be reached           pure
//!   -> naming         a recording -> a profile, with names from symbols/           after the run
//!   -> check          suppressions, baseline, verdict                              pure
//!   -> export/        pprof, flame graph, folded stacks, JSON, text                pure over io::Write
//! ```
//!
//! # The modules
//!
//! From the bottom to the top; each imports only such as stand before it. `ARCHITECTURE.md` says more.
//!
//! * What has no target: `base`.
//! * The pure core: `arch`, `image`, `allocators`, `breakpoints`, `unwinder`, `jump`, `event`, `heapmodel`, `heap`.
//! * What was found: [`profile`], `symbols`, `export`, `trace`, `top`.
//! * The target: `tracer` (the only one that calls the kernel), `session` (what each stop means), `inspect` (processes
//!   that nobody traces), `naming`, `saved` (traces instead of stops).
//! * Who asks: [`Profiler`] for other crates; `cli` and `commands` for the command line.

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "what only the command line needs is not apart")
)]

mod allocators;
mod arch;
mod base;
mod breakpoints;
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod commands;
mod event;
mod export;
mod heap;
mod heapmodel;
mod image;
mod inspect;
mod jump;
mod naming;
pub mod profile;
mod profiler;
mod saved;
mod session;
mod symbols;
#[cfg(feature = "cli")]
mod top;
mod trace;
mod tracer;
mod unwinder;

pub use base::engine::EngineChoice;
pub use export::{ExportOptions, Format, FormatError, PprofColumns, Source, write};
pub use profile::check::CheckRules;
pub use profile::check::baseline::{Baseline, BaselineError};
pub use profile::check::suppressions::{SuppressionError, Suppressions};
pub use profile::check::verdict::{Limits, Policy};
pub use profiler::{Heap, HeapError, LiveBlocks, Profiler, ProfilerError};

/// What this package's program, tests and benchmarks need besides. No promise is made about any of it.
#[doc(hidden)]
pub mod internal {
    pub use crate::allocators::{AllocatorTable, ModuleSymbols};
    pub use crate::arch::emulate::{ARITHMETIC, Emulated, Outcome};
    pub use crate::arch::step::{Pad, Planned, StepError, StepOver, build_pad, plan};
    pub use crate::arch::{Regs, reg};
    pub use crate::base::addr::{Addr, FrameAddr, LoadBias, ModuleId, ObjAddr};
    pub use crate::base::memory::{MemoryImage, ReadMemory};
    pub use crate::heap::leaks::{Graph, RootKind, RootRange, Roots, Scan, ScanOptions};
    pub use crate::heapmodel::{LiveBlock, SiteId};
    pub use crate::image::elf::Elf;
    pub use crate::profile::symbolize::Symbolize;
    pub use crate::symbols::{ModuleSource, Search, Symbolizer};
    pub use crate::tracer::libunwind::Libunwind;
    pub use crate::tracer::limits;
    pub use crate::tracer::memory::TargetMemory;
    pub use crate::unwinder::{Quality, Section, UnwindModule, Unwinder, Unwound};

    /// The live blocks of a process that runs on meanwhile, with what may be used of each; and how many things were not
    /// as its allocator leaves them.
    pub fn heap_of(pid: i32) -> (std::collections::BTreeMap<u64, u64>, usize) {
        let walk = crate::inspect::walk(pid).ok().flatten().unwrap_or_default();
        let live = walk.chunks.iter().filter(|chunk| chunk.state == crate::heap::walk::State::Live);
        (live.map(|chunk| (chunk.block().0, chunk.usable())).collect(), walk.findings.len())
    }

    #[cfg(feature = "cli")]
    pub mod cli {
        pub use crate::cli::{EXIT_OWN_FAILURE, Refusal, When, parse};
    }

    #[cfg(feature = "cli")]
    pub mod commands {
        pub use crate::commands::{execute, exit_status, message, print, tell, use_color};
    }

    #[cfg(feature = "cli")]
    pub mod ctl {
        pub use crate::top::ctl::{
            Command, LONGEST_QUESTION, Request, Response, TextStyle, VERSION, receive, receive_question, send,
        };
    }

    pub mod heap {
        pub use crate::base::addr::{FunctionId, StackId, TaskId};
        pub use crate::event::{Call, Event, EventKind, MarkName, Preexisting};
        pub use crate::heapmodel::HeapModel;
        pub use crate::unwinder::{Frame, StackTable};
    }

    pub mod heapfile {
        pub use crate::heap::file::diff::compare;
        pub use crate::heap::file::{SavedHeap, read};
        use std::io;

        /// Writes a heap in all formats, and forgets them.
        ///
        /// # Errors
        /// A format could not be written.
        pub fn tell_all(heap: &SavedHeap) -> io::Result<()> {
            use crate::export::heap::{HeapReport, json, markdown_report, pprof, snapshot, text};
            let report = HeapReport::from(heap);
            let paint = crate::export::text::Paint { color: false };
            let told = [text(&report, paint), json(&report), markdown_report(&report)];
            debug_assert!(told.iter().all(|told| !told.is_empty()));
            if let Some(held) = report.held {
                snapshot::write(held, &mut io::sink())?;
                pprof::write(held, 0, &mut io::sink())?;
            }
            crate::heap::file::write(heap, &mut io::sink())
        }
    }

    pub mod trace {
        pub use crate::allocators::Family;
        pub use crate::base::addr::{FunctionId, ImageId, ProcessId, StackId, TaskId};
        pub use crate::event::{Call, Definition, Event, EventKind, EventSink, Preexisting, TICK_NS};
        pub use crate::saved::replay::{Ending, Moment, Replay, ReplayOptions, TracePart};
        pub use crate::trace::{
            FORMAT, TraceMode, fxt, metadata, process_koid, process_of, reader, recorder, task_of, thread_koid,
            vocabulary, writer,
        };
        pub use crate::unwinder::StackNode;
    }

    pub mod jump {
        pub use crate::jump::layout;
        pub use crate::jump::nodes::{CallerRule, Nodes};
        pub use crate::jump::rules::Rules;
        pub use crate::jump::sampling::SizeOf;
        pub use crate::jump::shared::Shared;
        pub use crate::jump::stub::{STUB_SIZE, STUBS, Stub, assemble};
        pub use crate::jump::tails::Tails;
        pub use crate::tracer::jump::routine;
    }

    pub mod import {
        pub use crate::saved::import::{ImportError, Limits, read};
    }

    pub mod maps {
        pub use crate::image::maps::{MapIndex, modules, parse};
    }
}
