//! What functions of the program return, by their code alone.

use crate::arch::constant::{self, Returned};
use crate::base::addr::Addr;
use crate::session::space::image::Image;

/// A program's suppressions are not believed to be longer, in bytes.
const LONGEST_TEXT: usize = 1 << 20;

impl Image {
    /// What a function returns, if its code tells.
    pub(in crate::session::space) fn returned(&self, function: Addr) -> Option<Returned> {
        let mut code = [0; 64];
        let read = self.memory.read_uncached(function, &mut code);
        let code = code.get_mut(..read)?;
        self.code.patches().mask(function, code);
        constant::returned(code, function)
    }

    /// The text that a function returns a pointer to, if its code tells.
    pub(in crate::session::space) fn returned_text(&self, function: Addr) -> Option<Vec<u8>> {
        let start = match self.returned(function)? {
            Returned::Value(value) => value,
            Returned::Word(at) => self.memory.read_word_uncached(at)?,
        };
        if start == 0 {
            return Some(Vec::new());
        }
        let mut text = Vec::new();
        while text.len() < LONGEST_TEXT {
            let mut piece = [0; 256];
            let read = self.memory.read_uncached(Addr(start).add(text.len() as u64), &mut piece);
            let piece = piece.get(..read)?;
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                text.extend(piece.get(..end)?);
                return Some(text);
            }
            if piece.is_empty() {
                return None;
            }
            text.extend(piece);
        }
        None
    }
}
