//! Signals in a session: what was done is not lost to them.
//!
//! | signal | at the prompt | while a word runs |
//! |---|---|---|
//! | SIGINT (Ctrl-C), at a terminal | the line is cleared | the word is cancelled, the session goes on |
//! | SIGINT, in a script or with `-c` | | as SIGTERM |
//! | SIGTERM, SIGHUP | commits and leaves | the word is cancelled; then commits and leaves |
//!
//! A second one that asks to leave ends the process at once; what is not committed is lost then, and was told with the first.
//! A thread of its own takes signals, so that it may print and commit. The terminal's Ctrl-C at a prompt is a key to the line
//! editor, which gives the terminal back as it was.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use buttress::Uncommitted;
use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::{Surroundings, commit_all};
use crate::output::terminal;

/// What the session is at.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// It waits for a line, at this prompt if it printed one.
    Prompt(Option<String>),
    Word,
    /// It commits, and ends.
    Leaving,
}

#[derive(Debug)]
struct State {
    at: At,
    /// How often SIGINT came during this word.
    interrupts: u32,
    /// The signal that ends the session.
    stop: Option<i32>,
}

impl State {
    /// Begins to wait for a line. A signal that came after the last word had ended was counted to that word. It ends the
    /// session now: no later line need come.
    fn wait_for_line(&mut self, prompt: Option<&str>) -> Option<i32> {
        if self.stop.is_none() {
            self.at = At::Prompt(prompt.map(str::to_owned));
        }
        self.stop
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Cancels the word that runs.
    cancel: Arc<AtomicBool>,
    surroundings: Arc<Surroundings>,
    is_interactive: bool,
    /// The terminal as it was.
    terminal: Option<Termios>,
}

/// Listens to signals. See the module.
#[derive(Debug)]
pub(super) struct Interrupts {
    shared: Arc<Shared>,
}

/// How a word ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordEnd {
    /// Somebody wanted it to end.
    pub(super) was_interrupted: bool,
    /// The signal that ends the session.
    pub(super) stop: Option<i32>,
}

impl Interrupts {
    /// Begins to listen, where there is something to lose, or somebody at a terminal. `cancel` is what cancels a word.
    pub(super) fn start(
        surroundings: &Arc<Surroundings>,
        cancel: Arc<AtomicBool>,
        is_interactive: bool,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                at: At::Word,
                interrupts: 0,
                stop: None,
            }),
            cancel,
            surroundings: Arc::clone(surroundings),
            is_interactive,
            terminal: tcgetattr(io::stdin()).ok(),
        });
        if is_interactive || surroundings.writing().is_some() {
            crate::signals::enter_session();
            let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening to signals")?;
            let listening = Arc::clone(&shared);
            // It ends with the process.
            std::thread::Builder::new()
                .name("buttress-signals".to_owned())
                .spawn(move || {
                    for signal in signals.forever() {
                        listening.take(signal);
                    }
                })
                .context("listening to signals")?;
        }
        Ok(Self { shared })
    }

    /// Notes that the session waits for a line. `prompt` is printed again when a line is cleared; the line editor does that
    /// itself. Returns the signal that ends the session instead.
    #[must_use]
    pub(super) fn at_prompt(&self, prompt: Option<&str>) -> Option<i32> {
        self.shared.state.lock().wait_for_line(prompt)
    }

    /// A word begins.
    pub(super) fn begin_word(&self) {
        let mut state = self.shared.state.lock();
        state.at = At::Word;
        state.interrupts = 0;
        self.shared.cancel.store(state.stop.is_some(), Ordering::SeqCst);
    }

    /// The word has ended.
    pub(super) fn end_word(&self) -> WordEnd {
        let state = self.shared.state.lock();
        WordEnd {
            was_interrupted: self.shared.cancel.swap(false, Ordering::SeqCst),
            stop: state.stop,
        }
    }

    /// From now on the session is ending.
    pub(super) fn leave(&self) {
        self.shared.state.lock().at = At::Leaving;
    }
}

impl Shared {
    fn take(&self, signal: i32) {
        let mut state = self.state.lock();
        let clears = signal == SIGINT && self.is_interactive;
        match (&state.at, clears) {
            (At::Prompt(prompt), true) => {
                if let Some(prompt) = prompt {
                    // The terminal has forgotten what was typed.
                    terminal::end_line();
                    terminal::prompt(&prompt);
                }
            }
            (At::Word, true) => {
                self.cancel.store(true, Ordering::SeqCst);
                state.interrupts = state.interrupts.saturating_add(1);
                if state.interrupts == 2 {
                    say(
                        "the command was cancelled but has not ended yet; SIGTERM ends the session after it, SIGQUIT (Ctrl-\\) immediately",
                    );
                }
            }
            (At::Prompt(_), false) => self.leave_from_prompt(signal),
            (At::Word | At::Leaving, _) => {
                let is_leaving = state.at == At::Leaving;
                if state.stop.is_none() || is_leaving {
                    state.stop = Some(signal);
                    self.cancel.store(!is_leaving, Ordering::SeqCst);
                    self.promise(signal, is_leaving);
                }
            }
        }
    }

    /// Commits and ends the process.
    fn leave_from_prompt(&self, signal: i32) {
        self.restore_terminal();
        terminal::end_line();
        self.promise(signal, true);
        if let Some(writing) = self.surroundings.writing() {
            let waiting = writing.volume().uncommitted();
            match commit_all(&writing) {
                Ok(()) if waiting.is_empty() => {}
                Ok(()) => say(&format!("committed {waiting}")),
                Err(error) => crate::exit::print_error(&error),
            }
        }
        std::process::exit(exit_code(signal));
    }

    /// Says what is going to happen, and has the next signal end the process at once.
    fn promise(&self, signal: i32, is_leaving: bool) {
        for next in [SIGINT, SIGTERM, SIGHUP] {
            // Where that fails, the next one is like this one.
            let _ =
                flag::register_conditional_shutdown(next, exit_code(next), Arc::new(AtomicBool::new(true)));
        }
        let name = name_of(signal);
        let waiting = self.uncommitted();
        if waiting.is_empty() {
            say(&format!("{name}: the session ends"));
        } else {
            let after = if is_leaving { "" } else { " after this command" };
            say(&format!(
                "{name}: the session ends{after} and commits {waiting}; another signal ends it immediately and discards them"
            ));
        }
    }

    fn uncommitted(&self) -> Uncommitted {
        let writing = self.surroundings.writing();
        writing.map_or_else(Uncommitted::default, |writing| writing.volume().uncommitted())
    }

    fn restore_terminal(&self) {
        if let Some(terminal) = &self.terminal
            && io::stdin().is_terminal()
        {
            // It may be gone, which is what SIGHUP says.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, terminal);
        }
    }
}

/// Prints a line for a person. The terminal may be gone.
fn say(line: &str) {
    terminal::line(&format_args!("note: {line}"));
}

/// The exit code of a process that a signal ended.
pub(super) fn exit_code(signal: i32) -> i32 {
    128_i32.saturating_add(signal)
}

/// What a signal is called.
pub(super) const fn name_of(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGTERM => "SIGTERM",
        SIGHUP => "SIGHUP",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The session would wait for a line at an idle pipe, and the signal that was promised an end would have none.
    #[test]
    fn a_signal_between_two_words_ends_the_session_before_it_waits_for_a_line() {
        let mut state = State {
            at: At::Word,
            interrupts: 0,
            stop: Some(SIGTERM),
        };
        assert_eq!(state.wait_for_line(None), Some(SIGTERM));
        assert_eq!(state.at, At::Word);
        state.stop = None;
        assert_eq!(state.wait_for_line(Some("/> ")), None);
        assert_eq!(state.at, At::Prompt(Some("/> ".to_owned())));
    }
}
