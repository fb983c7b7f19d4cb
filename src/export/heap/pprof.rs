//! The blocks of a heap in pprof's format: a sample's stack is the type of its blocks, the types of the blocks that
//! retain them, and the holder at last. So what pprof calls a function's cumulative value is what it retains.
//!
//! Types that follow each other in a stack are told once, and of deep stacks the middle is left out.

use super::held::{HELD_BY_SEVERAL, node_holder};
use crate::export::escape::printable;
use crate::export::{gzip, proto};
use crate::heap::graph::{Held, Sum};
use prost::Message;
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Frames of a stack.
const DEPTH: u32 = 32;

/// A way from a holder to blocks: its number is its place.
struct Way {
    /// The way to what retains it; itself: there is none.
    parent: u32,
    /// The name of its last one: a number of [`Strings`].
    name: i64,
    depth: u32,
    /// The blocks at its end.
    own: Sum,
}

#[derive(Default)]
struct Ways {
    all: Vec<Way>,
    known: FxHashMap<(u32, i64), u32>,
}

impl Ways {
    /// The way that goes on from `parent` (None: it begins) to what is called `name`.
    fn on(&mut self, parent: Option<u32>, name: i64) -> u32 {
        let of = |way: u32| self.all.get(way as usize).map(|way| (way.name, way.depth, way.parent));
        let (parent, depth) = match parent.and_then(|parent| Some((parent, of(parent)?))) {
            Some((parent, (same, ..))) if same == name => return parent,
            Some((parent, (_, depth, _))) if depth < DEPTH => (Some(parent), depth + 1),
            Some((_, (_, depth, before))) => (Some(before), depth),
            None => (None, 1),
        };
        let all = &mut self.all;
        *self.known.entry((parent.unwrap_or(u32::MAX), name)).or_insert_with(|| {
            let number = all.len() as u32;
            all.push(Way { parent: parent.unwrap_or(number), name, depth, own: Sum::default() });
            number
        })
    }
}

/// The table of texts.
struct Strings {
    all: Vec<String>,
    known: FxHashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        let text = printable(text);
        if let Some(known) = self.known.get(&text) {
            return *known;
        }
        let number = self.all.len() as i64;
        self.all.push(text.clone());
        self.known.insert(text, number);
        number
    }
}

/// Writes it, compressed.
///
/// # Errors
/// What `out` says.
pub fn write(held: &Held, taken_ns: u64, out: &mut dyn Write) -> io::Result<()> {
    gzip::write(&profile(held, taken_ns).encode_to_vec(), out)
}

fn profile(held: &Held, taken_ns: u64) -> proto::Profile {
    let mut strings = Strings { all: vec![String::new()], known: FxHashMap::from_iter([(String::new(), 0)]) };
    let ways = ways(held, &mut strings);
    let mut value =
        |name: &str, unit: &str| proto::ValueType { r#type: strings.number(name), unit: strings.number(unit) };
    let sample_type = vec![value("live_objects", "count"), value("live_space", "bytes")];
    let period_type = Some(value("space", "bytes"));
    let default_sample_type = strings.number("live_space");
    // each name is a function with one place
    let mut of_name: FxHashMap<i64, u64> = FxHashMap::default();
    let (mut function, mut location) = (Vec::new(), Vec::new());
    let mut place = |name: i64| {
        *of_name.entry(name).or_insert_with(|| {
            let id = function.len() as u64 + 1;
            // without a system name pprof takes the name as it is
            function.push(proto::Function { id, name, system_name: 0, filename: 0, start_line: 0 });
            let line = vec![proto::Line { function_id: id, line: 0 }];
            location.push(proto::Location { id, mapping_id: 0, address: 0, line, is_folded: false });
            id
        })
    };
    let mut sample = Vec::new();
    for (number, way) in ways.all.iter().enumerate().filter(|(_, way)| way.own.blocks > 0) {
        let mut location_id = Vec::new();
        let (mut at, mut one) = (number, way);
        loop {
            location_id.push(place(one.name));
            let parent = one.parent as usize;
            match ways.all.get(parent).filter(|_| parent != at) {
                Some(before) => (at, one) = (parent, before),
                None => break,
            }
        }
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        sample.push(proto::Sample {
            location_id,
            value: vec![signed(way.own.blocks), signed(way.own.bytes)],
            label: Vec::new(),
        });
    }
    proto::Profile {
        sample_type,
        sample,
        time_nanos: i64::try_from(taken_ns).unwrap_or(0),
        period_type,
        period: 1,
        default_sample_type,
        location,
        function,
        string_table: strings.all,
        ..Default::default()
    }
}

/// The ways to all blocks.
fn ways(held: &Held, strings: &mut Strings) -> Ways {
    let holdings = &held.holdings;
    let blocks = holdings.graph.blocks();
    let types: Vec<i64> = held.types.all.iter().map(|of| strings.number(&of.told())).collect();
    let unknown = strings.number("unknown");
    let mut ways = Ways::default();
    let mut of_node = vec![u32::MAX; holdings.nodes()];
    // whoever retains a node stands before it
    let retention = holdings.retention();
    for &node in retention.order() {
        let node = node as usize;
        let Some(block) = blocks.get(node) else {
            // the last node is the root of all
            if node + 1 < holdings.nodes() {
                let name = strings.number(node_holder(holdings, node));
                of_node.get_mut(node).into_iter().for_each(|way| *way = ways.on(None, name));
            }
            continue;
        };
        let by = retention.retainer(node).and_then(|by| of_node.get(by).copied());
        let by = by.unwrap_or_else(|| ways.on(None, strings.number(HELD_BY_SEVERAL)));
        let of = held.types.of_block.get(node).and_then(|of| types.get(*of as usize)).copied().unwrap_or(unknown);
        let way = ways.on(Some(by), of);
        of_node.get_mut(node).into_iter().for_each(|slot| *slot = way);
        if let Some(way) = ways.all.get_mut(way as usize) {
            way.own.add(block.size);
        }
    }
    ways
}
