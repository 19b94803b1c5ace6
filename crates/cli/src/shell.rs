//! A session on a volume: words that look at it and change it, one a line.
//!
//! - [`mod@line`]: lines to words.
//! - [`table`]: the one table of words; help comes from it, too.
//! - [`words`]: what they do, in groups.
//! - [`number`]: offsets and lengths as xfs_io takes them.
//! - `terminal`, `completion`, `history`: a person's lines.
//! - `interrupts`: signals.
//!
//! A word that fails ends a session that nobody watches (`-c`, a script on standard input), and a person at a terminal
//! goes on. Nothing else than results goes to standard output: the prompt and errors go to standard error.
//!
//! # What becomes of work that is not committed
//!
//! | the session ends by | what was done is | and |
//! |---|---|---|
//! | `quit`, Ctrl-D, the end of a script | committed | a person is told how much it was; where that fails, `quit` stays |
//! | a word that fails, in a script or with `-c` | committed, up to there | it is told |
//! | `abort` | dropped, back to the last commit | it is told |
//! | SIGTERM, SIGHUP; in a script or with `-c` also SIGINT | committed, after the word under way was cancelled | it is told; the exit code is 128 and the signal's number |
//! | a second such signal, SIGKILL, SIGQUIT | dropped, back to the last commit | the first signal told |
//! | a commit that fails | dropped, back to the last commit | an error tells |
//!
//! A reader of standard output that went away ends the word and not the session: what follows may be changes. Commits that
//! nobody asked for happen, too: when much waits, and every 30 seconds.

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
use crate::opening::{Place, absolute};
use crate::writing::Writing;
use interrupts::Interrupts;
use terminal::{Lines, Next};

/// How a session's volume is open.
#[derive(Clone, Debug)]
enum Access {
    Reading(Subvolume),
    Writing(Box<Writing>),
}

/// Where a session is: what completion and signals need of it, too.
#[derive(Debug)]
struct Surroundings {
    access: Access,
    /// Where relative paths begin: a path from the root, which begins with a slash.
    directory: Mutex<Vec<u8>>,
}

impl Surroundings {
    /// The volume as it is now.
    fn view(&self) -> Subvolume {
        match &self.access {
            Access::Reading(opened) => opened.clone(),
            Access::Writing(writing) => writing.view(),
        }
    }

    /// The volume for changes, if it is open for them.
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

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// There are no more lines.
    AtEnd,
    /// Somebody wants to leave.
    Asked,
    /// Somebody wants to leave, and what was not committed to be forgotten.
    Forgetting,
    /// A word failed, and nobody is there to see to it.
    Failed,
    /// A signal ends it.
    Signalled(i32),
}

/// A session. See the module.
#[derive(Debug)]
pub struct Session<'a> {
    context: &'a Context,
    surroundings: Arc<Surroundings>,
    image: PathBuf,
    leaving: Option<Leaving>,
}

impl<'a> Session<'a> {
    /// A session on a volume that is open for reading.
    pub fn reading(context: &'a Context, image: PathBuf, opened: Subvolume) -> Self {
        Self::new(context, image, Access::Reading(opened))
    }

    /// A session on a volume that is open for writing.
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

    /// Goes to the directory in which the session begins.
    pub fn go_to(&mut self, path: &[u8]) -> Result<()> {
        let path = words::navigate::normalised(&self.path(OsStr::from_bytes(path)));
        let opened = self.view();
        let location = opened.locate(&path, Follow::All)?;
        if !opened.volume().metadata(location)?.is_directory() {
            anyhow::bail!("{} is not a directory", path.escape_ascii());
        }
        *self.surroundings.directory.lock() = path;
        Ok(())
    }

    /// Does these lines, or those of standard input if there are none; then leaves.
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
                // Whoever is there can free space, or decide to lose it.
                Err(error) if is_typed && leaving == Leaving::Asked => {
                    self.context.lost(&error.context(Advice::new(
                        "the session goes on: free some space, or whatever is missing, and try `sync`; `abort` leaves without",
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

    /// Does one line, and sees what that means for the session.
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
                    "interrupted; {waiting} so far stay, and are not committed yet (`sync` commits, `abort` leaves without)"
                )),
                None => self.context.notice("interrupted"),
            }
        }
    }

    /// Ends the session: commits what was done, or not, and says which where somebody may want to know.
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
                    "dropped {dropped}: the volume stays as the last commit made it, generation {} (`sync` or `quit` keeps \
                     what was done)",
                    dropped.committed
                ));
            }
            return Ok(outcome);
        }
        let committed = commit_all(&writing);
        if let Err(error) = committed {
            if leaving != Leaving::Asked || !is_typed {
                // It was told.
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

    /// Does one line. Whether it was done; if not, the error is printed.
    fn line(&mut self, line: &[u8]) -> bool {
        let losses = self.context.losses();
        if let Err(error) = self.words_of(line) {
            match error.downcast::<clap::Error>() {
                Ok(mut error) => {
                    // Whoever does not read help or an error does not need it.
                    let _ = crate::output::terminal::print_clap_error(&mut error);
                    if error.use_stderr() {
                        self.context.count_loss(|| command_line_text(&error));
                    }
                }
                // Nobody wants to read what the word prints; what follows may be changes.
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

    /// The command's surroundings.
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// The volume as it is now.
    pub fn view(&self) -> Subvolume {
        self.surroundings.view()
    }

    /// The volume for changes.
    pub fn require_writing(&self) -> Result<Writing> {
        self.surroundings
            .writing()
            .context("the volume is open for reading only")
            .context(Advice::new("`buttress shell -w` opens it for writing"))
    }

    /// Ends the word when somebody wants it to end.
    pub fn check_cancelled(&self) -> Result<()> {
        Ok(self.context.progress().check()?)
    }

    /// The directory in which the session stands.
    pub fn directory(&self) -> Vec<u8> {
        self.surroundings.directory()
    }

    /// The path of an argument, from the root.
    pub fn path(&self, argument: &OsStr) -> Vec<u8> {
        absolute(&self.surroundings.directory(), argument.as_bytes())
    }

    /// What an argument leads to.
    pub fn resolve(&self, argument: &OsStr, follow: Follow) -> Result<Location> {
        Ok(self.view().locate(self.path(argument), follow)?)
    }

    /// Has the commands that look find this volume as it is now.
    pub fn enter_view(&self) -> Result<()> {
        if let Some(writing) = self.surroundings.writing() {
            // What commands look at are extents: content must not be dirty.
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

    /// The session ends after this line.
    fn leave(&mut self, leaving: Leaving) {
        self.leaving = Some(leaving);
    }
}

/// Commits what a session did.
fn commit_all(writing: &Writing) -> Result<()> {
    let waiting = writing.volume().uncommitted();
    let committed = writing.volume().sync();
    committed.map(drop).with_context(|| {
        format!(
            "committing what the session did failed, and {waiting} are not on the volume, which stays at generation {}",
            waiting.committed
        )
    })
}
