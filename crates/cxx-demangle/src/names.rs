//! Encodings and names.

use crate::parser::Parser;
use crate::reread::Reread;
use crate::tree::{Id, Node, Qualifiers, Signature};

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

/// What the way to a name says of what is named.
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
    pub(crate) fn encoding(&mut self, is_whole: bool) -> Option<Id> {
        self.deeper(|parser| {
            let outer = parser.scope.enter_function();
            let parsed = parser.encoding_here(is_whole);
            parser.scope.leave_function(outer);
            parsed
        })
    }

    fn encoding_here(&mut self, is_whole: bool) -> Option<Id> {
        if matches!(self.cursor.peek(), b'G' | b'T') {
            return self.special_name();
        }
        let mut found = Found::default();
        let pending = self.scope.pending();
        let name = self.name_of(Some(&mut found))?;
        self.scope.resolve_forward(&mut self.tree, pending)?;
        if matches!(self.cursor.peek(), 0 | b'E' | b'.') {
            return Some(name);
        }
        let mut signature = Signature { qualifiers: found.qualifiers, ..Signature::default() };
        if found.ends_in_args && !found.has_no_result {
            let result = self.type_()?;
            signature.result = is_whole.then_some(result);
        }
        signature.params = self.parameters()?;
        Some(self.tree.add(Node::Encoding(name, signature)))
    }

    /// Types up to the end of the name, of the list, or of the encoding; `v` alone is none.
    fn parameters(&mut self) -> Option<Vec<Id>> {
        if self.cursor.peek() == b'v' && matches!(self.cursor.peek_at(1), 0 | b'E' | b'.') {
            self.cursor.expect("v")?;
            return Some(Vec::new());
        }
        let mut params = Vec::new();
        while !matches!(self.cursor.peek(), 0 | b'E' | b'.') {
            params.push(self.type_()?);
        }
        (!params.is_empty()).then_some(params)
    }

    fn special_name(&mut self) -> Option<Id> {
        for (code, words) in SPECIAL_TYPES {
            if self.cursor.take(code) {
                let of = if matches!(code, "TA" | "TL") { self.template_arg()? } else { self.type_()? };
                return Some(self.tree.add(Node::Special(words, of)));
            }
        }
        for (code, words) in SPECIAL_NAMES {
            if self.cursor.take(code) {
                let of = if code == "GA" { self.encoding(false)? } else { self.name()? };
                return Some(self.tree.add(Node::Special(words, of)));
            }
        }
        if self.cursor.take("GR") {
            let name = self.name()?;
            let number = if self.cursor.rest.is_empty() { 0 } else { self.cursor.sequence(36)? };
            return Some(self.tree.add(Node::ReferenceTemporary(name, number)));
        }
        if self.cursor.take("GTt") || self.cursor.take("GTn") {
            let of = self.encoding(false)?;
            return Some(self.tree.add(Node::Special("transaction clone for ", of)));
        }
        if self.cursor.take("TC") {
            let derived = self.type_()?;
            self.cursor.number()?;
            self.cursor.expect("_")?;
            let base = self.type_()?;
            return Some(self.tree.add(Node::ConstructionVtable(base, derived)));
        }
        let words = if self.cursor.take("Th") {
            self.cursor.offset(b'h')?;
            "non-virtual thunk to "
        } else if self.cursor.take("Tv") {
            self.cursor.offset(b'v')?;
            "virtual thunk to "
        } else {
            self.cursor.expect("Tc")?;
            for _ in 0..2 {
                let kind = self.cursor.peek();
                self.cursor.skip(1)?;
                self.cursor.offset(kind)?;
            }
            "covariant return thunk to "
        };
        let of = self.encoding(false)?;
        Some(self.tree.add(Node::Special(words, of)))
    }

    pub(crate) fn name(&mut self) -> Option<Id> {
        self.name_of(None)
    }

    fn name_of(&mut self, mut found: Option<&mut Found>) -> Option<Id> {
        self.cursor.take("L");
        match self.cursor.peek() {
            b'N' => return self.nested_name(found),
            b'Z' => return self.local_name(found),
            _ => {}
        }
        let is_substitution = self.cursor.peek() == b'S' && self.cursor.peek_at(1) != b't';
        let name = if is_substitution {
            let name = self.substitution()?;
            if self.cursor.peek() != b'I' {
                return None;
            }
            name
        } else {
            let std = self.cursor.take("St");
            let name = self.unqualified_name(None, found.as_deref_mut())?;
            if std {
                let std = self.tree.add(Node::Text("std"));
                self.tree.add(Node::Nested(std, name))
            } else {
                name
            }
        };
        if self.cursor.peek() != b'I' {
            return Some(name);
        }
        if !is_substitution {
            self.substitutions.push(name);
        }
        let args = self.template_args(found.is_some())?;
        if let Some(found) = found {
            found.ends_in_args = true;
        }
        Some(self.tree.add(Node::Template(name, args)))
    }

    fn nested_name(&mut self, mut found: Option<&mut Found>) -> Option<Id> {
        self.cursor.expect("N")?;
        // An explicit object parameter (C++23) looks as a static function does.
        self.cursor.take("H");
        let mut qualifiers = self.cursor.qualifiers();
        qualifiers.reference = if self.cursor.take("R") {
            " &"
        } else if self.cursor.take("O") {
            " &&"
        } else {
            ""
        };
        let mut scope: Option<Id> = None;
        let mut ends_in_args = false;
        while !self.cursor.take("E") {
            self.cursor.take("L");
            let is_args = self.cursor.peek() == b'I';
            scope = Some(match self.cursor.peek() {
                b'I' => {
                    let name = scope?;
                    if ends_in_args {
                        return None;
                    }
                    let args = self.template_args(found.is_some())?;
                    self.tree.add(Node::Template(name, args))
                }
                b'T' if scope.is_none() => self.template_param()?,
                b'D' if scope.is_none() && matches!(self.cursor.peek_at(1), b't' | b'T') => self.decltype()?,
                b'S' if scope.is_none() && self.cursor.take("St") => {
                    scope = Some(self.tree.add(Node::Text("std")));
                    continue;
                }
                b'S' if scope.is_none() => {
                    scope = Some(self.substitution()?);
                    continue;
                }
                b'M' => {
                    self.cursor.expect("M")?;
                    continue;
                }
                _ => {
                    let name = self.unqualified_name(scope, found.as_deref_mut())?;
                    scope.map_or(name, |scope| self.tree.add(Node::Nested(scope, name)))
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
        self.cursor.expect("Z")?;
        let function = self.encoding(false)?;
        self.cursor.expect("E")?;
        if self.cursor.take("s") {
            self.cursor.discriminator();
            let literal = self.tree.add(Node::Text("string literal"));
            return Some(self.tree.add(Node::Local(function, literal)));
        }
        let mut function = function;
        if self.cursor.take("d") {
            let number = self.cursor.sequence(10)?;
            let argument = self.tree.add(Node::DefaultArgument(number));
            function = self.tree.add(Node::Local(function, argument));
            let entity = self.name_of(found)?;
            return Some(self.tree.add(Node::Local(function, entity)));
        }
        let entity = self.name_of(found)?;
        self.cursor.discriminator();
        Some(self.tree.add(Node::Local(function, entity)))
    }

    fn unqualified_name(&mut self, scope: Option<Id>, found: Option<&mut Found>) -> Option<Id> {
        self.cursor.take("F");
        self.cursor.take("L");
        let mut is_fixed = false;
        let mut name = match self.cursor.peek() {
            b'0'..=b'9' => self.source_name()?,
            b'U' => self.unnamed()?,
            b'D' if self.cursor.take("DC") => {
                let names = self.list(Self::source_name)?;
                self.tree.add(Node::Structured(names))
            }
            b'C' | b'D' => {
                is_fixed = true;
                self.constructor(scope?)?
            }
            _ => {
                let before = self.cursor.rest;
                let name = self.operator_name()?;
                is_fixed = before.starts_with("cv");
                name
            }
        };
        while self.cursor.take("B") {
            let tag = self.cursor.identifier()?;
            name = self.tree.add(Node::AbiTag(name, tag));
        }
        if let Some(found) = found {
            found.has_no_result = is_fixed;
        }
        Some(name)
    }

    fn constructor(&mut self, scope: Id) -> Option<Id> {
        let class = self.tree.add(Node::Param(scope));
        if self.cursor.take("C") {
            let inherits = self.cursor.take("I");
            if !matches!(self.cursor.peek(), b'1'..=b'5') {
                return None;
            }
            self.cursor.skip(1)?;
            // One that is inherited has the name of the base class.
            let class = if inherits { self.type_()? } else { class };
            return Some(self.tree.add(Node::Constructor(class)));
        }
        self.cursor.expect("D")?;
        if !matches!(self.cursor.peek(), b'0'..=b'5') {
            return None;
        }
        self.cursor.skip(1)?;
        Some(self.tree.add(Node::Destructor(class)))
    }

    pub(crate) fn source_name(&mut self) -> Option<Id> {
        let name = self.cursor.identifier()?;
        // As compilers name what has none, with a separator of their own.
        let is_anonymous =
            name.strip_prefix("_GLOBAL_").is_some_and(|rest| matches!(rest.as_bytes(), [b'.' | b'_' | b'$', b'N', ..]));
        Some(self.tree.add(if is_anonymous { Node::Text("(anonymous namespace)") } else { Node::Name(name) }))
    }

    /// A lambda or a type without a name.
    fn unnamed(&mut self) -> Option<Id> {
        if self.cursor.take("Ul") {
            let outer = self.scope.enter_lambda();
            let params = self.lambda_params();
            self.scope.leave_lambda(outer);
            let number = self.cursor.sequence(10)?;
            let lambda = Node::Lambda(params?, number.saturating_add(1));
            return Some(self.tree.add(lambda));
        }
        self.cursor.expect("Ut")?;
        let number = self.cursor.sequence(10)?;
        Some(self.tree.add(Node::Unnamed(number.saturating_add(1))))
    }

    fn lambda_params(&mut self) -> Option<Vec<Id>> {
        if self.cursor.take("vE") {
            return Some(Vec::new());
        }
        self.list(Self::type_)
    }

    pub(crate) fn substitution(&mut self) -> Option<Id> {
        self.cursor.expect("S")?;
        if self.cursor.peek() == b'_' || self.cursor.peek().is_ascii_digit() || self.cursor.peek().is_ascii_uppercase()
        {
            let number = self.cursor.sequence(36)?;
            let meant = *self.substitutions.get(number)?;
            return Reread::new(&mut self.tree, &mut self.scope, self.depth).part(meant);
        }
        let (_, name, bare) = ABBREVIATED.into_iter().find(|(code, ..)| *code == self.cursor.peek())?;
        self.cursor.skip(1)?;
        let mut class = self.tree.add(Node::Abbreviated { name, bare });
        if self.cursor.peek() == b'B' {
            while self.cursor.take("B") {
                let tag = self.cursor.identifier()?;
                class = self.tree.add(Node::AbiTag(class, tag));
            }
            self.substitutions.push(class);
        }
        Some(class)
    }

    /// Template arguments. Those of the name that is being parsed are what its parameters stand for from then on.
    pub(crate) fn template_args(&mut self, are_params: bool) -> Option<Id> {
        self.cursor.expect("I")?;
        if are_params {
            self.scope.args.clear();
        }
        let mut args = Vec::new();
        while !self.cursor.take("E") {
            // Constraints are not printed.
            if self.cursor.take("Q") {
                self.expression()?;
                self.cursor.expect("E")?;
                break;
            }
            if are_params {
                let params = std::mem::take(&mut self.scope.args);
                let arg = self.template_arg();
                self.scope.args = params;
                let arg = arg?;
                self.scope.args.push(arg);
                args.push(arg);
            } else {
                args.push(self.template_arg()?);
            }
        }
        Some(self.tree.add(Node::Args(args)))
    }

    pub(crate) fn template_arg(&mut self) -> Option<Id> {
        self.deeper(|parser| match parser.cursor.peek() {
            b'X' => {
                parser.cursor.expect("X")?;
                let expression = parser.expression()?;
                parser.cursor.expect("E")?;
                Some(expression)
            }
            b'J' | b'I' => {
                parser.cursor.skip(1)?;
                let args = parser.list(Self::template_arg)?;
                Some(parser.tree.add(Node::ArgPack(args)))
            }
            b'L' => parser.literal(),
            _ => parser.type_(),
        })
    }

    pub(crate) fn template_param(&mut self) -> Option<Id> {
        self.cursor.expect("T")?;
        if self.cursor.take("L") {
            self.cursor.number()?;
            self.cursor.expect("_")?;
        }
        let number = self.cursor.sequence(10)?;
        self.scope.use_param(&mut self.tree, number)
    }
}
