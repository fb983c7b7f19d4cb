//! What to report of an address space.

/// What has come up.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// For the user, and not told yet.
    pub(super) warnings: Vec<String>,
    /// Allocator functions, and other things of weight, that could not be watched: in words.
    pub(super) blind_spots: Vec<String>,
}

impl Findings {
    /// Warnings that have come up since the last [`AddressSpace::refresh`](super::AddressSpace::refresh).
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Notes what is not seen: a warning, and a reason not to judge.
    pub fn note_blind_spot(&mut self, what: String) {
        if !self.blind_spots.contains(&what) {
            self.blind_spots.push(what.clone());
        }
        self.warnings.push(what);
    }
}
