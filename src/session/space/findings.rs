//! What is to be told of an address space.

use super::AddressSpace;

/// What has come up.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// For the user, and not told yet.
    pub(super) warnings: Vec<String>,
    /// Allocator functions, and other things of weight, that could not be watched: in words.
    pub(super) blind_spots: Vec<String>,
}

impl AddressSpace {
    /// Warnings that have come up since the last [`AddressSpace::refresh`].
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings.warnings)
    }

    /// Notes what is not seen: a warning, and a reason not to judge.
    pub fn note_blind_spot(&mut self, what: String) {
        if !self.findings.blind_spots.contains(&what) {
            self.findings.blind_spots.push(what.clone());
        }
        self.findings.warnings.push(what);
    }

    /// What could not be watched, in words.
    pub fn blind_spots(&self) -> Vec<String> {
        let waiting = self.deferred.iter().filter(|probe| probe.to_place.is_needed_to_see_all());
        let waiting = waiting.map(|probe| {
            format!(
                "no probe was placed at {}, as there was no room near it: calls of that function were missed",
                self.place_in_module(probe.addr)
            )
        });
        self.findings.blind_spots.iter().cloned().chain(waiting).collect()
    }
}
