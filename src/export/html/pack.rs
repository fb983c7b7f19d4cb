//! Bytes as the page holds them: compressed by zlib (RFC 1950), which browsers unpack, in Base64 (RFC 4648, section 4).

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes `bytes` packed.
pub(super) fn write(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(7));
    encoder.write_all(bytes)?;
    out.write_all(&base64(&encoder.finish()?))
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    let digit = |number: u32| ALPHABET.get(number as usize & 63).copied().unwrap_or(b'=');
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| group.get(index).copied().map_or(0, u32::from);
        let number = at(0) << 16 | at(1) << 8 | at(2);
        let digits = [digit(number >> 18), digit(number >> 12), digit(number >> 6), digit(number)];
        for (index, digit) in digits.into_iter().enumerate() {
            text.push(if index <= group.len() { digit } else { b'=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 4648, section 10.
    #[test]
    fn base64_is_that_of_the_rfc() {
        let examples =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, packed) in examples {
            assert_eq!(base64(plain.as_bytes()), packed.as_bytes());
        }
    }
}
