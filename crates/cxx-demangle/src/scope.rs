//! What template parameters stand for: each function and each lambda has its own.

use crate::tree::{Id, Node, Tree, Use};

/// The template parameters in the part of a name that is being parsed.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// What `T_`, `T0_` and so on stand for.
    pub(crate) args: Vec<Id>,
    /// Uses of template parameters before their arguments: in the type that a conversion operator converts to.
    forward: Vec<(Id, usize)>,
    /// Whether such uses may come up.
    pub(crate) in_conversion: bool,
    /// Whether template parameters are those of a generic lambda.
    in_lambda: bool,
    /// Which function or lambda is being parsed, and how many there were.
    context: u32,
    contexts: u32,
}

/// What a function or lambda replaces in the scope, to be put back at its end.
#[derive(Debug)]
pub(crate) struct Outer {
    args: Vec<Id>,
    in_conversion: bool,
    in_lambda: bool,
    context: u32,
}

impl Scope {
    /// Begins with another function, which has parameters of its own.
    pub(crate) fn enter_function(&mut self) -> Outer {
        let (in_conversion, in_lambda) = (self.in_conversion, self.in_lambda);
        (self.in_conversion, self.in_lambda) = (false, false);
        Outer { args: std::mem::take(&mut self.args), in_conversion, in_lambda, context: self.enter_context() }
    }

    pub(crate) fn leave_function(&mut self, outer: Outer) {
        Outer {
            args: self.args,
            in_conversion: self.in_conversion,
            in_lambda: self.in_lambda,
            context: self.context,
        } = outer;
    }

    /// Begins with a lambda. Returns what is to be given to [`Self::leave_lambda`].
    pub(crate) fn enter_lambda(&mut self) -> (bool, u32) {
        (std::mem::replace(&mut self.in_lambda, true), self.enter_context())
    }

    pub(crate) const fn leave_lambda(&mut self, outer: (bool, u32)) {
        (self.in_lambda, self.context) = outer;
    }

    /// Returns the context from before.
    fn enter_context(&mut self) -> u32 {
        self.contexts += 1;
        std::mem::replace(&mut self.context, self.contexts)
    }

    /// Whether a use is one of the function or lambda that is being parsed.
    pub(crate) const fn is_here(&self, use_: Use) -> bool {
        use_.context == self.context
    }

    /// A use of a template parameter.
    pub(crate) fn use_param(&mut self, tree: &mut Tree<'_>, number: usize) -> Option<Id> {
        let id = if self.in_lambda {
            tree.add(Node::Auto(number.saturating_add(1)))
        } else if self.in_conversion {
            // The arguments follow.
            let id = tree.add(Node::Text(""));
            self.forward.push((id, number));
            id
        } else {
            let argument = tree.use_of(*self.args.get(number)?);
            tree.add(argument)
        };
        tree.mark_use(id, Use { number, context: self.context })?;
        Some(id)
    }

    /// How many uses wait for their arguments.
    pub(crate) const fn pending(&self) -> usize {
        self.forward.len()
    }

    /// Gives the uses that came after the first `pending` their arguments.
    pub(crate) fn resolve_forward(&mut self, tree: &mut Tree<'_>, pending: usize) -> Option<()> {
        for (use_, index) in self.forward.split_off(pending) {
            let argument = *self.args.get(index)?;
            // One that stands for itself would be followed for ever.
            if argument == use_ {
                return None;
            }
            let resolved = tree.use_of(argument);
            tree.replace(use_, resolved)?;
        }
        Some(())
    }
}
