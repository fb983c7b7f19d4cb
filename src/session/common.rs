//! What all processes of a session share.

use super::settings::Settings;
use super::space::SharedObjects;
use crate::progress::Progress;
use crate::tracer::control::Control;
use crate::tracer::libunwind::Libunwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    pub(super) numbers: Arc<AtomicU64>,
    pub(super) objects: SharedObjects,
}

impl Common {
    /// The place of the next process in the order of all.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
