//! Operators and expressions, as they stand in template arguments and in types that depend on them.

use super::Parser;
use super::tree::{Id, Node};

/// How an operator is written, and what stands where in an expression with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Prefix,
    Postfix,
    Binary,
    Access,
    Index,
    Conditional,
    Call,
    NamedCast,
    SizeofType,
    SizeofExpression,
    New,
    /// A name only, or an expression of its own.
    Other,
}

const OPERATORS: [(&str, &str, Form); 66] = [
    ("aN", "&=", Form::Binary),
    ("aS", "=", Form::Binary),
    ("aa", "&&", Form::Binary),
    ("ad", "&", Form::Prefix),
    ("an", "&", Form::Binary),
    ("at", "alignof ", Form::SizeofType),
    ("aw", "co_await ", Form::Prefix),
    ("az", "alignof ", Form::SizeofExpression),
    ("cc", "const_cast", Form::NamedCast),
    ("cl", "()", Form::Call),
    ("cm", ",", Form::Binary),
    ("co", "~", Form::Prefix),
    ("dV", "/=", Form::Binary),
    ("da", "delete[] ", Form::Prefix),
    ("dc", "dynamic_cast", Form::NamedCast),
    ("de", "*", Form::Prefix),
    ("dl", "delete ", Form::Prefix),
    ("ds", ".*", Form::Access),
    ("dt", ".", Form::Access),
    ("dv", "/", Form::Binary),
    ("eO", "^=", Form::Binary),
    ("eo", "^", Form::Binary),
    ("eq", "==", Form::Binary),
    ("ge", ">=", Form::Binary),
    ("gt", ">", Form::Binary),
    ("ix", "[]", Form::Index),
    ("lS", "<<=", Form::Binary),
    ("le", "<=", Form::Binary),
    ("ls", "<<", Form::Binary),
    ("lt", "<", Form::Binary),
    ("mI", "-=", Form::Binary),
    ("mL", "*=", Form::Binary),
    ("mi", "-", Form::Binary),
    ("ml", "*", Form::Binary),
    ("mm", "--", Form::Postfix),
    ("na", "new[]", Form::New),
    ("ne", "!=", Form::Binary),
    ("ng", "-", Form::Prefix),
    ("nt", "!", Form::Prefix),
    ("nw", "new", Form::New),
    ("nx", "noexcept", Form::SizeofExpression),
    ("oR", "|=", Form::Binary),
    ("oo", "||", Form::Binary),
    ("or", "|", Form::Binary),
    ("pL", "+=", Form::Binary),
    ("pl", "+", Form::Binary),
    ("pm", "->*", Form::Access),
    ("pp", "++", Form::Postfix),
    ("ps", "+", Form::Prefix),
    ("pt", "->", Form::Access),
    ("qu", "?", Form::Conditional),
    ("rM", "%=", Form::Binary),
    ("rS", ">>=", Form::Binary),
    ("rc", "reinterpret_cast", Form::NamedCast),
    ("rm", "%", Form::Binary),
    ("rs", ">>", Form::Binary),
    ("sc", "static_cast", Form::NamedCast),
    ("ss", "<=>", Form::Binary),
    ("st", "sizeof ", Form::SizeofType),
    ("sz", "sizeof ", Form::SizeofExpression),
    ("te", "typeid ", Form::SizeofExpression),
    ("ti", "typeid ", Form::SizeofType),
    ("tr", "throw", Form::Other),
    ("tw", "throw ", Form::Prefix),
    ("v0", "", Form::Other),
    ("cv", "", Form::Other),
];

impl<'a> Parser<'a> {
    fn operator(&self) -> Option<(&'static str, Form)> {
        let code = self.rest.get(..2)?;
        OPERATORS.into_iter().find(|(known, ..)| *known == code).map(|(_, text, form)| (text, form))
    }

    /// The name of an operator function.
    pub(super) fn operator_name(&mut self) -> Option<Id> {
        if self.take("cv") {
            let was_in_conversion = std::mem::replace(&mut self.in_conversion, true);
            let to = self.type_();
            self.in_conversion = was_in_conversion;
            let to = to?;
            return Some(self.add(Node::Conversion(to)));
        }
        if self.take("li") {
            let name = self.source_name()?;
            return Some(self.add(Node::LiteralOperator(name)));
        }
        let (text, form) = self.operator()?;
        if matches!(form, Form::Other | Form::NamedCast | Form::SizeofType | Form::SizeofExpression) {
            return None;
        }
        self.rest = self.rest.get(2..)?;
        Some(self.add(Node::Operator(text)))
    }

    pub(super) fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::expression_here)
    }

    fn expression_here(&mut self) -> Option<Id> {
        match self.peek() {
            b'L' => return self.literal(),
            b'T' => return self.template_param(),
            b'0'..=b'9' => return self.simple_name(),
            b'f' if self.peek_at(1) == b'p' || (self.peek_at(1) == b'L' && self.peek_at(2).is_ascii_digit()) => {
                return self.function_param();
            }
            b's' if self.peek_at(1) == b'r' => return self.unresolved_name(),
            b'S' => return self.type_(),
            _ => {}
        }
        if self.take("gs") {
            if self.peek() == b'n' || self.peek() == b'd' {
                return self.operation(true);
            }
            let name = if self.peek() == b's' { self.unresolved_name()? } else { self.simple_name()? };
            return Some(self.add(Node::Global(name)));
        }
        if self.take("sp") {
            let of = self.expression()?;
            return Some(self.add(Node::Expansion(of)));
        }
        if self.take("sZ") {
            let of = if self.peek() == b'T' { self.template_param()? } else { self.function_param()? };
            return Some(self.add(Node::SizeofPack(of)));
        }
        if self.take("il") {
            let elements = self.list(Self::expression)?;
            return Some(self.add(Node::Braced(None, elements)));
        }
        if self.take("tl") {
            let class = self.type_()?;
            let elements = self.list(Self::expression)?;
            return Some(self.add(Node::Braced(Some(class), elements)));
        }
        if self.take("on") {
            return self.simple_name();
        }
        if self.take("dn") {
            let class = if self.peek().is_ascii_digit() { self.simple_name()? } else { self.type_()? };
            return Some(self.add(Node::DestructorName(class)));
        }
        if self.take("cv") {
            let to = self.type_()?;
            let arguments = if self.take("_") { self.list(Self::expression)? } else { vec![self.expression()?] };
            return Some(self.add(Node::Cast(to, arguments)));
        }
        for (code, is_left, is_binary) in
            [("fl", true, false), ("fr", false, false), ("fL", true, true), ("fR", false, true)]
        {
            if self.take(code) {
                let (operator, _) = self.operator()?;
                self.rest = self.rest.get(2..)?;
                let first = self.expression()?;
                let second = if is_binary { Some(self.expression()?) } else { None };
                let (before, after) = match (is_left, second) {
                    (true, None) => (None, Some(first)),
                    (false, None) => (Some(first), None),
                    (_, Some(second)) => (Some(first), Some(second)),
                };
                return Some(self.add(Node::Fold { operator, before, after }));
            }
        }
        if self.take("tr") {
            return Some(self.add(Node::Text("throw")));
        }
        self.operation(false)
    }

    fn operation(&mut self, is_global: bool) -> Option<Id> {
        let (text, form) = self.operator()?;
        self.rest = self.rest.get(2..)?;
        let node = match form {
            Form::Prefix => Node::Prefix(text, self.expression()?),
            Form::Postfix if self.take("_") => Node::Prefix(text, self.expression()?),
            Form::Postfix => Node::Postfix(text, self.expression()?),
            Form::Binary => Node::Binary(text, self.expression()?, self.expression()?),
            Form::Access => Node::Access(text, self.expression()?, self.expression()?),
            Form::Index => Node::Index(self.expression()?, self.expression()?),
            Form::Conditional => Node::Conditional(self.expression()?, self.expression()?, self.expression()?),
            Form::Call => Node::Call(self.expression()?, self.list(Self::expression)?),
            Form::NamedCast => Node::NamedCast(text, self.type_()?, self.expression()?),
            Form::SizeofType => Node::Sizeof(text, self.type_()?),
            Form::SizeofExpression => Node::Sizeof(text, self.expression()?),
            Form::New => self.new_expression(is_global, text == "new[]")?,
            Form::Other => return None,
        };
        Some(self.add(node))
    }

    fn new_expression(&mut self, is_global: bool, is_array: bool) -> Option<Node<'a>> {
        let mut placement = Vec::new();
        while !self.take("_") {
            placement.push(self.expression()?);
        }
        let class = self.type_()?;
        let arguments = if self.take("pi") {
            Some(self.list(Self::expression)?)
        } else if self.peek() == b'i' {
            Some(vec![self.expression()?])
        } else {
            self.expect("E")?;
            None
        };
        Some(Node::New { is_global, is_array, placement, class, arguments })
    }

    /// A name in an expression, maybe with arguments.
    fn simple_name(&mut self) -> Option<Id> {
        let name = if self.peek().is_ascii_digit() { self.source_name()? } else { self.operator_name()? };
        if self.peek() != b'I' {
            return Some(name);
        }
        let args = self.template_args(false)?;
        Some(self.add(Node::Template(name, args)))
    }

    /// A name in a class or namespace that is not known before the template's arguments are.
    fn unresolved_name(&mut self) -> Option<Id> {
        self.expect("sr")?;
        let mut scope;
        if self.take("N") {
            scope = self.type_()?;
            while !self.take("E") {
                let level = self.simple_name()?;
                scope = self.add(Node::Nested(scope, level));
            }
        } else if self.peek().is_ascii_digit() {
            // Levels of names, which end in E; older compilers have one only, without it.
            scope = self.simple_name()?;
            let (rest, substitutions) = (self.rest, self.substitutions.len());
            match self.more_levels(scope) {
                Some(all) => scope = all,
                None => {
                    self.rest = rest;
                    self.substitutions.truncate(substitutions);
                }
            }
        } else {
            scope = self.type_()?;
        }
        let name =
            if self.take("on") || !self.rest.starts_with("dn") { self.simple_name()? } else { self.expression()? };
        Some(self.add(Node::Nested(scope, name)))
    }

    /// The levels up to E, behind which the name follows.
    fn more_levels(&mut self, first: Id) -> Option<Id> {
        let mut scope = first;
        while !self.take("E") {
            let level = self.simple_name()?;
            scope = self.add(Node::Nested(scope, level));
        }
        let is_name = self.peek().is_ascii_digit() || self.rest.starts_with("on") || self.rest.starts_with("dn");
        is_name.then_some(scope)
    }

    fn function_param(&mut self) -> Option<Id> {
        if self.take("fpT") {
            return Some(self.add(Node::Text("this")));
        }
        if self.take("fL") {
            self.number()?;
            self.expect("p")?;
        } else {
            self.expect("fp")?;
        }
        self.qualifiers();
        let number = self.sequence(10)?;
        Some(self.add(Node::FunctionParam(number.saturating_add(1))))
    }

    pub(super) fn literal(&mut self) -> Option<Id> {
        self.expect("L")?;
        if self.take("_Z") || self.take("Z") {
            let name = self.encoding(true)?;
            self.expect("E")?;
            return Some(name);
        }
        let class = self.type_()?;
        let is_negative = self.take("n");
        let end = self.rest.find('E')?;
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..)?;
        Some(self.add(Node::Literal(class, digits, is_negative)))
    }
}
