//! The terminal while `heaptrace top` has it. It is given back whatever ends that.

use crate::top::{self, Key, State};
use crate::tracer::terminal;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use std::io::{self, Stdout};
use std::time::Duration;

/// What came from the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A key that can mean something.
    Key(Key),
    /// Something else, as another size.
    Other,
}

/// The terminal, in raw mode and with another screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
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
        enable_raw_mode()?;
        let given_back = GivesBack;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(Self { terminal, _given_back: given_back })
    }

    /// Draws what has changed, in the size that the terminal has now.
    ///
    /// # Errors
    /// The terminal can't be written.
    pub(super) fn draw(&mut self, state: &State) -> io::Result<()> {
        self.terminal.draw(|frame| top::draw(state, frame)).map(|_| ())
    }

    /// Waits for the user, `patience` at most.
    ///
    /// # Errors
    /// The terminal can't be read.
    pub(super) fn event(&mut self, patience: Duration) -> io::Result<Option<Event>> {
        // crossterm would read a terminal that has gone for ever.
        if !terminal::wait_for_input(&io::stdin(), patience) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal has gone"));
        }
        if !event::poll(Duration::ZERO)? {
            return Ok(None);
        }
        Ok(Some(match event::read()? {
            event::Event::Key(pressed) if pressed.kind != KeyEventKind::Release => {
                key(pressed).map_or(Event::Other, Event::Key)
            }
            _ => Event::Other,
        }))
    }
}

fn key(pressed: KeyEvent) -> Option<Key> {
    let control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    Some(match pressed.code {
        KeyCode::Char('c' | 'd') if control => Key::Interrupt,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(c) if !c.is_control() => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
