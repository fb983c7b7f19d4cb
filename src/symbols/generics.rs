//! Generic functions of Rust. Its older way of mangling keeps the names of a type's parameters (`Vec<T,A>::push`) and
//! not what they stand for, which the debug information has: parameters T and A, and the name `push<[u64; 4],
//! alloc::alloc::Global>`.

use super::demangle::LONGEST_NAME;

/// Whether a symbol is mangled that way: as C++, with 16 digits of a hash at the end.
pub(super) fn is_legacy_rust(symbol: &[u8]) -> bool {
    let Some(digits) = symbol.strip_suffix(b"E").and_then(|rest| rest.get(rest.len().checked_sub(19)?..)) else {
        return false;
    };
    symbol.starts_with(b"_ZN") && digits.starts_with(b"17h") && digits.iter().skip(3).all(u8::is_ascii_hexdigit)
}

/// `path` (`alloc::vec::Vec<T,A>::push`) with what the names in its angle brackets stand for: `params` (T, A) have the
/// arguments of `own_name` (`push<[u64; 4], alloc::alloc::Global>`). None if they do not fit to each other, or nothing
/// changes.
pub(super) fn with_arguments(path: &str, params: &[String], own_name: &str) -> Option<String> {
    let arguments = arguments_of(own_name)?;
    if arguments.len() != params.len() {
        return None;
    }
    let stands_for = |name: &str| Some(*arguments.get(params.iter().position(|param| param == name)?)?);
    let mut full = String::with_capacity(path.len());
    let (mut depth, mut is_changed) = (0u32, false);
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (word, behind) = rest.split_at(if end == 0 { first.len_utf8() } else { end });
        match first {
            '<' => depth += 1,
            '>' if !full.ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        // A part of a longer path has a parameter's name by chance; a parameter may begin one (`T::Item`).
        let argument = stands_for(word).filter(|_| depth > 0 && !full.ends_with("::"));
        is_changed |= argument.is_some();
        let word = argument.unwrap_or(word);
        // The arguments come in again wherever a parameter does.
        if full.len() + word.len() > LONGEST_NAME {
            return None;
        }
        full.push_str(word);
        rest = behind;
    }
    is_changed.then_some(full)
}

/// What stands between the outermost angle brackets at a name's end, by commas.
pub(super) fn arguments_of(name: &str) -> Option<Vec<&str>> {
    let inside = name.strip_suffix('>')?;
    let inside = inside.get(inside.find('<')? + 1..)?;
    let mut arguments = Vec::new();
    let (mut depth, mut start, mut previous) = (0i32, 0, ' ');
    for (at, character) in inside.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if previous == '-' => {}
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(inside.get(start..at)?.trim());
                start = at + 1;
            }
            _ => {}
        }
        previous = character;
    }
    arguments.push(inside.get(start..)?.trim());
    (depth == 0 && arguments.iter().all(|argument| !argument.is_empty())).then_some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(path: &str, params: &[&str], own_name: &str) -> Option<String> {
        let params: Vec<String> = params.iter().map(|&param| param.to_owned()).collect();
        with_arguments(path, &params, own_name)
    }

    #[test]
    fn parameters_become_what_they_stand_for() {
        assert_eq!(
            full("alloc::vec::Vec<T,A>::push", &["T", "A"], "push<[u64; 4], alloc::alloc::Global>").as_deref(),
            Some("alloc::vec::Vec<[u64; 4],alloc::alloc::Global>::push")
        );
        let closure = "call_once<fn(u8, i8) -> T, (u8, i8)>";
        assert_eq!(
            full("<F as core::ops::function::FnOnce<A>>::call_once", &["F", "A"], closure).as_deref(),
            Some("<fn(u8, i8) -> T as core::ops::function::FnOnce<(u8, i8)>>::call_once")
        );
        assert_eq!(full("<I::T as a::T<T>>::T", &["T"], "T<u8>").as_deref(), Some("<I::T as a::T<u8>>::T"));
        assert_eq!(full("<fn() -> T>::f", &["T"], "f<u8>").as_deref(), Some("<fn() -> u8>::f"));
    }

    #[test]
    fn what_does_not_fit_stays() {
        assert_eq!(full("a::T::f", &["T"], "f<u8>"), None);
        assert_eq!(full("a::V<T>::f", &["T"], "f<u8, i8>"), None);
        for own_name in ["f", "f<", "f>", "f<>", "f<u8,>", "f<(u8>", ">", "", "f<u8>>"] {
            assert_eq!(full("a::V<T>::f", &["T"], own_name), None, "{own_name}");
        }
        assert_eq!(full("", &[], "f<u8>"), None);
    }

    /// A name in the debug information may be as long as its file, and a path may have its parameter a thousand times.
    #[test]
    fn names_do_not_grow_without_bounds() {
        let long = format!("f<{}>", "x".repeat(1 << 20));
        assert_eq!(full("a::V<T>::f", &["T"], &long), None);
        let path = format!("a<{}T>::f", "T,".repeat(20_000));
        assert_eq!(full(&path, &["T"], "f<eight_12>"), None);
        assert!(full(&path, &["T"], "f<u8>").is_some_and(|name| name.len() < LONGEST_NAME));
    }

    #[test]
    fn only_the_older_mangling_needs_it() {
        assert!(is_legacy_rust(b"_ZN5alloc3vec16Vec$LT$T$C$A$GT$4push17hd81c3fc0f248a8ffE"));
        for other in [&b"_RNvCs1234_7mycrate3foo"[..], b"_ZN3Foo3barEv", b"main", b"", b"E", b"_ZN17hd81c3fc0f248a8fgE"]
        {
            assert!(!is_legacy_rust(other), "{other:?}");
        }
    }
}
