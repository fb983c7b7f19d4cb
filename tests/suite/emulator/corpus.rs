//! Instructions of real binaries.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use object::{Object, ObjectSection, ObjectSymbol};

/// The instructions of one file at which breakpoints may be put.
pub struct Corpus {
    pub path: &'static str,
    /// Up to 15 bytes from each function's first instruction on.
    pub entries: Vec<Vec<u8>>,
    /// Likewise from behind each call on.
    pub return_sites: Vec<Vec<u8>>,
}

/// Those of them that this machine has.
pub fn files() -> Vec<Corpus> {
    [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/bin/git",
        "/usr/bin/python3",
    ]
    .into_iter()
    .filter_map(read)
    .collect()
}

fn read(path: &'static str) -> Option<Corpus> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (start, code) = (text.address(), text.data().unwrap());
    let at = |address: u64| {
        let from = address.checked_sub(start)? as usize;
        let bytes = code.get(from..code.len().min(from + 15))?;
        (!bytes.is_empty()).then(|| bytes.to_vec())
    };
    let functions: BTreeSet<u64> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.kind() == object::SymbolKind::Text)
        .map(|s| s.address())
        .collect();
    let mut return_sites = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
            && (instruction.is_call_near() || instruction.is_call_near_indirect())
        {
            return_sites.extend(at(instruction.next_ip()));
        }
    }
    Some(Corpus { path, entries: functions.into_iter().filter_map(at).collect(), return_sites })
}
