//! Trees to text, as binutils write it: `int const*`, `A<B<int> >`, `(anonymous namespace)`, `{lambda(int)#1}`.

use crate::tree::{Exceptions, Id, Node, Qualifiers, Signature};
use std::fmt;

mod expressions;
mod packs;

pub(crate) struct Printer<'t, 'a> {
    nodes: &'t [Node<'a>],
    with_return_type: bool,
    longest: usize,
    text: String,
    /// Which element of packs is being printed, in an expansion.
    element: Option<usize>,
    /// Whether what came last was empty, and the comma before it was taken back.
    has_dropped: bool,
    steps: u32,
    depth: u32,
}

/// Parts that are printed at most: substitutions make names grow exponentially, with empty packs even without text.
const MAX_STEPS: u32 = 400_000;

/// Parts in parts that are printed at most.
const DEEPEST: u32 = 500;

impl<'t, 'a> Printer<'t, 'a> {
    pub(crate) fn new(nodes: &'t [Node<'a>], with_return_type: bool, longest: usize) -> Self {
        Self {
            nodes,
            with_return_type,
            longest,
            text: String::new(),
            element: None,
            has_dropped: false,
            steps: 0,
            depth: 0,
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn node(&self, id: Id) -> Result<&'t Node<'a>, fmt::Error> {
        self.nodes.get(id.0).ok_or(fmt::Error)
    }

    fn put(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.longest {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        self.has_dropped &= text.is_empty();
        Ok(())
    }

    fn put_number(&mut self, number: usize) -> fmt::Result {
        self.put(&number.to_string())
    }

    pub(crate) fn print(&mut self, id: Id) -> fmt::Result {
        self.left(id)?;
        self.right(id)
    }

    fn step(&mut self) -> fmt::Result {
        self.steps += 1;
        if self.steps > MAX_STEPS || self.depth > DEEPEST { Err(fmt::Error) } else { Ok(()) }
    }

    /// All of `ids` with commas between those that are not empty.
    fn list(&mut self, ids: &[Id]) -> fmt::Result {
        let mut is_first = true;
        for &id in ids {
            let before = self.text.len();
            if !is_first {
                self.put(", ")?;
            }
            let start = self.text.len();
            self.print(id)?;
            is_first &= self.drop_if_empty(before, start);
        }
        Ok(())
    }

    /// Takes back what stands between `before` and `start` if nothing was printed since. Whether it was so.
    fn drop_if_empty(&mut self, before: usize, start: usize) -> bool {
        let is_empty = self.text.len() == start;
        if is_empty {
            self.text.truncate(before);
            // Where there was something.
            self.has_dropped |= before != start;
        }
        is_empty
    }

    /// What stands for a use: the argument of a parameter, the element of a pack.
    fn resolved(&self, id: Id) -> Result<(Id, &'t Node<'a>), fmt::Error> {
        let mut id = id;
        for _ in 0..DEEPEST {
            let node = self.node(id)?;
            id = match (node, self.element) {
                (Node::Param(argument), _) => *argument,
                (Node::ParamPack(pack), Some(n)) => match self.elements(*pack)?.get(n) {
                    Some(&element) => element,
                    None => return Ok((id, node)),
                },
                _ => return Ok((id, node)),
            };
        }
        Err(fmt::Error)
    }

    /// Whether what follows a type's name needs parentheses: it is a function or an array.
    fn has_suffix(&self, id: Id) -> Result<bool, fmt::Error> {
        Ok(match self.resolved(id)?.1 {
            Node::Function(_) | Node::Array(..) => true,
            Node::Qualified(of, _) | Node::VendorQualified(of, _) => self.has_suffix(*of)?,
            _ => false,
        })
    }

    /// Whether a type goes around what it belongs to.
    fn is_open(&self, id: Id) -> Result<bool, fmt::Error> {
        Ok(match self.resolved(id)?.1 {
            Node::Pointer(of) | Node::MemberPointer(_, of) => self.has_suffix(*of)? || self.is_open(*of)?,
            Node::Reference(of) | Node::Rvalue(of) => {
                let (of, _) = self.collapsed(*of)?;
                self.has_suffix(of)? || self.is_open(of)?
            }
            Node::Qualified(of, _) => self.is_open(*of)?,
            _ => false,
        })
    }

    fn left(&mut self, id: Id) -> fmt::Result {
        self.step()?;
        self.depth += 1;
        let done = self.left_of(id);
        self.depth -= 1;
        done
    }

    fn right(&mut self, id: Id) -> fmt::Result {
        self.step()?;
        self.depth += 1;
        let done = self.right_of(id);
        self.depth -= 1;
        done
    }

    fn left_of(&mut self, id: Id) -> fmt::Result {
        match self.node(id)? {
            Node::Param(argument) => self.left(*argument),
            Node::ParamPack(pack) => match (self.elements(*pack)?, self.element) {
                (elements, Some(n)) => elements.get(n).map_or(Ok(()), |&element| self.left(element)),
                (elements, None) => self.list(elements),
            },
            Node::Qualified(of, qualifiers) => {
                self.left(*of)?;
                let mut qualifiers = *qualifiers;
                // Each is said once.
                if let Node::Qualified(_, inner) = self.resolved(*of)?.1 {
                    qualifiers.is_const &= !inner.is_const;
                    qualifiers.is_volatile &= !inner.is_volatile;
                    qualifiers.is_restrict &= !inner.is_restrict;
                }
                if matches!(self.resolved(*of)?.1, Node::Array(..)) {
                    // The qualifier of an array is that of its elements: `int const [3]`.
                    while self.text.ends_with(' ') {
                        self.text.pop();
                    }
                    self.qualifiers(qualifiers)?;
                    return self.put(" ");
                }
                if self.has_suffix(*of)? { Ok(()) } else { self.qualifiers(qualifiers) }
            }
            Node::VendorQualified(of, qualifier) => {
                self.left(*of)?;
                self.put(" ")?;
                self.print(*qualifier)
            }
            Node::Complex(of, words) => {
                self.print(*of)?;
                self.put(words)
            }
            Node::Pointer(of) => self.pointer(*of, "*"),
            Node::Reference(of) => {
                let (of, _) = self.collapsed(*of)?;
                self.pointer(of, "&")
            }
            Node::Rvalue(of) => {
                let (of, is_lvalue) = self.collapsed(*of)?;
                self.pointer(of, if is_lvalue { "&" } else { "&&" })
            }
            Node::MemberPointer(class, member) => {
                self.left(*member)?;
                self.put(if self.has_suffix(*member)? { "(" } else { " " })?;
                self.print(*class)?;
                self.put("::*")
            }
            Node::Function(signature) => match signature.result {
                Some(result) => {
                    self.left(result)?;
                    self.put(" ")
                }
                None => Ok(()),
            },
            Node::Array(_, element) => {
                self.left(*element)?;
                if self.has_suffix(*element)? { Ok(()) } else { self.put(" ") }
            }
            Node::Encoding(name, signature) => {
                if let Some(result) = signature.result.filter(|_| self.with_return_type) {
                    self.left(result)?;
                    // A pointer to a function or an array is open, as the name belongs into its parentheses.
                    if !self.is_open(result)? {
                        self.put(" ")?;
                    }
                }
                self.print(*name)
            }
            other => self.plain(other),
        }
    }

    fn right_of(&mut self, id: Id) -> fmt::Result {
        match self.node(id)? {
            Node::Param(argument) => self.right(*argument),
            Node::ParamPack(pack) => match self.element {
                Some(n) => self.elements(*pack)?.get(n).map_or(Ok(()), |&element| self.right(element)),
                None => Ok(()),
            },
            Node::Qualified(of, qualifiers) => {
                if !self.has_suffix(*of)? {
                    return self.right(*of);
                }
                self.right(*of)?;
                if matches!(self.resolved(*of)?.1, Node::Array(..)) { Ok(()) } else { self.qualifiers(*qualifiers) }
            }
            Node::VendorQualified(of, _) | Node::Pointer(of) | Node::MemberPointer(_, of) => {
                let is_plain = matches!(self.node(id)?, Node::VendorQualified(..));
                if !is_plain && self.has_suffix(*of)? {
                    self.put(")")?;
                    self.space_before_array(*of)?;
                }
                self.right(*of)
            }
            Node::Reference(of) | Node::Rvalue(of) => {
                let (of, _) = self.collapsed(*of)?;
                if self.has_suffix(of)? {
                    self.put(")")?;
                    self.space_before_array(of)?;
                }
                self.right(of)
            }
            Node::Function(signature) => {
                self.signature(signature)?;
                signature.result.map_or(Ok(()), |result| self.right(result))
            }
            Node::Array(size, element) => {
                self.put("[")?;
                if let Some(size) = size {
                    self.print(*size)?;
                }
                self.put("]")?;
                self.right(*element)
            }
            Node::Encoding(_, signature) => {
                self.signature(signature)?;
                match signature.result.filter(|_| self.with_return_type) {
                    Some(result) => self.right(result),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn space_before_array(&mut self, of: Id) -> fmt::Result {
        let is_array = match self.resolved(of)?.1 {
            Node::Array(..) => true,
            Node::Qualified(inner, _) => matches!(self.resolved(*inner)?.1, Node::Array(..)),
            _ => false,
        };
        if is_array { self.put(" ") } else { Ok(()) }
    }

    fn pointer(&mut self, of: Id, mark: &str) -> fmt::Result {
        self.left(of)?;
        if self.has_suffix(of)? {
            if !self.text.ends_with(' ') && !self.text.ends_with('(') {
                self.put(" ")?;
            }
            self.put("(")?;
        }
        self.put(mark)
    }

    /// What is behind references to references (collapsed as the language has it), and whether one of them is `&`.
    fn collapsed(&self, of: Id) -> Result<(Id, bool), fmt::Error> {
        let (mut of, mut is_lvalue) = (of, false);
        loop {
            match self.resolved(of)? {
                (_, Node::Reference(inner)) => {
                    is_lvalue = true;
                    of = *inner;
                }
                (_, Node::Rvalue(inner)) => of = *inner,
                _ => return Ok((of, is_lvalue)),
            }
        }
    }

    fn qualifiers(&mut self, qualifiers: Qualifiers) -> fmt::Result {
        if qualifiers.is_const {
            self.put(" const")?;
        }
        if qualifiers.is_volatile {
            self.put(" volatile")?;
        }
        if qualifiers.is_restrict {
            self.put(" __restrict")?;
        }
        self.put(qualifiers.reference)
    }

    fn signature(&mut self, signature: &'t Signature) -> fmt::Result {
        self.put("(")?;
        self.list(&signature.params)?;
        self.put(")")?;
        self.qualifiers(signature.qualifiers)?;
        if signature.transaction_safe {
            self.put(" transaction_safe")?;
        }
        match &signature.exceptions {
            None => Ok(()),
            Some(Exceptions::None) => self.put(" noexcept"),
            Some(Exceptions::NoneIf(condition)) => {
                self.put(" noexcept(")?;
                self.print(*condition)?;
                self.put(")")
            }
            Some(Exceptions::Only(types)) => {
                self.put(" throw(")?;
                self.list(types)?;
                self.put(")")
            }
        }
    }

    /// What has nothing to be printed behind it.
    fn plain(&mut self, node: &'t Node<'a>) -> fmt::Result {
        match node {
            Node::Text(text) => self.put(text),
            Node::Name(name) => self.put(name),
            Node::Abbreviated { name, .. } => self.put(name),
            Node::Nested(scope, name) | Node::Local(scope, name) => {
                self.print(*scope)?;
                self.put("::")?;
                self.print(*name)
            }
            Node::DefaultArgument(number) => {
                self.put("{default arg#")?;
                self.put_number(number.saturating_add(1))?;
                self.put("}")
            }
            Node::Template(name, args) => {
                self.print(*name)?;
                self.print(*args)
            }
            Node::Args(args) => {
                self.put(if self.text.ends_with('<') { " <" } else { "<" })?;
                self.list(args)?;
                // Binutils leave the space out behind an empty pack.
                self.put(if self.text.ends_with('>') && !self.has_dropped { " >" } else { ">" })
            }
            Node::ArgPack(args) => self.list(args),
            Node::Auto(number) => {
                self.put("auto:")?;
                self.put_number(*number)
            }
            Node::Expansion(of) => self.expansion(*of),
            Node::AbiTag(name, tag) => {
                self.print(*name)?;
                self.put("[abi:")?;
                self.put(tag)?;
                self.put("]")
            }
            Node::Constructor(class) => self.bare(*class),
            Node::Destructor(class) => {
                self.put("~")?;
                self.bare(*class)
            }
            Node::Operator(text) => {
                self.put("operator")?;
                if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
                    self.put(" ")?;
                }
                self.put(text.trim_end())
            }
            Node::Conversion(to) => {
                self.put("operator ")?;
                self.print(*to)
            }
            Node::LiteralOperator(name) => {
                self.put("operator\"\" ")?;
                self.print(*name)
            }
            Node::Lambda(params, number) => {
                self.put("{lambda(")?;
                self.list(params)?;
                self.put(")#")?;
                self.put_number(*number)?;
                self.put("}")
            }
            Node::Unnamed(number) => {
                self.put("{unnamed type#")?;
                self.put_number(*number)?;
                self.put("}")
            }
            Node::Structured(names) => {
                self.put("[")?;
                self.list(names)?;
                self.put("]")
            }
            Node::Vector(size, element) => {
                self.print(*element)?;
                self.put(" __vector(")?;
                self.print(*size)?;
                self.put(")")
            }
            Node::Bits(words, bits) => {
                let (before, after) = words.split_once('%').unwrap_or((words, ""));
                self.put(before)?;
                let is_bit_int = before.ends_with("_BitInt");
                self.put(if is_bit_int { "(" } else { "" })?;
                self.print(*bits)?;
                self.put(if is_bit_int { ")" } else { after })
            }
            Node::Decltype(expression) => {
                self.put("decltype (")?;
                self.print(*expression)?;
                self.put(")")
            }
            Node::Special(words, of) => {
                self.put(words)?;
                self.print(*of)
            }
            Node::ReferenceTemporary(name, number) => {
                self.put("reference temporary #")?;
                self.put_number(*number)?;
                self.put(" for ")?;
                self.print(*name)
            }
            Node::ConstructionVtable(base, derived) => {
                self.put("construction vtable for ")?;
                self.print(*base)?;
                self.put("-in-")?;
                self.print(*derived)
            }
            other => self.expression(other),
        }
    }

    /// The class's name in its constructor: without scope, arguments and tags.
    fn bare(&mut self, class: Id) -> fmt::Result {
        self.step()?;
        match self.resolved(class)?.1 {
            Node::Nested(_, name) | Node::Local(_, name) | Node::Template(name, _) | Node::AbiTag(name, _) => {
                self.bare(*name)
            }
            Node::Abbreviated { bare, .. } => self.put(bare),
            _ => self.print(class),
        }
    }
}
