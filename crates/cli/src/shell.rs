//! A session on a volume: shell commands that read and change it, one per line. The code calls
//! these shell commands *words*.
//!
//! - [`mod@line`]: from lines to words.
//! - [`table`]: the one table of shell commands, from which help is generated.
//! - [`words`]: the shell commands, in groups.
//! - [`number`]: offsets and lengths in the syntax of xfs_io.
//! - `terminal`, `completion`, `history`: interactive input.
//! - `interrupts`: signals.
//!
//! A failed command ends a non-interactive session (`-c`, or a script on standard input). After an
//! interrupt, an interactive session continues. Only results go to standard output: the prompt and
//! errors go to standard error.
//!
//! # Uncommitted changes at the end of a session
//!
//! | the session ends by | changes are | and |
//! |---|---|---|
//! | `quit`, Ctrl-D, the end of a script | committed | an interactive session prints their amount; if the commit fails, `quit` does not leave |
//! | a failed command, in a script or with `-c` | committed, up to that command | a message says so |
//! | `abort` | dropped, back to the last commit | a message says so |
//! | SIGTERM, SIGHUP; in a script or with `-c` also SIGINT | committed, after the running command was cancelled | a message says so; the exit code is 128 and the signal's number |
//! | a second such signal, SIGKILL, SIGQUIT | dropped, back to the last commit | the first signal printed a message |
//! | a failed commit | dropped, back to the last commit | an error says so |
//!
//! If the reader of standard output closes the pipe, only the command ends, not the session,
//! because later commands may be changes. Commits also happen automatically: when many changes are
//! pending, and every 30 seconds.

mod completion;
mod history;
mod interrupts;
pub mod line;
pub mod number;
pub mod table;
mod terminal;
pub mod words;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress::{Follow, Location, Subvolume};
use parking_lot::Mutex;

use crate::context::Context;
use crate::exit::{Advice, Outcome, command_line_text, is_broken_pipe};
use crate::opening::generation::{self, Wanted};
use crate::opening::{Place, absolute};
use crate::writing::Writing;
use interrupts::Interrupts;
use terminal::{Lines, Next};

/// The volume of a session, open for reading or writing.
#[derive(Clone, Debug)]
enum Access {
    Reading(Subvolume),
    Writing(Box<Writing>),
}

/// State of a session that completion and signal handling share.
#[derive(Debug)]
struct Surroundings {
    access: Access,
    /// Current directory: a path from the root, which begins with a slash.
    directory: Mutex<Vec<u8>>,
}

impl Surroundings {
    /// Returns the current state of the volume.
    fn view(&self) -> Subvolume {
        match &self.access {
            Access::Reading(opened) => opened.clone(),
            Access::Writing(writing) => writing.view(),
        }
    }

    /// Returns the writable volume, if the session has one.
    fn writing(&self) -> Option<Writing> {
        match &self.access {
            Access::Writing(writing) => Some((**writing).clone()),
            Access::Reading(_) => None,
        }
    }

    fn directory(&self) -> Vec<u8> {
        self.directory.lock().clone()
    }
}

/// Reason why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The input has no more lines.
    AtEnd,
    /// The user quits.
    Asked,
    /// The user quits and drops uncommitted changes.
    Forgetting,
    /// A command failed in a non-interactive session.
    Failed,
    /// The session ends because of a signal.
    Signalled(i32),
}

/// A session on a volume.
#[derive(Debug)]
pub struct Session<'a> {
    context: &'a Context,
    surroundings: Arc<Surroundings>,
    image: PathBuf,
    leaving: Option<Leaving>,
}

impl<'a> Session<'a> {
    /// Creates a session on a volume that is open for reading.
    pub fn reading(context: &'a Context, image: PathBuf, opened: Subvolume) -> Self {
        Self::new(context, image, Access::Reading(opened))
    }

    /// Creates a session on a volume that is open for writing.
    pub fn writing(context: &'a Context, image: PathBuf, writing: Writing) -> Self {
        Self::new(context, image, Access::Writing(Box::new(writing)))
    }

    fn new(context: &'a Context, image: PathBuf, access: Access) -> Self {
        Self {
            context,
            surroundings: Arc::new(Surroundings {
                access,
                directory: Mutex::new(b"/".to_vec()),
            }),
            image,
            leaving: None,
        }
    }

    /// Changes to the initial directory of the session.
    pub fn go_to(&mut self, path: &[u8]) -> Result<()> {
        let path = words::navigate::normalised(&self.path(OsStr::from_bytes(path)));
        let (opened, location) = match generation::names_state(&path) {
            false => {
                let opened = self.view();
                let location = opened.locate(&path, Follow::All)?;
                (opened, location)
            }
            true => {
                self.enter_view()?;
                let target = self.context.target(OsStr::from_bytes(&path));
                if target.state() == Wanted::List {
                    *self.surroundings.directory.lock() = path;
                    return Ok(());
                }
                self.context.open_target(&target, Follow::All)?
            }
        };
        if !opened.volume().metadata(location)?.is_directory() {
            anyhow::bail!("{} is not a directory", path.escape_ascii());
        }
        *self.surroundings.directory.lock() = path;
        Ok(())
    }

    /// Executes these lines, or the lines of standard input if none are given, and ends the
    /// session.
    pub fn run(mut self, commands: &[OsString], with_history: bool) -> Result<Outcome> {
        let mut lines = if commands.is_empty() {
            Some(Lines::of_input(self.context, &self.surroundings, with_history)?)
        } else {
            None
        };
        let is_typed = lines.as_ref().is_some_and(Lines::are_typed);
        let interrupts = Interrupts::start(&self.surroundings, self.context.cancellation(), is_typed)?;
        let mut commands = commands.iter();
        loop {
            let next = match &mut lines {
                None => commands
                    .next()
                    .map_or(Next::End, |line| Next::Line(line.as_bytes().to_vec())),
                Some(lines) => lines.next(&self.prompt(), &interrupts).unwrap_or_else(|error| {
                    self.context.lost(&error);
                    Next::End
                }),
            };
            match next {
                Next::Line(line) => self.run_line(&line, &interrupts, is_typed),
                Next::Cleared => {}
                Next::End => self.leave(Leaving::AtEnd),
                Next::Signalled(signal) => self.leave(Leaving::Signalled(signal)),
            }
            let Some(leaving) = self.leaving else {
                continue;
            };
            interrupts.leave();
            match self.end(leaving, is_typed) {
                // In an interactive session, the user can free space, or decide to drop the
                // changes.
                Err(error) if is_typed && leaving == Leaving::Asked => {
                    self.context.lost(&error.context(Advice::new(
                        "the session continues. Remove the cause, for example by freeing space, and retry with `sync`; `abort` exits without a commit",
                    )));
                    self.leaving = None;
                }
                ended => return ended,
            }
        }
    }

    fn prompt(&self) -> String {
        format!(
            "{}> ",
            crate::output::escape_controls(&self.surroundings.directory())
        )
    }

    /// Executes one line, and decides whether the session ends.
    fn run_line(&mut self, line: &[u8], interrupts: &Interrupts, is_typed: bool) {
        interrupts.begin_word();
        let is_done = self.line(line);
        let end = interrupts.end_word();
        if let Some(writing) = self.surroundings.writing() {
            let news = self.context.told_failures().news_of(&writing.volume().notices());
            news.iter().for_each(|news| self.context.warn(news));
        }
        if let Some(signal) = end.stop {
            self.leave(Leaving::Signalled(signal));
        } else if !is_done && !is_typed {
            self.leave(Leaving::Failed);
        } else if end.was_interrupted && is_typed {
            let waiting = self
                .surroundings
                .writing()
                .map(|writing| writing.volume().uncommitted());
            match waiting.filter(|waiting| !waiting.is_empty()) {
                Some(waiting) => self.context.notice(format!(
                    "interrupted; {waiting} so far remain uncommitted (`sync` commits them, `abort` discards them)"
                )),
                None => self.context.notice("interrupted"),
            }
        }
    }

    /// Ends the session: commits or drops the changes, and prints which of both if the user may
    /// want to know.
    fn end(&self, leaving: Leaving, is_typed: bool) -> Result<Outcome> {
        let outcome = match leaving {
            Leaving::Signalled(signal) => {
                Outcome::Signalled(u8::try_from(interrupts::exit_code(signal)).unwrap_or(u8::MAX))
            }
            _ => Outcome::Done,
        };
        let Some(writing) = self.surroundings.writing() else {
            return Ok(outcome);
        };
        let waiting = writing.volume().uncommitted();
        if leaving == Leaving::Forgetting {
            let dropped = writing.volume().abandon();
            if !dropped.is_empty() {
                self.context.notice(format!(
                    "discarded {dropped}: the volume has the state of the last commit, generation {} (`sync` and `quit` commit changes)",
                    dropped.committed
                ));
            }
            return Ok(outcome);
        }
        let committed = commit_all(&writing);
        if let Err(error) = committed {
            if leaving != Leaving::Asked || !is_typed {
                // The caller has already printed the reason for dropping the changes.
                writing.volume().abandon();
            }
            return Err(error);
        }
        let is_told = is_typed || matches!(leaving, Leaving::Failed | Leaving::Signalled(_));
        if is_told && !waiting.is_empty() {
            let before = if leaving == Leaving::Failed {
                " from before that"
            } else {
                ""
            };
            self.context.notice(format!(
                "committed {waiting}{before}, generation {}",
                writing.volume().committed_generation()
            ));
        }
        Ok(outcome)
    }

    /// Executes one line. Returns whether the line succeeded; prints its error otherwise.
    fn line(&mut self, line: &[u8]) -> bool {
        let losses = self.context.losses();
        if let Err(error) = self.words_of(line) {
            match error.downcast::<clap::Error>() {
                Ok(mut error) => {
                    // The session ignores a failure to print help or an error.
                    let _ = crate::output::terminal::print_clap_error(&mut error);
                    if error.use_stderr() {
                        self.context.count_loss(|| command_line_text(&error));
                    }
                }
                // The reader of the command's output is gone, but the next commands may be changes.
                Err(error) if is_broken_pipe(&error) => {}
                Err(error) => self.context.lost(&error),
            }
        }
        self.context.losses() == losses
    }

    fn words_of(&mut self, line: &[u8]) -> Result<()> {
        let words = line::words(line)?;
        if words.is_empty() {
            return Ok(());
        }
        table::run(words::ROWS, words, self)
    }

    /// Returns the context of the session's command.
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// Returns the current state of the volume.
    pub fn view(&self) -> Subvolume {
        self.surroundings.view()
    }

    /// Returns the writable volume, or an error if the session is read-only.
    pub fn require_writing(&self) -> Result<Writing> {
        self.surroundings
            .writing()
            .context("the volume is open read-only")
            .context(Advice::new("to open it for writing, run `buttress shell -w`"))
    }

    /// Returns an error if the user cancelled the command.
    pub fn check_cancelled(&self) -> Result<()> {
        Ok(self.context.progress().check()?)
    }

    /// Returns the current directory of the session.
    pub fn directory(&self) -> Vec<u8> {
        self.surroundings.directory()
    }

    /// Returns the path of an argument, from the root.
    pub fn path(&self, argument: &OsStr) -> Vec<u8> {
        absolute(&self.surroundings.directory(), argument.as_bytes())
    }

    /// Resolves a path argument.
    pub fn resolve(&self, argument: &OsStr, follow: Follow) -> Result<Location> {
        Ok(self.view().locate(self.path(argument), follow)?)
    }

    /// In a session, gives commands that read the volume its current state.
    pub fn enter_view(&self) -> Result<()> {
        if let Some(writing) = self.surroundings.writing() {
            // These commands show extents, so content must not be dirty.
            writing.volume().write_back()?;
        }
        self.context.enter(Place {
            opened: self.view(),
            image: self.image.clone(),
            directory: self.directory(),
            mount: None,
        });
        Ok(())
    }

    /// Ends the session after this line.
    fn leave(&mut self, leaving: Leaving) {
        self.leaving = Some(leaving);
    }
}

/// Commits all changes of a session.
fn commit_all(writing: &Writing) -> Result<()> {
    let waiting = writing.volume().uncommitted();
    let committed = writing.volume().sync();
    committed.map(drop).with_context(|| {
        format!(
            "the commit failed, and {waiting} are lost; the volume stays at generation {}",
            waiting.committed
        )
    })
}
