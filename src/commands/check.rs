//! `heaptrace check`: run a program and judge it.

mod rules;

use super::conclude::{Destinations, Judging, conclude_check};
use super::earlynames::EarlyLook;
use super::settings::settings;
use super::{owners, run, tell};
use crate::cli::{CheckOptions, EXIT_OWN_FAILURE};
use crate::event::Generation;
use crate::export::Source;
use crate::export::output::write_file;
use crate::heap::leaks::ScanOptions;
use crate::profile::check::suppressions;
use crate::session::LeakScan;
use crate::tracer::control;
use anyhow::{Context, bail};
use rules::Rules;
use std::path::Path;
use std::sync::Arc;

/// Runs the program, judges it and tells the verdict, which is the exit status.
///
/// # Errors
/// If an output can't be written, a file of the judgement can't be read, or the program can't be executed: then nothing
/// has been started.
pub fn execute(options: &CheckOptions) -> anyhow::Result<u8> {
    let profile = &options.run.profile;
    if profile.start_paused || profile.delay.is_some() || profile.toggle_signal.is_some() {
        bail!("check needs to see the program from start to end: omit --start-paused, --delay and --toggle-signal");
    }
    if profile.occasions.generation != Generation::default() {
        bail!("check judges all blocks: omit --since and --until");
    }
    if profile.sample_interval > 0 {
        bail!("check needs every block: omit --sample-interval and --max-overhead");
    }
    if profile.duration.is_some() {
        bail!(
            "--duration would let the program go without a judgement; --timeout ends the program, and judges it then"
        );
    }
    let destinations = Destinations::prepare(profile)?.filled_from(Source::Check)?;
    let mut rules = Rules::read(options, std::env::var_os("LSAN_OPTIONS"))?;
    if let Some(path) = &options.gen_suppressions {
        prepare_file(path)?;
    }
    let mut settings = settings(profile, true)?;
    settings.profile_each = destinations.take_processes();
    Arc::make_mut(&mut settings.table).watch_deletes();
    settings.per_test = options.per_test;
    settings.leak_scan = Some(ScanOptions { interior: options.interior, ..ScanOptions::default() });
    let Some(mut traced) = run::trace(&options.run, settings, options.timeout, &destinations, &mut EarlyLook::None)?
    else {
        return Ok(EXIT_OWN_FAILURE);
    };
    let (pid, lives_on) =
        (traced.first.process.pid, traced.first.facts.detached && traced.first.process.exit.is_none());
    for recording in traced.all_mut() {
        if let LeakScan::Done(scan) = &recording.leaks {
            recording.facts.warnings.extend(rules.add_own(&scan.own_suppressions));
        }
    }
    // What came while the program was traced is its own, and must not end the writing.
    let late = control::pending_signals();
    let judging = Judging { options, rules: &rules.rules };
    let concluded = conclude_check(traced, &destinations, &judging);
    let mut has_failed = concluded.has_failed();
    if let Some(path) = &options.gen_suppressions {
        let text = suppressions::generate(&concluded.profile, &options.policy);
        let another_user = concluded.profile.meta.process.of_another_user;
        if let Err(error) = write_file(path, owners(), another_user, |out| out.write_all(text.as_bytes())) {
            has_failed = true;
            tell(&format!("{}: {error}", path.display()));
        }
    }
    let verdict = concluded.profile.verdict.as_ref().map_or(EXIT_OWN_FAILURE, |verdict| verdict.exit_status);
    if lives_on {
        let status = run::wait_for_the_rest(pid, late.into_iter().chain(concluded.interrupted))?;
        return Ok(if status == 0 { verdict } else { status });
    }
    Ok(if verdict == 0 && has_failed { EXIT_OWN_FAILURE } else { verdict })
}

/// Finds out whether a file can be written, as far as that goes without writing it.
fn prepare_file(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if path.exists() {
        let file = std::fs::OpenOptions::new().append(true).open(path);
        return file.map(|_| ()).with_context(|| format!("{shown}: can't be written"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("{shown}: there is no folder {}", folder.display());
    }
    Ok(())
}
