//! Signals in a session, handled without losing changes.
//!
//! | signal | at the prompt | while a shell command runs |
//! |---|---|---|
//! | SIGINT (Ctrl-C), at a terminal | the line is cleared | the command is cancelled, the session continues |
//! | SIGINT, in a script or with `-c` | | as SIGTERM |
//! | SIGTERM, SIGHUP | commits and leaves | the command is cancelled; then commits and leaves |
//!
//! If a second signal to leave arrives, it ends the process immediately. At a second signal,
//! uncommitted changes are lost; the message after the first signal says so. A separate thread
//! handles signals, so that it may print and commit. At a prompt, the terminal passes Ctrl-C as a
//! key to the line editor, which restores the terminal.

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

/// Activity of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// The session waits for a line, at this prompt if it printed one.
    Prompt(Option<String>),
    Word,
    /// The session commits its changes, and ends.
    Leaving,
}

#[derive(Debug)]
struct State {
    at: At,
    /// Number of SIGINTs during the running command.
    interrupts: u32,
    /// Signal that ends the session.
    stop: Option<i32>,
}

impl State {
    /// Begins to wait for a line. A signal after the end of the last command was counted for that
    /// command. If such a signal arrived, it ends the session now, because no later line may
    /// arrive.
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
    /// Flag that cancels the running command.
    cancel: Arc<AtomicBool>,
    surroundings: Arc<Surroundings>,
    is_interactive: bool,
    /// Settings of the terminal at the start.
    terminal: Option<Termios>,
}

/// Signal handler of a session.
#[derive(Debug)]
pub(super) struct Interrupts {
    shared: Arc<Shared>,
}

/// Outcome of a shell command with respect to signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordEnd {
    /// True if the user interrupted the command.
    pub(super) was_interrupted: bool,
    /// Signal that ends the session.
    pub(super) stop: Option<i32>,
}

impl Interrupts {
    /// Starts to handle signals, if changes may be lost or the session is interactive. `cancel`
    /// cancels a shell command.
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
            // The signal thread ends with the process.
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

    /// Records that the session waits for a line. `prompt` is printed again after a line is
    /// cleared; the line editor does this itself. Returns the signal that ends the session, instead
    /// of a line.
    #[must_use]
    pub(super) fn at_prompt(&self, prompt: Option<&str>) -> Option<i32> {
        self.shared.state.lock().wait_for_line(prompt)
    }

    /// Records the beginning of a shell command.
    pub(super) fn begin_word(&self) {
        let mut state = self.shared.state.lock();
        state.at = At::Word;
        state.interrupts = 0;
        self.shared.cancel.store(state.stop.is_some(), Ordering::SeqCst);
    }

    /// Records the end of a shell command.
    pub(super) fn end_word(&self) -> WordEnd {
        let state = self.shared.state.lock();
        WordEnd {
            was_interrupted: self.shared.cancel.swap(false, Ordering::SeqCst),
            stop: state.stop,
        }
    }

    /// Records that the session is ending.
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
                    // At an interrupt, the terminal has discarded the typed text.
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

    /// Tells the user that the session ends, and lets the next signal end the process at once.
    fn promise(&self, signal: i32, is_leaving: bool) {
        for next in [SIGINT, SIGTERM, SIGHUP] {
            // If this call fails, the next signal has the same effect as this signal.
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
            // The terminal may be gone, as SIGHUP indicates.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, terminal);
        }
    }
}

/// Prints a note for an interactive user. The terminal may be gone.
fn say(line: &str) {
    terminal::line(&format_args!("note: {line}"));
}

/// Returns the exit code of a process that a signal ended.
pub(super) fn exit_code(signal: i32) -> i32 {
    128_i32.saturating_add(signal)
}

/// Returns the name of a signal.
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

    /// Otherwise the session would wait for a line at an idle pipe, and the announced end would
    /// never come.
    #[test]
    fn a_signal_between_commands_ends_the_session_at_a_prompt() {
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
