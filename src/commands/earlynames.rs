//! Has names looked up while the program ends, by a thread that waits for that moment.

use super::conclude::Destinations;
use super::profileoptions::wanted;
use crate::cli::ProfileOptions;
use crate::event::Generation;
use crate::naming::EarlyNames;
use crate::session::{NearEnd, Settings};
use crate::tracer::limits;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};

/// The look, as far as it has come.
#[derive(Debug, Default)]
pub enum EarlyLook {
    /// There is none.
    #[default]
    None,
    /// It is to wait for what the session tells.
    Prepared(Receiver<NearEnd>),
    /// A thread waits for it.
    Waiting(JoinHandle<Option<EarlyNames>>),
}

impl EarlyLook {
    /// Has a session with these settings tell what its process is about to leave, where the profile will be of all of
    /// that and of nothing else.
    pub fn prepare(settings: &mut Settings, options: &ProfileOptions, destinations: &Destinations) -> Self {
        let is_whole = !settings.follow
            && settings.leak_scan.is_none()
            && settings.generation == Generation::default()
            && destinations.series().is_none();
        if limits::is_address_space_limited() || !options.symbolize || !is_whole || destinations.asks_servers() {
            return Self::None;
        }
        let (hears, told) = channel();
        settings.near_end = Some(hears);
        Self::Prepared(told)
    }

    /// Starts the thread. Signals are blocked already, as it is to get none.
    pub fn start(&mut self, options: &ProfileOptions) {
        let Self::Prepared(told) = std::mem::take(self) else { return };
        let options = options.clone();
        // The session may end without having told anything.
        let look = move || told.recv().ok().map(|near_end| EarlyNames::begin(&near_end, wanted(&options)));
        match Builder::new().name("early names".to_owned()).spawn(look) {
            Ok(thread) => *self = Self::Waiting(thread),
            Err(error) => tracing::debug!("no thread for early names: {error}"),
        }
    }

    /// What was begun, once the session has ended. None: nothing, as the program did not end in it.
    pub fn take(self) -> Option<EarlyNames> {
        match self {
            Self::Waiting(thread) => thread.join().ok().flatten(),
            Self::None | Self::Prepared(_) => None,
        }
    }
}
