//! C++ names as compilers mangle them on Linux (Itanium C++ ABI, section 5.1), to names as c++filt writes them.
//!
//! The usual crate for it, cpp_demangle 0.5.1, gives 86 of 100 names of libLLVM as c++filt does; a test holds this one
//! to more than 99.9.

mod expressions;
mod names;
mod print;
mod tree;
mod types;

use std::collections::HashMap;
use std::fmt;
use tree::{Id, Node};

/// Nested parts that are followed at most, so that no name can overflow the stack.
const DEEPEST: u32 = 160;

/// Parts that are printed at most: substitutions make names grow exponentially, with empty packs even without text.
const MAX_STEPS: u32 = 400_000;

/// The name of a symbol; None if it is not of this scheme, or damaged. `with_return_type`: as c++filt has it; else the
/// return type of a template function is left out. What would be longer than `longest` bytes is None, too.
pub fn demangle(mangled: &str, with_return_type: bool, longest: usize) -> Option<String> {
    let rest = mangled.strip_prefix("_Z").filter(|rest| rest.len() <= LONGEST)?;
    let mut parser = Parser::new(rest);
    let root = parser.encoding(true)?;
    if !parser.rest.is_empty() {
        return None;
    }
    let mut printer = print::Printer::new(&parser.nodes, with_return_type, longest);
    printer.print(root).ok()?;
    Some(printer.into_text())
}

/// The longest mangled name, in bytes. Each byte may become a part or two.
const LONGEST: usize = 64 << 10;

/// How many parts of parts are looked at, at most, where a substitution repeats them. Names of real programs have some
/// hundreds.
const MAX_PARTS: usize = 1_000_000;

/// A use of a template parameter.
#[derive(Clone, Copy)]
struct Use {
    number: usize,
    context: u32,
}

/// A name on the way to a tree.
struct Parser<'a> {
    rest: &'a str,
    nodes: Vec<Node<'a>>,
    /// What `S_`, `S0_` and so on stand for.
    substitutions: Vec<Id>,
    /// What `T_`, `T0_` and so on stand for.
    params: Vec<Id>,
    /// Uses of template parameters before their arguments: in the type that a conversion operator converts to.
    forward: Vec<(Id, usize)>,
    /// Whether such uses may come up.
    in_conversion: bool,
    /// Whether template parameters are those of a generic lambda.
    in_lambda: bool,
    /// Which function or lambda is being parsed, and how many there were.
    context: u32,
    contexts: u32,
    /// The parts that are uses of template parameters.
    uses: HashMap<usize, Use>,
    /// For each part, whether there are such uses in it.
    uses_params: Vec<bool>,
    depth: u32,
    /// How many parts the parts have, again where they were looked at again.
    parts: usize,
}

impl<'a> Parser<'a> {
    fn new(rest: &'a str) -> Self {
        Self {
            rest,
            nodes: Vec::new(),
            substitutions: Vec::new(),
            params: Vec::new(),
            forward: Vec::new(),
            in_conversion: false,
            in_lambda: false,
            context: 0,
            contexts: 0,
            uses: HashMap::new(),
            uses_params: Vec::new(),
            depth: 0,
            parts: 0,
        }
    }

    fn add(&mut self, node: Node<'a>) -> Id {
        let uses = |part: &Id| self.uses_params.get(part.0).is_some_and(|&uses| uses);
        // Functions and lambdas have parameters of their own.
        let is_apart = matches!(node, Node::Param(_) | Node::ParamPack(_) | Node::Lambda(..) | Node::Encoding(..));
        let parts = node.parts();
        let uses_params = !is_apart && parts.iter().any(uses);
        self.parts += 1 + parts.len();
        self.uses_params.push(uses_params);
        self.nodes.push(node);
        Id(self.nodes.len() - 1)
    }

    /// Begins with another function or lambda. Returns the one from before.
    fn enter_context(&mut self) -> u32 {
        self.contexts += 1;
        std::mem::replace(&mut self.context, self.contexts)
    }

    fn node(&self, id: Id) -> &Node<'a> {
        self.nodes.get(id.0).unwrap_or(&Node::Text(""))
    }

    fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    fn peek_at(&self, n: usize) -> u8 {
        self.rest.as_bytes().get(n).copied().unwrap_or(0)
    }

    /// Takes `text` if it comes next.
    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, text: &str) -> Option<()> {
        self.take(text).then_some(())
    }

    /// Does `parse` one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// The digits that come next.
    fn digits(&mut self) -> &'a str {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
    }

    fn number(&mut self) -> Option<usize> {
        self.digits().parse().ok()
    }

    /// `_` is 0, `0_` is 1, and so on; digits of base 36 for substitutions.
    fn sequence(&mut self, base: u32) -> Option<usize> {
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

    /// Parses until `E`.
    fn list(&mut self, mut parse: impl FnMut(&mut Self) -> Option<Id>) -> Option<Vec<Id>> {
        let mut all = Vec::new();
        while !self.take("E") {
            all.push(parse(self)?);
        }
        Some(all)
    }
}

impl fmt::Debug for Parser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parser").field("rest", &self.rest).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
