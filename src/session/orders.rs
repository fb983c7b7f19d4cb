//! What is asked of a session between two stops: by the user's signals, by the control thread, and by other heaptraces.

use super::Session;
use super::error::SessionError;
use super::interim::LiveSnapshot;
use super::requests::{ANY, Answer, Request, RequestKind};
use crate::tracer::control;
use crate::tracer::guardian::Guardian;

const GUARDIAN_REPLACED: &str = "the guardian process, which restores the program's code if heaptrace is killed, was \
    itself killed or stopped, and heaptrace replaced it: does something here kill processes that it does not know?";

impl Session {
    /// Does what others have asked for meanwhile.
    pub(super) fn obey(&mut self) -> Result<(), SessionError> {
        if self.common.control.take_guard() {
            self.guard_anew();
        }
        for process in self.processes.iter_mut() {
            process.existing.go_on(&mut process.tracee, &mut process.observer);
        }
        for request in std::mem::take(&mut self.postponed) {
            self.answer(request);
        }
        while let Some(request) = self.common.settings.requests.take() {
            self.answer(request);
        }
        for process in self.processes.iter_mut() {
            process.copies.try_again(&mut process.tracee);
            process.awaited.try_again_for_a_thread(&mut process.tracee)?;
        }
        if !self.awaits_existing()
            && let Some(pause) = self.common.control.take_pause()
        {
            for process in self.processes.iter_mut() {
                process.set_paused(pause);
            }
        }
        if let Some(signal) = self.common.control.take_forward() {
            // If the first one has ended, its children are what is left of the program.
            let first = self.processes.find(self.first_pid).and_then(|slot| self.processes.get(slot));
            let to: Vec<i32> = match first.filter(|process| process.teardown.exit.is_none()) {
                Some(first) => vec![first.tracee.pid],
                None => self.processes.iter().map(|process| process.tracee.pid).collect(),
            };
            for pid in to {
                control::send(pid, signal).or_else(|e| if e.is_out_of_reach() { Ok(()) } else { Err(e) })?;
            }
        }
        if self.common.control.take_end() {
            for process in self.processes.iter_mut() {
                process.scan_and_kill(&mut self.stops)?;
            }
        }
        Ok(())
    }

    /// The guardian was killed, and there is another one: the tracer tells it what stands in the memory of all.
    fn guard_anew(&mut self) {
        if !self.common.settings.guardian.as_ref().is_some_and(Guardian::take_over) {
            return;
        }
        for process in self.processes.iter_mut() {
            process.tracee.space.image.guard_anew(process.sigtrap.handler());
        }
        let first = self.processes.find(self.first_pid).and_then(|slot| self.processes.get_mut(slot));
        if let Some(process) = first {
            process.tracee.warn_once(GUARDIAN_REPLACED.to_owned());
        }
    }

    /// Does what another heaptrace has asked for, through the thread that talks to it.
    fn answer(&mut self, request: Request) {
        if request.wish == RequestKind::Detach
            && request.pid != self.first_pid
            && let Some(slot) = self.processes.find(request.pid)
        {
            self.begin_detach_of(slot);
            let _ = request.reply.send(Ok(Answer::Detaching));
            return;
        }
        // What is wanted of a heap waits for the blocks from before the attach, so that no thread has to.
        if !matches!(request.wish, RequestKind::EndCopy(_) | RequestKind::Detach) && self.awaits_existing() {
            self.postponed.push(request);
            return;
        }
        if let RequestKind::Mark(name) = request.wish
            && (request.pid == ANY || self.processes.find(request.pid).is_some())
        {
            for process in self.processes.iter_mut() {
                process.settle_heap();
                process.observer.mark(name, process.tracee.settings.generation.until);
            }
            let _ = request.reply.send(Ok(Answer::Marked));
            return;
        }
        let process = self.processes.find(request.pid).and_then(|slot| self.processes.get_mut(slot));
        let reply = match process {
            Some(process) => match request.wish {
                RequestKind::Detach => {
                    self.common.control.request_detach();
                    Ok(Answer::Detaching)
                }
                RequestKind::Capture(means) => {
                    process.copies.want(means, request.reply);
                    // no thread stands still that could be overtaken
                    let _ = process.go_on_with_captures(None, &mut self.stops);
                    return;
                }
                RequestKind::EndCopy(copy) => {
                    process.copies.end_copy(copy);
                    Ok(Answer::CopyEnds)
                }
                RequestKind::View { blocks, at: None } => Ok(Answer::Viewed(Box::new(process.interim(blocks)))),
                RequestKind::View { at: Some(mark), .. } => match process.observer.heap_at(&mark).cloned() {
                    Ok(heap) => {
                        let interim = LiveSnapshot { at: Some(mark), ..process.interim_of(heap) };
                        Ok(Answer::Viewed(Box::new(interim)))
                    }
                    Err(why) => Err(why),
                },
                RequestKind::Mark(_) => Ok(Answer::Marked),
                RequestKind::Pause(pause) => {
                    self.common.control.request_pause(pause);
                    Ok(Answer::Paused { already: !process.set_paused(pause) })
                }
            },
            None => {
                let others = match self.processes.iter().filter(|process| process.tracee.pid != self.first_pid).count()
                {
                    0 => String::new(),
                    count => format!(" and {count} of its children"),
                };
                Err(format!("this heaptrace traces process {}{others}", self.first_pid))
            }
        };
        // The one who asked may have gone.
        let _ = request.reply.send(reply);
    }
}
