//! A fixture of `tests/fixtures/unwind` under ptrace: run it from stop to stop and look at registers, memory, modules.

use heaptrace::internal::{Addr, LoadBias, ModuleId, ObjAddr, ReadMemory, Regs, Section, UnwindModule};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object, ObjectSection, ObjectSegment};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One build at a time: tests share fixtures.
static BUILDING: Mutex<()> = Mutex::new(());

/// Compiles `tests/fixtures/unwind/NAME.c`.
pub fn build(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let _guard = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/unwind").join(format!("{name}.c"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind");
    std::fs::create_dir_all(&folder).unwrap();
    // One of another compiler in its place would be another program: libunwind reads the file while the first one runs.
    let program = folder.join(format!("{name}-{compiler}{}", flags.concat().replace(['=', '/', ','], "_")));
    let status = Command::new(compiler).args(flags).arg(source).arg("-o").arg(&program).arg("-pthread").status();
    assert!(status.unwrap_or_else(|e| panic!("{compiler}: {e}; install gcc")).success(), "{compiler} {flags:?} {name}");
    program
}

/// Reads a process through /proc.
pub struct ProcessMemory(File);

impl ReadMemory for ProcessMemory {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], addr.0 + done as u64) {
                Ok(n) if n > 0 => done += n,
                _ => break,
            }
        }
        done
    }
}

/// A running fixture. Killed on drop.
pub struct Stopped {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The thread that stopped last; it has not been continued.
    pub task: Pid,
}

impl Stopped {
    /// Starts the fixture and attaches before it does anything. It has not stopped yet.
    pub fn start(program: &Path) -> Self {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let task = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let options = ptrace::Options::PTRACE_O_TRACECLONE | ptrace::Options::PTRACE_O_EXITKILL;
        ptrace::seize(task, options).unwrap();
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, task }
    }

    /// Waits for the fixture's next own stop. Passes on what other signals it gets. None when it has ended.
    pub fn wait(&mut self) -> Option<Regs> {
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            match waitpid(Pid::from_raw(-1), Some(flags)).unwrap() {
                WaitStatus::Stopped(task, Signal::SIGTRAP) => {
                    self.task = task;
                    return Some(self.regs());
                }
                WaitStatus::Stopped(task, signal) => ptrace::cont(task, signal).unwrap(),
                WaitStatus::PtraceEvent(task, ..) => ptrace::cont(task, None).unwrap(),
                WaitStatus::Exited(task, status) if task.as_raw().cast_unsigned() == self.child.id() => {
                    assert_eq!(status, 0, "exit status of the fixture");
                    return None;
                }
                WaitStatus::Exited(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Lets the stopped thread run on to the next stop.
    pub fn go_on(&mut self) -> Option<Regs> {
        ptrace::cont(self.task, None).unwrap();
        self.wait()
    }

    /// Lets the stopped thread execute one instruction.
    pub fn step(&mut self) -> Option<Regs> {
        ptrace::step(self.task, None).unwrap();
        self.wait()
    }

    /// One line of hex numbers that the fixture has printed.
    pub fn line(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap()).collect()
    }

    fn regs(&self) -> Regs {
        let r = ptrace::getregs(self.task).unwrap();
        Regs {
            gpr: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
                r.r15,
            ],
            rip: r.rip,
            rflags: r.eflags,
            fs_base: r.fs_base,
            gs_base: r.gs_base,
        }
    }

    /// Its memory.
    pub fn memory(&self) -> ProcessMemory {
        ProcessMemory(File::open(format!("/proc/{}/mem", self.child.id())).unwrap())
    }

    /// Its modules with the path of each (`[vdso]` too), numbered from 0 on.
    pub fn modules(&self) -> Vec<(String, UnwindModule)> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let mut files: BTreeMap<&str, Vec<(Range<Addr>, u64)>> = BTreeMap::new();
        for line in maps.lines() {
            let fields: Vec<_> = line.split_whitespace().collect();
            if let [range, permissions, offset, _, _, path] = fields[..]
                && permissions.contains('x')
                && (path.starts_with('/') || path == "[vdso]")
            {
                let (start, end) = range.split_once('-').unwrap();
                let hex = |text| u64::from_str_radix(text, 16).unwrap();
                files.entry(path).or_default().push((Addr(hex(start))..Addr(hex(end)), hex(offset)));
            }
        }
        let modules = files.into_iter().enumerate().map(|(id, (path, code))| {
            let bytes = if path == "[vdso]" {
                let mut bytes = vec![0; (code[0].0.end.0 - code[0].0.start.0) as usize];
                self.memory().read(code[0].0.start, &mut bytes);
                bytes
            } else {
                std::fs::read(path).unwrap()
            };
            (path.to_owned(), module(ModuleId(id as u32), &bytes, code))
        });
        modules.collect()
    }
}

fn module(id: ModuleId, file: &[u8], code: Vec<(Range<Addr>, u64)>) -> UnwindModule {
    let elf = object::File::parse(file).unwrap();
    let section = |name: &str| {
        let section = elf.section_by_name(name)?;
        Some(Section { addr: ObjAddr(section.address()), bytes: section.uncompressed_data().unwrap().into() })
    };
    let (first, offset) = &code[0];
    let segment = elf
        .segments()
        .find(|segment| {
            let (start, size) = segment.file_range();
            (start & !0xfff..start + size).contains(offset)
        })
        .unwrap();
    let object_address = segment.address() - segment.file_range().0 + offset;
    UnwindModule {
        id,
        bias: LoadBias(first.start.0.wrapping_sub(object_address)),
        code: code.into_iter().map(|(range, _)| range).collect(),
        eh_frame_hdr: section(".eh_frame_hdr"),
        eh_frame: section(".eh_frame"),
        debug_frame: section(".debug_frame"),
        text: elf.section_by_name(".text").map(|s| ObjAddr(s.address())),
        got: elf.section_by_name(".got").map(|s| ObjAddr(s.address())),
        entry: Some(ObjAddr(elf.entry())),
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let pid = self.child.id().cast_signed();
        // Its end comes when those of its other threads were taken, which are ours, too. A test that has failed must
        // end, whatever is left.
        let deadline = Instant::now() + Duration::from_secs(10);
        let flags = Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG);
        while Instant::now() < deadline {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
            let ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
            for tid in ids.filter(|tid| *tid != pid) {
                let _ = waitpid(Pid::from_raw(tid), flags);
            }
            match waitpid(Pid::from_raw(pid), flags) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(nix::Error::ECHILD) => break,
                _ => std::thread::yield_now(),
            }
        }
    }
}
