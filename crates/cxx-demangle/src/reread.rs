//! Substitutions, read where they stand: one repeats text, and in another function or lambda its template parameters
//! are others.

use crate::parser::DEEPEST;
use crate::scope::Scope;
use crate::tree::{Id, Tree};
use std::collections::HashMap;

/// How many parts of parts are looked at, at most, where a substitution repeats them. Names of real programs have some
/// hundreds.
const MAX_PARTS: usize = 1_000_000;

/// Reads one substitution.
#[derive(Debug)]
pub(crate) struct Reread<'p, 'a> {
    tree: &'p mut Tree<'a>,
    scope: &'p mut Scope,
    depth: u32,
    /// What parts have become.
    copies: HashMap<usize, Id>,
}

impl<'p, 'a> Reread<'p, 'a> {
    pub(crate) fn new(tree: &'p mut Tree<'a>, scope: &'p mut Scope, depth: u32) -> Self {
        Self { tree, scope, depth, copies: HashMap::new() }
    }

    /// `id` as it means here.
    pub(crate) fn part(&mut self, id: Id) -> Option<Id> {
        if let Some(&copy) = self.copies.get(&id.0) {
            return Some(copy);
        }
        if !self.tree.has_uses(id) {
            return Some(id);
        }
        if self.tree.parts() > MAX_PARTS {
            return None;
        }
        let copy = match self.tree.use_at(id) {
            Some(use_) if self.scope.is_here(use_) => id,
            Some(use_) => self.scope.use_param(self.tree, use_.number)?,
            None => self.copy(id)?,
        };
        self.copies.insert(id.0, copy);
        Some(copy)
    }

    fn copy(&mut self, id: Id) -> Option<Id> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let mut node = self.tree.node(id).clone();
        let mut is_same = true;
        let parts = node.parts_mut();
        self.tree.count_again(parts.len());
        for part in parts {
            let copy = self.part(*part)?;
            is_same &= copy == *part;
            *part = copy;
        }
        self.depth -= 1;
        Some(if is_same { id } else { self.tree.add(node) })
    }
}
