//! heaptrace's own resource limits: room for its descriptors, and an orderly end where memory is short.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The limit of open files as heaptrace inherited it, if it was raised.
static INHERITED_FILES: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises heaptrace's own limit of open files as far as it may: it holds one file per module of the target, and one per
/// output. What it starts gets the inherited limit back.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: `raised` is valid; only our own process changes.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        let _first = INHERITED_FILES.set(limit);
    }
}

/// The limit of CPU time as heaptrace inherited it, if it was lowered.
static INHERITED_CPU_TIME: OnceLock<libc::rlimit> = OnceLock::new();

/// Sees to it that SIGXCPU announces a limit of CPU time (`ulimit -t`) a second before the kernel kills: time enough
/// to let the target go. What heaptrace starts gets the inherited limit back.
pub fn keep_a_second() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    if unsafe { libc::getrlimit(libc::RLIMIT_CPU, &raw mut limit) } != 0 || limit.rlim_max == libc::RLIM_INFINITY {
        return;
    }
    let lowered = libc::rlimit { rlim_cur: limit.rlim_cur.min(limit.rlim_max.saturating_sub(1)).max(1), ..limit };
    // SAFETY: `lowered` is valid; only our own process changes.
    if unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const lowered) } == 0 {
        let _first = INHERITED_CPU_TIME.set(limit);
    }
}

/// Gives the calling process the inherited limits back. Async-signal-safe: for a child between fork and exec.
pub(super) fn restore() {
    for (which, limit) in [(libc::RLIMIT_NOFILE, &INHERITED_FILES), (libc::RLIMIT_CPU, &INHERITED_CPU_TIME)] {
        if let Some(limit) = limit.get() {
            // SAFETY: the limit is valid, and not above the hard one.
            unsafe { libc::setrlimit(which, limit) };
        }
    }
}

/// Gives memory that was freed back to the system: glibc keeps what one thread has freed for that thread, and what the
/// tracer thread had for a million stacks is as much as their
/// profile takes after it.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, and changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// How many bytes heaptrace can take without harm to itself or to others: what is free on the machine, in its control
/// groups, and of its own address space, whichever is least. None if nothing of this is known.
pub fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib_of(&text, "MemAvailable:"));
    [machine, of_control_groups(), of_address_space()].into_iter().flatten().min()
}

/// The value of a line of /proc/meminfo or /proc/PID/status, in bytes.
fn kib_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that a control group around us has left (cgroup v2: memory.max less memory.current; the page cache counts
/// as used there, though the kernel would give it up).
fn of_control_groups() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |path: std::path::PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let root = std::path::Path::new("/sys/fs/cgroup");
    let own = root.join(group);
    let left = own.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(|folder| {
        // "max" is no number, and no limit.
        Some(number(folder.join("memory.max"))?.saturating_sub(number(folder.join("memory.current"))?))
    });
    left.min()
}

/// Whether `ulimit -v` is set. Then threads that do no more than save time are not started: the C library ends
/// heaptrace where a new one finds no memory to note its destructors in (`__cxa_thread_atexit_impl` of glibc).
pub fn is_address_space_limited() -> bool {
    limit_of_address_space().is_some()
}

fn limit_of_address_space() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// What `ulimit -v` leaves.
fn of_address_space() -> Option<u64> {
    let limit = limit_of_address_space()?;
    let used = std::fs::read_to_string("/proc/self/status").ok().and_then(|text| kib_of(&text, "VmSize:"))?;
    Some(limit.saturating_sub(used))
}

/// Address space that is kept for the moment when there is no more. Letting go of the target needs far less; the symbol
/// table that is being read when it happens may be as large.
const RESERVE: usize = 16 << 20;

static RESERVED: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static SHORT: AtomicBool = AtomicBool::new(false);

/// The system's allocator with a reserve. An allocation that fails takes the reserve, after which [`is_memory_short`]
/// tells that tracing must end; one that fails even so ends heaptrace with a message instead of SIGABRT.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Sets the reserve aside. Without it the first failed allocation is the end.
pub fn reserve_memory() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice; it is never touched, so it takes no memory.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), RESERVE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if at != libc::MAP_FAILED {
        RESERVED.store(at, Ordering::Release);
    }
}

/// How much of its stack the main thread has from the start on: more than it needs.
const STACK: u64 = 512 << 10;

/// What [`touch_stack`] takes at a time.
const STACK_PIECE: usize = 8 << 10;

/// Lets the main thread's stack grow now. Later, with no address space left (`ulimit -v`), the kernel would end
/// heaptrace by SIGSEGV where it has to grow; now heaptrace can say so.
pub fn reserve_stack() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let all = if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0 { limit.rlim_cur } else { 0 };
    let wanted = STACK.min(all / 4) as usize;
    // SAFETY: an anonymous mapping at an address of the kernel's choice, which nobody uses.
    let has_room = unsafe {
        let (size, flags) = (wanted + STACK_PIECE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0);
        at != libc::MAP_FAILED && libc::munmap(at, size) == 0
    };
    if !has_room {
        give_up();
    }
    touch_stack(wanted / STACK_PIECE);
}

#[inline(never)]
fn touch_stack(pieces: usize) {
    let piece = [0u8; STACK_PIECE];
    std::hint::black_box(&piece);
    if let Some(left) = pieces.checked_sub(1) {
        touch_stack(left);
    }
    std::hint::black_box(&piece);
}

/// Whether the reserve is used up.
pub fn is_memory_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

/// Gives the reserve to whoever needs memory. False if there is none.
fn release_reserve() -> bool {
    let at = RESERVED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    SHORT.store(true, Ordering::Relaxed);
    // SAFETY: the mapping is ours and nothing points into it.
    !at.is_null() && unsafe { libc::munmap(at, RESERVE) } == 0
}

/// Ends heaptrace: there is no memory for anything else.
fn give_up() -> ! {
    const MESSAGE: &[u8] = b"heaptrace: out of memory (a limit, such as `ulimit -v`?)\n";
    // SAFETY: writes a constant; _exit does not return.
    unsafe {
        libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(125)
    }
}

fn again_if_null(first: *mut u8, again: impl Fn() -> *mut u8) -> *mut u8 {
    if !first.is_null() {
        return first;
    }
    if release_reserve() {
        let second = again();
        if !second.is_null() {
            return second;
        }
    }
    give_up()
}

// SAFETY: all calls go to the system's allocator with the arguments unchanged; nothing here allocates or unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        again_if_null(unsafe { System.alloc(layout) }, || unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        again_if_null(unsafe { System.alloc_zeroed(layout) }, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on; a failed realloc leaves the block as it was.
        again_if_null(unsafe { System.realloc(block, layout, size) }, || unsafe { System.realloc(block, layout, size) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(23_000_000 * 1024));
        assert_eq!((kib_of(text, "VmSize:"), kib_of("VmSize: much kB", "VmSize:")), (None, None));
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
