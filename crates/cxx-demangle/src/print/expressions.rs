//! Expressions in template arguments, array bounds and `decltype`: operators, literals, casts.

use super::Printer;
use crate::tree::{Id, Node, Qualifiers};
use std::fmt;

impl<'t, 'a> Printer<'t, 'a> {
    pub(super) fn expression(&mut self, node: &'t Node<'a>) -> fmt::Result {
        match node {
            Node::Literal(class, digits, is_negative) => self.literal(*class, digits, *is_negative),
            Node::FunctionParam(number) => {
                self.put("{parm#")?;
                self.put_number(*number)?;
                self.put("}")
            }
            Node::Prefix(text, of) => {
                self.put(text)?;
                // The address of a member function is told by its name.
                if let ("&", Node::Encoding(name, signature)) = (*text, self.node(*of)?)
                    && matches!(self.node(*name)?, Node::Nested(..))
                    && signature.qualifiers == Qualifiers::default()
                {
                    return self.print(*name);
                }
                self.operand(*of)
            }
            Node::Postfix(text, of) => {
                self.operand(*of)?;
                self.put(text)
            }
            Node::Binary(text, a, b) => {
                let needs_more = *text == ">";
                self.put(if needs_more { "(" } else { "" })?;
                self.operand(*a)?;
                self.put(text)?;
                self.operand(*b)?;
                self.put(if needs_more { ")" } else { "" })
            }
            Node::Fold { operator, before, after } => {
                self.put("(")?;
                if let Some(before) = before {
                    self.operand(*before)?;
                    self.put(operator)?;
                }
                self.put("...")?;
                if let Some(after) = after {
                    self.put(operator)?;
                    self.operand(*after)?;
                }
                self.put(")")
            }
            Node::Access(text, a, b) => {
                self.operand(*a)?;
                self.put(text)?;
                self.operand(*b)
            }
            Node::Index(a, b) => {
                self.operand(*a)?;
                self.put("[")?;
                self.print(*b)?;
                self.put("]")
            }
            Node::Conditional(condition, a, b) => {
                self.operand(*condition)?;
                self.put("?")?;
                self.operand(*a)?;
                self.put(" : ")?;
                self.operand(*b)
            }
            Node::Call(function, arguments) => {
                // A function's own parameters say nothing here.
                match self.node(*function)? {
                    Node::Encoding(name, _) => self.operand(*name)?,
                    _ => self.operand(*function)?,
                }
                self.put("(")?;
                self.list(arguments)?;
                self.put(")")
            }
            Node::Cast(to, arguments) => {
                self.put("(")?;
                self.print(*to)?;
                self.put(")(")?;
                self.list(arguments)?;
                self.put(")")
            }
            Node::NamedCast(text, to, of) => {
                self.put(text)?;
                self.put("<")?;
                self.print(*to)?;
                self.put(">(")?;
                self.print(*of)?;
                self.put(")")
            }
            Node::Sizeof(text, of) => {
                self.put(text)?;
                self.put("(")?;
                self.print(*of)?;
                self.put(")")
            }
            Node::SizeofPack(of) => match self.size_of_pack(*of, 0)? {
                Some(size) => self.put_number(size),
                None => {
                    self.put("sizeof...(")?;
                    self.print(*of)?;
                    self.put(")")
                }
            },
            Node::Braced(class, elements) => {
                if let Some(class) = class {
                    self.print(*class)?;
                }
                self.put("{")?;
                self.list(elements)?;
                self.put("}")
            }
            Node::New { is_global, is_array, placement, class, arguments } => {
                self.put(if *is_global { "::new" } else { "new" })?;
                self.put(if *is_array { "[] " } else { " " })?;
                if !placement.is_empty() {
                    self.put("(")?;
                    self.list(placement)?;
                    self.put(") ")?;
                }
                self.print(*class)?;
                match arguments {
                    Some(arguments) => {
                        self.put("(")?;
                        self.list(arguments)?;
                        self.put(")")
                    }
                    None => Ok(()),
                }
            }
            Node::DestructorName(class) => {
                self.put("~")?;
                self.print(*class)
            }
            Node::Global(name) => {
                self.put("::")?;
                self.print(*name)
            }
            // The rest is told before.
            _ => Err(fmt::Error),
        }
    }

    /// A part of an expression, in parentheses unless it is a name.
    pub(super) fn operand(&mut self, id: Id) -> fmt::Result {
        let is_simple = match self.node(id)? {
            Node::Name(_) | Node::Braced(..) | Node::FunctionParam(_) => true,
            Node::Nested(_, name) => !matches!(self.node(*name)?, Node::Template(..)),
            _ => false,
        };
        if is_simple {
            return self.print(id);
        }
        self.put("(")?;
        self.print(id)?;
        self.put(")")
    }

    fn literal(&mut self, class: Id, digits: &str, is_negative: bool) -> fmt::Result {
        let suffix = match self.resolved(class)?.1 {
            Node::Text("bool") if !is_negative && digits == "0" => return self.put("false"),
            Node::Text("bool") if !is_negative && digits == "1" => return self.put("true"),
            Node::Text("int") => Some(""),
            Node::Text("unsigned int") => Some("u"),
            Node::Text("long") => Some("l"),
            Node::Text("unsigned long") => Some("ul"),
            Node::Text("long long") => Some("ll"),
            Node::Text("unsigned long long") => Some("ull"),
            _ => None,
        };
        if suffix.is_none() {
            self.put("(")?;
            self.print(class)?;
            self.put(")")?;
        }
        let is_float = matches!(self.resolved(class)?.1, Node::Text("float" | "double" | "long double" | "__float128"));
        self.put(if is_negative { "-" } else { "" })?;
        self.put(if is_float { "[" } else { "" })?;
        self.put(digits)?;
        self.put(if is_float { "]" } else { "" })?;
        self.put(suffix.unwrap_or_default())
    }
}
