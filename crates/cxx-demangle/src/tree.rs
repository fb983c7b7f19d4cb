//! The parts of a name.

use std::collections::HashMap;

/// Refers to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id(pub(crate) usize);

/// Qualifiers of types and of member functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Qualifiers {
    pub(crate) is_const: bool,
    pub(crate) is_volatile: bool,
    pub(crate) is_restrict: bool,
    /// `&` or `&&` behind a member function's parameters; empty if none.
    pub(crate) reference: &'static str,
}

/// Parameters and what stands behind them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signature {
    pub(crate) result: Option<Id>,
    pub(crate) params: Vec<Id>,
    pub(crate) qualifiers: Qualifiers,
    /// ` noexcept` and the like.
    pub(crate) exceptions: Option<Exceptions>,
    pub(crate) transaction_safe: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Exceptions {
    None,
    NoneIf(Id),
    Only(Vec<Id>),
}

#[derive(Clone, Debug)]
pub(crate) enum Node<'a> {
    /// A word of ours.
    Text(&'static str),
    /// An identifier.
    Name(&'a str),
    /// `a::b`.
    Nested(Id, Id),
    /// A name in a function: its encoding, then the name.
    Local(Id, Id),
    /// The n-th default argument of a function, counted from the last.
    DefaultArgument(usize),
    Template(Id, Id),
    /// Template arguments, in angle brackets.
    Args(Vec<Id>),
    /// Several template arguments for one parameter.
    ArgPack(Vec<Id>),
    /// A use of such a parameter; its arguments are that part.
    ParamPack(Id),
    /// A use of a template parameter; its argument is the part with this number.
    Param(Id),
    /// The n-th parameter of a generic lambda that is `auto`.
    Auto(usize),
    /// A type that stands for each element of a pack.
    Expansion(Id),
    AbiTag(Id, &'a str),
    /// A class of std with an abbreviation: its name, and that of its constructors.
    Abbreviated {
        name: &'static str,
        bare: &'static str,
    },
    Constructor(Id),
    Destructor(Id),
    Operator(&'static str),
    Conversion(Id),
    /// `operator"" _x`.
    LiteralOperator(Id),
    Lambda(Vec<Id>, usize),
    Unnamed(usize),
    /// `[a, b]`.
    Structured(Vec<Id>),
    Qualified(Id, Qualifiers),
    VendorQualified(Id, Id),
    /// `*`, `&`, `&&`.
    Pointer(Id),
    Reference(Id),
    Rvalue(Id),
    Complex(Id, &'static str),
    Function(Signature),
    Array(Option<Id>, Id),
    /// Class, then the member's type.
    MemberPointer(Id, Id),
    /// Dimension, then the element's type.
    Vector(Id, Id),
    Bits(&'static str, Id),
    Decltype(Id),
    Encoding(Id, Signature),
    /// `vtable for` and the like.
    Special(&'static str, Id),
    ReferenceTemporary(Id, usize),
    ConstructionVtable(Id, Id),
    /// An integer: type, digits, whether negative.
    Literal(Id, &'a str, bool),
    FunctionParam(usize),
    Prefix(&'static str, Id),
    Postfix(&'static str, Id),
    Binary(&'static str, Id, Id),
    /// `(a + ...)`, `(... + a)`, `(a + ... + b)`.
    Fold {
        operator: &'static str,
        before: Option<Id>,
        after: Option<Id>,
    },
    /// `a.b` and the like.
    Access(&'static str, Id, Id),
    Index(Id, Id),
    Conditional(Id, Id, Id),
    Call(Id, Vec<Id>),
    /// `(T)(a, b)`.
    Cast(Id, Vec<Id>),
    /// `static_cast<T>(a)`.
    NamedCast(&'static str, Id, Id),
    /// `sizeof (a)`.
    Sizeof(&'static str, Id),
    SizeofPack(Id),
    /// `T{a, b}`.
    Braced(Option<Id>, Vec<Id>),
    New {
        is_global: bool,
        is_array: bool,
        placement: Vec<Id>,
        class: Id,
        arguments: Option<Vec<Id>>,
    },
    /// `a::~T`.
    DestructorName(Id),
    Global(Id),
}

impl Node<'_> {
    /// The parts that it is made of.
    pub(crate) fn parts(&self) -> Vec<Id> {
        self.clone().parts_mut().into_iter().map(|part| *part).collect()
    }

    /// The same, to be changed.
    pub(crate) fn parts_mut(&mut self) -> Vec<&mut Id> {
        match self {
            Self::Text(_)
            | Self::Name(_)
            | Self::DefaultArgument(_)
            | Self::Auto(_)
            | Self::Abbreviated { .. }
            | Self::Operator(_)
            | Self::Unnamed(_)
            | Self::FunctionParam(_) => Vec::new(),
            Self::Nested(a, b)
            | Self::Local(a, b)
            | Self::Template(a, b)
            | Self::VendorQualified(a, b)
            | Self::MemberPointer(a, b)
            | Self::Vector(a, b)
            | Self::ConstructionVtable(a, b)
            | Self::Binary(_, a, b)
            | Self::Access(_, a, b)
            | Self::Index(a, b)
            | Self::NamedCast(_, a, b) => vec![a, b],
            Self::Args(all) | Self::ArgPack(all) | Self::Lambda(all, _) | Self::Structured(all) => {
                all.iter_mut().collect()
            }
            Self::Param(of)
            | Self::ParamPack(of)
            | Self::Expansion(of)
            | Self::AbiTag(of, _)
            | Self::Constructor(of)
            | Self::Destructor(of)
            | Self::Conversion(of)
            | Self::LiteralOperator(of)
            | Self::Qualified(of, _)
            | Self::Pointer(of)
            | Self::Reference(of)
            | Self::Rvalue(of)
            | Self::Complex(of, _)
            | Self::Bits(_, of)
            | Self::Decltype(of)
            | Self::Special(_, of)
            | Self::ReferenceTemporary(of, _)
            | Self::Literal(of, ..)
            | Self::Prefix(_, of)
            | Self::Postfix(_, of)
            | Self::Sizeof(_, of)
            | Self::SizeofPack(of)
            | Self::DestructorName(of)
            | Self::Global(of) => vec![of],
            Self::Function(signature) => signature.parts_mut().collect(),
            Self::Encoding(name, signature) => std::iter::once(name).chain(signature.parts_mut()).collect(),
            Self::Array(size, element) => size.iter_mut().chain([element]).collect(),
            Self::Fold { before, after, .. } => before.iter_mut().chain(after).collect(),
            Self::Conditional(a, b, c) => vec![a, b, c],
            Self::Call(first, rest) | Self::Cast(first, rest) => std::iter::once(first).chain(rest).collect(),
            Self::Braced(class, elements) => class.iter_mut().chain(elements).collect(),
            Self::New { placement, class, arguments, .. } => {
                placement.iter_mut().chain([class]).chain(arguments.iter_mut().flatten()).collect()
            }
        }
    }
}

impl Signature {
    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Id> {
        let of_exceptions = match &mut self.exceptions {
            Some(Exceptions::NoneIf(condition)) => std::slice::from_mut(condition),
            Some(Exceptions::Only(types)) => types,
            Some(Exceptions::None) | None => &mut [],
        };
        self.result.iter_mut().chain(&mut self.params).chain(of_exceptions)
    }
}

/// A use of a template parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) number: usize,
    /// The function or lambda in which it stands.
    pub(crate) context: u32,
}

/// All parts of a name.
#[derive(Debug, Default)]
pub(crate) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    /// The parts that are uses of template parameters.
    uses: HashMap<usize, Use>,
    /// For each part, whether there are such uses in it.
    has_uses: Vec<bool>,
    /// How many parts the parts have, again where they were looked at again.
    parts: usize,
}

impl<'a> Tree<'a> {
    pub(crate) fn into_nodes(self) -> Vec<Node<'a>> {
        self.nodes
    }

    pub(crate) fn add(&mut self, node: Node<'a>) -> Id {
        // Functions and lambdas have parameters of their own.
        let is_apart = matches!(node, Node::Param(_) | Node::ParamPack(_) | Node::Lambda(..) | Node::Encoding(..));
        let parts = node.parts();
        let has_uses = !is_apart && parts.iter().any(|part| self.has_uses(*part));
        self.parts += 1 + parts.len();
        self.has_uses.push(has_uses);
        self.nodes.push(node);
        Id(self.nodes.len() - 1)
    }

    pub(crate) fn node(&self, id: Id) -> &Node<'a> {
        self.nodes.get(id.0).unwrap_or(&Node::Text(""))
    }

    pub(crate) fn replace(&mut self, id: Id, node: Node<'a>) -> Option<()> {
        *self.nodes.get_mut(id.0)? = node;
        Some(())
    }

    /// The use of a template parameter whose argument is this part.
    pub(crate) fn use_of(&self, argument: Id) -> Node<'a> {
        match self.node(argument) {
            Node::ArgPack(_) => Node::ParamPack(argument),
            _ => Node::Param(argument),
        }
    }

    pub(crate) fn mark_use(&mut self, id: Id, use_: Use) -> Option<()> {
        self.uses.insert(id.0, use_);
        *self.has_uses.get_mut(id.0)? = true;
        Some(())
    }

    pub(crate) fn use_at(&self, id: Id) -> Option<Use> {
        self.uses.get(&id.0).copied()
    }

    /// Whether uses of template parameters are in a part.
    pub(crate) fn has_uses(&self, id: Id) -> bool {
        self.has_uses.get(id.0).is_some_and(|&has_uses| has_uses)
    }

    pub(crate) const fn parts(&self) -> usize {
        self.parts
    }

    /// Counts parts that are looked at once more.
    pub(crate) const fn count_again(&mut self, parts: usize) {
        self.parts += parts;
    }
}
