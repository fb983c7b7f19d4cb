//! What the user writes behind `--alloc-fn` and `--free-fn`.

use super::{Arg, Kind, Success};
use crate::base::addr::ObjAddr;

/// Where a declared function is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// In every module that defines this symbol.
    Symbol(String),
    /// At this object address of the module (basename of its file, or its soname).
    Offset {
        /// The module's name.
        module: String,
        /// Where the function begins.
        offset: ObjAddr,
    },
}

/// A parsed declaration of an allocator function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// Where it is.
    pub target: Target,
    /// What it does.
    pub kind: Kind,
}

/// Why a declaration was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// Nothing before the colon.
    #[error("'{0}' names no function; write SYMBOL or MODULE+0xOFFSET, e.g. 'pool_get:size=arg2'")]
    EmptyName(String),
    /// A part between commas that is not `key=value`.
    #[error("'{part}' in '{spec}' is not KEY=VALUE, e.g. size=arg2")]
    NoValue {
        /// The whole text.
        spec: String,
        /// The part.
        part: String,
    },
    /// A key that this option does not have.
    #[error("unknown key '{key}' in '{spec}'; known are {known}")]
    UnknownKey {
        /// The whole text.
        spec: String,
        /// The key.
        key: String,
        /// Those that exist.
        known: &'static str,
    },
    /// A key given twice.
    #[error("'{key}' is given twice in '{spec}'")]
    RepeatedKey {
        /// The whole text.
        spec: String,
        /// The key.
        key: String,
    },
    /// A value that is not one of the six register arguments (or `ret`, for the result).
    #[error("'{value}' in '{spec}' is not an argument; write arg1 to arg6{}", if *.ret { " or ret" } else { "" })]
    BadArgument {
        /// The whole text.
        spec: String,
        /// The value.
        value: String,
        /// Whether `ret` would be allowed here.
        ret: bool,
    },
    /// A result through an argument together with a count or an old block.
    #[error("'{0}': result=argN can't be combined with count or old")]
    Combination(String),
}

const ALLOC_KEYS: &[&str] = &["size", "count", "old", "result"];
const FREE_KEYS: &[&str] = &["ptr"];

pub(super) fn parse_alloc_fn(spec: &str) -> Result<Declaration, SpecError> {
    let parts = Parts::split(spec, ALLOC_KEYS, "size, count, old, result")?;
    let size = parts.argument("size")?.unwrap_or(Arg(0));
    let count = parts.argument("count")?;
    let old = parts.argument("old")?;
    let out = match parts.value("result") {
        None | Some("ret") => None,
        Some(value) => Some(parts.parse_argument(value, true)?),
    };
    let kind = match (out, old, count) {
        (None, None, count) => Kind::Alloc { size, count },
        (None, Some(old), count) => Kind::Realloc { old, size, count },
        (Some(out), None, None) => Kind::AllocOut { out, size, success: Success::Zero },
        _ => return Err(SpecError::Combination(spec.to_owned())),
    };
    Ok(Declaration { target: parts.target, kind })
}

pub(super) fn parse_free_fn(spec: &str) -> Result<Declaration, SpecError> {
    let parts = Parts::split(spec, FREE_KEYS, "ptr")?;
    let ptr = parts.argument("ptr")?.unwrap_or(Arg(0));
    Ok(Declaration { target: parts.target, kind: Kind::Free { ptr, size: None } })
}

struct Parts<'a> {
    spec: &'a str,
    target: Target,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    fn split(spec: &'a str, keys: &[&str], known: &'static str) -> Result<Self, SpecError> {
        let (name, options) = split_name(spec);
        let name = name.trim();
        if name.is_empty() {
            return Err(SpecError::EmptyName(spec.to_owned()));
        }
        let mut parts = Self { spec, target: parse_target(name, spec)?, options: Vec::new() };
        for part in options.into_iter().flat_map(|options| options.split(',')) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(SpecError::NoValue { spec: spec.to_owned(), part: part.to_owned() });
            };
            let (key, value) = (key.trim(), value.trim());
            if !keys.contains(&key) {
                return Err(SpecError::UnknownKey { spec: spec.to_owned(), key: key.to_owned(), known });
            }
            if parts.value(key).is_some() {
                return Err(SpecError::RepeatedKey { spec: spec.to_owned(), key: key.to_owned() });
            }
            parts.options.push((key, value));
        }
        Ok(parts)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.options.iter().find(|(k, _)| *k == key).map(|(_, value)| *value)
    }

    fn argument(&self, key: &str) -> Result<Option<Arg>, SpecError> {
        self.value(key).map(|value| self.parse_argument(value, false)).transpose()
    }

    fn parse_argument(&self, value: &str, ret: bool) -> Result<Arg, SpecError> {
        match value.strip_prefix("arg").map(str::as_bytes) {
            Some([digit @ b'1'..=b'6']) => Ok(Arg(digit - b'1')),
            _ => Err(SpecError::BadArgument { spec: self.spec.to_owned(), value: value.to_owned(), ret }),
        }
    }
}

/// Splits at the last single colon: those of `ns::f` belong to the name.
fn split_name(spec: &str) -> (&str, Option<&str>) {
    let bytes = spec.as_bytes();
    let single = |i: &usize| {
        bytes.get(*i) == Some(&b':')
            && bytes.get(i + 1) != Some(&b':')
            && i.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b':')
    };
    match (0..bytes.len()).rev().find(single) {
        Some(at) => (spec.get(..at).unwrap_or(spec), spec.get(at + 1..)),
        None => (spec, None),
    }
}

/// `module+0xoffset`, or else a symbol: no symbol of C, C++ or Rust holds `+0x` and only hex digits behind it.
fn parse_target(name: &str, spec: &str) -> Result<Target, SpecError> {
    let Some((module, digits)) = name.rsplit_once("+0x") else { return Ok(Target::Symbol(name.to_owned())) };
    let Ok(offset) = u64::from_str_radix(digits, 16) else { return Ok(Target::Symbol(name.to_owned())) };
    if module.is_empty() {
        return Err(SpecError::EmptyName(spec.to_owned()));
    }
    Ok(Target::Offset { module: module.to_owned(), offset: ObjAddr(offset) })
}
