//! Copies standard input to standard output, with C++ names demangled: a small `c++filt`.

use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let plain = words.next_back().unwrap_or_default();
        for word in words {
            write!(out, "{word} ")?;
        }
        // a symbol's version stands behind its name
        let (name, version) = plain.find('@').map_or((plain, ""), |at| plain.split_at(at));
        let name = cxx_demangle::demangle(name).unwrap_or_else(|| name.to_owned());
        writeln!(out, "{name}{version}")?;
    }
    Ok(())
}
