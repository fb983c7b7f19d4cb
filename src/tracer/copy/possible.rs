//! Whether a process can be copied, and its copy would be all of it.

use crate::image::maps::SHARED_WITH_HEAPTRACE;
use crate::tracer::{limits, pressure, procfs};

/// Whether a copy of a process has all that the process can write to, as far as the flags of its mappings tell
/// (`VmFlags` of proc_pid_smaps(5)): none is exempt from being copied ("dc",
/// MADV_DONTFORK) or empty in the copy ("wf", MADV_WIPEONFORK), and no fault of any is another process's to serve,
/// which would have to serve the fork, too (userfaultfd(2): "um", "uw", "ui").
/// Reading this takes about a hundredth of a second for each GiB.
pub fn is_copied_whole(pid: i32) -> bool {
    procfs::read(pid, "smaps").is_ok_and(|text| !has_exceptions(&String::from_utf8_lossy(&text)))
}

fn has_exceptions(smaps: &str) -> bool {
    let has_region = smaps.contains(SHARED_WITH_HEAPTRACE);
    let mut code_ends = "";
    let mut is_ours = false;
    smaps.lines().any(|line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |wanted: &[&str]| flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
            return !is_ours && has(&["wr"]) && has(&["dc", "wf", "um", "uw", "ui"]);
        }
        let mut words = line.split_ascii_whitespace();
        if let (Some((start, end)), Some(access)) = (words.next().and_then(|range| range.split_once('-')), words.next())
        {
            // What the jump engine shares with us, and its state, which lies behind its code: no copy has, or needs,
            // either.
            is_ours = line.contains(SHARED_WITH_HEAPTRACE) || has_region && start == code_ends;
            code_ends = if access == "r-xp" && words.nth(2) == Some("0") && words.next().is_none() { end } else { "" };
        }
        false
    })
}

/// Whether process `pid`, which has these threads, may be copied: none where system calls are filtered, and where
/// memory is short or promised in full.
pub fn may_be_made(pid: i32, threads: impl IntoIterator<Item = i32>) -> bool {
    threads.into_iter().all(|tid| !procfs::has_seccomp(tid)) && has_room(pid)
}

/// Whether its memory may be there twice for a while: what the process writes to meanwhile is.
fn has_room(pid: i32) -> bool {
    Room {
        overcommit: std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default(),
        resident: pressure::resident(pid).unwrap_or(u64::MAX),
        limit: pressure::memory_limit(pid).unwrap_or(0),
        available: limits::available_memory(),
    }
    .is_enough()
}

/// What there is of memory, in bytes.
#[derive(Clone, Debug)]
struct Room {
    /// What vm.overcommit_memory says.
    overcommit: String,
    /// What the process has.
    resident: u64,
    /// What it may have.
    limit: u64,
    /// What heaptrace may have besides. None: that is not known.
    available: Option<u64>,
}

impl Room {
    fn is_enough(&self) -> bool {
        // the kernel promises no more than it has: a copy of all that may be written to may be too much, or keep the
        // program from getting more
        let is_strict = self.overcommit.trim() == "2";
        let is_tight =
            self.available.is_some_and(|left| left < self.resident / 2) || self.limit < self.resident.saturating_mul(2);
        !is_strict && !is_tight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_copy_is_made_where_memory_is_short_or_promised_in_full() {
        let room = Room { overcommit: "0\n".to_owned(), resident: 1 << 30, limit: 8 << 30, available: Some(4 << 30) };
        assert!(room.is_enough());
        assert!(Room { overcommit: "1\n".to_owned(), available: None, ..room.clone() }.is_enough());
        assert!(Room { limit: 2 << 30, available: Some(1 << 29), ..room.clone() }.is_enough());
        assert!(!Room { overcommit: "2\n".to_owned(), ..room.clone() }.is_enough());
        assert!(!Room { limit: (2 << 30) - 1, ..room.clone() }.is_enough());
        assert!(!Room { available: Some((1 << 29) - 1), ..room.clone() }.is_enough());
        assert!(!Room { resident: u64::MAX, ..room }.is_enough());
    }

    #[test]
    fn mappings_that_a_copy_would_lack_are_told_by_their_flags() {
        let smaps = |flags: &str| {
            format!("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mr mw me ac {flags}\n")
        };
        assert!(!has_exceptions(&smaps("sd")));
        for flag in ["dc", "wf", "um", "uw", "ui"] {
            assert!(has_exceptions(&(smaps("sd") + &smaps(flag))), "{flag}");
        }
        assert!(!has_exceptions("VmFlags: rd mr pf io de dc dd sd \n"), "nothing is written there");
        let ours = smaps("dc").replace("00:00 0 ", "00:01 7 /memfd:heaptrace (deleted)");
        assert!(!has_exceptions(&ours), "{ours}");
        assert!(has_exceptions(&format!("{ours}{}", smaps("wf"))));
        let code = "7effffff0000-7f0000000000 r-xp 00000000 00:00 0 \nVmFlags: rd ex mr mw me\n";
        assert!(!has_exceptions(&format!("{ours}{code}{}", smaps("wf"))));
        assert!(has_exceptions(&format!("{code}{}", smaps("wf"))), "none of ours is there");
    }
}
