//! Mappings of files that a server brings (FUSE, NFS and their like): who touches a page that is not in memory waits
//! for that server, which may never answer, in a sleep that no signal ends. So only pages that are there are read.

use super::pagemap::PageMap;
use super::procfs;
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use crate::image::maps::{Device, Kind, Mapping};
use std::ops::Range;

/// The types of such file systems (proc_pid_mountinfo(5), field 9); those of FUSE may have a name of their own behind a
/// dot.
const SERVED: [&str; 11] = ["fuse", "fuseblk", "virtiofs", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "coda"];

/// The mappings of such files in one address space.
#[derive(Debug)]
pub(super) struct ServedFiles {
    /// Ascending; and whether the process has them for itself (MAP_PRIVATE).
    ranges: Vec<(Range<Addr>, bool)>,
    pages: PageMap,
    /// The task whose pages these are.
    task: i32,
}

impl ServedFiles {
    /// Those among the mappings of a process, by a task of it that lives. `pages`: the task whose pages are read, of a
    /// copy of the process, for instance. None: there are none.
    pub(super) fn of(tid: i32, mappings: &[Mapping], pages: i32) -> Option<Self> {
        let devices = procfs::read(tid, "mountinfo").map(|text| served_devices(&String::from_utf8_lossy(&text)));
        let devices = devices.ok().filter(|devices| !devices.is_empty())?;
        let is_served = |mapping: &&Mapping| mapping.kind == Kind::File && devices.contains(&mapping.dev);
        let ranges: Vec<_> =
            mappings.iter().filter(is_served).map(|mapping| (mapping.range(), !mapping.perms.shared)).collect();
        if ranges.is_empty() {
            return None;
        }
        let task = pages;
        let pages = PageMap::open(task).inspect_err(|error| tracing::debug!("{error}")).ok()?;
        Some(Self { ranges, pages, task })
    }

    /// The same for another reader.
    pub(super) fn again(&self) -> Option<Self> {
        Some(Self { ranges: self.ranges.clone(), pages: PageMap::open(self.task).ok()?, task: self.task })
    }

    /// The first of them that reaches into `range`.
    fn first_in(&self, range: &Range<Addr>) -> Option<&(Range<Addr>, bool)> {
        let first = self.ranges.partition_point(|(served, _)| served.end <= range.start);
        self.ranges.get(first).filter(|(served, _)| served.start < range.end)
    }

    /// How many of `len` bytes from `at` on can be read without waiting for a server.
    pub(super) fn readable(&mut self, at: Addr, len: usize) -> usize {
        let end = at.0.saturating_add(len as u64);
        let Some(served) = self.first_in(&(at..Addr(end))).map(|(served, _)| served.clone()) else { return len };
        let until = if at < served.start {
            served.start.0
        } else {
            let first = Addr(at.0 / PAGE_SIZE * PAGE_SIZE);
            let last = Addr(end.min(served.end.0).next_multiple_of(PAGE_SIZE));
            let placed = self.pages.placed(&(first..last)).unwrap_or_default();
            placed.in_memory.iter().find(|run| run.contains(&at)).map_or(at.0, |run| run.end.0)
        };
        usize::try_from(until.min(end) - at.0).unwrap_or(len)
    }

    /// Whether the page at `at`, which can't be read without waiting, is the file's alone: the process has written
    /// nothing there that it has not for itself. What is shared the process or another one may have written.
    pub(super) fn holds_nothing(&self, at: Addr) -> bool {
        self.first_in(&(at..at.add(1))).is_some_and(|(_, is_private)| *is_private)
    }

    /// Whether some of `range` is shared memory of such a file.
    pub(super) fn are_shared_in(&self, range: &Range<Addr>) -> bool {
        self.ranges
            .iter()
            .any(|(served, is_private)| !is_private && served.start < range.end && range.start < served.end)
    }
}

/// The devices in the text of a file `mountinfo` on which servers bring the files.
fn served_devices(text: &str) -> Vec<Device> {
    let device = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let kind = file_system.split(' ').next()?;
        let base = kind.split_once('.').map_or(kind, |(base, _)| base);
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
        SERVED.contains(&base).then_some(device)
    };
    text.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_servers_are_known_by_their_types() {
        let text = "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n\
                    90 22 0:39 / /mnt/a\\040-\\040b rw,nosuid shared:5 master:2 - fuse.sshfs host:/ rw,user_id=0\n\
                    91 22 0:40 / /mnt/nfs rw - nfs4 server:/ rw\n\
                    92 22 0:41 / /run rw - tmpfs tmpfs rw\n\
                    93 22 0:42 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n";
        let devices = served_devices(text);
        assert_eq!(devices, [Device { major: 0, minor: 39 }, Device { major: 0, minor: 40 }]);
        assert!(served_devices("").is_empty() && served_devices("1 2 x - fuse\n").is_empty());
    }
}
