//! A line of C or C++ that calls for memory: `new T`, `malloc(sizeof(T))`, `(T *)malloc(n)`.

/// Functions that are called for memory: those of C, and those that many programs have in their place.
fn is_allocator(name: &str) -> bool {
    const ENDS: [&str; 6] = ["malloc", "calloc", "realloc", "reallocarray", "zalloc", "alloc0"];
    const GLIB: [&str; 6] = ["g_new", "g_new0", "g_try_new", "g_try_new0", "g_slice_new", "g_slice_new0"];
    ENDS.iter().any(|end| name.ends_with(end)) || GLIB.contains(&name)
}

/// The type that a line allocates, if it does so once. What looks like a parameter is none in a template.
pub(super) fn told(line: &str, in_template: bool) -> Option<String> {
    let line = without_comments(line)?;
    let tokens = tokens(&line);
    let mut found = None;
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at)).copied();
        let told = match *token {
            // `operator new` is called, or declared
            "new" if before == Some("operator") => return None,
            "new" => type_at(&tokens, placement(&tokens, at + 1)),
            name if is_allocator(name) && tokens.get(at + 1) == Some(&"(") => called(&tokens, at),
            _ => continue,
        };
        // of two calls nobody knows which it was
        if found.is_some() {
            return None;
        }
        found = Some(told);
    }
    found.flatten().filter(|name| !(in_template && is_parameter(name)))
}

/// None where a line seems to lie within a comment.
fn without_comments(line: &str) -> Option<String> {
    let mut line = line.split("//").next().unwrap_or(line).to_owned();
    while let Some(start) = line.find("/*") {
        let end = line.get(start..)?.find("*/").map_or(line.len(), |length| start + length + 2);
        line.replace_range(start..end, " ");
    }
    (!line.trim_start().starts_with('*') && !line.contains("*/")).then_some(line)
}

/// Names, and other characters one by one.
fn tokens(line: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = line.trim_start();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    while let Some(letter) = rest.chars().next() {
        let length = if is_word(letter) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else if letter == '"' {
            // what stands in a text calls nothing
            rest.get(1..).and_then(|text| text.find('"')).map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("::") {
            2
        } else {
            letter.len_utf8()
        };
        let (token, behind) = rest.split_at(length);
        tokens.push(token);
        rest = behind.trim_start();
    }
    tokens
}

/// Behind the arguments of `new (std::nothrow)`.
fn placement(tokens: &[&str], at: usize) -> usize {
    if tokens.get(at) == Some(&"(") { closed(tokens, at).map_or(at, |end| end + 1) } else { at }
}

/// Where the bracket that opens at `at` is closed.
fn closed(tokens: &[&str], at: usize) -> Option<usize> {
    let (open, close) = match *tokens.get(at)? {
        "(" => ("(", ")"),
        "<" => ("<", ">"),
        _ => return None,
    };
    let mut depth = 0usize;
    for (number, token) in tokens.iter().enumerate().skip(at) {
        if *token == open {
            depth += 1;
        } else if *token == close {
            depth -= 1;
            if depth == 0 {
                return Some(number);
            }
        }
    }
    None
}

/// The type whose name begins at a token: `struct a::b<c>`.
fn type_at(tokens: &[&str], at: usize) -> Option<String> {
    read_type(tokens, at).map(|(name, _)| name)
}

/// The same, with where it ends.
fn read_type(tokens: &[&str], at: usize) -> Option<(String, usize)> {
    let mut at = at;
    while tokens
        .get(at)
        .is_some_and(|token| ["struct", "class", "union", "enum", "const", "typename", "::"].contains(token))
    {
        at += 1;
    }
    let mut name = String::new();
    loop {
        let word =
            *tokens.get(at).filter(|word| word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_'))?;
        name.push_str(word);
        at += 1;
        // `unsigned long`
        while BUILT_IN.contains(&word) && tokens.get(at).is_some_and(|word| BUILT_IN.contains(word)) {
            name.push(' ');
            name.push_str(tokens.get(at)?);
            at += 1;
        }
        if tokens.get(at) == Some(&"<") {
            let end = closed(tokens, at)?;
            for token in tokens.get(at..=end)? {
                name.push_str(if *token == "," { ", " } else { token });
            }
            at = end + 1;
        }
        if tokens.get(at) != Some(&"::") {
            break;
        }
        name.push_str("::");
        at += 1;
    }
    while tokens.get(at) == Some(&"*") {
        name.push('*');
        at += 1;
    }
    let is_keyword = ["sizeof", "auto", "decltype", "return", "void"].contains(&name.as_str());
    (!is_keyword).then_some((name, at))
}

/// Whether a name looks like that of a template's parameter: `T`, `_Tp`, `_Functor`.
fn is_parameter(name: &str) -> bool {
    let is_capital = |letter: char| letter.is_ascii_uppercase();
    let name = name.trim_end_matches('*');
    name.len() == 1 && name.starts_with(is_capital)
        || name.strip_prefix('_').is_some_and(|rest| rest.starts_with(is_capital))
}

const BUILT_IN: [&str; 8] = ["unsigned", "signed", "long", "short", "int", "char", "double", "float"];

/// What a call allocates: by the type whose size it asks for, or by that to which its result is cast.
fn called(tokens: &[&str], at: usize) -> Option<String> {
    let end = closed(tokens, at + 1).unwrap_or(tokens.len());
    let arguments = tokens.get(at + 2..end)?;
    if tokens.get(at).is_some_and(|name| name.starts_with("g_"))
        && tokens.get(at).is_some_and(|name| name.contains("new"))
    {
        return type_at(arguments, 0);
    }
    let mut sizes = arguments.iter().enumerate().filter(|(_, token)| **token == "sizeof");
    match (sizes.next(), sizes.next()) {
        (Some((size, _)), None) if arguments.get(size + 1) == Some(&"(") => {
            let (name, behind) = read_type(arguments, size + 2)?;
            // `sizeof(*p)`, `sizeof(x.y)`: an expression; `sizeof(x)` of a variable looks like a type
            (arguments.get(behind) == Some(&")")).then_some(name)
        }
        (Some(_), _) => None,
        // `(T *)malloc(n)`
        (None, _) => cast(tokens, at).or_else(|| named_cast(tokens, at)),
    }
}

fn cast(tokens: &[&str], at: usize) -> Option<String> {
    let close = at.checked_sub(1).filter(|close| tokens.get(*close) == Some(&")"))?;
    let open = tokens.get(..close)?.iter().rposition(|token| *token == "(")?;
    pointed(tokens, open + 1, close)
}

/// `static_cast<T *>(malloc(n))`.
fn named_cast(tokens: &[&str], at: usize) -> Option<String> {
    let open = tokens.get(..at)?.iter().rposition(|token| ["static_cast", "reinterpret_cast"].contains(token))? + 1;
    let close = closed(tokens, open)?;
    (close + 2 == at).then(|| pointed(tokens, open + 1, close))?
}

/// The type that the pointer type between two tokens leads to.
fn pointed(tokens: &[&str], start: usize, end: usize) -> Option<String> {
    let (name, behind) = read_type(tokens, start)?;
    (behind == end).then(|| name.strip_suffix('*').filter(|name| *name != "void").map(str::to_owned))?
}
