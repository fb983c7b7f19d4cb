//! Advice in each format that has it.

use super::summary::summary_of;
use super::*;
use crate::profile::{Arena, CrossThreadFreed, Growth};
use serde_json::Value as Json;

/// Three sites that could do with less.
pub(crate) fn wasteful() -> Profile {
    let mut profile = sample_profile();
    profile.totals = Totals { allocations: 20_000, frees: 10_000, peak_bytes: 100 << 20, ..profile.totals };
    let third = profile.samples.edit(|samples| {
        let [first, second, third] = &mut samples[..3] else { panic!() };
        let temporaries = amount(6000, 384_000);
        (first.allocated, first.freed, first.temporary) = (temporaries, temporaries, 6000);
        first.lifetime_ns = 6000 * 1500;
        (second.size, second.at_peak) = (41, amount(100_000, 4_100_000));
        (third.freed, third.freed_elsewhere) = (amount(4000, 400_000), 4000);
        *third
    });
    let growth =
        Growth { buffers: 2, growths: 24, copies: 20, copied_bytes: 1 << 20, largest_bytes: 1 << 18, outgrown: 0 };
    profile.modules[2].path = PathBuf::from("/usr/lib/libc.so.6");
    profile.growths = vec![(third.stack, growth)];
    let arena = Arena {
        address: 0x7f00_0c00_0030,
        is_main: false,
        system_bytes: 60 << 20,
        live_bytes: 4 << 20,
        free_bytes: 55 << 20,
    };
    profile.stranded = vec![(third.stack, CrossThreadFreed { blocks: 3900, arena })];
    profile
}

fn sentences(profile: &Profile) -> Vec<(String, String)> {
    let report: Json = serde_json::from_str(&exported_text(Format::Json, profile)).expect("JSON");
    let advice = report["advice"].as_array().expect("a list").clone();
    let text = |of: &Json, field: &str| of[field].as_str().expect("a text").to_owned();
    advice.iter().map(|of| (text(of, "kind"), text(of, "text"))).collect()
}

#[test]
fn advice_is_told_in_the_same_words_everywhere() {
    let profile = wasteful();
    let told = sentences(&profile);
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["growth", "freed_elsewhere", "temporaries", "size_class"], "{told:#?}");
    insta::assert_snapshot!(told.iter().map(|(_, text)| format!("{text}.\n")).collect::<String>());
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [summary_of(&profile), exported_text(Format::Txt, &profile)] {
        let text = squeezed(&text);
        assert!(told.iter().all(|(_, sentence)| text.contains(&format!("{sentence}."))), "{text}");
    }
    let markdown = exported_text(Format::Markdown, &profile);
    assert_eq!(
        markdown.matches("\n- ").count(),
        markdown.split("#### Advice").next().unwrap().matches("\n- ").count() + 4
    );
}

/// Who writes a script can't choose how its interpreter asks for memory: the figures are told, and no remedy.
#[test]
fn advice_on_scripts_has_no_remedy_of_c() {
    let mut profile = wasteful();
    let native = sentences(&profile);
    for location in &mut profile.locations {
        (location.module, location.offset) = (None, Addr::of_script(7).0);
    }
    let scripts = sentences(&profile);
    let remedies = ["reserve that much", "one made before the loop", "hand them back", "would spare"];
    let told = |sentences: &[(String, String)]| {
        remedies.map(|remedy| sentences.iter().filter(|(_, text)| text.contains(remedy)).count())
    };
    assert_eq!((told(&native), told(&scripts)), ([1; 4], [0; 4]), "{scripts:#?}");
    for kind in ["growth", "freed_elsewhere", "temporaries", "size_class"] {
        assert!(scripts.iter().any(|(told, _)| told == kind), "{scripts:#?}");
    }
}
