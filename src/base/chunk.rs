//! A piece of a table that a view can share with the table: it is copied only when it is written while a view still
//! holds it.
//!
//! `Arc::make_mut` would do the same at the price of an atomic operation for each write. Here a piece that nobody
//! shares is told by its tag, so that writing one costs a branch.

use std::sync::Arc;

/// See the module's head.
#[derive(Clone, Debug)]
pub enum Chunk<C> {
    /// Nobody else has it.
    Own(C),
    /// A view has it, or had it.
    Shared(Arc<C>),
}

impl<C: Default> Default for Chunk<C> {
    fn default() -> Self {
        Self::Own(C::default())
    }
}

impl<C: Clone + Default> Chunk<C> {
    /// The same contents for a view. Copies nothing.
    pub fn share(&mut self) -> Self {
        if let Self::Own(contents) = self {
            *self = Self::Shared(Arc::new(std::mem::take(contents)));
        }
        self.clone()
    }

    /// The contents.
    #[inline(always)]
    pub fn get(&self) -> &C {
        match self {
            Self::Own(contents) => contents,
            Self::Shared(contents) => contents,
        }
    }

    /// The contents, to be changed: copied if a view still has them.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut C {
        if matches!(self, Self::Shared(_)) {
            self.take_back();
        }
        match self {
            Self::Own(contents) => contents,
            // Not reached, as it has been taken back.
            Self::Shared(contents) => Arc::make_mut(contents),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_back(&mut self) {
        if let Self::Shared(shared) = self {
            *self = Self::Own(match Arc::get_mut(shared) {
                Some(contents) => std::mem::take(contents),
                None => C::clone(shared),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_keeps_what_was_there_and_costs_a_copy_only_while_it_lives() {
        let mut chunk = Chunk::Own(vec![1, 2]);
        let place = chunk.get().as_ptr();
        let view = chunk.share();
        assert_eq!((view.get().as_ptr(), chunk.get().as_ptr()), (place, place), "shared, not copied");
        chunk.get_mut().push(3);
        assert_eq!((view.get().as_slice(), chunk.get().as_slice()), (&[1, 2][..], &[1, 2, 3][..]));
        let place = chunk.get().as_ptr();
        drop(chunk.share());
        chunk.get_mut()[0] = 7;
        assert_eq!(chunk.get().as_ptr(), place, "nobody has it any more: taken back");
        assert_eq!((view.get()[0], chunk.get()[0]), (1, 7));
    }
}
