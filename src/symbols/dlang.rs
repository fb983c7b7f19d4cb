//! Names of the D language as its compilers mangle them (the D specification, "Application Binary Interface", "Name
//! mangling"), to names as c++filt writes them. The usual forms: values of templates are numbers, characters and
//! strings.

use super::demangle::LONGEST_NAME;

/// Nested parts that are followed at most, so that no name can overflow the stack.
const DEEPEST: u32 = 64;

/// Parts that are looked at, at most: references back make names grow exponentially, with empty parts even without
/// text.
const MAX_PARTS: u32 = 20_000;

/// The name of a symbol; None if it is not of this scheme, damaged, or of an unusual form.
pub(super) fn demangle(mangled: &str) -> Option<String> {
    if mangled == "_Dmain" {
        return Some("D main".to_owned());
    }
    if !mangled.starts_with("_D") || mangled.len() > LONGEST_NAME || !mangled.is_ascii() {
        return None;
    }
    let mut parser = Parser { all: mangled, at: 2, depth: 0, parts: 0, out: 0 };
    let name = parser.symbol()?;
    parser.rest().is_empty().then_some(name)
}

struct Parser<'a> {
    all: &'a str,
    at: usize,
    depth: u32,
    parts: u32,
    /// Bytes of text made so far, in parts and wholes.
    out: usize,
}

/// A function's type, in parts.
struct Function {
    linkage: &'static str,
    attributes: String,
    parameters: String,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.all.get(self.at..).unwrap_or("")
    }

    fn peek(&self) -> Option<u8> {
        self.rest().bytes().next()
    }

    fn eat(&mut self, prefix: &str) -> bool {
        let is_there = self.rest().starts_with(prefix);
        self.at += if is_there { prefix.len() } else { 0 };
        is_there
    }

    /// Goes one part deeper.
    fn part<T>(&mut self, part: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.parts += 1;
        self.depth += 1;
        let made = if self.depth <= DEEPEST && self.parts <= MAX_PARTS { part(self) } else { None };
        self.depth -= 1;
        made
    }

    fn made(&mut self, text: String) -> Option<String> {
        self.out += text.len();
        (self.out <= 16 * LONGEST_NAME && text.len() <= LONGEST_NAME).then_some(text)
    }

    /// A qualified name and its type, which is not told.
    fn symbol(&mut self) -> Option<String> {
        let name = self.qualified(true)?;
        if !self.eat("Z") {
            self.type_name()?;
        }
        Some(name)
    }

    /// `is_symbol_s`: modifiers of a member function are told.
    fn qualified(&mut self, is_symbol_s: bool) -> Option<String> {
        self.part(|parser| {
            let mut name = String::new();
            loop {
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(&parser.identifier()?);
                let before = parser.at;
                if let Some(function) = parser.member_function() {
                    // the type of a variable looks like that of a function around others
                    if parser.rest().is_empty() {
                        parser.at = before;
                    } else {
                        let (parameters, modifiers) = function;
                        name.push_str(&parameters);
                        name.push_str(if is_symbol_s { &modifiers } else { "" });
                    }
                } else {
                    parser.at = before;
                }
                if !parser.begins_identifier() {
                    return parser.made(name);
                }
            }
        })
    }

    fn begins_identifier(&self) -> bool {
        match self.peek() {
            Some(b'0'..=b'9') => true,
            Some(b'_') => self.rest().starts_with("__T") || self.rest().starts_with("__U"),
            Some(b'Q') => {
                let referred = Self { at: self.at + 1, ..*self }.reference_from(self.at);
                referred.is_some_and(|(at, _)| self.all.as_bytes().get(at).is_some_and(u8::is_ascii_digit))
            }
            _ => false,
        }
    }

    /// Parameters, and modifiers behind them.
    fn member_function(&mut self) -> Option<(String, String)> {
        let modifiers = if self.eat("M") { self.modifiers() } else { String::new() };
        Some((self.function_without_return()?.parameters, modifiers))
    }

    fn identifier(&mut self) -> Option<String> {
        self.part(|parser| {
            if parser.peek() == Some(b'Q') {
                return parser.referred(Self::identifier);
            }
            if parser.eat("__T") || parser.eat("__U") {
                return parser.template();
            }
            let len = parser.number()?;
            let name = parser.rest().get(..len).filter(|name| !name.is_empty())?;
            if name.starts_with("__T") || name.starts_with("__U") {
                let end = parser.at + len;
                parser.at += 3;
                return parser.template().filter(|_| parser.at == end);
            }
            parser.at += len;
            let name = match name {
                "__ctor" => "this",
                "__dtor" => "~this",
                "__postblit" => "this(this)",
                name => name,
            };
            // whose parameters are no part of it
            if name == "this(this)" {
                parser.eat("MFZ");
            }
            Some(name.to_owned())
        })
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest().get(..digits)?.parse().ok()?;
        self.at += digits;
        Some(number)
    }

    fn template(&mut self) -> Option<String> {
        let mut name = self.identifier()?;
        name.push_str("!(");
        let mut is_first = true;
        while !self.eat("Z") {
            if !std::mem::take(&mut is_first) {
                name.push_str(", ");
            }
            self.eat("H");
            let argument = if self.eat("T") {
                self.type_name()?
            } else if self.eat("S") {
                if self.eat("_D") { self.part(Self::symbol)? } else { self.qualified(false)? }
            } else if self.eat("V") {
                let of = self.peek()?;
                self.type_name()?;
                self.value(of)?
            } else {
                return None;
            };
            name.push_str(&argument);
            name = self.made(name)?;
        }
        name.push(')');
        Some(name)
    }

    /// A value of a type that begins so.
    fn value(&mut self, of: u8) -> Option<String> {
        match self.peek()? {
            b'n' => self.eat("n").then(|| "null".to_owned()),
            b'a' => {
                self.at += 1;
                let len = self.number()?;
                let digits = self.eat("_").then(|| self.rest().get(..len.checked_mul(2)?)).flatten()?;
                self.at += digits.len();
                let bytes = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
                let bytes = bytes.map(|pair| u8::from_str_radix(pair?, 16).ok());
                let is_plain = |byte: &u8| (b' '..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
                let text: String = bytes.map(|byte| byte.filter(is_plain).map(char::from)).collect::<Option<_>>()?;
                Some(format!("\"{text}\""))
            }
            _ => {
                self.eat("i");
                let sign = if self.eat("N") { "-" } else { "" };
                let number = self.number()?;
                match of {
                    b'b' => Some(if number == 0 { "false" } else { "true" }.to_owned()),
                    b'a' | b'u' | b'w' => {
                        let byte = u8::try_from(number).ok().filter(|byte| (b' '..0x7f).contains(byte))?;
                        (of == b'a').then(|| format!("'{}'", char::from(byte)))
                    }
                    b'h' | b't' | b'k' => Some(format!("{sign}{number}u")),
                    b'l' => Some(format!("{sign}{number}L")),
                    b'm' => Some(format!("{sign}{number}uL")),
                    b'g' | b's' | b'i' => Some(format!("{sign}{number}")),
                    _ => None,
                }
            }
        }
    }

    /// Where a reference back leads that stands behind the `Q` at `from`, and where it ends.
    fn reference_from(&self, from: usize) -> Option<(usize, usize)> {
        let mut distance = 0usize;
        let mut at = from + 1;
        loop {
            let digit = *self.all.as_bytes().get(at)?;
            at += 1;
            let (base, is_last) = match digit {
                b'A'..=b'Z' => (b'A', false),
                b'a'..=b'z' => (b'a', true),
                _ => return None,
            };
            distance = distance.checked_mul(26)?.checked_add(usize::from(digit - base))?;
            if is_last {
                return Some((from.checked_sub(distance).filter(|_| distance > 0)?, at));
            }
        }
    }

    /// What a reference back stands for.
    fn referred(&mut self, what: impl FnOnce(&mut Self) -> Option<String>) -> Option<String> {
        let (to, end) = self.reference_from(self.at)?;
        self.at = to;
        let made = self.part(what)?;
        self.at = end;
        self.made(made)
    }

    /// Modifiers of a member function or of a delegate, each with a space before it.
    fn modifiers(&mut self) -> String {
        let mut text = String::new();
        loop {
            let modifier = [("x", " const"), ("y", " immutable"), ("O", " shared"), ("Ng", " inout")]
                .into_iter()
                .find(|(code, _)| self.eat(code));
            let Some((_, modifier)) = modifier else { return text };
            text.push_str(modifier);
        }
    }

    fn function_without_return(&mut self) -> Option<Function> {
        let linkages = [
            ("F", ""),
            ("U", "extern(C) "),
            ("W", "extern(Windows) "),
            ("R", "extern(C++) "),
            ("Y", "extern(Objective-C) "),
        ];
        let (_, linkage) = linkages.into_iter().find(|(code, _)| self.eat(code))?;
        let mut attributes = String::new();
        let names = [
            ("Na", " pure"),
            ("Nb", " nothrow"),
            ("Nc", " ref"),
            ("Nd", " @property"),
            ("Ne", " @trusted"),
            ("Nf", " @safe"),
            ("Ni", " @nogc"),
            ("Nj", " return"),
            ("Nl", " scope"),
            ("Nm", " @live"),
        ];
        while let Some((_, name)) = names.into_iter().find(|(code, _)| self.eat(code)) {
            attributes.push_str(name);
        }
        let mut parameters = "(".to_owned();
        loop {
            if self.eat("X") {
                parameters.push_str("...");
            } else if self.eat("Y") {
                parameters.push_str(if parameters == "(" { "..." } else { ", ..." });
            } else if !self.eat("Z") {
                if parameters != "(" {
                    parameters.push_str(", ");
                }
                let storage =
                    [("M", "scope "), ("Nk", "return "), ("I", "in "), ("J", "out "), ("K", "ref "), ("L", "lazy ")];
                while let Some((_, storage)) = storage.into_iter().find(|(code, _)| self.eat(code)) {
                    parameters.push_str(storage);
                }
                parameters.push_str(&self.type_name()?);
                parameters = self.made(parameters)?;
                continue;
            }
            parameters.push(')');
            return Some(Function { linkage, attributes, parameters });
        }
    }

    /// A function's type; `kind` is what it is one of: ` function`, ` delegate`.
    fn function(&mut self, kind: &str) -> Option<String> {
        let Function { linkage, attributes, parameters } = self.function_without_return()?;
        let returned = self.type_name()?;
        self.made(format!("{linkage}{returned}{parameters}{attributes}{kind}"))
    }

    fn type_name(&mut self) -> Option<String> {
        self.part(|parser| {
            let around = [("x", "const"), ("y", "immutable"), ("O", "shared"), ("Ng", "inout"), ("Nh", "__vector")];
            if let Some((_, name)) = around.into_iter().find(|(code, _)| parser.eat(code)) {
                return Some(format!("{name}({})", parser.type_name()?));
            }
            if parser.eat("Nn") {
                return Some("typeof(*null)".to_owned());
            }
            let first = parser.peek()?;
            if first == b'Q' {
                return parser.referred(Self::type_name);
            }
            if b"FUWRY".contains(&first) {
                return parser.function("");
            }
            parser.at += 1;
            let text = match first {
                b'A' => parser.type_name()? + "[]",
                b'G' => {
                    let count = parser.number()?;
                    format!("{}[{count}]", parser.type_name()?)
                }
                b'H' => {
                    let key = parser.type_name()?;
                    format!("{}[{key}]", parser.type_name()?)
                }
                b'P' if parser.peek().is_some_and(|next| b"FUWRY".contains(&next)) => parser.function(" function")?,
                b'P' => parser.type_name()? + "*",
                b'D' => {
                    let modifiers = parser.modifiers();
                    // it may have been told before
                    let is_function = parser.peek().is_some_and(|next| b"FUWRY".contains(&next));
                    is_function.then(|| parser.function(" delegate")).flatten()? + &modifiers
                }
                b'C' | b'S' | b'E' | b'T' => parser.qualified(false)?,
                b'B' => {
                    let count = parser.number()?;
                    let types: Option<Vec<_>> = (0..count).map(|_| parser.type_name()).collect();
                    format!("Tuple!({})", types?.join(", "))
                }
                b'z' => if parser.eat("i") { "cent" } else { parser.eat("k").then_some("ucent")? }.to_owned(),
                basic => basic_type(basic)?.to_owned(),
            };
            parser.made(text)
        })
    }
}

fn basic_type(code: u8) -> Option<&'static str> {
    Some(match code {
        b'v' => "void",
        b'n' => "typeof(null)",
        b'b' => "bool",
        b'g' => "byte",
        b'h' => "ubyte",
        b's' => "short",
        b't' => "ushort",
        b'i' => "int",
        b'k' => "uint",
        b'l' => "long",
        b'm' => "ulong",
        b'f' => "float",
        b'd' => "double",
        b'e' => "real",
        b'o' => "ifloat",
        b'p' => "idouble",
        b'j' => "ireal",
        b'q' => "cfloat",
        b'r' => "cdouble",
        b'c' => "creal",
        b'a' => "char",
        b'u' => "wchar",
        b'w' => "dchar",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::tool;
    use proptest::prelude::*;

    /// By c++filt; those that it leaves as they are by neither.
    #[test]
    fn names_agree_with_cxxfilt() {
        let names = "_Dmain _D3foo3barFiZv _D3foo3barFNaNbNiNfxAyaKiLPvJhMC3foo1CXv _D3foo3Bar3bazMxFiZv \
            _D3foo__T3barTiVii3Z3bazFZv _D3foo3barFiYv _D3foo3barFYv _D3foo3barFS3foo1SG4iHiAaDFiZvZv \
            _D3foo1C6__ctorMFiZC3foo1C _D3foo1C6__dtorMFZv _D3foo3Bar10__postblitMFZv _D3foo4mainFZ9__lambda1FNaiZi \
            _D3foo3barFPFiZvZv _D3foo3barFOxiZv _D3foo3barFNkKiZv _D3foo3barMFNbNiNjZv \
            _D2rt8lifetime11_d_newclassFxC14TypeInfo_ClassZC6Object _D3foo3barFB2iaZv _D3foo3barFdefgjklmtZv \
            _D3foo3barFnbwuovshZv _D3foo3barFopqrcZv _D3foo3barFNgAaZv _D3foo3barFxPyiZv _D3foo3barUiZv _D3foo3barFzkziZv \
            _D3foo3barFPFNbNiiZvZv _D3foo3barFPUiZvZv _D3foo3barFDxFiZvZv _D3foo3barFDFNaiZxiZv \
            _D3foo__T3barVbi1VlN3Vki7Vmi8VAyaa3_616263Vai65Vhi3Z3bazFZv _D3foo__T3barS3foo1gZ3bazFZv \
            _D3foo__T3barS_D3foo1gFZvZ3bazFZv _D3foo5valuei _D3foo3barFZ1xi _D3foo3barMOxFiZv _D3foo3barMNgFiZv \
            _D3foo3barFNhG4fZv _D3foo3barFNnZv _D3foo3barFIKiZv _D3std5stdio__T7writelnTAyaZQnFNfQjZv \
            _D4core6memory2GC6mallocFNbkkxC8TypeInfoZPv _D6object6Object8toStringMFZAya \
            _D3foo__T3barTiZQiFQeZv _D3foo3barFS3foo1SQhZv _D3foo3barFAyaQdZv _D3foo21__T3barTS3foo1STAaTiZ3bazFZv \
            _D3foo3barFQeZv _D3foo__S1 _D3foo _D _D3foo0_1aFZv _D3foo3barFDNbFiZvZv _D3foo3barFQaZv _D3foo3barFZ";
        let names: Vec<_> = names.split_whitespace().collect();
        let told = tool("c++filt", &[&["--format=dlang"][..], &names].concat());
        for (name, told) in names.iter().zip(told.lines()) {
            assert_eq!(demangle(name).as_deref().unwrap_or(name), told, "{name}");
        }
    }

    #[test]
    fn exploding_names_end() {
        let twice = "S3foo1S".to_owned() + &"B2QcQe".repeat(60);
        assert!(demangle(&format!("_D3foo3barF{twice}Zv")).is_none_or(|name| name.len() <= LONGEST_NAME));
        assert_eq!(demangle(&format!("_D3foo3barF{}iZv", "A".repeat(5000))), None);
    }

    proptest! {
        #[test]
        fn no_name_panics(tail in "[0-9]?[a-zA-Z0-9_]{0,60}", types in "[A-Za-z0-9]{0,40}") {
            demangle(&format!("_D{tail}"));
            demangle(&format!("_D3foo3barF{types}Zv"));
            demangle(&format!("_D3foo__T3barT{types}Z{tail}"));
        }
    }
}
