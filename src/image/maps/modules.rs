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
    /// Its mappings in the order of addresses, with anonymous parts (.bss, text moved to huge pages).
    pub segments: Vec<Mapping>,
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

    fn has_code(&self) -> bool {
        self.segments.iter().any(|m| m.perms.execute)
    }
}

/// Groups mappings, given in the order of addresses, into the objects that have executable parts.
///
/// Successive mappings of one file are one object, unless the file begins anew (dlmopen loads a library twice). Files
/// that are merely mapped as data are left out.
pub fn modules(mappings: &[Mapping]) -> Vec<MappedModule> {
    let mut found: Vec<MappedModule> = Vec::new();
    let mut current: Option<MappedModule> = None;
    for (i, mapping) in mappings.iter().enumerate() {
        if let Some(module) = &mut current
            && belongs(module, mapping, mappings.get(i..).unwrap_or_default())
        {
            module.segments.push(mapping.clone());
            continue;
        }
        found.extend(current.take().map(without_foreign_tail).filter(MappedModule::has_code));
        if matches!(mapping.kind, Kind::File | Kind::Vdso)
            && let Some(path) = &mapping.path
        {
            current = Some(MappedModule {
                path: path.clone(),
                deleted: mapping.deleted,
                dev: mapping.dev,
                inode: mapping.inode,
                segments: vec![mapping.clone()],
            });
        }
    }
    found.extend(current.map(without_foreign_tail).filter(MappedModule::has_code));
    found
}

/// Whether the first of `rest` continues `module`.
fn belongs(module: &MappedModule, mapping: &Mapping, rest: &[Mapping]) -> bool {
    match mapping.kind {
        Kind::File => module.is_same_file(mapping) && !begins_anew(module, rest),
        // .bss, or a part of the text that the program has moved to anonymous memory. What of a longer run of
        // anonymous mappings is not the module's is cut off at the end.
        Kind::Anonymous => {
            !module.is_vdso() && (module.end() == mapping.start || mapping.perms.is_code() && continues(module, rest))
        }
        _ => false,
    }
}

/// Whether the module's file goes on behind the anonymous mappings that `rest` begins with. Where its segments lie
/// apart, as those of programs
/// that are made for huge pages do, a part of the text that was moved has nothing of the file next to it.
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
