//! Hostile files: nothing panics, and memory stays within the limits.

use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

const SMALL: Limits = Limits { unpacked: 1 << 20, memory: 4 << 20 };

fn seeds() -> Vec<Vec<u8>> {
    let profile = check_profile();
    [Format::Pprof, Format::PprofGz, Format::Json, Format::JsonGz]
        .map(|format| written(&profile, format, PprofColumns::All))
        .into_iter()
        .chain([include_bytes!("../../../../tests/kept/profiles/made-up/report-1.json").to_vec()])
        .collect()
}

proptest! {
    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes, "x", &SMALL);
    }

    #[test]
    fn changed_files(
        seed in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = seeds().swap_remove(seed);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Ok(profile) = read(&bytes, "x", &SMALL) {
            // What could be read can be written, in every format.
            for format in [Format::Pprof, Format::Json, Format::Txt, Format::Folded] {
                written(&profile, format, PprofColumns::All);
            }
        }
    }
}

fn packed(fill: impl Fn(&mut GzEncoder<Vec<u8>>)) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    fill(&mut gzip);
    gzip.finish().expect("memory takes everything")
}

#[test]
fn bombs_are_refused() {
    // a thousand times its size comes out of it
    let zeros = packed(|gzip| (0..300).for_each(|_| gzip.write_all(&vec![0; 1 << 20]).expect("memory")));
    let error = read(&zeros, "bomb", &Limits::default()).expect_err("a bomb").to_string();
    assert!(error.contains("MiB of memory"), "{error}");
    // two bytes for each entry of a table
    for field in [0x12u8, 0x1a, 0x22, 0x2a, 0x32, 0x0a] {
        let entries = packed(|gzip| (0..500_000).for_each(|_| gzip.write_all(&[field, 0]).expect("memory")));
        let error = read(&entries, "bomb", &SMALL).expect_err("a bomb").to_string();
        assert!(error.starts_with("bomb: "), "{field}: {error}");
    }
}
