//! Colours of texts for a terminal.

/// Colours for a terminal, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paint {
    /// Whether to use colours.
    pub color: bool,
}

impl Paint {
    const BOLD: &str = "\x1b[1m";
    const DIM: &str = "\x1b[2m";
    const RED: &str = "\x1b[1;31m";
    const GREEN: &str = "\x1b[1;32m";
    const YELLOW: &str = "\x1b[33m";
    const PLAIN: &str = "\x1b[0m";

    /// The escape of a colour of ours that a text begins with.
    pub fn code_at(text: &str) -> Option<&'static str> {
        let codes = [Self::PLAIN, Self::BOLD, Self::DIM, Self::RED, Self::GREEN, Self::YELLOW];
        codes.into_iter().find(|code| text.starts_with(code))
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() { format!("{code}{text}{}", Self::PLAIN) } else { text.to_owned() }
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.with(Self::BOLD, text)
    }

    /// What supports the rest.
    pub fn dim(self, text: &str) -> String {
        self.with(Self::DIM, text)
    }

    /// What is wrong.
    pub fn red(self, text: &str) -> String {
        self.with(Self::RED, text)
    }

    /// What is as it should be.
    pub fn green(self, text: &str) -> String {
        self.with(Self::GREEN, text)
    }

    /// What deserves attention.
    pub fn yellow(self, text: &str) -> String {
        self.with(Self::YELLOW, text)
    }
}
