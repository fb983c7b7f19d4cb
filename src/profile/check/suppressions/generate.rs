//! Ready suppressions for what a check found (`--gen-suppressions`), as Memcheck reads them too.

use super::{UNKNOWN, names};
use crate::allocators::AllocatorTable;
use crate::profile::check::verdict::Policy;
use crate::profile::leaks::{LeakClass, LeakSite};
use crate::profile::{Location, Profile};
use std::fmt::Write;

/// How many lines an entry's stack has at most: Memcheck sees so many frames (its default of `--num-callers`).
const LINES: usize = 12;

/// Entries for all leaks that the verdict counts, each once. Functions are named as symbol tables have them, inlined
/// calls are left open, since whether a tool sees them depends on its debug information.
pub fn generate(profile: &Profile, policy: &Policy) -> String {
    let table = AllocatorTable::new();
    let mut text = String::new();
    let mut written: Vec<String> = Vec::new();
    for site in profile.leaks.iter().flat_map(|leaks| &leaks.sites) {
        // what hangs on a block is hidden with it
        let failing = LeakClass::ALL.into_iter().filter(|class| site.fails(&policy.leak_kinds, *class));
        let Some((name, body)) = entry(profile, site, &failing.collect::<Vec<_>>(), &table) else { continue };
        if !written.contains(&body) {
            let _ = writeln!(text, "{{\n   {name}\n{body}}}");
            written.push(body);
        }
    }
    text
}

/// The entry for a site's leaks of these classes; None if there are none, or for a stack of which nothing is known.
pub fn suppression_of(profile: &Profile, site: &LeakSite, classes: &[LeakClass]) -> Option<String> {
    let (name, body) = entry(profile, site, classes, &AllocatorTable::new())?;
    Some(format!("{{\n   {name}\n{body}}}\n"))
}

/// The name of an entry, and what follows it.
fn entry(
    profile: &Profile,
    site: &LeakSite,
    classes: &[LeakClass],
    table: &AllocatorTable,
) -> Option<(String, String)> {
    let kinds: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    if kinds.is_empty() {
        return None;
    }
    let (name, stack) = stack(profile, site, table)?;
    Some((name, format!("   Memcheck:Leak\n   match-leak-kinds: {}\n{stack}", kinds.join(","))))
}

/// The name of an entry and its stack; None for a stack of which nothing is known.
fn stack(profile: &Profile, site: &LeakSite, table: &AllocatorTable) -> Option<(String, String)> {
    let alloc_fn = profile.strings.get(site.alloc_fn).map_or("malloc", String::as_str);
    let symbol = table.iter().find(|(_, function)| function.name == alloc_fn).map_or(alloc_fn, |(_, f)| &f.symbol);
    // `new[]` looks like `new` on our stacks, where libstdc++ jumps from one to the other, and not on Memcheck's
    let mut lines =
        vec![symbol.strip_prefix("_Znw").map_or_else(|| format!("fun:{symbol}"), |rest| format!("fun:_Zn?{rest}"))];
    let locations: Vec<&Location> =
        profile.locations_of(site.stack).filter_map(|index| profile.locations.get(index as usize)).collect();
    let mut called = Vec::new();
    for location in &locations {
        let outer = location.lines.last().and_then(|line| profile.functions.get(line.function))?;
        let is_rust = lines.len() == 1 && outer.name.contains("::") && !alloc_fn.starts_with("operator");
        if (location.lines.len() > 1 || is_rust) && lines.last().is_some_and(|line| line != "...") {
            lines.push("...".to_owned());
        }
        lines.push(frame(profile, location, &outer.name, &outer.system_name)?);
        called.extend(
            location.lines.iter().filter_map(|line| profile.functions.get(line.function)).map(|f| f.name.clone()),
        );
        // what is below main has other names for Memcheck
        if lines.len() >= LINES || outer.name == "main" && !location.is_script() {
            break;
        }
    }
    (lines.len() > 1).then(|| {
        let name: Vec<&str> = called.iter().take(3).map(String::as_str).collect();
        let name = format!("leak in {}", name.join(", called by ")).replace(char::is_control, "?");
        (name, lines.iter().fold(String::new(), |text, line| text + "   " + line + "\n"))
    })
}

/// `fun:` or `obj:` of one frame; None where the stack was cut off.
fn frame(profile: &Profile, location: &Location, name: &str, system_name: &str) -> Option<String> {
    if location.is_script() {
        // a script may give a function any name, and `*` and `?` stand for others
        let name = if name.is_empty() { "*" } else { &name.replace(|c: char| c.is_control() || c == '*', "?") };
        return Some(format!("fun:{name}"));
    }
    let module = location.module.and_then(|index| profile.modules.get(index))?;
    if names(name, system_name).contains(&UNKNOWN) {
        return Some(format!("obj:{}", module.path.display()));
    }
    let symbol = if system_name.is_empty() { name } else { system_name };
    if symbol.starts_with('_') && !["_Z", "_R"].iter().any(|mangled| symbol.starts_with(mangled)) {
        // the C library has several names for one function, and each tool takes another (`strdup`, `__GI___strdup`)
        let file = module.path.file_name().unwrap_or(module.path.as_os_str());
        return Some(format!("obj:*/{}", file.display()));
    }
    let symbol = &any_variant(symbol);
    // versions differ between machines, and some tools cut them off
    Some(symbol.split_once('@').map_or_else(|| format!("fun:{symbol}"), |(bare, _)| format!("fun:{bare}*")))
}

/// A mangled name with a wildcard for the variant of a constructor or destructor (`C1`, `C2`, `D0`, `D1`, `D2`; Itanium
/// C++ ABI, 5.1.4.3): one function has several of these names.
fn any_variant(symbol: &str) -> String {
    let variants = ["C1E", "C2E", "D0E", "D1E", "D2E"];
    if !symbol.starts_with("_ZN") {
        return symbol.to_owned();
    }
    variants.iter().fold(symbol.to_owned(), |symbol, variant| symbol.replace(variant, &format!("{}?E", &variant[..1])))
}
