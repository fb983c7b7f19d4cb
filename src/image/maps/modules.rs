//! Which mappings belong to one loaded object.

use super::{Device, Kind, Mapping};
use crate::base::addr::Addr;
use std::ops::Range;
use std::path::PathBuf;

/// An object with code, loaded once: the program, a library, the vdso.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedModule {
    /// Its path as the target sees it; `[vdso]` for the vdso.
    pub path: PathBuf,
    /// The file was removed or replaced since it was mapped: the path no longer leads to it.
    pub deleted: bool,
    /// The file's device.
    pub dev: Device,
    /// The file's inode; 0 for the vdso.
    pub inode: u64,
    /// Its mappings in the order of addresses, with anonymous parts that lie directly behind another one (.bss, text
    /// moved to huge pages).
    pub segments: Vec<Mapping>,
    /// Anonymous code near them, in the order of addresses. It may be text that was moved, or a JIT's: only the file
    /// tells ([`Self::adopt`]).
    pub nearby_code: Vec<Mapping>,
}

impl MappedModule {
    /// The lowest address.
    pub fn start(&self) -> Addr {
        self.segments.first().map_or(Addr::NULL, |m| m.start)
    }

    /// One past the highest address.
    pub fn end(&self) -> Addr {
        self.segments.last().map_or(Addr::NULL, |m| m.end)
    }

    /// The executable ranges, in the order of addresses; adjacent ones are one.
    pub fn code(&self) -> Vec<Range<Addr>> {
        let mut ranges: Vec<Range<Addr>> = Vec::new();
        for mapping in self.segments.iter().filter(|m| m.perms.execute) {
            match ranges.last_mut() {
                Some(last) if last.end == mapping.start => last.end = mapping.end,
                _ => ranges.push(mapping.range()),
            }
        }
        ranges
    }

    /// Whether it is the vdso, whose bytes are in memory only.
    pub fn is_vdso(&self) -> bool {
        self.segments.first().is_some_and(|m| m.kind == Kind::Vdso)
    }

    fn is_same_file(&self, mapping: &Mapping) -> bool {
        mapping.kind == Kind::File
            && self.dev == mapping.dev
            && self.inode == mapping.inode
            && self.deleted == mapping.deleted
            && mapping.path.as_ref() == Some(&self.path)
    }

    /// Whether two snapshots of the maps show the same load of the same file, `self` the earlier one.
    ///
    /// Not by the path: a file that is renamed stays mapped. Nor by the start alone: the first piece may have been
    /// moved to anonymous memory since. Then another piece of the file is where it was, and there is still code.
    pub fn is_same_load(&self, later: &Self) -> bool {
        let of_file = |module: &Self| module.segments.iter().find(|m| m.kind != Kind::Anonymous).cloned();
        let (Some(first), Some(now)) = (of_file(self), of_file(later)) else { return false };
        if (self.inode, self.dev) != (later.inode, later.dev) {
            return false;
        }
        let holds = |m: &Mapping| {
            m.kind == Kind::File
                && m.contains(now.start)
                && m.perms.execute == now.perms.execute
                && now.start.0 - m.start.0 == now.offset.wrapping_sub(m.offset)
        };
        let is_covered = |code: &Range<Addr>| {
            later.segments.iter().chain(&later.nearby_code).any(|m| m.perms.execute && m.contains(code.start))
        };
        first.start == now.start || self.segments.iter().any(holds) && self.code().iter().all(is_covered)
    }

    /// Takes those of the code nearby into the module that `is_its` says are its file's, from the offset that it says,
    /// and leaves the others to whoever made them.
    pub fn adopt(&mut self, mut is_its: impl FnMut(&Mapping) -> Option<u64>) {
        for mapping in std::mem::take(&mut self.nearby_code) {
            if let Some(offset) = is_its(&mapping) {
                let at = self.segments.partition_point(|segment| segment.start < mapping.start);
                self.segments.insert(at, Mapping { offset, ..mapping });
            }
        }
    }

    /// Whether it has code; or, if all of its text was moved, may have: data that only an object's file has is left,
    /// and there is code nearby.
    fn may_have_code(&self) -> bool {
        let is_data = |m: &Mapping| m.kind == Kind::File && m.perms.write && !m.perms.shared;
        self.has_code() || !self.nearby_code.is_empty() && self.segments.iter().any(is_data)
    }

    fn has_code(&self) -> bool {
        self.segments.iter().any(|m| m.perms.execute)
    }
}

/// Groups mappings, given in the order of addresses, into the objects that have executable parts, or may have: see
/// [`MappedModule::nearby_code`].
///
/// Successive mappings of one file are one object, unless the file begins anew (dlmopen loads a library twice). Files
/// that are merely mapped as data are left out.
pub fn modules(mappings: &[Mapping]) -> Vec<MappedModule> {
    let mut found: Vec<MappedModule> = Vec::new();
    let mut current: Option<MappedModule> = None;
    for (i, mapping) in mappings.iter().enumerate() {
        let rest = mappings.get(i..).unwrap_or_default();
        match &mut current {
            Some(module) if belongs(module, mapping, rest) => {
                module.segments.push(mapping.clone());
                continue;
            }
            Some(module) if mapping.kind == Kind::Anonymous && mapping.perms.execute && continues(module, rest) => {
                continue;
            }
            _ => {}
        }
        found.extend(current.take().map(without_foreign_tail));
        if matches!(mapping.kind, Kind::File | Kind::Vdso)
            && let Some(path) = &mapping.path
        {
            current = Some(MappedModule {
                path: path.clone(),
                deleted: mapping.deleted,
                dev: mapping.dev,
                inode: mapping.inode,
                segments: vec![mapping.clone()],
                nearby_code: Vec::new(),
            });
        }
    }
    found.extend(current.map(without_foreign_tail));
    for module in &mut found {
        module.nearby_code = code_near(module, mappings);
    }
    found.retain(MappedModule::may_have_code);
    found
}

/// Anonymous code between a module's pieces, and below and above them up to what is not anonymous, that is in none of
/// its segments.
fn code_near(module: &MappedModule, mappings: &[Mapping]) -> Vec<Mapping> {
    /// An object's code reaches its data by 32 bits.
    const REACH: u64 = 1 << 31;
    if module.is_vdso() {
        return Vec::new();
    }
    let below = mappings.partition_point(|m| m.start < module.start());
    let above = mappings.partition_point(|m| m.start < module.end());
    let (before, rest) = mappings.split_at(below);
    let (between, after) = rest.split_at(above.saturating_sub(below));
    let is_anonymous = |m: &&Mapping| m.kind == Kind::Anonymous;
    let mut near: Vec<&Mapping> = before.iter().rev().take_while(is_anonymous).collect();
    near.reverse();
    near.extend(between.iter().filter(is_anonymous));
    near.extend(after.iter().take_while(is_anonymous));
    let is_code_near = |m: &&Mapping| {
        m.perms.execute
            && m.end.0.saturating_add(REACH) > module.start().0
            && m.start.0 < module.end().0.saturating_add(REACH)
            && !module.segments.iter().any(|segment| segment.start == m.start)
    };
    near.into_iter().filter(is_code_near).cloned().collect()
}

/// Whether the first of `rest` continues `module`.
fn belongs(module: &MappedModule, mapping: &Mapping, rest: &[Mapping]) -> bool {
    match mapping.kind {
        Kind::File => module.is_same_file(mapping) && !begins_anew(module, rest),
        // .bss, or a part of the text that the program has moved to anonymous memory. What of a longer run of
        // anonymous mappings is not the module's is cut off at the end.
        Kind::Anonymous => !module.is_vdso() && module.end() == mapping.start,
        _ => false,
    }
}

/// Whether the module's file goes on behind the anonymous mappings that `rest` begins with. Where its segments lie
/// apart, as those of programs that are made for huge pages do, a part of the text that was moved has nothing of the
/// file next to it.
fn continues(module: &MappedModule, rest: &[Mapping]) -> bool {
    let Some(next) = rest.iter().position(|mapping| mapping.kind != Kind::Anonymous) else { return false };
    let rest = rest.get(next..).unwrap_or_default();
    rest.first().is_some_and(|mapping| module.is_same_file(mapping)) && !begins_anew(module, rest)
}

/// Whether the first of `rest`, a mapping of the module's file, is the beginning of another load of it.
///
/// Going back to the file's start tells it, but in small objects the data segments share the file's first page with the
/// headers: it is another load only if code follows before the file's start comes up again.
fn begins_anew(module: &MappedModule, rest: &[Mapping]) -> bool {
    let Some((first, after)) = rest.split_first() else { return false };
    let restarts = |m: &Mapping| m.offset == 0 && !m.perms.write && m.kind == Kind::File;
    if !restarts(first) || !module.has_code() {
        return false;
    }
    let is_code = |m: &Mapping| m.perms.execute;
    is_code(first)
        || after
            .iter()
            .take_while(|m| module.is_same_file(m) || m.kind == Kind::Anonymous)
            .take_while(|m| !restarts(m) || is_code(m))
            .any(|m| is_code(m) && module.is_same_file(m))
}

/// Drops the anonymous mappings behind the last one of the file, except the first if it can be .bss.
fn without_foreign_tail(mut module: MappedModule) -> MappedModule {
    let Some(last) = module.segments.iter().rposition(|m| m.kind != Kind::Anonymous) else { return module };
    let bss = module
        .segments
        .get(last + 1)
        .is_some_and(|m| m.perms.write && !m.perms.execute && module.segments.get(last).is_some_and(|f| f.perms.write));
    module.segments.truncate(last + 1 + usize::from(bss));
    module
}
