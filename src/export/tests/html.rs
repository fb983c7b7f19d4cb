//! The page: what it holds, and that no name of a program can become a part of it.

use super::*;
use crate::profile::course::HeapAt;
use flate2::read::ZlibDecoder;
use serde_json::Value as Json;
use std::io::Read;
use std::iter::Peekable;

/// What stands between two texts.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).expect(begin);
    rest.split_once(end).expect(end).0
}

/// A block of the page, unpacked. The inverse of Base64 is written down by its definition: six bits a digit.
fn block(page: &str, id: &str) -> Vec<u8> {
    let digits = between(page, &format!("id=\"{id}\">"), "</script>");
    let mut bits = Vec::new();
    for digit in digits.bytes().filter(|digit| *digit != b'=') {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other}"),
        };
        bits.extend((0..6).rev().map(|bit| value >> bit & 1));
    }
    let bytes: Vec<u8> = bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit)).collect();
    let mut unpacked = Vec::new();
    ZlibDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).expect("zlib");
    unpacked
}

fn list(bytes: &mut Peekable<std::vec::IntoIter<u8>>) -> Vec<u64> {
    let mut varint = || {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = bytes.next().expect("a byte");
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    };
    let length = varint();
    (0..length).map(|_| varint()).collect()
}

struct Page {
    words: Json,
    lists: Vec<Vec<u64>>,
}

impl Page {
    fn of(profile: &Profile) -> Self {
        let page = exported_text(Format::Html, profile);
        let words = serde_json::from_slice(&block(&page, "data-words")).expect("JSON");
        let mut bytes = block(&page, "data-numbers").into_iter().peekable();
        let mut lists = Vec::new();
        while bytes.peek().is_some() {
            lists.push(list(&mut bytes));
        }
        Self { words, lists }
    }

    fn string(&self, index: u64) -> &str {
        self.words["strings"][index as usize].as_str().expect("a string")
    }

    /// The functions of a node, innermost first.
    fn stack(&self, node: usize) -> Vec<&str> {
        let (depths, frames, names) = (&self.lists[4], &self.lists[5], &self.lists[0]);
        let mut stack = Vec::new();
        let mut above = depths[node] + 1;
        for at in (0..=node).rev() {
            if depths[at] < above && depths[at] > 0 {
                above = depths[at];
                stack.push(self.string(names[frames[at] as usize]));
            }
        }
        stack
    }

    /// The nodes of the sites.
    fn nodes(&self) -> Vec<usize> {
        let mut node = 0i64;
        let step = |step: &u64| {
            node += if step.is_multiple_of(2) { (step / 2) as i64 } else { -(step.div_ceil(2) as i64) };
            node as usize
        };
        self.lists[6].iter().map(step).collect()
    }

    fn column(&self, name: &str) -> (&Vec<u64>, &Vec<u64>) {
        let columns = self.words["columns"].as_array().expect("columns");
        let at = columns.iter().position(|column| column["name"] == name).expect(name);
        (&self.lists[10 + 2 * at], &self.lists[11 + 2 * at])
    }
}

/// Each site has its whole stack and its amounts, as the folded stacks and the report have them.
#[test]
fn the_page_has_the_stacks_and_amounts_of_the_report() {
    let profile = sample_profile();
    let page = Page::of(&profile);
    let report: Json = serde_json::from_str(&exported_text(Format::Json, &profile)).expect("JSON");
    let name = |frame: &Json| report["frames"][frame.as_u64().expect("an index") as usize]["function"].clone();
    let mut expected: Vec<String> = Vec::new();
    for site in report["sites"].as_array().expect("sites") {
        let names: Vec<Json> = site["stack"].as_array().expect("a stack").iter().map(name).collect();
        let amounts = ["live", "at_peak", "allocated", "freed"].map(|amount| site[amount].clone());
        let mean = site["mean_lifetime_ns"].as_u64().map(|mean| mean / 1000);
        expected.push(format!("{names:?} {amounts:?} {} {mean:?}", site["temporary"]));
    }
    let mut told: Vec<String> = Vec::new();
    for (site, node) in page.nodes().into_iter().enumerate() {
        let names: Vec<Json> = page.stack(node).into_iter().map(Json::from).collect();
        let amount = |column: &str| {
            let (blocks, bytes) = page.column(column);
            serde_json::json!({ "objects": blocks[site], "bytes": bytes[site] })
        };
        let amounts = ["live", "peak", "allocated", "freed"].map(amount);
        let lifetimes = &page.lists[10 + 2 * page.words["columns"].as_array().expect("columns").len()];
        let mean = lifetimes[site].checked_div(page.column("freed").0[site]);
        told.push(format!("{names:?} {amounts:?} {} {mean:?}", page.column("temporary").0[site]));
    }
    expected.sort();
    told.sort();
    assert_eq!(told, expected);
    for field in ["totals", "timeline", "histograms", "cost", "anomalies", "sampling", "warnings", "findings"] {
        assert_eq!(page.words["report"][field], report[field], "{field}");
    }
}

/// Heaps of moments on the way are there as differences, the last of which is the end.
#[test]
fn the_page_has_the_heaps_on_the_way() {
    let mut profile = sample_profile();
    let heap = |t_ns, stacks: &[(usize, Amount, Amount)]| HeapAt { t_ns, images: 0, stacks: stacks.to_vec() };
    profile.course.heaps = vec![
        heap(5, &[(0, amount(2, 2048), amount(2, 2048))]),
        heap(9, &[(0, amount(3, 3072), amount(1, 1024)), (2, amount(4, 256), amount(4, 256))]),
    ];
    let page = Page::of(&profile);
    let heaps = &page.lists[11 + 2 * page.words["columns"].as_array().expect("columns").len()..];
    assert_eq!(heaps[0], [5, 9, profile.meta.duration_ns]);
    assert_eq!(heaps.len(), 1 + 3 * 5);
    let mut sums = std::collections::BTreeMap::<(String, usize), i64>::new();
    for heap in heaps[1..].chunks(5) {
        let mut node = 0;
        for (at, step) in heap[0].iter().enumerate() {
            node += step;
            for figure in 0..4 {
                let number = heap[1 + figure][at];
                let change = if number.is_multiple_of(2) { (number / 2) as i64 } else { -(number.div_ceil(2) as i64) };
                *sums.entry((page.stack(node as usize).join(";"), figure)).or_default() += change;
            }
        }
    }
    for (site, node) in page.nodes().into_iter().enumerate() {
        let stack = page.stack(node).join(";");
        let (allocated, live) = (page.column("allocated"), page.column("live"));
        for (figure, list) in [allocated.0, allocated.1, live.0, live.1].into_iter().enumerate() {
            assert_eq!(sums.get(&(stack.clone(), figure)).copied().unwrap_or(0), list[site] as i64, "{stack} {figure}");
        }
    }
}

/// What a check has found is there, with the lost blocks as a column and a suppression of each leak.
#[test]
fn the_page_has_what_a_check_found() {
    let page = Page::of(&check_profile());
    let (blocks, bytes) = page.column("leaked");
    let leaks = &page.words["report"]["leaks"];
    let sum = |field: &str| leaks["definite"][field].as_u64().unwrap() + leaks["indirect"][field].as_u64().unwrap();
    assert_eq!((blocks.iter().sum::<u64>(), bytes.iter().sum::<u64>()), (sum("blocks"), sum("bytes")));
    let problems = page.words["problems"].as_array().expect("problems");
    let ids: Vec<&Json> = problems.iter().map(|problem| &problem["id"]).collect();
    let findings = page.words["report"]["findings"].as_array().expect("findings");
    assert!(findings.iter().any(|finding| finding["path"].as_array().is_some_and(|path| path.len() == 3)));
    for finding in findings.iter().filter(|finding| finding["kind"] == "leak_definite") {
        let at = ids.iter().position(|id| **id == finding["id"]).expect("a sentence");
        let suppression = problems[at]["suppression"].as_str().expect("a suppression");
        let kinds = "   Memcheck:Leak\n   match-leak-kinds: definite\n   fun:malloc\n";
        assert!(suppression.starts_with("{\n") && suppression.contains(kinds), "{suppression}");
    }
}

/// Names that would end the script, begin another or load a picture: nothing of them is outside of the packed data.
#[test]
fn no_name_becomes_markup() {
    let bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{words}}\u{2028}-->";
    let mut profile = check_profile();
    let plain = exported_text(Format::Html, &profile);
    profile.meta.process.program = format!("app{bad}");
    profile.meta.process.command.push(bad.to_owned());
    profile.warnings.push(bad.to_owned());
    profile.strings.iter_mut().for_each(|text| text.push_str(bad));
    for function in &mut profile.functions {
        function.name.push_str(bad);
        function.file = Some(bad.to_owned());
    }
    let page = exported_text(Format::Html, &profile);
    assert!(!page.contains("<img") && !page.contains("<script>") && !page.contains("alert(1)</script>"));
    let tags = |page: &str| page.matches('<').count();
    assert_eq!(tags(&page), tags(&plain));
    assert!(page.contains("<title>app&lt;/script&gt;"));
    let told = Page::of(&profile);
    assert_eq!(told.words["report"]["program"], profile.meta.process.program.as_str());
    assert!(
        told.words["strings"]
            .as_array()
            .expect("strings")
            .iter()
            .any(|text| text.as_str().unwrap().contains("<img src=x"))
    );
}

/// Nothing but the page's own script runs, nothing is loaded, and the page without data is small.
#[test]
fn the_shell_is_closed_and_small() {
    let page = exported_text(Format::Html, &sample_profile());
    let policy = between(&page, "http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-heaptrace';"), "{policy}");
    let script = between(&page, "<script type=\"module\" nonce=\"heaptrace\">", "</script>");
    assert!(script.contains("function firstTree") && !script.contains("\nimport ") && !script.contains("\nexport "));
    assert!(!page.contains("{{") && page.trim_end().ends_with("</html>"));
    for outside in ["http://", "https://", "<!--", "fetch(", "XMLHttpRequest", "innerHTML"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let data: usize = ["data-words", "data-numbers"]
        .iter()
        .map(|id| between(&page, &format!("id=\"{id}\">"), "</script>").len())
        .sum();
    assert!(page.len() - data <= 150_000, "{}", page.len() - data);
    assert_eq!(page, exported_text(Format::Html, &sample_profile()), "the same in every run");
}
