//! Operators and expressions, as they stand in template arguments and in types that depend on them.

use crate::operators::{Form, operator};
use crate::parser::Parser;
use crate::tree::{Id, Node};

impl<'a> Parser<'a> {
    /// The name of an operator function.
    pub(crate) fn operator_name(&mut self) -> Option<Id> {
        if self.cursor.take("cv") {
            let was_in_conversion = std::mem::replace(&mut self.scope.in_conversion, true);
            let to = self.type_();
            self.scope.in_conversion = was_in_conversion;
            let to = to?;
            return Some(self.tree.add(Node::Conversion(to)));
        }
        if self.cursor.take("li") {
            let name = self.source_name()?;
            return Some(self.tree.add(Node::LiteralOperator(name)));
        }
        let (text, form) = operator(self.cursor.rest)?;
        if matches!(form, Form::Other | Form::NamedCast | Form::SizeofType | Form::SizeofExpression) {
            return None;
        }
        self.cursor.skip(2)?;
        Some(self.tree.add(Node::Operator(text)))
    }

    pub(crate) fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::expression_here)
    }

    fn expression_here(&mut self) -> Option<Id> {
        match self.cursor.peek() {
            b'L' => return self.literal(),
            b'T' => return self.template_param(),
            b'0'..=b'9' => return self.simple_name(),
            b'f' if self.cursor.peek_at(1) == b'p'
                || (self.cursor.peek_at(1) == b'L' && self.cursor.peek_at(2).is_ascii_digit()) =>
            {
                return self.function_param();
            }
            b's' if self.cursor.peek_at(1) == b'r' => return self.unresolved_name(),
            b'S' => return self.type_(),
            _ => {}
        }
        if self.cursor.take("gs") {
            if self.cursor.peek() == b'n' || self.cursor.peek() == b'd' {
                return self.operation(true);
            }
            let name = if self.cursor.peek() == b's' { self.unresolved_name()? } else { self.simple_name()? };
            return Some(self.tree.add(Node::Global(name)));
        }
        if self.cursor.take("sp") {
            let of = self.expression()?;
            return Some(self.tree.add(Node::Expansion(of)));
        }
        if self.cursor.take("sZ") {
            let of = if self.cursor.peek() == b'T' { self.template_param()? } else { self.function_param()? };
            return Some(self.tree.add(Node::SizeofPack(of)));
        }
        if self.cursor.take("il") {
            let elements = self.list(Self::expression)?;
            return Some(self.tree.add(Node::Braced(None, elements)));
        }
        if self.cursor.take("tl") {
            let class = self.type_()?;
            let elements = self.list(Self::expression)?;
            return Some(self.tree.add(Node::Braced(Some(class), elements)));
        }
        if self.cursor.take("on") {
            return self.simple_name();
        }
        if self.cursor.take("dn") {
            let class = if self.cursor.peek().is_ascii_digit() { self.simple_name()? } else { self.type_()? };
            return Some(self.tree.add(Node::DestructorName(class)));
        }
        if self.cursor.take("cv") {
            let to = self.type_()?;
            let arguments = if self.cursor.take("_") { self.list(Self::expression)? } else { vec![self.expression()?] };
            return Some(self.tree.add(Node::Cast(to, arguments)));
        }
        for (code, is_left, is_binary) in
            [("fl", true, false), ("fr", false, false), ("fL", true, true), ("fR", false, true)]
        {
            if self.cursor.take(code) {
                let (operator, _) = operator(self.cursor.rest)?;
                self.cursor.skip(2)?;
                let first = self.expression()?;
                let second = if is_binary { Some(self.expression()?) } else { None };
                let (before, after) = match (is_left, second) {
                    (true, None) => (None, Some(first)),
                    (false, None) => (Some(first), None),
                    (_, Some(second)) => (Some(first), Some(second)),
                };
                return Some(self.tree.add(Node::Fold { operator, before, after }));
            }
        }
        if self.cursor.take("tr") {
            return Some(self.tree.add(Node::Text("throw")));
        }
        self.operation(false)
    }

    fn operation(&mut self, is_global: bool) -> Option<Id> {
        let (text, form) = operator(self.cursor.rest)?;
        self.cursor.skip(2)?;
        let node = match form {
            Form::Prefix => Node::Prefix(text, self.expression()?),
            Form::Postfix if self.cursor.take("_") => Node::Prefix(text, self.expression()?),
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
        Some(self.tree.add(node))
    }

    fn new_expression(&mut self, is_global: bool, is_array: bool) -> Option<Node<'a>> {
        let mut placement = Vec::new();
        while !self.cursor.take("_") {
            placement.push(self.expression()?);
        }
        let class = self.type_()?;
        let arguments = if self.cursor.take("pi") {
            Some(self.list(Self::expression)?)
        } else if self.cursor.peek() == b'i' {
            Some(vec![self.expression()?])
        } else {
            self.cursor.expect("E")?;
            None
        };
        Some(Node::New { is_global, is_array, placement, class, arguments })
    }

    /// A name in an expression, maybe with arguments.
    fn simple_name(&mut self) -> Option<Id> {
        let name = if self.cursor.peek().is_ascii_digit() { self.source_name()? } else { self.operator_name()? };
        if self.cursor.peek() != b'I' {
            return Some(name);
        }
        let args = self.template_args(false)?;
        Some(self.tree.add(Node::Template(name, args)))
    }

    /// A name in a class or namespace that is not known before the template's arguments are.
    fn unresolved_name(&mut self) -> Option<Id> {
        self.cursor.expect("sr")?;
        let mut scope;
        if self.cursor.take("N") {
            scope = self.type_()?;
            while !self.cursor.take("E") {
                let level = self.simple_name()?;
                scope = self.tree.add(Node::Nested(scope, level));
            }
        } else if self.cursor.peek().is_ascii_digit() {
            // Levels of names, which end in E; older compilers have one only, without it.
            scope = self.simple_name()?;
            let (rest, substitutions) = (self.cursor.rest, self.substitutions.len());
            match self.more_levels(scope) {
                Some(all) => scope = all,
                None => {
                    self.cursor.rest = rest;
                    self.substitutions.truncate(substitutions);
                }
            }
        } else {
            scope = self.type_()?;
        }
        let name = if self.cursor.take("on") || !self.cursor.rest.starts_with("dn") {
            self.simple_name()?
        } else {
            self.expression()?
        };
        Some(self.tree.add(Node::Nested(scope, name)))
    }

    /// The levels up to E, behind which the name follows.
    fn more_levels(&mut self, first: Id) -> Option<Id> {
        let mut scope = first;
        while !self.cursor.take("E") {
            let level = self.simple_name()?;
            scope = self.tree.add(Node::Nested(scope, level));
        }
        let is_name = self.cursor.peek().is_ascii_digit()
            || self.cursor.rest.starts_with("on")
            || self.cursor.rest.starts_with("dn");
        is_name.then_some(scope)
    }

    fn function_param(&mut self) -> Option<Id> {
        if self.cursor.take("fpT") {
            return Some(self.tree.add(Node::Text("this")));
        }
        if self.cursor.take("fL") {
            self.cursor.number()?;
            self.cursor.expect("p")?;
        } else {
            self.cursor.expect("fp")?;
        }
        self.cursor.qualifiers();
        let number = self.cursor.sequence(10)?;
        Some(self.tree.add(Node::FunctionParam(number.saturating_add(1))))
    }

    pub(crate) fn literal(&mut self) -> Option<Id> {
        self.cursor.expect("L")?;
        if self.cursor.take("_Z") || self.cursor.take("Z") {
            let name = self.encoding(true)?;
            self.cursor.expect("E")?;
            return Some(name);
        }
        let class = self.type_()?;
        let is_negative = self.cursor.take("n");
        let end = self.cursor.rest.find('E')?;
        let (digits, rest) = self.cursor.rest.split_at(end);
        self.cursor.rest = rest.get(1..)?;
        Some(self.tree.add(Node::Literal(class, digits, is_negative)))
    }
}
