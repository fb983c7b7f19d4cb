//! The text of a mangled name: what comes next, and the pieces of it that need no tree.

use crate::tree::Qualifiers;

/// What is left of a mangled name.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(rest: &'a str) -> Self {
        Self { rest }
    }

    /// Passes over `count` bytes. None if there are not so many, or if a letter would be cut.
    pub(crate) fn skip(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }

    pub(crate) fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    pub(crate) fn peek_at(&self, n: usize) -> u8 {
        self.rest.as_bytes().get(n).copied().unwrap_or(0)
    }

    /// Takes `text` if it comes next.
    pub(crate) fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    pub(crate) fn expect(&mut self, text: &str) -> Option<()> {
        self.take(text).then_some(())
    }

    /// The digits that come next.
    pub(crate) fn digits(&mut self) -> &'a str {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
    }

    pub(crate) fn number(&mut self) -> Option<usize> {
        self.digits().parse().ok()
    }

    /// `_` is 0, `0_` is 1, and so on; digits of base 36 for substitutions.
    pub(crate) fn sequence(&mut self, base: u32) -> Option<usize> {
        if self.take("_") {
            return Some(0);
        }
        let end = self.rest.find('_')?;
        let (digits, rest) = self.rest.split_at(end);
        if digits.bytes().any(|byte| byte.is_ascii_lowercase()) || digits.starts_with('+') {
            return None;
        }
        let number = usize::from_str_radix(digits, base).ok()?;
        self.rest = rest.get(1..)?;
        number.checked_add(1)
    }

    pub(crate) fn identifier(&mut self) -> Option<&'a str> {
        let length = self.number().filter(|&length| length > 0)?;
        let (name, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(name)
    }

    /// What a thunk adds to `this`: not printed.
    pub(crate) fn offset(&mut self, kind: u8) -> Option<()> {
        for _ in 0..if kind == b'v' { 2 } else { 1 } {
            self.take("n");
            self.number()?;
            self.expect("_")?;
        }
        Some(())
    }

    /// Tells names of one function apart: not printed.
    pub(crate) fn discriminator(&mut self) {
        let before = self.rest;
        if self.take("__") {
            if self.number().is_none() || !self.take("_") {
                self.rest = before;
            }
        } else if self.take("_") && (!self.peek().is_ascii_digit() || self.discriminator_digit().is_none()) {
            self.rest = before;
        }
    }

    pub(crate) fn discriminator_digit(&mut self) -> Option<()> {
        self.skip(1)?;
        Some(())
    }

    pub(crate) fn qualifiers(&mut self) -> Qualifiers {
        let is_restrict = self.take("r");
        let is_volatile = self.take("V");
        let is_const = self.take("K");
        Qualifiers { is_const, is_volatile, is_restrict, reference: "" }
    }
}
