//! gzip, unpacked within limits: a small file can be made to become a thousand times its size.

use super::budget::{Budget, Exhausted};
use super::{ImportError, Limits};
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::io::{self, Read};

/// The first bytes of gzip (RFC 1952).
pub(super) const GZIP: [u8; 2] = [0x1f, 0x8b];

/// So much may come out of any file, in bytes.
const ALWAYS: u64 = 64 << 20;

/// So many bytes may come out of each byte of larger files. Profiles shrink to a fifth of their size, and to a fiftieth
/// where they repeat themselves much.
const RATIO: u64 = 200;

/// The bytes themselves, or what comes out of them: no more than the limits allow, and what is taken from the budget.
pub(super) fn unpacked<'a>(
    bytes: &'a [u8],
    name: &str,
    limits: &Limits,
    budget: &mut Budget,
) -> Result<Cow<'a, [u8]>, ImportError> {
    let too_large = || ImportError::TooLarge { file: name.to_owned(), limit: limits.memory >> 20 };
    budget.take(bytes.len()).map_err(|Exhausted| too_large())?;
    if !bytes.starts_with(&GZIP) {
        return if bytes.len() as u64 > limits.unpacked { Err(too_large()) } else { Ok(Cow::Borrowed(bytes)) };
    }
    let most = limits.unpacked.min((bytes.len() as u64).saturating_mul(RATIO).max(ALWAYS));
    // What is unpacked grows by doubling.
    let most = most.min(budget.left() / 2);
    let mut unpacked = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(most + 1).read_to_end(&mut unpacked);
    match read {
        Ok(length) if length as u64 > most => Err(too_large()),
        Ok(_) => {
            budget.take(unpacked.capacity()).map_err(|Exhausted| too_large())?;
            Ok(Cow::Owned(unpacked))
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ImportError::Torn { file: name.to_owned() }),
        Err(error) => Err(ImportError::Damaged { file: name.to_owned(), what: format!("gzip: {error}") }),
    }
}
