//! Encodings and names.

use super::tree::{Id, Node, Qualifiers, Signature};
use super::{MAX_PARTS, Parser, Use};
use std::collections::HashMap;

/// What stands before the encoding that a special name belongs to, by its code.
const SPECIAL_TYPES: [(&str, &str); 9] = [
    ("TV", "vtable for "),
    ("TT", "VTT for "),
    ("TI", "typeinfo for "),
    ("TS", "typeinfo name for "),
    ("TF", "typeinfo fn for "),
    ("TJ", "java Class for "),
    ("TA", "template parameter object for "),
    ("TL", "template parameter object for "),
    ("TM", "non-transaction clone for "),
];

/// The same for those that belong to a name.
const SPECIAL_NAMES: [(&str, &str); 4] = [
    ("TH", "TLS init function for "),
    ("TW", "TLS wrapper function for "),
    ("GV", "guard variable for "),
    ("GA", "hidden alias for "),
];

/// The abbreviated classes of std: the letter, the name, and that of the constructors.
const ABBREVIATED: [(u8, &str, &str); 6] = [
    (b'a', "std::allocator", "allocator"),
    (b'b', "std::basic_string", "basic_string"),
    (b's', "std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "basic_string"),
    (b'i', "std::basic_istream<char, std::char_traits<char> >", "basic_istream"),
    (b'o', "std::basic_ostream<char, std::char_traits<char> >", "basic_ostream"),
    (b'd', "std::basic_iostream<char, std::char_traits<char> >", "basic_iostream"),
];

/// What is told by the way to a name.
#[derive(Debug, Default)]
struct Found {
    qualifiers: Qualifiers,
    /// Whether it ends in template arguments, so that a function has its return type in front of its parameters.
    ends_in_args: bool,
    /// Whether it is a constructor, destructor or conversion, which have none.
    has_no_result: bool,
}

impl<'a> Parser<'a> {
    /// A function with its parameters, a variable, or something that the compiler has made. Within another name the
    /// return type is left out.
    pub(super) fn encoding(&mut self, is_whole: bool) -> Option<Id> {
        self.deeper(|parser| {
            let params = std::mem::take(&mut parser.params);
            let was_in_lambda = std::mem::take(&mut parser.in_lambda);
            let was_in_conversion = std::mem::take(&mut parser.in_conversion);
            let context = parser.enter_context();
            let parsed = parser.encoding_here(is_whole);
            parser.context = context;
            parser.in_conversion = was_in_conversion;
            parser.in_lambda = was_in_lambda;
            parser.params = params;
            parsed
        })
    }

    fn encoding_here(&mut self, is_whole: bool) -> Option<Id> {
        if matches!(self.peek(), b'G' | b'T') {
            return self.special_name();
        }
        let mut found = Found::default();
        let pending = self.forward.len();
        let name = self.name_of(Some(&mut found))?;
        self.resolve_forward(pending)?;
        if matches!(self.peek(), 0 | b'E' | b'.') {
            return Some(name);
        }
        let mut signature = Signature { qualifiers: found.qualifiers, ..Signature::default() };
        if found.ends_in_args && !found.has_no_result {
            let result = self.type_()?;
            signature.result = is_whole.then_some(result);
        }
        signature.params = self.parameters()?;
        Some(self.add(Node::Encoding(name, signature)))
    }

    /// Types up to the end of the name, of the list, or of the encoding; `v` alone is none.
    fn parameters(&mut self) -> Option<Vec<Id>> {
        if self.peek() == b'v' && matches!(self.peek_at(1), 0 | b'E' | b'.') {
            self.expect("v")?;
            return Some(Vec::new());
        }
        let mut params = Vec::new();
        while !matches!(self.peek(), 0 | b'E' | b'.') {
            params.push(self.type_()?);
        }
        (!params.is_empty()).then_some(params)
    }

    fn resolve_forward(&mut self, pending: usize) -> Option<()> {
        for (use_, index) in self.forward.split_off(pending) {
            let argument = *self.params.get(index)?;
            // One that stands for itself would be followed for ever.
            if argument == use_ {
                return None;
            }
            let resolved = self.use_of(argument);
            *self.nodes.get_mut(use_.0)? = resolved;
        }
        Some(())
    }

    fn special_name(&mut self) -> Option<Id> {
        for (code, words) in SPECIAL_TYPES {
            if self.take(code) {
                let of = if matches!(code, "TA" | "TL") { self.template_arg()? } else { self.type_()? };
                return Some(self.add(Node::Special(words, of)));
            }
        }
        for (code, words) in SPECIAL_NAMES {
            if self.take(code) {
                let of = if code == "GA" { self.encoding(false)? } else { self.name()? };
                return Some(self.add(Node::Special(words, of)));
            }
        }
        if self.take("GR") {
            let name = self.name()?;
            let number = if self.rest.is_empty() { 0 } else { self.sequence(36)? };
            return Some(self.add(Node::ReferenceTemporary(name, number)));
        }
        if self.take("GTt") || self.take("GTn") {
            let of = self.encoding(false)?;
            return Some(self.add(Node::Special("transaction clone for ", of)));
        }
        if self.take("TC") {
            let derived = self.type_()?;
            self.number()?;
            self.expect("_")?;
            let base = self.type_()?;
            return Some(self.add(Node::ConstructionVtable(base, derived)));
        }
        let words = if self.take("Th") {
            self.offset(b'h')?;
            "non-virtual thunk to "
        } else if self.take("Tv") {
            self.offset(b'v')?;
            "virtual thunk to "
        } else {
            self.expect("Tc")?;
            for _ in 0..2 {
                let kind = self.peek();
                self.rest = self.rest.get(1..)?;
                self.offset(kind)?;
            }
            "covariant return thunk to "
        };
        let of = self.encoding(false)?;
        Some(self.add(Node::Special(words, of)))
    }

    /// What a thunk adds to `this`: not printed.
    fn offset(&mut self, kind: u8) -> Option<()> {
        for _ in 0..if kind == b'v' { 2 } else { 1 } {
            self.take("n");
            self.number()?;
            self.expect("_")?;
        }
        Some(())
    }

    pub(super) fn name(&mut self) -> Option<Id> {
        self.name_of(None)
    }

    fn name_of(&mut self, mut found: Option<&mut Found>) -> Option<Id> {
        self.take("L");
        match self.peek() {
            b'N' => return self.nested_name(found),
            b'Z' => return self.local_name(found),
            _ => {}
        }
        let is_substitution = self.peek() == b'S' && self.peek_at(1) != b't';
        let name = if is_substitution {
            let name = self.substitution()?;
            if self.peek() != b'I' {
                return None;
            }
            name
        } else {
            let std = self.take("St");
            let name = self.unqualified_name(None, found.as_deref_mut())?;
            if std {
                let std = self.add(Node::Text("std"));
                self.add(Node::Nested(std, name))
            } else {
                name
            }
        };
        if self.peek() != b'I' {
            return Some(name);
        }
        if !is_substitution {
            self.substitutions.push(name);
        }
        let args = self.template_args(found.is_some())?;
        if let Some(found) = found {
            found.ends_in_args = true;
        }
        Some(self.add(Node::Template(name, args)))
    }

    fn nested_name(&mut self, mut found: Option<&mut Found>) -> Option<Id> {
        self.expect("N")?;
        // An explicit object parameter (C++23) looks as a static function does.
        self.take("H");
        let mut qualifiers = self.qualifiers();
        qualifiers.reference = if self.take("R") {
            " &"
        } else if self.take("O") {
            " &&"
        } else {
            ""
        };
        let mut scope: Option<Id> = None;
        let mut ends_in_args = false;
        while !self.take("E") {
            self.take("L");
            let is_args = self.peek() == b'I';
            scope = Some(match self.peek() {
                b'I' => {
                    let name = scope?;
                    if ends_in_args {
                        return None;
                    }
                    let args = self.template_args(found.is_some())?;
                    self.add(Node::Template(name, args))
                }
                b'T' if scope.is_none() => self.template_param()?,
                b'D' if scope.is_none() && matches!(self.peek_at(1), b't' | b'T') => self.decltype()?,
                b'S' if scope.is_none() && self.take("St") => {
                    scope = Some(self.add(Node::Text("std")));
                    continue;
                }
                b'S' if scope.is_none() => {
                    scope = Some(self.substitution()?);
                    continue;
                }
                b'M' => {
                    self.expect("M")?;
                    continue;
                }
                _ => {
                    let name = self.unqualified_name(scope, found.as_deref_mut())?;
                    scope.map_or(name, |scope| self.add(Node::Nested(scope, name)))
                }
            });
            ends_in_args = is_args;
            self.substitutions.push(scope?);
        }
        // The whole is none.
        self.substitutions.pop()?;
        if let Some(found) = found {
            found.qualifiers = qualifiers;
            found.ends_in_args = ends_in_args;
        }
        scope
    }

    fn local_name(&mut self, found: Option<&mut Found>) -> Option<Id> {
        self.expect("Z")?;
        let function = self.encoding(false)?;
        self.expect("E")?;
        if self.take("s") {
            self.discriminator();
            let literal = self.add(Node::Text("string literal"));
            return Some(self.add(Node::Local(function, literal)));
        }
        let mut function = function;
        if self.take("d") {
            let number = self.sequence(10)?;
            let argument = self.add(Node::DefaultArgument(number));
            function = self.add(Node::Local(function, argument));
            let entity = self.name_of(found)?;
            return Some(self.add(Node::Local(function, entity)));
        }
        let entity = self.name_of(found)?;
        self.discriminator();
        Some(self.add(Node::Local(function, entity)))
    }

    /// Tells names of one function apart: not printed.
    fn discriminator(&mut self) {
        let before = self.rest;
        if self.take("__") {
            if self.number().is_none() || !self.take("_") {
                self.rest = before;
            }
        } else if self.take("_") && (!self.peek().is_ascii_digit() || self.discriminator_digit().is_none()) {
            self.rest = before;
        }
    }

    fn discriminator_digit(&mut self) -> Option<()> {
        self.rest = self.rest.get(1..)?;
        Some(())
    }

    fn unqualified_name(&mut self, scope: Option<Id>, found: Option<&mut Found>) -> Option<Id> {
        self.take("F");
        self.take("L");
        let mut is_fixed = false;
        let mut name = match self.peek() {
            b'0'..=b'9' => self.source_name()?,
            b'U' => self.unnamed()?,
            b'D' if self.take("DC") => {
                let names = self.list(Self::source_name)?;
                self.add(Node::Structured(names))
            }
            b'C' | b'D' => {
                is_fixed = true;
                self.constructor(scope?)?
            }
            _ => {
                let before = self.rest;
                let name = self.operator_name()?;
                is_fixed = before.starts_with("cv");
                name
            }
        };
        while self.take("B") {
            let tag = self.identifier()?;
            name = self.add(Node::AbiTag(name, tag));
        }
        if let Some(found) = found {
            found.has_no_result = is_fixed;
        }
        Some(name)
    }

    fn constructor(&mut self, scope: Id) -> Option<Id> {
        let class = self.add(Node::Param(scope));
        if self.take("C") {
            let inherits = self.take("I");
            if !matches!(self.peek(), b'1'..=b'5') {
                return None;
            }
            self.rest = self.rest.get(1..)?;
            // One that is inherited has the name of the base class.
            let class = if inherits { self.type_()? } else { class };
            return Some(self.add(Node::Constructor(class)));
        }
        self.expect("D")?;
        if !matches!(self.peek(), b'0'..=b'5') {
            return None;
        }
        self.rest = self.rest.get(1..)?;
        Some(self.add(Node::Destructor(class)))
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let length = self.number().filter(|&length| length > 0)?;
        let (name, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(name)
    }

    pub(super) fn source_name(&mut self) -> Option<Id> {
        let name = self.identifier()?;
        // As compilers name what has none, with a separator of their own.
        let is_anonymous =
            name.strip_prefix("_GLOBAL_").is_some_and(|rest| matches!(rest.as_bytes(), [b'.' | b'_' | b'$', b'N', ..]));
        Some(self.add(if is_anonymous { Node::Text("(anonymous namespace)") } else { Node::Name(name) }))
    }

    /// A lambda or a type without a name.
    fn unnamed(&mut self) -> Option<Id> {
        if self.take("Ul") {
            let was_in_lambda = std::mem::replace(&mut self.in_lambda, true);
            let context = self.enter_context();
            let params = self.lambda_params();
            self.context = context;
            self.in_lambda = was_in_lambda;
            let number = self.sequence(10)?;
            let lambda = Node::Lambda(params?, number.saturating_add(1));
            return Some(self.add(lambda));
        }
        self.expect("Ut")?;
        let number = self.sequence(10)?;
        Some(self.add(Node::Unnamed(number.saturating_add(1))))
    }

    fn lambda_params(&mut self) -> Option<Vec<Id>> {
        if self.take("vE") {
            return Some(Vec::new());
        }
        self.list(Self::type_)
    }

    pub(super) fn substitution(&mut self) -> Option<Id> {
        self.expect("S")?;
        if self.peek() == b'_' || self.peek().is_ascii_digit() || self.peek().is_ascii_uppercase() {
            let number = self.sequence(36)?;
            let meant = *self.substitutions.get(number)?;
            return self.reread(meant);
        }
        let (_, name, bare) = ABBREVIATED.into_iter().find(|(code, ..)| *code == self.peek())?;
        self.rest = self.rest.get(1..)?;
        let mut class = self.add(Node::Abbreviated { name, bare });
        if self.peek() == b'B' {
            while self.take("B") {
                let tag = self.identifier()?;
                class = self.add(Node::AbiTag(class, tag));
            }
            self.substitutions.push(class);
        }
        Some(class)
    }

    /// Template arguments. Those of the name that is being parsed are what its parameters stand for from then on.
    pub(super) fn template_args(&mut self, are_params: bool) -> Option<Id> {
        self.expect("I")?;
        if are_params {
            self.params.clear();
        }
        let mut args = Vec::new();
        while !self.take("E") {
            // Constraints are not printed.
            if self.take("Q") {
                self.expression()?;
                self.expect("E")?;
                break;
            }
            if are_params {
                let params = std::mem::take(&mut self.params);
                let arg = self.template_arg();
                self.params = params;
                let arg = arg?;
                self.params.push(arg);
                args.push(arg);
            } else {
                args.push(self.template_arg()?);
            }
        }
        Some(self.add(Node::Args(args)))
    }

    pub(super) fn template_arg(&mut self) -> Option<Id> {
        self.deeper(|parser| match parser.peek() {
            b'X' => {
                parser.expect("X")?;
                let expression = parser.expression()?;
                parser.expect("E")?;
                Some(expression)
            }
            b'J' | b'I' => {
                parser.rest = parser.rest.get(1..)?;
                let args = parser.list(Self::template_arg)?;
                Some(parser.add(Node::ArgPack(args)))
            }
            b'L' => parser.literal(),
            _ => parser.type_(),
        })
    }

    pub(super) fn template_param(&mut self) -> Option<Id> {
        self.expect("T")?;
        if self.take("L") {
            self.number()?;
            self.expect("_")?;
        }
        let number = self.sequence(10)?;
        self.use_param(number)
    }

    fn use_param(&mut self, number: usize) -> Option<Id> {
        let id = if self.in_lambda {
            self.add(Node::Auto(number.saturating_add(1)))
        } else if self.in_conversion {
            // The arguments follow.
            let id = self.add(Node::Text(""));
            self.forward.push((id, number));
            id
        } else {
            let resolved = self.use_of(*self.params.get(number)?);
            self.add(resolved)
        };
        self.uses.insert(id.0, Use { number, context: self.context });
        *self.uses_params.get_mut(id.0)? = true;
        Some(id)
    }

    /// `id` as it is to be read here: a substitution repeats text, and in another function or lambda its template
    /// parameters are others.
    fn reread(&mut self, id: Id) -> Option<Id> {
        let mut copies = HashMap::new();
        self.reread_part(id, &mut copies)
    }

    fn reread_part(&mut self, id: Id, copies: &mut HashMap<usize, Id>) -> Option<Id> {
        if let Some(&copy) = copies.get(&id.0) {
            return Some(copy);
        }
        if !self.uses_params.get(id.0).is_some_and(|&uses| uses) {
            return Some(id);
        }
        if self.parts > MAX_PARTS {
            return None;
        }
        let copy = match self.uses.get(&id.0).copied() {
            Some(use_) if use_.context == self.context => id,
            Some(use_) => self.use_param(use_.number)?,
            None => self.deeper(|parser| {
                let mut node = parser.node(id).clone();
                let mut is_same = true;
                let parts = node.parts_mut();
                parser.parts += parts.len();
                for part in parts {
                    let copy = parser.reread_part(*part, copies)?;
                    is_same &= copy == *part;
                    *part = copy;
                }
                Some(if is_same { id } else { parser.add(node) })
            })?,
        };
        copies.insert(id.0, copy);
        Some(copy)
    }

    fn use_of(&self, argument: Id) -> Node<'a> {
        match self.node(argument) {
            Node::ArgPack(_) => Node::ParamPack(argument),
            _ => Node::Param(argument),
        }
    }
}
