//! Packs of template arguments, and what is written for each of them.

use super::{DEEPEST, Printer};
use crate::tree::{Id, Node};
use std::fmt;

impl<'t> Printer<'t, '_> {
    /// The arguments that a use of a pack stands for.
    pub(super) fn elements(&self, pack: Id) -> Result<&'t [Id], fmt::Error> {
        match self.node(pack)? {
            Node::ArgPack(elements) => Ok(elements),
            _ => Err(fmt::Error),
        }
    }

    pub(super) fn expansion(&mut self, of: Id) -> fmt::Result {
        let Some(size) = self.size_of_pack(of, 0)? else {
            self.operand(of)?;
            return self.put("...");
        };
        let outer = self.element;
        let mut is_first = true;
        for n in 0..size {
            self.element = Some(n);
            let before = self.text.len();
            if !is_first {
                self.put(", ")?;
            }
            let start = self.text.len();
            self.print(of)?;
            is_first &= self.drop_if_empty(before, start);
        }
        self.element = outer;
        Ok(())
    }

    /// How many elements the first pack has that is used in a part.
    pub(super) fn size_of_pack(&mut self, id: Id, depth: u32) -> Result<Option<usize>, fmt::Error> {
        self.step()?;
        if depth > DEEPEST {
            return Err(fmt::Error);
        }
        let parts: Vec<Id> = match self.node(id)? {
            Node::ParamPack(pack) => return Ok(Some(self.elements(*pack)?.len())),
            // Arguments of an expansion of its own, or of a parameter that is none.
            Node::Expansion(_) | Node::Lambda(..) | Node::Param(_) | Node::ArgPack(_) => return Ok(None),
            node => node.parts(),
        };
        self.steps = self.steps.saturating_add(u32::try_from(parts.len()).unwrap_or(u32::MAX));
        for part in parts {
            if let Some(size) = self.size_of_pack(part, depth + 1)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }
}
