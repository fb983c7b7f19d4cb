//! From the options that `run` and `attach` share to how a session traces.

use crate::allocators::AllocatorTable;
use crate::base::engine::EngineChoice;
use crate::base::glob::Selection;
use crate::cli::{ProfileOptions, Unwinder};
use crate::event::Generation;
use crate::session::{Settings, new_session_id};
use crate::symbols::Search;
use anyhow::bail;
use std::path::PathBuf;
use std::sync::Arc;

/// Resolves the options. `exit_kill`: see [`Settings::exit_kill`].
///
/// # Errors
/// Options that make no sense together, or a declaration of an allocator function that can't be understood.
pub fn settings(options: &ProfileOptions, exit_kill: bool) -> anyhow::Result<Settings> {
    if !options.follow && options.selection != Selection::default() {
        bail!("--only and --skip choose among the processes that -f follows: add -f");
    }
    if options.occasions.generation != Generation::default() && options.series.is_some() {
        bail!("--since and --until are for one profile at the end: omit --profile-every and --profile-every-allocs");
    }
    if options.max_overhead.is_some() && options.engine == EngineChoice::Trap {
        bail!(
            "--max-overhead can't limit the cost of --engine trap, which stops the program at each call, whatever the \
             interval"
        );
    }
    if options.python && options.unwinder == Unwinder::Libunwind {
        bail!("--python shows its functions in the stacks that heaptrace walks itself: omit --unwinder libunwind");
    }
    let table = AllocatorTable::new();
    let mut table = if options.mmap { table.with_mappings() } else { table };
    for spec in &options.alloc_fns {
        table.declare(AllocatorTable::parse_alloc_fn(spec)?);
    }
    for spec in &options.free_fns {
        table.declare(AllocatorTable::parse_free_fn(spec)?);
    }
    Ok(Settings {
        table: Arc::new(table),
        search: Search::new(&options.debug_dirs, None, options.sysroot.clone(), PathBuf::from("/")),
        max_depth: u32::try_from(options.max_depth).unwrap_or(u32::MAX),
        free_stacks: options.free_stacks,
        sample_interval: options.sample_interval,
        max_overhead: options.max_overhead,
        engine: engine(options.engine),
        libunwind: options.unwinder == Unwinder::Libunwind,
        pin: options.pin,
        exit_kill,
        existing: false,
        copy: None,
        start_paused: options.start_paused || options.delay.is_some(),
        guardian: None,
        requests: Arc::default(),
        leak_scan: None,
        per_test: false,
        python: options.python,
        perturb: false,
        follow: options.follow,
        selection: options.selection.clone(),
        profile_each: true,
        session: new_session_id(),
        generation: options.occasions.generation,
        trace: None,
        endings: None,
        near_end: None,
    })
}

/// The engine that was asked for. In builds with debug assertions the environment variable `HEAPTRACE_ENGINE` says
/// which of the others `auto` is.
fn engine(asked: EngineChoice) -> EngineChoice {
    let by_tests = std::env::var("HEAPTRACE_ENGINE").ok().filter(|_| cfg!(debug_assertions));
    let named = |name: &str| EngineChoice::ALL.into_iter().find(|engine| engine.name() == name);
    match asked {
        EngineChoice::Auto => by_tests.as_deref().and_then(named).unwrap_or(asked),
        asked => asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn python_s_functions_are_in_stacks_of_our_own_walks_only() {
        let words = ["heaptrace", "run", "--python", "./app"].map(Into::into);
        let Ok(Command::Run(mut options)) = parse(words, false, |_| None) else { panic!() };
        assert!(settings(&options.profile, false).is_ok());
        options.profile.unwinder = Unwinder::Libunwind;
        let refused = settings(&options.profile, false).unwrap_err().to_string();
        assert!(refused.contains("omit --unwinder libunwind"), "{refused}");
        options.profile.python = false;
        assert!(settings(&options.profile, false).is_ok());
    }
}
