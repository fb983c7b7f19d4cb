//! Names of functions that fit into a column.

use super::printable;

/// A function name that fits: without the hash of Rust's older mangling, and, where it is too long, with `…` for what
/// is within the outermost pairs of angle brackets and parentheses, then for what is in its middle. The end, which says
/// what is done, is kept longest.
pub(crate) fn short_name(name: &str, width: usize) -> String {
    let name = without_hash(&printable(name)).to_owned();
    if name.chars().count() <= width {
        return name;
    }
    let name = name.replace(STD_STRING, "std::string");
    let without_arguments = collapse(&name, '(', ')');
    if without_arguments.chars().count() <= width {
        return without_arguments;
    }
    let without_generics = collapse(&without_arguments, '<', '>');
    if without_generics.chars().count() <= width {
        return without_generics;
    }
    let bare =
        without_generics.strip_suffix("(…)").or(without_generics.strip_suffix("()")).unwrap_or(&without_generics);
    elide_path(&unqualify_self(bare), width)
}

/// `<a::b::C as d::E>::f` as `<C as E>::f`.
fn unqualify_self(name: &str) -> String {
    let Some((inside, rest)) =
        name.strip_prefix('<').and_then(|inner| split_at_depth(inner, |rest| rest.starts_with('>')))
    else {
        return name.to_owned();
    };
    let last = |path: &str| split_path(path).last().map(|part| (*part).to_owned()).unwrap_or_default();
    let inside: Vec<String> = inside.split(" as ").map(last).collect();
    format!("<{}{rest}", inside.join(" as "))
}

/// A path of names, parted by `::`, cut in its middle: the first part and as many of the last as fit.
fn elide_path(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let parts = split_path(name);
    let first = parts.first().copied().unwrap_or_default();
    let tails = |prefix: String| {
        (1..parts.len())
            .filter_map(|from| Some(format!("{prefix}…::{}", parts.get(from..)?.join("::"))))
            .find(|elided| elided.chars().count() <= width)
    };
    tails(format!("{first}::")).or_else(|| tails(String::new())).unwrap_or_else(|| elide_middle(name, width))
}

/// The parts of a path between those `::` that are within no brackets.
fn split_path(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = path;
    while let Some((part, behind)) = split_at_depth(rest, |rest| rest.starts_with("::")) {
        parts.push(part);
        rest = behind.trim_start_matches(':');
    }
    parts.push(rest);
    parts
}

/// Splits before the first place outside brackets at which `found` says so.
fn split_at_depth(text: &str, found: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    let mut depth = 0u32;
    for (at, c) in text.char_indices() {
        let (before, rest) = text.split_at(at);
        if depth == 0 && found(rest) {
            return Some((before, rest));
        }
        match c {
            '<' | '(' | '{' | '[' => depth += 1,
            // the arrow of a return type is no bracket
            '>' if before.ends_with('-') || before.ends_with('=') => {}
            '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Cuts a text in its middle: a third of its beginning, and its end.
fn elide_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    let room = width.saturating_sub(1);
    let head = room / 3;
    let tail = room - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length.saturating_sub(tail)).collect();
    format!("{start}…{end}")
}

/// What libstdc++ calls `std::string`.
const STD_STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => path,
        _ => name,
    }
}

/// Replaces what is between an opening and its closing bracket, unless it begins the name (`<A as B>::f`) or is the
/// name of an operator.
fn collapse(name: &str, open: char, close: char) -> String {
    let mut collapsed = String::new();
    let mut depth = 0u32;
    let mut previous = ' ';
    for c in name.chars() {
        let arrow = c == '>' && (previous == '-' || previous == '=');
        if c == close && depth > 0 && !arrow {
            depth -= 1;
            if depth == 0 && !collapsed.ends_with(open) {
                collapsed.push(c);
            } else if depth == 0 {
                collapsed.push('…');
                collapsed.push(c);
            }
        } else if c == open
            && !collapsed.is_empty()
            && !collapsed.ends_with("operator")
            && !collapsed.ends_with("operator<")
        {
            depth += 1;
            if depth == 1 {
                collapsed.push(c);
            }
        } else if depth == 0 {
            collapsed.push(c);
        }
        previous = c;
    }
    // a bracket that is none (a comparison in a template argument): rather too long than wrong
    if depth == 0 { collapsed } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_arguments_first_and_keep_operators() {
        assert_eq!(short_name("foo::bar::h0123456789abcdef", 40), "foo::bar");
        assert_eq!(short_name("f(std::vector<int, std::allocator<int>>)", 12), "f(…)");
        assert_eq!(short_name("g<std::pair<int, int>>(int)", 12), "g<…>(…)");
        assert_eq!(short_name("<alpha::Beta as core::Clone>::clone", 26), "<Beta as Clone>::clone");
        assert_eq!(short_name("<alpha::Beta as Clone>::clone", 12), "…::clone");
        assert_eq!(short_name("Parser::operator()(char const*, int)", 24), "Parser::operator()(…)");
        assert_eq!(
            short_name("std::ostream& operator<< <char>(std::ostream&, char)", 40),
            "std::ostream& operator<< <char>(…)"
        );
        assert_eq!(short_name("h()", 2), "h");
        let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        assert_eq!(short_name(&format!("{string}::append(unsigned long)"), 30), "std::string::append(…)");
    }

    #[test]
    fn long_names_are_cut_in_the_middle_so_that_the_end_is_readable() {
        let cargo = "cargo::util::toml::normalize_dependencies";
        assert_eq!(short_name(cargo, 40), "cargo::…::toml::normalize_dependencies");
        assert_eq!(short_name(cargo, 36), "cargo::…::normalize_dependencies");
        assert_eq!(short_name(cargo, 30), "…::normalize_dependencies");
        assert_eq!(short_name(cargo, 20), "cargo:…_dependencies");
        assert_eq!(
            short_name("<cargo::sources::registry::RegistrySource as cargo::core::source::Source>::query", 41),
            "<RegistrySource as Source>::query"
        );
        assert_eq!(
            short_name("void ns::Long<std::pair<int, int>>::Inner::assign<char const*>(char const*, char const*)", 30),
            "void ns::…::Inner::assign<…>"
        );
        assert_eq!(short_name("app::run::{{closure}}::{{closure}}", 30), "app::…::{{closure}}");
        for width in 2..60 {
            assert!(short_name(cargo, width).chars().count() <= width);
        }
    }
}
