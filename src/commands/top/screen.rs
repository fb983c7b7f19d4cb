//! The terminal while `heaptrace top` has it. It is given back whatever ends that.

use crate::top::{self, Key, KeyReader, State};
use crate::tracer::terminal::{self, Input};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use std::fs::File;
use std::io::{self, Read, Stdout};
use std::os::fd::AsFd;
use std::time::Duration;

/// So many bytes are read at a time.
const PIECE: usize = 256;

/// The terminal, in raw mode and with another screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// What is typed. crossterm's own reader waits for the rest of what has begun, and reads a terminal that has gone
    /// for ever.
    input: File,
    keys: KeyReader,
    size: (u16, u16),
    _given_back: GivesBack,
}

/// Gives the terminal back when it is dropped, also where a thread breaks down.
struct GivesBack;

impl Drop for GivesBack {
    fn drop(&mut self) {
        // If the terminal has gone there is nothing to give back.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn open() -> io::Result<Self> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        enable_raw_mode()?;
        let given_back = GivesBack;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(Self { terminal, input, keys: KeyReader::default(), size: size()?, _given_back: given_back })
    }

    /// Draws what has changed, in the size that the terminal has now.
    ///
    /// # Errors
    /// The terminal can't be written.
    pub(super) fn draw(&mut self, state: &State) -> io::Result<()> {
        self.terminal.draw(|frame| top::draw(state, frame)).map(|_| ())
    }

    /// Waits for the user, `patience` at most: the keys that were pressed.
    ///
    /// # Errors
    /// The terminal can't be read, or has gone.
    pub(super) fn keys(&mut self, patience: Duration) -> io::Result<Vec<Key>> {
        let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal has gone");
        match terminal::wait_for_input(&self.input, patience) {
            Input::Nothing => return Ok(self.keys.pause().into_iter().collect()),
            Input::Gone => return Err(gone()),
            Input::Ready => {}
        }
        let mut bytes = [0; PIECE];
        match self.input.read(&mut bytes) {
            Ok(0) => Err(gone()),
            Ok(count) => Ok(self.keys.take(bytes.get(..count).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether the terminal has become larger or smaller since it was asked.
    pub(super) fn has_new_size(&mut self) -> bool {
        let new = size().unwrap_or(self.size);
        std::mem::replace(&mut self.size, new) != new
    }
}
