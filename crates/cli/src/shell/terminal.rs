//! Input lines of a session: from a terminal with a line editor, or from a pipe or file.
//!
//! The editor uses the terminal itself, so that standard output carries only results. Terminals
//! that support only text (`TERM=dumb`) get a prompt on standard error, and the system's line
//! editing.

use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustyline::Editor;
use rustyline::config::{Behavior, BellStyle, ColorMode, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::history::{History, MemHistory};

use super::Surroundings;
use super::completion::Assistant;
use super::history::{HistoryFile, LINES_MAX};
use super::interrupts::Interrupts;
use crate::context::Context;
use crate::output::terminal;

/// Source of a session's lines.
#[derive(Debug)]
pub(super) enum Lines<'a> {
    /// A terminal with the line editor.
    Edited(Box<Edited<'a>>),
    /// A terminal without support for line editing.
    Typed,
    /// Input from a pipe or file.
    Piped,
}

/// The line editor with its history.
#[derive(Debug)]
pub(super) struct Edited<'a> {
    context: &'a Context,
    editor: Editor<Assistant, MemHistory>,
    history: Option<HistoryFile>,
}

/// Next input: a line, or another event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Line(Vec<u8>),
    /// Ctrl-C cleared the line that the user was typing.
    Cleared,
    /// The input has no more lines.
    End,
    /// A signal ends the session.
    Signalled(i32),
}

impl<'a> Lines<'a> {
    /// Creates the source for standard input.
    pub(super) fn of_input(
        context: &'a Context,
        surroundings: &Arc<Surroundings>,
        with_history: bool,
    ) -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Piped);
        }
        // Without a terminal, the editor would use standard output.
        let has_terminal = terminal::stdout_is_terminal()
            || OpenOptions::new().read(true).write(true).open("/dev/tty").is_ok();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if is_dumb || !has_terminal {
            return Ok(Self::Typed);
        }
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .bell_style(BellStyle::None)
            .bracketed_paste(false)
            .color_mode(ColorMode::Disabled)
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .max_history_size(LINES_MAX)?
            .build();
        let mut editor = Editor::with_history(config.clone(), MemHistory::with_config(&config))?;
        editor.set_helper(Some(Assistant::new(Arc::clone(surroundings))));
        let mut edited = Edited {
            context,
            editor,
            history: if with_history {
                HistoryFile::of_environment()
            } else {
                None
            },
        };
        edited.recall();
        Ok(Self::Edited(Box::new(edited)))
    }

    /// Returns whether the session is interactive.
    pub(super) const fn are_typed(&self) -> bool {
        !matches!(self, Self::Piped)
    }

    /// Returns the next line.
    pub(super) fn next(&mut self, prompt: &str, interrupts: &Interrupts) -> Result<Next> {
        let shown = matches!(self, Self::Typed).then_some(prompt);
        if let Some(signal) = interrupts.at_prompt(shown) {
            return Ok(Next::Signalled(signal));
        }
        match self {
            Self::Edited(edited) => edited.next(prompt),
            Self::Typed => {
                terminal::prompt(&prompt);
                read_line()
            }
            // No command runs during the wait for a line, and no prompt is printed.
            Self::Piped => read_line(),
        }
    }
}

fn read_line() -> Result<Next> {
    let mut line = Vec::new();
    let count = io::stdin()
        .lock()
        .read_until(b'\n', &mut line)
        .context("reading the next line")?;
    Ok(if count == 0 { Next::End } else { Next::Line(line) })
}

impl Edited<'_> {
    /// Loads the lines of earlier sessions.
    fn recall(&mut self) {
        let Some(file) = &self.history else {
            return;
        };
        match file.load() {
            Ok(lines) => {
                for line in lines {
                    // If the editor refuses a line of the history, the line is skipped.
                    let _ = self.editor.history_mut().add_owned(line);
                }
            }
            Err(error) => self.give_up_history(&error),
        }
    }

    fn next(&mut self, prompt: &str) -> Result<Next> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                self.remember(&line);
                Ok(Next::Line(line.into_bytes()))
            }
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Next::Cleared),
            Err(ReadlineError::Eof) => Ok(Next::End),
            Err(error) => Err(error).context("reading the next line"),
        }
    }

    /// Keeps a line in the history, unless it is empty, repeats the last one, or begins with a
    /// blank.
    fn remember(&mut self, line: &str) {
        let is_new = !line.trim().is_empty() && self.editor.add_history_entry(line).unwrap_or(false);
        if let Some(file) = self.history.as_ref().filter(|_| is_new)
            && let Err(error) = file.add(line)
        {
            self.give_up_history(&error);
        }
    }

    /// Disables the history after an error, because a session must not fail for its history.
    fn give_up_history(&mut self, error: &anyhow::Error) {
        self.history = None;
        self.context.warn(format!(
            "the history is not saved: {} (to disable the history, give --no-history or an empty BUTTRESS_HISTORY)",
            crate::exit::chain_text(error)
        ));
    }
}
