//! What a trace gets of a process at its end: all of its recording that its events do not give.

use super::leakrecord::LeakScan;
use super::modulerecord::ModuleRecord;
use super::recording::{Recording, StreamEnd};
use crate::base::addr::ImageId;
use crate::trace::metadata::{End, FilePath, Module};
use crate::trace::process_koid;
use std::time::{SystemTime, UNIX_EPOCH};

impl Recording {
    /// See the module's head.
    pub fn trace_end(&self) -> End {
        let StreamEnd { process: id, image, next_seq, without_inherited } = self.stream;
        let koid = process_koid(id);
        let process = &self.process;
        End {
            koid,
            next_seq,
            pid: process.pid,
            pid_inside: process.pid_inside,
            facts: self.facts.clone(),
            program: process.program.clone(),
            command: process.command.clone(),
            cwd: FilePath::from(process.cwd.as_path()),
            started_at_unix_ns: unix_ns(process.started_at),
            of_another_user: process.of_another_user,
            exit: process.exit,
            resident: process.resident,
            without_inherited,
            thread_names: self.thread_names.iter().map(|(serial, name)| (*serial, name.clone())).collect(),
            modules: self.modules.iter().map(|module| of_module(module, koid, image)).collect(),
            broken_off: self.broken_off.as_ref().map(|broken| broken.cause.clone()),
            leak_scan: matches!(self.leaks, LeakScan::Done(_)),
            profile_seq: match &self.leaks {
                LeakScan::Done(scan) => Some(scan.at_seq),
                LeakScan::NotWanted | LeakScan::Missed(_) => None,
            },
        }
    }
}

/// Nanoseconds since 1970.
fn unix_ns(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn of_module(module: &ModuleRecord, process: u64, image: ImageId) -> Module {
    Module {
        process,
        image: image.0,
        id: module.id.0,
        path: FilePath::from(module.path.as_path()),
        build_id: module.build_id.clone(),
        start: module.start.0,
        end: module.end.0,
        file_offset: module.file_offset,
        bias: module.bias.0,
        is_program: module.is_program,
        probed: module.probed.iter().map(|function| function.0).collect(),
    }
}
