//! Types.

use crate::parser::Parser;
use crate::tree::{Exceptions, Id, Node, Qualifiers, Signature};

fn builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'v' => "void",
        b'w' => "wchar_t",
        b'b' => "bool",
        b'c' => "char",
        b'a' => "signed char",
        b'h' => "unsigned char",
        b's' => "short",
        b't' => "unsigned short",
        b'i' => "int",
        b'j' => "unsigned int",
        b'l' => "long",
        b'm' => "unsigned long",
        b'x' => "long long",
        b'y' => "unsigned long long",
        b'n' => "__int128",
        b'o' => "unsigned __int128",
        b'f' => "float",
        b'd' => "double",
        b'e' => "long double",
        b'g' => "__float128",
        b'z' => "...",
        _ => return None,
    })
}

/// Builtin types of two letters, the first being D.
fn other_builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'f' => "decimal32",
        b'd' => "decimal64",
        b'e' => "decimal128",
        b'h' => "half",
        b's' => "char16_t",
        b'i' => "char32_t",
        b'u' => "char8_t",
        b'a' => "auto",
        b'c' => "decltype(auto)",
        b'n' => "decltype(nullptr)",
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    pub(crate) fn type_(&mut self) -> Option<Id> {
        self.deeper(Self::type_here)
    }

    fn type_here(&mut self) -> Option<Id> {
        if let Some(name) = builtin(self.cursor.peek()) {
            self.cursor.skip(1)?;
            return Some(self.tree.add(Node::Text(name)));
        }
        let parsed = match self.cursor.peek() {
            b'r' | b'V' | b'K' => {
                let qualifiers = self.cursor.qualifiers();
                if self.cursor.peek() == b'F'
                    || (self.cursor.peek() == b'D' && matches!(self.cursor.peek_at(1), b'o' | b'O' | b'w' | b'x'))
                {
                    self.function(qualifiers)?
                } else {
                    let of = self.type_()?;
                    self.tree.add(Node::Qualified(of, qualifiers))
                }
            }
            b'P' => self.wrapped("P", Node::Pointer)?,
            b'R' => self.wrapped("R", Node::Reference)?,
            b'O' => self.wrapped("O", Node::Rvalue)?,
            b'C' => self.wrapped("C", |of| Node::Complex(of, " _Complex"))?,
            b'G' => self.wrapped("G", |of| Node::Complex(of, " _Imaginary"))?,
            b'F' => self.function(Qualifiers::default())?,
            b'A' => self.array()?,
            b'M' => {
                self.cursor.expect("M")?;
                let class = self.type_()?;
                let member = self.type_()?;
                self.tree.add(Node::MemberPointer(class, member))
            }
            b'U' if !matches!(self.cursor.peek_at(1), b'l' | b't') => {
                self.cursor.expect("U")?;
                let mut qualifier = self.source_name()?;
                if self.cursor.peek() == b'I' {
                    let args = self.template_args(false)?;
                    qualifier = self.tree.add(Node::Template(qualifier, args));
                }
                let of = self.type_()?;
                self.tree.add(Node::VendorQualified(of, qualifier))
            }
            b'u' => {
                self.cursor.expect("u")?;
                let name = self.source_name()?;
                if self.cursor.peek() == b'I' {
                    let args = self.template_args(false)?;
                    self.tree.add(Node::Template(name, args))
                } else {
                    name
                }
            }
            b'T' if matches!(self.cursor.peek_at(1), b's' | b'u' | b'e') => {
                self.cursor.skip(2)?;
                self.name()?
            }
            b'T' => {
                let param = self.template_param()?;
                // In front of the type that a conversion operator converts to, arguments may be the operator's own.
                if self.cursor.peek() != b'I' || self.scope.in_conversion {
                    param
                } else {
                    self.substitutions.push(param);
                    let args = self.template_args(false)?;
                    self.tree.add(Node::Template(param, args))
                }
            }
            b'S' if self.cursor.peek_at(1) != b't' => {
                let name = self.substitution()?;
                if self.cursor.peek() != b'I' || (self.scope.in_conversion && !self.is_template_again(name)) {
                    return Some(name);
                }
                let args = self.template_args(false)?;
                self.tree.add(Node::Template(name, args))
            }
            b'D' => match self.other_type()? {
                (simple, true) => return Some(simple),
                (type_, false) => type_,
            },
            _ => self.name()?,
        };
        self.substitutions.push(parsed);
        Some(parsed)
    }

    /// Whether arguments may follow a substitution: it is a template's name, not a whole type.
    fn is_template_again(&self, name: Id) -> bool {
        !matches!(
            self.tree.node(name),
            Node::Template(..) | Node::Qualified(..) | Node::Pointer(_) | Node::Reference(_)
        )
    }

    fn wrapped(&mut self, code: &str, wrap: impl FnOnce(Id) -> Node<'a>) -> Option<Id> {
        self.cursor.expect(code)?;
        let of = self.type_()?;
        Some(self.tree.add(wrap(of)))
    }

    fn function(&mut self, qualifiers: Qualifiers) -> Option<Id> {
        let exceptions = if self.cursor.take("Do") {
            Some(Exceptions::None)
        } else if self.cursor.take("DO") {
            let condition = self.expression()?;
            self.cursor.expect("E")?;
            Some(Exceptions::NoneIf(condition))
        } else if self.cursor.take("Dw") {
            Some(Exceptions::Only(self.list(Self::type_)?))
        } else {
            None
        };
        let transaction_safe = self.cursor.take("Dx");
        self.cursor.expect("F")?;
        self.cursor.take("Y");
        let result = self.type_()?;
        let mut signature =
            Signature { result: Some(result), qualifiers, exceptions, transaction_safe, ..Signature::default() };
        loop {
            if self.cursor.take("E") {
                break;
            }
            if self.cursor.take("RE") {
                signature.qualifiers.reference = " &";
                break;
            }
            if self.cursor.take("OE") {
                signature.qualifiers.reference = " &&";
                break;
            }
            if self.cursor.take("v") {
                continue;
            }
            signature.params.push(self.type_()?);
        }
        Some(self.tree.add(Node::Function(signature)))
    }

    fn array(&mut self) -> Option<Id> {
        self.cursor.expect("A")?;
        let size = if self.cursor.peek().is_ascii_digit() {
            let digits = self.cursor.digits();
            Some(self.tree.add(Node::Name(digits)))
        } else if self.cursor.peek() == b'_' {
            None
        } else {
            Some(self.expression()?)
        };
        self.cursor.expect("_")?;
        let element = self.type_()?;
        Some(self.tree.add(Node::Array(size, element)))
    }

    /// Types that begin with D, and whether they are no substitution.
    fn other_type(&mut self) -> Option<(Id, bool)> {
        match self.cursor.peek_at(1) {
            b't' | b'T' => Some((self.decltype()?, false)),
            b'o' | b'O' | b'w' | b'x' => Some((self.function(Qualifiers::default())?, false)),
            b'p' => {
                self.cursor.expect("Dp")?;
                let of = self.type_()?;
                Some((self.tree.add(Node::Expansion(of)), false))
            }
            b'v' => {
                self.cursor.expect("Dv")?;
                let size = if self.cursor.peek().is_ascii_digit() {
                    let digits = self.cursor.digits();
                    self.tree.add(Node::Name(digits))
                } else {
                    self.cursor.expect("_")?;
                    self.expression()?
                };
                self.cursor.expect("_")?;
                let element = self.type_()?;
                Some((self.tree.add(Node::Vector(size, element)), false))
            }
            b'F' => {
                self.cursor.expect("DF")?;
                if self.cursor.take("16b") {
                    return Some((self.tree.add(Node::Text("std::bfloat16_t")), true));
                }
                let digits = self.cursor.digits();
                let bits = self.tree.add(Node::Name(digits));
                let words = if self.cursor.take("x") { "_Float%x" } else { "_Float" };
                if words == "_Float" {
                    self.cursor.expect("_")?;
                }
                Some((self.tree.add(Node::Bits(words, bits)), true))
            }
            b'B' | b'U' => {
                let words = if self.cursor.take("DB") { "signed _BitInt" } else { "unsigned _BitInt" };
                if words.starts_with('u') {
                    self.cursor.expect("DU")?;
                }
                let bits = if self.cursor.peek().is_ascii_digit() {
                    let digits = self.cursor.digits();
                    self.tree.add(Node::Name(digits))
                } else {
                    self.expression()?
                };
                self.cursor.expect("_")?;
                Some((self.tree.add(Node::Bits(words, bits)), true))
            }
            code => match other_builtin(code) {
                Some(name) => {
                    self.cursor.skip(2)?;
                    Some((self.tree.add(Node::Text(name)), true))
                }
                // A structured binding or a destructor: a name.
                None => Some((self.name()?, false)),
            },
        }
    }

    pub(crate) fn decltype(&mut self) -> Option<Id> {
        if !self.cursor.take("Dt") {
            self.cursor.expect("DT")?;
        }
        let expression = self.expression()?;
        self.cursor.expect("E")?;
        Some(self.tree.add(Node::Decltype(expression)))
    }
}
