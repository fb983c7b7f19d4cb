//! Names with arguments between angle brackets, as demanglers of C++ and Rust write them.

/// How deep brackets are behind each character of a text. `->` and `=>` close nothing.
fn depths(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut before) = (0usize, ' ');
    text.char_indices().map(move |(at, letter)| {
        match letter {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = letter;
        (at, letter, depth)
    })
}

/// A function's name without what it returns and takes: `void f<int>(char) const` -> `f<int>`.
pub(super) fn qualified(name: &str) -> &str {
    let end = depths(name).find(|(_, letter, depth)| *letter == '(' && *depth == 1);
    let path = end.and_then(|(at, ..)| name.get(..at)).unwrap_or(name);
    let start = depths(path).filter(|(_, letter, depth)| *letter == ' ' && *depth == 0).last();
    start.and_then(|(at, ..)| path.get(at + 1..)).unwrap_or(path)
}

/// The arguments of a name that begins with `class<`, and what stands behind them: `std::vector<A, B<C>>::push` ->
/// [`A`, `B<C>`], `::push`.
pub(super) fn arguments<'a>(name: &'a str, class: &str) -> Option<(Vec<&'a str>, &'a str)> {
    let inside = name.strip_prefix(class)?;
    if !inside.starts_with('<') {
        return None;
    }
    let mut found = Vec::new();
    let mut start = 1;
    for (at, letter, depth) in depths(inside) {
        match letter {
            ',' if depth == 1 => {
                found.push(inside.get(start..at)?.trim());
                start = at + 1;
            }
            '>' if depth == 0 && at > 0 => {
                found.push(inside.get(start..at)?.trim());
                return Some((found, inside.get(at + 1..)?));
            }
            _ => {}
        }
    }
    None
}

/// The first of these arguments.
pub(super) fn first<'a>(name: &'a str, class: &str) -> Option<(&'a str, &'a str)> {
    let (arguments, rest) = arguments(name, class)?;
    arguments.first().copied().filter(|first| !first.is_empty()).map(|first| (first, rest))
}
