//! The libraries of libunwind: opened by name, their functions by theirs.

use crate::tracer::{Result, TracerError};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

/// The unwinder for x86-64 processes other than its own; since libunwind 1.1 of 2012.
const UNWINDER: &CStr = c"libunwind-x86_64.so.8";
/// How it reads a process by ptrace.
const READER: &CStr = c"libunwind-ptrace.so.0";

/// The number of the instruction pointer (`UNW_X86_64_RIP` of libunwind-x86_64.h).
pub(super) const RIP: c_int = 16;

/// `unw_cursor_t`: where a walk is. Its size is part of the binary interface (`UNW_TDEP_CURSOR_LEN` of
/// libunwind-x86_64.h).
#[repr(C)]
pub(super) struct Cursor([u64; 127]);

impl Cursor {
    pub(super) const fn new() -> Self {
        Self([0; 127])
    }
}

/// What heaptrace needs of both libraries, as libunwind-common.h and libunwind-ptrace.h declare it. Address spaces and
/// states of threads are opaque.
pub(super) struct Functions {
    pub(super) create_addr_space: unsafe extern "C" fn(accessors: *mut c_void, byte_order: c_int) -> *mut c_void,
    pub(super) destroy_addr_space: unsafe extern "C" fn(space: *mut c_void),
    pub(super) init_remote: unsafe extern "C" fn(cursor: *mut Cursor, space: *mut c_void, state: *mut c_void) -> c_int,
    pub(super) step: unsafe extern "C" fn(cursor: *mut Cursor) -> c_int,
    pub(super) get_reg: unsafe extern "C" fn(cursor: *mut Cursor, register: c_int, value: *mut u64) -> c_int,
    pub(super) is_signal_frame: unsafe extern "C" fn(cursor: *mut Cursor) -> c_int,
    pub(super) upt_create: unsafe extern "C" fn(tid: libc::pid_t) -> *mut c_void,
    pub(super) upt_destroy: unsafe extern "C" fn(state: *mut c_void),
    /// A table of functions, not a function.
    pub(super) upt_accessors: NonNull<c_void>,
}

impl Functions {
    /// Opens both libraries.
    ///
    /// # Errors
    /// If one can't be opened or lacks something, or if this program is linked statically.
    pub(super) fn load() -> Result<Self> {
        if cfg!(target_feature = "crt-static") {
            return Err(TracerError::NoLibunwind {
                why: "this heaptrace is linked statically, and can't load libraries".to_owned(),
                remedy: "Use a heaptrace that is linked dynamically",
            });
        }
        // For all to see: Debian's libunwind-ptrace.so.0 takes functions from this library and from liblzma, which
        // comes with it, and names neither as needed. That shows the `_Unwind_…` of libunwind.so.8, too, but behind
        // those of libgcc, which has been here from the start.
        let unwinder = Library::open(UNWINDER, libc::RTLD_GLOBAL)?;
        // SAFETY: the fields have the types that libunwind-common.h declares.
        let functions = unsafe {
            (
                unwinder.function(c"_Ux86_64_create_addr_space")?,
                unwinder.function(c"_Ux86_64_destroy_addr_space")?,
                unwinder.function(c"_Ux86_64_init_remote")?,
                unwinder.function(c"_Ux86_64_step")?,
                unwinder.function(c"_Ux86_64_get_reg")?,
                unwinder.function(c"_Ux86_64_is_signal_frame")?,
            )
        };
        let (create_addr_space, destroy_addr_space, init_remote, step, get_reg, is_signal_frame) = functions;
        let reader = Library::open(READER, libc::RTLD_LOCAL)?;
        // SAFETY: the fields have the types that libunwind-ptrace.h declares.
        let (upt_create, upt_destroy) =
            unsafe { (reader.function(c"_UPT_create")?, reader.function(c"_UPT_destroy")?) };
        let upt_accessors = reader.symbol(c"_UPT_accessors")?;
        Ok(Self {
            create_addr_space,
            destroy_addr_space,
            init_remote,
            step,
            get_reg,
            is_signal_frame,
            upt_create,
            upt_destroy,
            upt_accessors,
        })
    }
}

/// A library that was opened. It stays for good: its functions are kept by their addresses.
struct Library {
    name: &'static CStr,
    handle: NonNull<c_void>,
}

impl Library {
    /// Opens a library, with all that it needs. `visibility`: who sees its names, RTLD_LOCAL or RTLD_GLOBAL.
    ///
    /// # Errors
    /// If it is not there, or is no library, or lacks something that it needs itself.
    fn open(name: &'static CStr, visibility: c_int) -> Result<Self> {
        // SAFETY: `name` is a C string. What runs of the library at this moment are the functions by which libunwind
        // and liblzma prepare themselves, which need nothing of this program.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | visibility) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { name, handle }),
            None => Err(missing(last_error(name))),
        }
    }

    /// Where something is that the library defines.
    ///
    /// # Errors
    /// If it does not.
    fn symbol(&self, name: &CStr) -> Result<NonNull<c_void>> {
        // SAFETY: the library is open, and `name` is a C string.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        let lacks = || missing(format!("{} has no {}", self.name.to_string_lossy(), name.to_string_lossy()));
        NonNull::new(address).ok_or_else(lacks)
    }

    /// A function of the library.
    ///
    /// # Errors
    /// If it has none of this name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this very function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
        let address = self.symbol(name)?;
        // SAFETY: a pointer to a function, as the caller says, has this size, and is not null.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// The error of libraries that are not there or not what they should be.
const fn missing(why: String) -> TracerError {
    TracerError::NoLibunwind {
        why,
        remedy: "Install it, or reinstall it if it is there (Debian's package is libunwind8)",
    }
}

/// What the dynamic linker says of its last failure, which was with the library `name`.
fn last_error(name: &CStr) -> String {
    // SAFETY: gives null, or a C string that lasts to this thread's next call of such a function.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| format!("{} can't be opened", name.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file that a name of this program's leads to.
    fn file_of(name: &CStr) -> String {
        // SAFETY: `name` is a C string; the address that dlsym gives is one of a loaded object, whose name dladdr gives
        // as a C string that lasts as long as the object.
        unsafe {
            let address = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            let mut info: libc::Dl_info = std::mem::zeroed();
            assert_ne!(libc::dladdr(address, &raw mut info), 0, "{name:?}");
            CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned()
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_way_out() {
        let Err(error) = Library::open(c"libheaptrace-has-none.so.1", libc::RTLD_LOCAL) else { panic!() };
        let text = error.to_string();
        let (begin, end) = ("could not load libunwind: libheaptrace-has-none.so.1: ", ", or omit --unwinder libunwind");
        assert!(text.starts_with(begin) && text.ends_with(end) && text.contains("No such file"), "{text}");
        assert!(text.contains("Debian's package is libunwind8"), "{text}");
    }

    /// With them comes libunwind.so.8, which has the names of libgcc's by which this program itself unwinds: at a
    /// panic.
    #[test]
    fn panics_are_still_unwound_by_libgcc() {
        Functions::load().unwrap();
        assert!(file_of(c"_Ux86_64_step").contains("libunwind-x86_64.so.8"));
        for name in [c"_Unwind_RaiseException", c"_Unwind_Resume", c"_Unwind_Backtrace", c"_Unwind_GetIP"] {
            let file = file_of(name);
            assert!(file.contains("libgcc_s.so.1"), "{name:?} leads to {file}");
        }
    }
}
