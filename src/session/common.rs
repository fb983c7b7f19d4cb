//! What all processes of a session share.

use super::observer::{Observer, Shared};
use super::settings::Settings;
use super::space::SharedObjects;
use crate::arch::step;
use crate::base::engine::EngineChoice;
use crate::base::progress::Progress;
use crate::event::Preexisting;
use crate::jump::sampling;
use crate::tracer::control::Control;
use crate::tracer::libunwind::Libunwind;
use crate::tracer::limits;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread::Builder;
use std::time::Instant;

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) settings: Arc<Settings>,
    pub(super) control: Arc<Control>,
    pub(super) progress: Arc<Progress>,
    pub(super) libunwind: Option<Rc<Libunwind>>,
    pub(super) began: Instant,
    pub(super) attached: bool,
    pub(super) objects: SharedObjects,
    pub(super) observers: Shared,
    /// The latest serial number that a task of any process has been given.
    pub(super) serials: Arc<AtomicU32>,
}

impl Common {
    /// The observer of the process `pid`, which tracing begins with, or which begins with an image of its own.
    pub(super) fn new_observer(&self, pid: i32, preexisting: Preexisting) -> Observer {
        Observer::new(&self.observers, pid, preexisting, self.control.is_paused())
    }

    /// Begins to make, on a thread of its own, what the first stops need and what no process tells: the decoder's
    /// tables, and the distances that the jump engine draws where it samples. Who needs one that is not made yet waits
    /// for it, or makes it: so it does no harm if there is no thread to be had.
    pub(super) fn make_ahead(&self) {
        if limits::is_address_space_limited() {
            return;
        }
        let samples = self.settings.sample_interval > 0 && self.settings.engine != EngineChoice::Trap;
        let make = move || {
            step::make_tables();
            if samples {
                sampling::distances();
            }
        };
        if let Err(error) = Builder::new().name("tables ahead".to_owned()).spawn(make) {
            tracing::debug!("no thread for tables: {error}");
        }
    }
}
