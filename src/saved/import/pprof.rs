//! pprof profiles, from their bytes: those of heaptrace with each set of columns, Go's, memory_sampler's, and what
//! `pprof -proto` makes of the files of gperftools and jemalloc.
//!
//! Names of columns and the meaning of labels are those of `docs/profile.md`. Ids of locations can be any numbers
//! (memory_sampler's are addresses). The tables may stand in any order, so that samples are read last.

mod samples;
mod tables;

use super::budget::{Budget, Exhausted};
use super::wire::Torn;
use super::{ImportError, Limits, comments};
use crate::profile::identity::alternatives;
use crate::profile::saved::{Holds, Saved, Writer};
use crate::profile::{Conditions, Cost, Meta, Mode, ProcessInfo, Profile};
use samples::Samples;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tables::Tables;

/// Why reading ended; the file's name comes to it later.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Trouble {
    Damaged(String),
    TooLarge,
    NoProfile,
    NoHeap(String),
    Negative,
}

impl From<Torn> for Trouble {
    fn from(_: Torn) -> Self {
        Self::Damaged("a field ends too early, or is none".to_owned())
    }
}

impl From<Exhausted> for Trouble {
    fn from(_: Exhausted) -> Self {
        Self::TooLarge
    }
}

/// The columns of a heap profile, by what they count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Live,
    Allocated,
    Deallocated,
    Peak,
}

impl Role {
    /// What a column of this name counts, and whether in bytes.
    fn of(name: &str) -> Option<(Self, bool)> {
        Some(match name {
            "residual_allocated_objects" | "inuse_objects" | "objects" => (Self::Live, false),
            "residual_allocated_space" | "inuse_space" | "inuse" | "space" => (Self::Live, true),
            "allocated_objects" | "alloc_objects" => (Self::Allocated, false),
            "allocated_space" | "alloc_space" => (Self::Allocated, true),
            "deallocated_objects" => (Self::Deallocated, false),
            "deallocated_space" => (Self::Deallocated, true),
            "peak_objects" => (Self::Peak, false),
            "peak_space" => (Self::Peak, true),
            _ => return None,
        })
    }
}

/// Which column holds the objects and which the bytes of each role, in the order of [`Role`].
#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    by_role: [[Option<usize>; 2]; 4],
    all: usize,
}

impl Columns {
    fn new(names: &[&str]) -> Result<Self, Trouble> {
        let mut columns = Self { all: names.len(), ..Self::default() };
        for (index, name) in names.iter().enumerate() {
            let Some((role, bytes)) = Role::of(name) else { continue };
            // Twice under different names, as in our own files: the first one counts.
            if let Some(slot) = columns.by_role.get_mut(role as usize).and_then(|pair| pair.get_mut(usize::from(bytes)))
            {
                slot.get_or_insert(index);
            }
        }
        if !columns.has(Role::Live) && !columns.has(Role::Allocated) {
            if names.iter().all(|name| name.is_empty()) {
                return Err(Trouble::NoProfile);
            }
            let names: Vec<String> = names.iter().take(8).map(|name| name.chars().take(40).collect()).collect();
            return Err(Trouble::NoHeap(names.join(", ")));
        }
        Ok(columns)
    }

    fn of(&self, role: Role) -> [Option<usize>; 2] {
        self.by_role.get(role as usize).copied().unwrap_or_default()
    }

    fn has(&self, role: Role) -> bool {
        self.of(role).iter().any(Option::is_some)
    }

    fn holds(&self) -> Holds {
        let (live, allocated) = (self.has(Role::Live), self.has(Role::Allocated));
        let (deallocated, peak) = (self.has(Role::Deallocated), self.has(Role::Peak));
        Holds { live, allocated, deallocated, peak, freed: live && allocated, temporary: false, lifetimes: false }
    }
}

/// Reads the message.
pub(super) fn read(bytes: &[u8], name: &str, limits: &Limits, budget: &mut Budget) -> Result<Profile, ImportError> {
    let file = name.to_owned();
    profile(bytes, budget).map_err(|trouble| match trouble {
        Trouble::Damaged(what) => ImportError::Damaged { file, what },
        Trouble::TooLarge => ImportError::TooLarge { file, limit: limits.memory >> 20 },
        Trouble::NoProfile => ImportError::Unknown { file },
        Trouble::NoHeap(columns) => ImportError::NoHeap { file, columns },
        Trouble::Negative => ImportError::Negative { file },
    })
}

fn profile(bytes: &[u8], budget: &mut Budget) -> Result<Profile, Trouble> {
    let tables = Tables::read(bytes, budget)?;
    let columns = Columns::new(&tables.column_names())?;
    let modules = tables.modules(budget)?;
    let program = modules.first().map(|module| basename(&module.path)).unwrap_or_default();
    let mut profile = empty(&tables, program);
    let mut saved = Saved {
        writer: if is_sampler(&tables) { Writer::MemorySampler } else { Writer::Other },
        holds: columns.holds(),
        about_peak: tables.default_column().starts_with("peak"),
        parts: Vec::new(),
        ..Saved::whole()
    };
    comments::apply(tables.comments(), &mut profile, &mut saved, budget)?;
    if saved.writer == Writer::Heaptrace {
        for frame in alternatives(tables.drop_frames()).filter(|frame| !frame.is_empty()) {
            budget.hashed::<String, ()>()?;
            budget.copy(frame.len())?;
            saved.drop_frames.insert(frame.to_owned());
        }
    }
    profile.modules = modules;
    tables.functions_and_locations(&mut profile, budget)?;
    let mut samples = Samples::new(&tables, &columns, saved.is_partial(), budget)?;
    samples.read(bytes, &mut profile, budget)?;
    if let Some(pid) = samples.pid.filter(|_| profile.meta.process.pid == 0 && saved.files == 1) {
        profile.meta.process.pid = pid;
    }
    saved.holds.freed &= !saved.is_partial();
    profile.add_sums(saved.holds.deallocated);
    profile.saved = Some(Box::new(saved));
    Ok(profile)
}

/// Whether the six columns of memory_sampler are all that there is.
fn is_sampler(tables: &Tables<'_>) -> bool {
    let names = tables.column_names();
    names.len() == 6 && names.iter().all(|name| Role::of(name).is_some()) && names.contains(&"deallocated_space")
}

fn basename(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A profile of which only the head is known.
fn empty(tables: &Tables<'_>, program: String) -> Profile {
    let process = ProcessInfo {
        pid: 0,
        pid_inside: None,
        program,
        command: Vec::new(),
        cwd: PathBuf::new(),
        started_at: UNIX_EPOCH + Duration::from_nanos(tables.time_nanos),
        of_another_user: false,
        users: std::collections::BTreeSet::new(),
        user_is_unknown: true,
        exit: None,
        resident: None,
    };
    let meta = Meta {
        process,
        mode: Mode::Run,
        part: 1,
        duration_ns: tables.duration_nanos,
        engine: String::new(),
        complete: true,
        session: String::new(),
        sample_interval: tables.interval(),
    };
    let cost = Cost { wall_ns: tables.duration_nanos, conditions: Conditions::default(), ..Cost::default() };
    Profile { cost, ..Profile::empty(meta) }
}
