//! What a leak scan found, with names: the part of a profile that `check` judges and every report shows.

use super::Amount;
use crate::base::addr::Addr;
use crate::base::figures::{grouped, plural};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

pub use crate::base::leakclass::LeakClass;
pub use crate::heap::leaks::{Doubt, Doubted, Doubts};

/// Objects and bytes by class, indexed by `LeakClass as usize`.
pub type ClassAmounts = [Amount; 4];

/// When the memory was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScanMoment {
    /// At libc's `_exit`: the exit handlers have run, all threads are still there.
    Exit,
    /// When the last thread was about to disappear: exit_group called directly, or a deadly signal. Threads had gone.
    LastThread,
    /// While the process lived, at heaptrace's own request (`leaks`, `--timeout`, the end of `attach --leaks-at-end`).
    Request,
    /// While the process lived, at its own request (`__lsan_do_leak_check`).
    Program,
}

/// All live blocks of one allocating stack: one line of the leak report.
#[derive(Clone, Debug)]
pub struct LeakSite {
    /// Index into [`super::Profile::stacks`]; each stack occurs once.
    pub stack: usize,
    /// Index into [`super::Profile::strings`]: the thread that allocated (most of) them.
    pub thread: usize,
    /// Index into [`super::Profile::strings`]: the allocator function called.
    pub alloc_fn: usize,
    /// The live blocks allocated here, by class.
    pub amounts: ClassAmounts,
    /// Indirectly leaked blocks, wherever allocated, that hang on the definitely leaked ones of this site: each
    /// indirect block hangs on one site only.
    pub holds: Amount,
    /// By what pointers its possibly leaked blocks are reached, where those are doubtful themselves.
    pub doubts: Doubts,
    /// The way from a root to the largest reachable block of this site, or else to the largest possible one.
    pub path: Option<RetentionPath>,
    /// For each class an index into [`super::Profile::suppressions`]: the rule that hides the site's blocks of this
    /// class from the verdict. Rules can be made for one class, as loss records of Memcheck are of one class each.
    pub suppressed_by: [Option<usize>; 4],
    /// How each class compares with the baseline, if there is one.
    pub baseline: [Option<BaselineStatus>; 4],
}

impl LeakSite {
    /// The retention path, for the class that it belongs to: the reachable blocks if there are any, else the possible
    /// ones.
    pub fn path_of(&self, class: LeakClass) -> Option<&RetentionPath> {
        let [_, _, possible, reachable] = self.amounts;
        let of = if reachable.objects > 0 { LeakClass::Reachable } else { LeakClass::Possible };
        let amount = if class == LeakClass::Reachable { reachable } else { possible };
        self.path.as_ref().filter(|_| class == of && amount.objects > 0)
    }

    /// Whether a leak of this class here counts: it is of one of the kinds, not suppressed, and not known from the
    /// baseline.
    pub fn counts(&self, leak_kinds: &[bool; 4], class: LeakClass) -> bool {
        leak_kinds.get(class as usize).copied().unwrap_or(false)
            && self.hidden_by(class).is_none()
            && self.compared(class) != Some(BaselineStatus::Known)
    }

    /// Whether the site's own blocks of a class fail the check: by themselves, or by what hangs on them. Indirect
    /// blocks never do: that is charged to the block whose loss lost them.
    pub fn fails(&self, leak_kinds: &[bool; 4], class: LeakClass) -> bool {
        let judged = self.judged();
        let failing = |class: LeakClass| {
            self.counts(leak_kinds, class) && judged.get(class as usize).is_some_and(|amount| amount.objects > 0)
        };
        match class {
            LeakClass::Definite => failing(LeakClass::Definite) || failing(LeakClass::Indirect),
            LeakClass::Indirect => false,
            LeakClass::Possible | LeakClass::Reachable => failing(class),
        }
    }

    /// What a class of this site lost: its own blocks, and for the definite class what hangs on them.
    pub fn lost(&self, class: LeakClass) -> Amount {
        let direct = self.amounts.get(class as usize).copied().unwrap_or_default();
        if class == LeakClass::Definite { direct.plus(self.holds) } else { direct }
    }

    /// What speaks for the site in the verdict, by class: its own blocks, but for the indirect class what hangs on its
    /// definitely leaked blocks, wherever that was allocated. So each indirect block is judged with the one block whose
    /// loss lost it.
    pub const fn judged(&self) -> ClassAmounts {
        let [definite, _, possible, reachable] = self.amounts;
        [definite, self.holds, possible, reachable]
    }

    /// The rule that hides what [`LeakSite::judged`] says of a class: what hangs on a block is hidden with it.
    pub const fn hidden_by(&self, class: LeakClass) -> Option<usize> {
        let [definite, _, possible, reachable] = self.suppressed_by;
        match class {
            LeakClass::Definite | LeakClass::Indirect => definite,
            LeakClass::Possible => possible,
            LeakClass::Reachable => reachable,
        }
    }

    /// How what [`LeakSite::judged`] says of a class compares with the baseline.
    pub const fn compared(&self, class: LeakClass) -> Option<BaselineStatus> {
        let [definite, _, possible, reachable] = self.baseline;
        match class {
            LeakClass::Definite | LeakClass::Indirect => definite,
            LeakClass::Possible => possible,
            LeakClass::Reachable => reachable,
        }
    }
}

/// Why a block is still reachable.
#[derive(Clone, Debug)]
pub struct RetentionPath {
    /// The root in words: ``global `cache` +8 in libfoo.so``, `stack of thread 12 (worker)`, `register rbx of thread
    /// 12`.
    pub root: String,
    /// Where the root's pointer lies; None for a register.
    pub root_address: Option<Addr>,
    /// The blocks from the root to the block itself, which is the last one. Never empty.
    pub steps: Vec<PathStep>,
}

/// A block on a retention path.
#[derive(Clone, Copy, Debug)]
pub struct PathStep {
    /// The block.
    pub block: Addr,
    /// Its requested size in bytes.
    pub size: u64,
    /// Where it was allocated: an index into [`super::Profile::stacks`].
    pub stack: usize,
    /// How far behind the block's start the pointer points that leads here, in bytes; 0 for its start.
    pub target_offset: u64,
    /// Where in this block the pointer to the next one lies, in bytes; None in the last block.
    pub next_offset: Option<u64>,
}

/// How a site compares with an earlier report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BaselineStatus {
    /// It was not there.
    New,
    /// It has more leaked bytes or blocks now.
    Grown,
    /// It was there, at least as large.
    Known,
}

impl BaselineStatus {
    /// The name in report.json: `new`, `grown`, `known`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Grown => "grown",
            Self::Known => "known",
        }
    }
}

/// Where the rules stand for leaks of libraries that are known, with the version of their table.
pub const KNOWN_LEAKS: &str = "known leaks of libraries, version 1";

/// What one suppression rule did.
#[derive(Clone, Debug)]
pub struct Suppression {
    /// The rule: the pattern of a `leak:` line, the name of a Valgrind suppression.
    pub rule: String,
    /// Where it stands: a path, `__lsan_default_suppressions`, …
    pub file: String,
    /// The line there, from 1 on.
    pub line: u32,
    /// The blocks that it hid.
    pub hidden: Amount,
    /// How many errors it hid.
    pub hidden_errors: u64,
}

impl Suppression {
    /// Whether it hid something.
    pub fn is_used(&self) -> bool {
        self.hidden != Amount::default() || self.hidden_errors > 0
    }

    /// Whether it is of [`KNOWN_LEAKS`], and not the user's.
    pub fn is_known_leak(&self) -> bool {
        self.file.starts_with("known leaks of libraries, version ")
    }
}

/// The result of a leak scan.
#[derive(Clone, Debug)]
pub struct Leaks {
    /// When memory was read.
    pub moment: ScanMoment,
    /// For how long the process stood still for it, ns.
    pub stopped_ns: u64,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// What could not be read, by name: some of it, where it is much. In the check itself only, no saved profile has
    /// it.
    pub unreadable_names: Vec<String>,
    /// How many bytes of roots and blocks were looked through.
    pub scanned_bytes: u64,
    /// How many bytes of roots and blocks could not be read: blocks that only pointers there lead to look lost.
    pub unreadable_bytes: u64,
    /// Where the kernel may hold pointers that it tells nobody, by name (`aio`, `io_uring`, …): blocks that only it
    /// leads to look lost.
    pub untold: Vec<String>,
    /// All sites with live blocks, the most leaked bytes (definite and what they hold) first.
    pub sites: Vec<LeakSite>,
    /// The block that was asked for, if it is live.
    pub asked: Option<AskedBlock>,
}

/// The block that a user asked for by its address.
#[derive(Clone, Debug)]
pub struct AskedBlock {
    /// Where it begins.
    pub block: Addr,
    /// Its requested size in bytes.
    pub size: u64,
    /// Whether it can be reached.
    pub class: LeakClass,
    /// Where it was allocated: an index into [`super::Profile::stacks`].
    pub stack: usize,
    /// A way to it, if there is one.
    pub path: Option<RetentionPath>,
}

/// What the sites of one id have: the live blocks of each class, and what hangs on the definitely leaked ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SiteSums {
    amounts: ClassAmounts,
    holds: Amount,
}

impl Leaks {
    /// The sums of all sites, by site id. Stacks that differ in addresses only have one id.
    pub fn by_id(&self, id: impl Fn(&LeakSite) -> u64) -> FxHashMap<u64, SiteSums> {
        let mut sums: FxHashMap<u64, SiteSums> = FxHashMap::default();
        for site in &self.sites {
            let sum = sums.entry(id(site)).or_default();
            for (sum, amount) in sum.amounts.iter_mut().zip(&site.amounts) {
                *sum = sum.plus(*amount);
            }
            sum.holds = sum.holds.plus(site.holds);
        }
        sums
    }

    /// Keeps of the sites only what they have more than in `before` ([`Self::by_id`]): what has grown.
    pub fn keep_growth(&mut self, id: impl Fn(&LeakSite) -> u64, mut before: FxHashMap<u64, SiteSums>) {
        self.sites.retain_mut(|site| {
            let Some(old) = before.get_mut(&id(site)) else { return true };
            let own = site.amounts.iter_mut().zip(&mut old.amounts);
            for (now, old) in own.chain([(&mut site.holds, &mut old.holds)]) {
                for (now, old) in [(&mut now.objects, &mut old.objects), (&mut now.bytes, &mut old.bytes)] {
                    // What one site had before does not count for another one of the same id.
                    let known = (*now).min(*old);
                    *now -= known;
                    *old -= known;
                }
            }
            site.amounts.iter().chain([&site.holds]).any(|amount| *amount != Amount::default())
        });
    }

    /// Live blocks by class, suppressed ones left out, with what hangs on those.
    pub fn totals(&self) -> ClassAmounts {
        self.sum(|site, class| site.hidden_by(class).is_none())
    }

    /// Live blocks of all classes that suppressions hide, with what hangs on those.
    pub fn suppressed(&self) -> Amount {
        let hidden = self.sum(|site, class| site.hidden_by(class).is_some());
        hidden.into_iter().fold(Amount::default(), Amount::plus)
    }

    /// Of [`Self::suppressed`], what the user's rules hide, and what is known of libraries ([`KNOWN_LEAKS`]).
    pub fn suppressed_and_known(&self, rules: &[Suppression]) -> [Amount; 2] {
        let is_known = |rule: usize| rules.get(rule).is_some_and(Suppression::is_known_leak);
        [false, true].map(|known| {
            let hidden = self.sum(|site, class| site.hidden_by(class).is_some_and(|rule| is_known(rule) == known));
            hidden.into_iter().fold(Amount::default(), Amount::plus)
        })
    }

    /// By what doubtful pointers the possibly leaked blocks are reached that are not suppressed.
    pub fn doubts(&self) -> Doubts {
        let mut doubts = Doubts::default();
        let shown = self.sites.iter().filter(|site| site.hidden_by(LeakClass::Possible).is_none());
        shown.for_each(|site| doubts.merge(&site.doubts));
        doubts
    }

    /// Whether the sites were compared with a baseline.
    pub fn compared(&self) -> bool {
        self.sites.iter().any(|site| site.baseline.iter().any(Option::is_some))
    }

    /// The sum of what is judged, over the sites and classes that `counts`.
    pub fn sum(&self, counts: impl Fn(&LeakSite, LeakClass) -> bool) -> ClassAmounts {
        let mut totals = ClassAmounts::default();
        for site in &self.sites {
            for ((class, part), total) in LeakClass::ALL.into_iter().zip(site.judged()).zip(&mut totals) {
                if counts(site, class) {
                    *total = total.plus(part);
                }
            }
        }
        totals
    }
}

/// What `check` concludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerdictKind {
    /// It could judge, and found nothing.
    Clean,
    /// Leaks of a kind that counts.
    Leaks,
    /// Double frees and the like.
    Errors,
    /// A budget was exceeded.
    OverBudget,
    /// It could not judge: something was not seen.
    Inconclusive,
    /// The program itself failed.
    ProgramFailed,
}

impl VerdictKind {
    /// The name in report.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Leaks => "leaks",
            Self::Errors => "errors",
            Self::OverBudget => "over_budget",
            Self::Inconclusive => "inconclusive",
            Self::ProgramFailed => "program_failed",
        }
    }
}

/// The verdict of `check`, with its reasons.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What weighs most.
    pub kind: VerdictKind,
    /// Sentences for people: all that speaks against the program, or against the judgement. Empty if clean.
    pub reasons: Vec<String>,
    /// The exit status of `check`.
    pub exit_status: u8,
    /// Which classes of leaks counted, indexed by `LeakClass as usize`; none where all leaks together keep within their
    /// budget.
    pub leak_kinds: [bool; 4],
    /// Whether errors in the use of the heap counted.
    pub errors: bool,
}

/// A limit and what became of it.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The option's name without dashes: `max-leaked-bytes`.
    pub name: &'static str,
    /// The limit, in bytes or calls.
    pub limit: u64,
    /// What was measured, in the same unit.
    pub actual: u64,
}

impl Budget {
    /// Whether the limit was kept.
    pub const fn ok(&self) -> bool {
        self.actual <= self.limit
    }

    /// What was measured and what the limit is, with their unit: `198,863 bytes instead of 51,200`.
    pub fn comparison(&self) -> String {
        let noun = if self.name == "max-allocations" { "allocation" } else { "byte" };
        format!("{} instead of {}", plural(self.actual, noun), grouped(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two calls in one function have one id: nothing that stayed as it was counts as growth, and what grows counts
    /// once.
    #[test]
    fn growth_is_told_by_id_where_several_sites_have_one() {
        let amount = |objects, bytes| Amount { objects, bytes };
        let leaks = |reachable: &[(usize, Amount)]| {
            let site = |(stack, reachable): &(usize, Amount)| LeakSite {
                stack: *stack,
                thread: 0,
                alloc_fn: 0,
                amounts: [Amount::default(), Amount::default(), Amount::default(), *reachable],
                holds: Amount::default(),
                doubts: Doubts::default(),
                path: None,
                suppressed_by: [None; 4],
                baseline: [None; 4],
            };
            Leaks {
                moment: ScanMoment::Request,
                stopped_ns: 0,
                copied: false,
                unreadable_names: Vec::new(),
                scanned_bytes: 0,
                unreadable_bytes: 0,
                untold: Vec::new(),
                sites: reachable.iter().map(site).collect(),
                asked: None,
            }
        };
        let id = |site: &LeakSite| u64::from(site.stack > 1);
        let before = leaks(&[(0, amount(1, 96)), (1, amount(1, 48_944)), (2, amount(5, 50))]).by_id(id);
        let mut same = leaks(&[(1, amount(1, 48_944)), (0, amount(1, 96)), (2, amount(5, 50))]);
        same.keep_growth(id, before.clone());
        assert_eq!(same.sites.len(), 0, "{:?}", same.sites);
        let mut grown = leaks(&[(0, amount(2, 192)), (1, amount(1, 48_944)), (3, amount(7, 70))]);
        grown.keep_growth(id, before);
        let sum = grown.sites.iter().map(|site| site.amounts[3]).fold(Amount::default(), Amount::plus);
        assert_eq!(sum, amount(3, 116), "{:?}", grown.sites);
    }

    /// What hangs on lost blocks grows with them, and is told once.
    #[test]
    fn what_hangs_on_lost_blocks_is_told_by_its_growth() {
        let amount = |objects, bytes| Amount { objects, bytes };
        let leaks = |lost: Amount, holds: Amount| Leaks {
            moment: ScanMoment::Request,
            stopped_ns: 0,
            copied: false,
            unreadable_names: Vec::new(),
            scanned_bytes: 0,
            unreadable_bytes: 0,
            untold: Vec::new(),
            sites: vec![LeakSite {
                stack: 0,
                thread: 0,
                alloc_fn: 0,
                amounts: [lost, Amount::default(), Amount::default(), Amount::default()],
                holds,
                path: None,
                suppressed_by: [None; 4],
                baseline: [None; 4],
                doubts: Doubts::default(),
            }],
            asked: None,
        };
        let before = leaks(amount(100, 1000), amount(100, 800)).by_id(|_| 7);
        let mut same = leaks(amount(100, 1000), amount(100, 800));
        same.keep_growth(|_| 7, before.clone());
        assert_eq!(same.sites.len(), 0, "{:?}", same.sites);
        let mut grown = leaks(amount(150, 1500), amount(300, 2400));
        grown.keep_growth(|_| 7, before.clone());
        assert_eq!(grown.totals()[..2], [amount(50, 500), amount(200, 1600)]);
        let mut below = leaks(amount(100, 1000), amount(101, 808));
        below.keep_growth(|_| 7, before);
        assert_eq!(below.totals()[..2], [Amount::default(), amount(1, 8)]);
    }
}
