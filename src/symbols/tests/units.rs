//! Programs of many units, of which few are asked about.

use super::*;
use crate::symbols::dwarf::DwarfData;
use std::ops::Range;

const UNITS: usize = 100;

/// The functions that are asked about; main is in unit 0.
const ASKED: [&str; 3] = ["outer_99", "outer_42", "main"];

/// Builds a program of [`UNITS`] units, each with an inlined call, and a function that stands apart and that link-time
/// optimization moves into another unit.
fn build(dir: &TempDir, name: &str, options: &[&str]) -> PathBuf {
    let program = dir.join(name);
    let mut arguments = vec!["-g".to_owned(), "-O2".into(), "-o".into(), program.display().to_string()];
    arguments.extend(options.iter().map(|&option| option.to_owned()));
    for unit in 0..UNITS {
        let next = (unit + 1) % UNITS;
        let main =
            if unit == 0 { "int main(int argc, char **argv) {\n  return outer_0(argc, argv[0]);\n}\n" } else { "" };
        let source = format!(
            "int outer_{next}(int x, const char *text);\nint puts(const char *text);\n\
             static inline __attribute__((always_inline)) int inner_{unit}(int x, const char *text) {{\n\
             \x20 return puts(text) + x * {unit};\n}}\n\
             __attribute__((section(\".text.moved\"))) int moved_{unit}(int x) {{\n  return puts(\"moved\") - x;\n}}\n\
             extern int moved_{next}(int x);\n\
             __attribute__((noinline)) int outer_{unit}(int x, const char *text) {{\n\
             \x20 if (x > 1000)\n    return outer_{next}(x - 1, text) + 1;\n\
             \x20 return inner_{unit}(x, text) + moved_{next}(x);\n}}\n{main}"
        );
        let file = dir.join(&format!("{name}_{unit}.c"));
        fs::write(&file, source).unwrap();
        arguments.push(file.display().to_string());
    }
    tool("cc", &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    program
}

/// How many units of code the section has, all and of those that are not passed over.
fn units(program: &Path, addrs: &[ObjAddr]) -> (usize, Option<usize>) {
    let bytes = fs::read(program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let data = DwarfData::load(&elf, false).unwrap();
    let count = |info: gimli::DebugInfo<_>| {
        let mut units = info.units();
        std::iter::from_fn(|| units.next().unwrap()).filter(|unit| unit.type_() == gimli::UnitType::Compilation).count()
    };
    let narrowed = data.narrowed(addrs);
    let part = narrowed.as_ref().map(|part| count(part.info()));
    (count(data.borrow().debug_info), part)
}

#[test]
fn few_units_of_many_tell_what_all_tell() {
    let dir = TempDir::new("symbols-units");
    for (name, options, is_narrowed) in [
        ("dwarf5", &["-gdwarf-5"][..], Some(true)),
        ("compressed", &["-gdwarf-5", "-gz"], Some(true)),
        // these units don't tell their type
        ("dwarf4", &["-gdwarf-4"], Some(false)),
        ("lto", &["-gdwarf-5", "-flto", "-flto-partition=1to1"], None),
    ] {
        let program = build(&dir, name, options);
        let addrs = instructions_of(&program, &ASKED);
        let (all, part) = units(&program, &addrs);
        assert!(all >= UNITS, "{name}: {all}");
        assert!(is_narrowed.is_none_or(|is| is == part.is_some()), "{name}: {part:?} of {all}");
        assert!(part.is_none_or(|part| part <= all - UNITS + ASKED.len()), "{name}: {part:?} of {all}");
        assert_as_addr2line(&program, &program, &addrs, name);
    }
}

/// How many bytes of `.debug_info` were uncompressed for these addresses, and how many there are; the first is None
/// where all were.
fn uncompressed_for(program: &Path, addrs: &[ObjAddr]) -> (Option<usize>, usize) {
    let bytes = fs::read(program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let all = elf.sections().data(".debug_info").unwrap().unwrap().len();
    (DwarfData::load_for(&elf, addrs).unwrap().beginning(), all)
}

/// Of compressed debug information the beginning is read that tells all; what it does not tell is found behind it.
#[test]
fn the_beginning_tells_what_all_tell() {
    // by what their names contain: also 10 to 19
    const EARLY: [&str; 3] = ["outer_1", "moved_1", "main"];
    let dir = TempDir::new("symbols-beginning");
    let lto = ["-gdwarf-5", "-flto", "-flto-partition=1to1"];
    for (name, options, kind, is_part) in [
        ("zlib", &["-gdwarf-5"][..], "zlib", Some(true)),
        ("zlib4", &["-gdwarf-4"], "zlib", Some(true)),
        ("zlib_old", &["-gdwarf-5"], "zlib-gnu", Some(true)),
        ("zstd", &["-gdwarf-5"], "zstd", Some(false)),
        ("plain", &["-gdwarf-5"], "none", Some(false)),
        ("lto", &lto, "zlib", None),
    ] {
        // binutils reads what is not compressed
        let (plain, program) = (build(&dir, name, options), dir.join(&format!("{name}.compressed")));
        tool("objcopy", &[&format!("--compress-debug-sections={kind}"), text(&plain), text(&program)]);
        let addrs = instructions_of(&plain, &EARLY);
        let (part, all) = uncompressed_for(&program, &addrs);
        assert!(is_part.is_none_or(|is| is == part.is_some()), "{name}: {part:?} of {all}");
        assert!(part.is_none_or(|part| part < all / 4), "{name}: {part:?} of {all}");
        assert_as_addr2line(&program, &plain, &addrs, name);
        // the last one needs all of it
        let addrs = instructions_of(&plain, &ASKED);
        if name.starts_with("zlib") {
            assert_eq!(uncompressed_for(&program, &addrs).0, None, "{name}");
        }
        assert_as_addr2line(&program, &plain, &addrs, name);
    }
}

/// Behind a beginning that tells all, nobody looks; where more is needed, damage is told, and what is known stays.
#[test]
fn a_damaged_end_is_told_once_it_is_needed() {
    let dir = TempDir::new("symbols-beginning-damaged");
    let plain = build(&dir, "plain", &["-gdwarf-5"]);
    let [early, late] = ["outer_1", "outer_99"].map(|name| instructions_of(&plain, &[name]));
    let (packed, changed) = (dir.join("packed"), dir.join("changed"));
    // ranges that say that the first unit has all addresses: of outer_99 it knows nothing
    widen_first_range(&dir, &plain, &changed);
    for (program, addrs, is_told) in [(&plain, &early, false), (&plain, &late, true), (&changed, &late, true)] {
        tool("objcopy", &["--compress-debug-sections=zlib", text(program), text(&packed)]);
        let mut bytes = fs::read(&packed).unwrap();
        let end = place_of_info(&bytes).end;
        bytes[end - 1000..end].fill(0x55);
        fs::write(&packed, bytes).unwrap();
        let (resolution, warnings) = resolve_with(Search::default(), source(&packed), addrs);
        let told = format!("{}: {}", packed.display(), "damaged ELF file: a section can't be uncompressed");
        assert_eq!(warnings, is_told.then_some(told).into_iter().collect::<Vec<_>>());
        for (frames, expected) in resolution.frames.iter().zip(addr2line(&plain, addrs)) {
            if is_told {
                assert!(frames.iter().all(|frame| frame.file.is_none()), "{frames:?}");
            } else {
                assert_eq!(ours(frames), expected);
            }
        }
    }
}

/// Whatever stands in place of the end of a compressed section, or of its size: names are as they are, or missing.
#[test]
fn torn_and_hostile_sections_end_in_fewer_names() {
    let dir = TempDir::new("symbols-beginning-hostile");
    let plain = build(&dir, "plain", &["-gdwarf-5"]);
    let addrs = instructions_of(&plain, &["outer_1", "main"]);
    let expected = addr2line(&plain, &addrs);
    for kind in ["zlib", "zlib-gnu"] {
        let (packed, changed) = (dir.join("packed"), dir.join("changed"));
        tool("objcopy", &[&format!("--compress-debug-sections={kind}"), text(&plain), text(&packed)]);
        let whole = fs::read(&packed).unwrap();
        let Range { start, end } = place_of_info(&whole);
        let size = if kind == "zlib" { start + 8..start + 16 } else { start + 4..start + 12 };
        // the largest and the smallest size, in either order of bytes, and one byte more or less
        let mut sizes = vec![[0xff; 8], [0; 8], [0, 0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0, 0]];
        let own: [u8; 8] = whole[size.clone()].try_into().unwrap();
        let last = if kind == "zlib" { 0 } else { 7 };
        for last_byte in [own[last].wrapping_add(1), own[last].wrapping_sub(1)] {
            let mut changed = own;
            changed[last] = last_byte;
            sizes.push(changed);
        }
        let mut attempts: Vec<(Vec<u8>, bool)> = Vec::new();
        for other in sizes {
            let mut bytes = whole.clone();
            bytes[size.clone()].copy_from_slice(&other);
            // of an empty section there is nothing to tell
            attempts.push((bytes, other != [0; 8]));
        }
        for from in (start..end).step_by((end - start) / 12) {
            for filling in [0, 0x55] {
                let mut bytes = whole.clone();
                bytes[from..end].fill(filling);
                attempts.push((bytes, true));
            }
        }
        let (mut whole_names, mut fewer) = (0, 0);
        for (number, (bytes, is_told)) in attempts.into_iter().enumerate() {
            fs::write(&changed, bytes).unwrap();
            let (resolution, warnings) = resolve_with(Search::default(), source(&changed), &addrs);
            for (frames, expected) in resolution.frames.iter().zip(&expected) {
                let frames = ours(frames);
                let is_outermost = frames.len() == 1 && frames[0].0 == expected[expected.len() - 1].0;
                assert!(frames == *expected || is_outermost, "{kind} {number}: {frames:?} for {expected:?}");
                *if frames == *expected { &mut whole_names } else { &mut fewer } += 1;
                assert!(frames == *expected || !is_told || !warnings.is_empty(), "{kind} {number}: nobody says why");
            }
        }
        assert!(whole_names > addrs.len() * 5 && fewer > addrs.len() * 5, "{kind}: {whole_names} and {fewer}");
    }
}

/// Where the bytes of `.debug_info` are in a file, as they are compressed.
fn place_of_info(file: &[u8]) -> Range<usize> {
    let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(file).unwrap();
    let named = |name: &str| {
        object::Object::sections(&elf).find(|section| object::ObjectSection::name(section).is_ok_and(|own| own == name))
    };
    let info = named(".debug_info").or_else(|| named(".zdebug_info")).unwrap();
    let (start, size) = object::ObjectSection::file_range(&info).unwrap();
    usize::try_from(start).unwrap()..usize::try_from(start + size).unwrap()
}

/// Makes a copy of a program whose ranges say that the unit at 0 has all addresses, and that the others are somewhere
/// else.
fn widen_first_range(dir: &TempDir, program: &Path, changed: &Path) {
    let bytes = fs::read(program).unwrap();
    let mut all = Elf::parse(&bytes).unwrap().sections().data(".debug_aranges").unwrap().unwrap().into_owned();
    let mut rest = &mut all[..];
    let mut is_first = true;
    while let Some((length, _)) = rest.split_first_chunk() {
        let (set, behind) = rest.split_at_mut(4 + u32::from_le_bytes(*length) as usize);
        for pair in set[16..].chunks_exact_mut(16).filter(|pair| pair[8..] != [0; 8]) {
            let (from, size) = if is_first { (1, 0x100_0000_u64) } else { (0x4000_0000_u64, 8) };
            pair[..8].copy_from_slice(&from.to_le_bytes());
            pair[8..].copy_from_slice(&size.to_le_bytes());
        }
        is_first = false;
        rest = behind;
    }
    let ranges = dir.join("ranges");
    fs::write(&ranges, all).unwrap();
    let update = format!(".debug_aranges={}", text(&ranges));
    tool("objcopy", &["--update-section", &update, text(program), text(changed)]);
}

/// An address that the beginning does not know, though the ranges say so, is looked up in all.
#[test]
fn wrong_ranges_of_a_beginning_hide_nothing() {
    let dir = TempDir::new("symbols-beginning-wrong");
    let program = build(&dir, "program", &["-gdwarf-5"]);
    let [moved, changed] = ["moved", "changed"].map(|name| dir.join(name));
    let addrs = instructions_of(&program, &["outer_97", "outer_1"]);
    widen_first_range(&dir, &program, &moved);
    tool("objcopy", &["--compress-debug-sections=zlib", text(&moved), text(&changed)]);
    let (part, all) = uncompressed_for(&changed, &addrs);
    assert!(part.is_some_and(|part| part < all / 5), "{part:?} of {all}");
    let (resolution, _) = resolve_with(Search::default(), source(&changed), &addrs);
    for (frames, expected) in resolution.frames.iter().zip(addr2line(&program, &addrs)) {
        assert_eq!(ours(frames), expected);
    }
}

/// What `.debug_aranges` says need not be true, nor be there.
#[test]
fn wrong_ranges_of_units_hide_nothing() {
    let dir = TempDir::new("symbols-aranges");
    let program = build(&dir, "program", &["-gdwarf-5"]);
    let (ranges, changed) = (dir.join("ranges"), dir.join("changed"));
    let bytes = fs::read(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let mut moved = elf.sections().data(".debug_aranges").unwrap().unwrap().into_owned();
    // each set: its length, a head that is 16 bytes with that, and pairs of an address and a length, up to a pair of
    // zeros
    let mut rest = &mut moved[..];
    while let Some((length, _)) = rest.split_first_chunk() {
        let (set, behind) = rest.split_at_mut(4 + u32::from_le_bytes(*length) as usize);
        for pair in set[16..].chunks_exact_mut(16).filter(|pair| pair[8..] != [0; 8]) {
            pair[..8].copy_from_slice(&0x4000_0000_u64.to_le_bytes());
        }
        rest = behind;
    }
    fs::write(&ranges, moved).unwrap();
    tool(
        "objcopy",
        &["--update-section", &format!(".debug_aranges={}", text(&ranges)), text(&program), text(&changed)],
    );
    let addrs = instructions_of(&changed, &ASKED);
    // they hide all units that tell their ranges themselves
    let (_, part) = units(&changed, &addrs);
    assert!(part.is_some_and(|part| part < 10), "{part:?}");
    assert_as_addr2line(&program, &program, &addrs, "of the true ones");
    let (resolution, _) = resolve_with(Search::default(), source(&changed), &addrs);
    for (frames, expected) in resolution.frames.iter().zip(addr2line(&program, &addrs)) {
        assert_eq!(ours(frames), expected);
    }

    tool("objcopy", &["--remove-section=.debug_aranges", text(&program), text(&changed)]);
    assert_eq!(units(&changed, &addrs).1, None);
    assert_as_addr2line(&changed, &changed, &addrs, "without");
}

/// `plain`: the same program, with debug information that binutils can read.
fn assert_as_addr2line(program: &Path, plain: &Path, addrs: &[ObjAddr], name: &str) {
    assert!(addrs.len() > 20, "{name}: {addrs:?}");
    let (resolution, warnings) = resolve_with(Search::default(), source(program), addrs);
    assert_eq!(warnings, Vec::<String>::new(), "{name}");
    for ((addr, frames), expected) in addrs.iter().zip(&resolution.frames).zip(addr2line(plain, addrs)) {
        // binutils names LTO's unit, `<artificial>`, instead of the file
        let plain = |frames: &[(String, String)]| -> Vec<_> {
            let line = |place: &str| place.rsplit_once(':').unwrap().1.to_owned();
            frames.iter().map(|(name, place)| (name.clone(), line(place))).collect()
        };
        let (ours, is_lto) = (ours(frames), name == "lto");
        assert_eq!(plain(&ours), plain(&expected), "{name} {addr}");
        assert!(is_lto || ours == expected, "{name} {addr}: {ours:?} {expected:?}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
