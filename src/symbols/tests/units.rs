//! Programs of many units, of which few are asked about.

use super::*;
use crate::symbols::dwarf::DwarfData;

const UNITS: usize = 100;

/// The functions that are asked about; main is in unit 0.
const ASKED: [&str; 3] = ["outer_99", "outer_42", "main"];

/// Builds a program of [`UNITS`] units, each with an inlined call, and a function that stands apart and that link-time optimization moves into another unit.
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
        assert_as_addr2line(&program, &addrs, name);
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
    let mut moved = elf.section_data(".debug_aranges").unwrap().unwrap().into_owned();
    // each set: its length, a head that is 16 bytes with that, and pairs of an address and a length, up to a pair of zeros
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
    assert_as_addr2line(&program, &addrs, "of the true ones");
    let (resolution, _) = resolve_with(Search::default(), source(&changed), &addrs);
    for (frames, expected) in resolution.frames.iter().zip(addr2line(&program, &addrs)) {
        assert_eq!(ours(frames), expected);
    }

    tool("objcopy", &["--remove-section=.debug_aranges", text(&program), text(&changed)]);
    assert_eq!(units(&changed, &addrs).1, None);
    assert_as_addr2line(&changed, &addrs, "without");
}

fn assert_as_addr2line(program: &Path, addrs: &[ObjAddr], name: &str) {
    assert!(addrs.len() > 20, "{name}: {addrs:?}");
    let (resolution, warnings) = resolve_with(Search::default(), source(program), addrs);
    assert_eq!(warnings, Vec::<String>::new(), "{name}");
    for ((addr, frames), expected) in addrs.iter().zip(&resolution.frames).zip(addr2line(program, addrs)) {
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
