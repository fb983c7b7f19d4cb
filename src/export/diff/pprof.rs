//! A difference in pprof's format, as `pprof -diff_base` makes it: the samples of the earlier profile with their signs
//! turned over and the label `pprof::base`, then those of the later one. pprof takes percentages of the earlier one's
//! sum then.

use super::super::pprof::build;
use super::super::view::View;
use super::super::{ExportOptions, proto};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::io::{self, Write};

/// Writes it compressed.
pub(super) fn write_gz(before: &View<'_>, after: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    write(before, after, &mut gzip)?;
    gzip.finish()?;
    Ok(())
}

/// Writes it.
pub(super) fn write(before: &View<'_>, after: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&difference(before, after).encode_to_vec())
}

fn difference(before: &View<'_>, after: &View<'_>) -> proto::Profile {
    let options = ExportOptions::default();
    let (mut base, mut sum) = (build(before, &options), build(after, &options));
    let string = |sum: &mut proto::Profile, text: &str| {
        sum.string_table.push(text.to_owned());
        sum.string_table.len() as i64 - 1
    };
    let (key, value) = (string(&mut sum, "pprof::base"), string(&mut sum, "true"));
    // Behind the tables of the one come those of the other, with numbers that go on.
    let strings = sum.string_table.len() as i64;
    let (mappings, locations, functions) =
        (sum.mapping.len() as u64, sum.location.len() as u64, sum.function.len() as u64);
    let text = |index: &mut i64| *index = if *index == 0 { 0 } else { *index + strings };
    for mapping in &mut base.mapping {
        mapping.id += mappings;
        text(&mut mapping.filename);
        text(&mut mapping.build_id);
    }
    for function in &mut base.function {
        function.id += functions;
        for index in [&mut function.name, &mut function.system_name, &mut function.filename] {
            text(index);
        }
    }
    for location in &mut base.location {
        location.id += locations;
        location.mapping_id = if location.mapping_id == 0 { 0 } else { location.mapping_id + mappings };
        location.line.iter_mut().for_each(|line| line.function_id += functions);
    }
    for sample in &mut base.sample {
        sample.location_id.iter_mut().for_each(|id| *id += locations);
        sample.value.iter_mut().for_each(|value| *value = value.saturating_neg());
        for label in &mut sample.label {
            for index in [&mut label.key, &mut label.str, &mut label.num_unit] {
                text(index);
            }
        }
        sample.label.push(proto::Label { key, str: value, num: 0, num_unit: 0 });
    }
    sum.mapping.append(&mut base.mapping);
    sum.function.append(&mut base.function);
    sum.location.append(&mut base.location);
    sum.sample.append(&mut base.sample);
    sum.string_table.append(&mut base.string_table);
    sum
}
