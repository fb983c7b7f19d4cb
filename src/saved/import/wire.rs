//! Protocol buffers on the wire: the fields of a message, each as it lies there. Nothing is copied and nothing is kept,
//! so that a message takes no more memory than its bytes, whatever they are. (The format:
//! protobuf.dev/programming-guides/encoding.)

/// A field's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    /// A number; signed ones as two's complement.
    Number(u64),
    /// A string, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// 4 or 8 bytes, which no field of interest has.
    Fixed,
}

impl Value<'_> {
    /// How many numbers a repeated field has, at most.
    pub(super) const fn numbers_at_most(self) -> usize {
        match self {
            Self::Number(_) => 1,
            Self::Bytes(packed) => packed.len(),
            Self::Fixed => 0,
        }
    }
}

/// The bytes end inside of a field, or are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Torn;

/// The fields of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) const fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Torn> {
        let key = number(&mut self.rest)?;
        let value = match key & 7 {
            0 => Value::Number(number(&mut self.rest)?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = number(&mut self.rest)?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| Torn)?)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Torn),
        };
        // field numbers begin at 1
        if key >> 3 == 0 { Err(Torn) } else { Ok((key >> 3, value)) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Torn> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Torn)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    /// The field's number and its value.
    type Item = Result<(u64, Value<'a>), Torn>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Takes a variable-length number from the front.
pub(super) fn number(bytes: &mut &[u8]) -> Result<u64, Torn> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Torn)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Torn)
}

/// Hands out the numbers of a repeated field: one, or several packed.
pub(super) fn numbers(value: Value<'_>, mut each: impl FnMut(u64)) -> Result<(), Torn> {
    match value {
        Value::Number(number) => each(number),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                each(number(&mut packed)?);
            }
        }
        Value::Fixed => return Err(Torn),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_to_the_tear() {
        // field 1 = 300, field 2 = "hi", field 3 = 4 bytes
        let bytes = [0x08, 0xac, 0x02, 0x12, 0x02, b'h', b'i', 0x1d, 1, 2, 3, 4];
        let fields: Vec<_> = Fields::of(&bytes).collect();
        assert_eq!(fields, [Ok((1, Value::Number(300))), Ok((2, Value::Bytes(b"hi"))), Ok((3, Value::Fixed))]);
        for end in [2, 4, 6, 9] {
            assert!(Fields::of(&bytes[..end]).any(|field| field == Err(Torn)), "{end}");
        }
        assert_eq!(number(&mut &[0xff; 10][..]), Err(Torn));
        assert_eq!(Fields::of(&[0x0b]).next(), Some(Err(Torn)), "groups are none of proto3");
    }
}
