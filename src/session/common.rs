//! What all processes of a session share.

use super::observer::{Observer, Shared};
use super::settings::Settings;
use super::space::SharedObjects;
use crate::event::Preexisting;
use crate::progress::Progress;
use crate::tracer::control::Control;
use crate::tracer::libunwind::Libunwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
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
}
