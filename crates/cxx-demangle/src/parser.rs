//! The parser: where the grammar's functions meet. `names.rs`, `types.rs` and `expressions.rs` have them.

use crate::cursor::Cursor;
use crate::scope::Scope;
use crate::tree::{Id, Node, Tree};

/// Nested parts that are followed at most, so that no name can overflow the stack.
pub(crate) const DEEPEST: u32 = 160;

/// A name on the way to a tree.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    pub(crate) cursor: Cursor<'a>,
    pub(crate) tree: Tree<'a>,
    /// What template parameters stand for here.
    pub(crate) scope: Scope,
    /// What `S_`, `S0_` and so on stand for.
    pub(crate) substitutions: Vec<Id>,
    pub(crate) depth: u32,
}

impl<'a> Parser<'a> {
    /// The tree of a name without its `_Z`, and its root.
    pub(crate) fn parse(name: &'a str) -> Option<(Vec<Node<'a>>, Id)> {
        let mut parser = Self {
            cursor: Cursor::new(name),
            tree: Tree::default(),
            scope: Scope::default(),
            substitutions: Vec::new(),
            depth: 0,
        };
        let root = parser.encoding(true)?;
        parser.cursor.rest.is_empty().then_some((parser.tree.into_nodes(), root))
    }

    /// Does `parse` one level deeper.
    pub(crate) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses until `E`.
    pub(crate) fn list(&mut self, mut parse: impl FnMut(&mut Self) -> Option<Id>) -> Option<Vec<Id>> {
        let mut all = Vec::new();
        while !self.cursor.take("E") {
            all.push(parse(self)?);
        }
        Some(all)
    }
}
