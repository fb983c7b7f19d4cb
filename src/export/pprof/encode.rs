//! A sample as bytes of the format. prost looks at each number of a message twice, once for its length: of a million
//! samples with thirty locations each that is most of the time of the file.

use crate::export::proto;

/// Room for the parts of a sample.
#[derive(Debug, Default)]
pub(super) struct Samples {
    body: Vec<u8>,
    part: Vec<u8>,
}

/// The wire type of what has a length (protobuf's encoding).
const WITH_LENGTH: u64 = 2;

impl Samples {
    /// Adds the sample to `out`, as the field `field` of a message.
    pub(super) fn write(&mut self, field: u64, sample: &proto::Sample, out: &mut Vec<u8>) {
        let Self { body, part } = self;
        body.clear();
        packed(1, &sample.location_id, |id| id, part, body);
        packed(2, &sample.value, i64::cast_unsigned, part, body);
        for label in &sample.label {
            part.clear();
            for (field, number) in (1..).zip([label.key, label.str, label.num, label.num_unit]) {
                if number != 0 {
                    put(field << 3, part);
                    put(number.cast_unsigned(), part);
                }
            }
            with_length(3, part, body);
        }
        with_length(field, body, out);
    }
}

fn packed<T: Copy>(field: u64, numbers: &[T], number: impl Fn(T) -> u64, part: &mut Vec<u8>, out: &mut Vec<u8>) {
    if numbers.is_empty() {
        return;
    }
    part.clear();
    if numbers.iter().fold(0, |all, one| all | number(*one)) < 0x80 {
        // a byte each
        part.extend(numbers.iter().map(|one| number(*one) as u8));
    } else {
        numbers.iter().for_each(|one| put(number(*one), part));
    }
    with_length(field, part, out);
}

fn with_length(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put(field << 3 | WITH_LENGTH, out);
    put(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[inline]
fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![Just(0), 0..300_i64, any::<i64>()]
    }

    proptest! {
        #[test]
        fn prost_writes_the_same(
            location_id in prop::collection::vec(any::<u64>(), 0..40),
            value in prop::collection::vec(number(), 0..13),
            labels in prop::collection::vec((number(), number(), number(), number()), 0..4),
        ) {
            let label = |(key, str, num, num_unit)| proto::Label { key, str, num, num_unit };
            let sample = proto::Sample { location_id, value, label: labels.into_iter().map(label).collect() };
            let profile = proto::Profile { sample: vec![sample.clone()], ..Default::default() };
            let mut written = Vec::new();
            Samples::default().write(2, &sample, &mut written);
            prop_assert_eq!(written, profile.encode_to_vec());
        }
    }
}
