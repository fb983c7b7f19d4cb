//! What a program could do to allocate less, in sentences: each with its figures, its place and a remedy.

use super::sections::{self, Layout, has_lifetimes};
use super::telling::telling_frames;
use super::text::{basename, duration, grouped, human_bytes, percent, plural, short_name};
use super::view::{NamedFrame, TRUNCATED_STACK, UNKNOWN_STACK, View};
use crate::base::advice::{Proof, SiteFigures, WholeFigures, advise};
use crate::profile::identity::UNKNOWN_FUNCTION;
use crate::profile::{Amount, CrossThreadFreed, Growth, Sample};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;
use std::iter::Peekable;
use std::path::Path;

/// So many sentences are told where there is little room.
const MAX_SENTENCES: usize = 5;

/// Names of functions are not longer than so many characters.
const NAME: usize = 60;

/// Advice of a profile.
#[derive(Clone, Debug)]
pub(super) struct AdviceLine {
    /// The figures.
    pub proof: Proof,
    /// The stack of the site.
    pub stack: usize,
    /// A sentence, without its full stop.
    pub text: String,
}

/// All that is to be said, what concerns most first. What a file says is not found out anew, as it has less to tell
/// from.
pub(super) fn advice(view: &View<'_>) -> Vec<AdviceLine> {
    let told = |(stack, proof): (usize, Proof)| AdviceLine { proof, stack, text: sentence(view, stack, &proof) };
    if let Some(known) = view.profile.saved.as_ref().and_then(|saved| saved.advice.as_ref()) {
        return known.iter().copied().map(told).collect();
    }
    let list = advise(figures(view), &whole(view));
    let stack = |site: usize| view.sites().get(site).map_or(0, |site| site.stack);
    list.into_iter().map(|advice| told((stack(advice.site), advice.proof))).collect()
}

/// The section of a text.
pub(super) fn section(out: &mut String, layout: Layout, view: &View<'_>, most: usize) {
    let all = advice(view);
    if all.is_empty() || most == 0 {
        return;
    }
    sections::heading(out, layout, "Advice");
    all.iter()
        .take(most.min(MAX_SENTENCES))
        .for_each(|advice| sections::prose(out, layout, &format!("{}.", advice.text)));
    if all.len() > most.min(MAX_SENTENCES) {
        let more = grouped((all.len() - most.min(MAX_SENTENCES)) as u64);
        sections::prose(out, layout, &format!("and {more} more, all of them in report.json (-o NAME.json)"));
    }
}

/// The same as a list in Markdown.
pub(super) fn markdown(out: &mut String, view: &View<'_>) {
    let all = advice(view);
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n#### Advice\n");
    for advice in all.iter().take(MAX_SENTENCES) {
        let _ = writeln!(out, "- {}.", super::escape::markdown(&advice.text));
    }
}

/// A frame: its function, file and line.
type Frame<'a> = (&'a str, Option<&'a str>, u32);

/// What each site has to tell, in their order.
fn figures<'a>(view: &'a View<'_>) -> impl Iterator<Item = SiteFigures> + use<'a> {
    let knows_lifetimes = has_lifetimes(view.profile);
    // With its caller: a program's own wrapper of malloc is no place that says anything.
    let mut places: FxHashMap<Vec<Frame<'a>>, usize> = FxHashMap::default();
    let mut place = move |stack: usize| -> Option<usize> {
        let frames = telling_frames(view, stack, 2);
        // what is not known is no place
        let is_known = |name: &str| ![UNKNOWN_FUNCTION, UNKNOWN_STACK, TRUNCATED_STACK].contains(&name);
        frames.first().filter(|frame| is_known(frame.name))?;
        let next = places.len();
        let calls = frames.iter().map(|frame| (frame.name, frame.file, frame.line)).collect();
        Some(*places.entry(calls).or_insert(next))
    };
    let site_of = |stack: usize| view.site_of(stack);
    let growths = view.profile.growths.iter().filter_map(|(stack, growth)| Some((site_of(*stack)?, *growth)));
    let stranded = view.profile.stranded.iter().filter_map(|(stack, of)| Some((site_of(*stack)?, *of)));
    let (mut growths, mut stranded) = (BySite::new(growths), BySite::new(stranded));
    let mut sizes = BySite::new(sizes_at_peak(view));
    view.sites().iter().enumerate().map(move |(at, site)| {
        let mut sizes_at_peak: Vec<(u64, u64)> = Vec::new();
        let mut sizes: Vec<(u64, u64)> = sizes.of(at).collect();
        sizes.sort_unstable();
        for (size, blocks) in sizes {
            match sizes_at_peak.last_mut().filter(|(known, _)| *known == size) {
                Some((_, sum)) => *sum = sum.saturating_add(blocks),
                None => sizes_at_peak.push((size, blocks)),
            }
        }
        SiteFigures {
            place: place(site.stack),
            allocated: site.allocated,
            freed: site.freed,
            at_peak: site.at_peak,
            temporary: site.temporary,
            freed_elsewhere: site.freed_elsewhere,
            lifetime_ns: knows_lifetimes.then_some(site.lifetime_ns),
            growth: growths.of(at).fold(Growth::default(), Growth::plus),
            capacity: view.capacity_of(&site),
            stranded: stranded.of(at).collect(),
            sizes_at_peak,
        }
    })
}

/// What is known of some of the sites besides, for who asks for one site after the other.
struct BySite<T>(Peekable<std::vec::IntoIter<(usize, T)>>);

impl<T> BySite<T> {
    fn new(entries: impl Iterator<Item = (usize, T)>) -> Self {
        let mut entries: Vec<(usize, T)> = entries.collect();
        // in their order, as far as they are of one site
        entries.sort_by_key(|(site, _)| *site);
        Self(entries.into_iter().peekable())
    }

    /// All that is of this site. Those of the sites before must have been taken.
    fn of(&mut self, site: usize) -> impl Iterator<Item = T> {
        std::iter::from_fn(move || self.0.next_if(|(of, _)| *of == site).map(|(_, entry)| entry))
    }
}

/// The sizes of blocks that were live at the peak, with their numbers, by site: only such sizes as are exact.
fn sizes_at_peak(view: &View<'_>) -> impl Iterator<Item = (usize, (u64, u64))> {
    // Of a sample nobody knows what each block stands for.
    let all_sized = view.profile.meta.sample_interval == 0;
    // Sizes of many are rounded down.
    let is_exact = |sample: &Sample| {
        let (size, Amount { objects, bytes }) = (sample.size, sample.at_peak);
        size > 0 && objects > 0 && objects.checked_mul(size) == Some(bytes)
    };
    let exact = view.samples.iter().filter(move |_| all_sized).filter(is_exact);
    exact.filter_map(|sample| Some((view.site_of(sample.stack)?, (sample.size, sample.at_peak.objects))))
}

fn whole(view: &View<'_>) -> WholeFigures {
    let totals = &view.profile.totals;
    WholeFigures {
        allocated: Amount { objects: totals.allocations, bytes: totals.bytes_allocated },
        frees: totals.frees,
        peak_bytes: totals.peak_bytes,
        duration_ns: view.profile.meta.duration_ns,
        is_glibc: is_glibc(view),
    }
}

/// Whether glibc's malloc is the only one.
fn is_glibc(view: &View<'_>) -> bool {
    let has_malloc = |functions: &[String]| functions.iter().any(|name| name == "malloc");
    let mut allocators = view.profile.allocators.iter().filter(|allocator| has_malloc(&allocator.functions));
    let is_libc = |path: &Path| {
        let name = basename(path);
        name == "libc.so.6" || name.starts_with("libc-2.")
    };
    let module = |index: usize| view.profile.modules.get(index);
    let first = allocators.next().and_then(|allocator| module(allocator.module));
    first.is_some_and(|module| is_libc(&module.path)) && allocators.next().is_none()
}

/// The function that tells whose allocation it is, and where that is; its caller, too, where no line is known. None
/// where no function is.
fn site_name(view: &View<'_>, stack: usize) -> Option<String> {
    let frames = telling_frames(view, stack, 2);
    let frame = frames.first()?;
    let name = short_name(frame.name, NAME);
    Some(match (frame.file, frames.get(1)) {
        (Some(file), _) if frame.line > 0 => format!("{name} ({}:{})", basename(Path::new(file)), frame.line),
        (_, Some(caller)) => format!("{name}, called by {},", short_name(caller.name, NAME)),
        (_, None) => name,
    })
}

fn sentence(view: &View<'_>, stack: usize, proof: &Proof) -> String {
    let site = site_name(view, stack).unwrap_or_else(|| "an unknown call".to_owned());
    // who writes a script does not choose how its interpreter asks for memory
    let is_script = telling_frames(view, stack, 1).first().is_some_and(NamedFrame::is_script);
    let remedy = |text: &str| if is_script { String::new() } else { text.to_owned() };
    match *proof {
        Proof::LargestAtPeak { blocks, bytes, peak_bytes } => format!(
            "{site} has {} of the peak, {} in {}: what it allocates less, or frees earlier, lowers the peak",
            percent(bytes, peak_bytes),
            human_bytes(bytes),
            plural(blocks, "block"),
        ),
        Proof::Temporaries { temporary, all_allocations, per_second, mean_lifetime_ns, .. } => {
            let lived = match mean_lifetime_ns.filter(|ns| *ns > 0) {
                Some(ns) => format!(", which live for {} on average", duration(ns)),
                None => String::new(),
            };
            format!(
                "{site} makes {}, each freed before the next: {} of all, {} a second{lived}{}",
                plural(temporary, "block"),
                percent(temporary, all_allocations),
                grouped(per_second),
                remedy(": one made before the loop would serve all"),
            )
        }
        Proof::Growth { buffers, growths, copies, copied_bytes, largest_bytes } => format!(
            "{site} makes {} larger {} times, up to {}, in which {} are copied {} times{}",
            plural(buffers, "buffer"),
            grouped(growths),
            human_bytes(largest_bytes),
            human_bytes(copied_bytes),
            grouped(copies),
            remedy(": reserve that much at once"),
        ),
        Proof::SizeClass { size, excess, blocks, bytes } => format!(
            "{site} has {} of {} at the peak, {} too much for a smaller chunk of glibc's{}",
            plural(blocks, "block"),
            plural(size, "byte"),
            plural(excess, "byte"),
            remedy(&format!(": {} would spare {}", plural(size.saturating_sub(excess), "byte"), human_bytes(bytes))),
        ),
        Proof::NeverWritten { never_written_bytes, blocks, bytes } => format!(
            "{site} never writes {} of the {} that it asks for in {}, at their ends{}",
            human_bytes(never_written_bytes),
            human_bytes(bytes),
            plural(blocks, "block"),
            remedy(": ask for less, or give back what is left (shrink_to_fit)"),
        ),
        Proof::FreedElsewhere { freed_elsewhere, freed, bytes, arena } => format!(
            "{site} allocates {} that another thread frees, {} of those that were freed, {}: their memory goes back to the first thread's arena, or waits in the other's cache{}{}",
            plural(freed_elsewhere, "block"),
            percent(freed_elsewhere, freed),
            human_bytes(bytes),
            arena.map_or_else(String::new, |arena| kept_in(&arena, freed_elsewhere)),
            remedy("; hand them back to be freed or used again"),
        ),
    }
}

/// What the arena has kept that blocks lay in which other threads have freed.
fn kept_in(stranded: &CrossThreadFreed, freed_elsewhere: u64) -> String {
    let CrossThreadFreed { blocks, arena } = stranded;
    let part = if *blocks >= freed_elsewhere { "they" } else { &format!("{} of them", grouped(*blocks)) };
    let name = if arena.is_main { "main arena".to_owned() } else { format!("arena at {:#x}", arena.address) };
    let (free, system) = (human_bytes(arena.free_bytes), human_bytes(arena.system_bytes));
    format!("; {part} lay in glibc's {name}, which had {system} at the end, {free} of them free and kept")
}
