//! A session on a volume: words that look at it and change it, one a line.
//!
//! - [`mod@line`]: lines to words.
//! - [`table`]: the one table of words; help comes from it, too.
//! - [`words`]: what they do, in groups.
//! - [`number`]: offsets and lengths as xfs_io takes them.
//!
//! A word that fails ends a session that nobody watches (`-c`, a script on standard input), and a person at a terminal
//! goes on. Leaving commits what was done, also after a failure; `abort` leaves without. Nothing else than results goes to
//! standard output: the prompt and errors go to standard error.

pub mod line;
pub mod number;
pub mod table;
pub mod words;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use buttress_fs::{Follow, Location};

use crate::context::Context;
use crate::exit::Advice;
use crate::opening::{Opened, Place, absolute};
use crate::writing::Writing;

/// How a session's volume is open.
#[derive(Debug)]
enum Access {
    Reading(Opened),
    Writing(Box<Writing>),
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// What was done is committed.
    Committing,
    /// What was not committed is forgotten.
    Forgetting,
}

/// A session. See the module.
#[derive(Debug)]
pub struct Session<'a> {
    context: &'a Context,
    access: Access,
    image: PathBuf,
    /// Where relative paths begin: a path from the root, which begins with a slash.
    directory: Vec<u8>,
    leaving: Option<Leaving>,
}

impl<'a> Session<'a> {
    /// A session on a volume that is open for reading.
    pub fn reading(context: &'a Context, image: PathBuf, opened: Opened) -> Self {
        Self::new(context, image, Access::Reading(opened))
    }

    /// A session on a volume that is open for writing.
    pub fn writing(context: &'a Context, image: PathBuf, writing: Writing) -> Self {
        Self::new(context, image, Access::Writing(Box::new(writing)))
    }

    fn new(context: &'a Context, image: PathBuf, access: Access) -> Self {
        Self {
            context,
            access,
            image,
            directory: b"/".to_vec(),
            leaving: None,
        }
    }

    /// Goes to the directory in which the session begins.
    pub fn go_to(&mut self, path: &[u8]) -> Result<()> {
        let path = words::navigate::normalised(&absolute(&self.directory, path));
        let opened = self.view();
        let location = opened.resolve(&path, Follow::All)?;
        if !opened.filesystem.metadata(location)?.is_directory() {
            anyhow::bail!("{} is not a directory", path.escape_ascii());
        }
        self.directory = path;
        Ok(())
    }

    /// Does these lines, and those of standard input if there are none; then commits.
    pub fn run(mut self, commands: &[OsString]) -> Result<()> {
        if commands.is_empty() {
            self.run_input()?;
        } else {
            for command in commands {
                if !self.line(command.as_bytes()) || self.leaving.is_some() {
                    break;
                }
            }
        }
        match (&self.access, self.leaving) {
            (Access::Reading(_), _) | (_, Some(Leaving::Forgetting)) => Ok(()),
            (Access::Writing(writing), _) => writing.commit().context("committing what the session did"),
        }
    }

    fn run_input(&mut self) -> Result<()> {
        let mut input = io::stdin().lock();
        let interactive = input.is_terminal();
        let mut line = Vec::new();
        while self.leaving.is_none() {
            if interactive {
                eprint!("{}> ", crate::output::escape_controls(&self.directory));
                let _ = io::stderr().flush();
            }
            line.clear();
            if input
                .read_until(b'\n', &mut line)
                .context("reading the next line")?
                == 0
            {
                break;
            }
            if !self.line(&line) && !interactive {
                break;
            }
        }
        Ok(())
    }

    /// Does one line. Whether it was done; if not, the error is printed.
    fn line(&mut self, line: &[u8]) -> bool {
        let losses = self.context.losses();
        if let Err(error) = self.words_of(line) {
            match error.downcast::<clap::Error>() {
                Ok(error) => {
                    // Whoever does not read help or an error does not need it.
                    let _ = error.print();
                    if error.use_stderr() {
                        self.context.count_loss();
                    }
                }
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
    pub fn view(&self) -> Opened {
        match &self.access {
            Access::Reading(opened) => opened.clone(),
            Access::Writing(writing) => writing.view(),
        }
    }

    /// The volume for changes.
    pub fn require_writing(&self) -> Result<Writing> {
        match &self.access {
            Access::Writing(writing) => Ok((**writing).clone()),
            Access::Reading(_) => Err(anyhow::anyhow!("the volume is open for reading only"))
                .context(Advice::new("`buttress shell -w` opens it for writing")),
        }
    }

    /// The path of an argument, from the root.
    pub fn path(&self, argument: &OsStr) -> Vec<u8> {
        absolute(&self.directory, argument.as_bytes())
    }

    /// What an argument leads to.
    pub fn resolve(&self, argument: &OsStr, follow: Follow) -> Result<Location> {
        self.view().resolve(&self.path(argument), follow)
    }

    /// Has the commands that look find this volume as it is now.
    pub fn enter_view(&self) -> Result<()> {
        if let Access::Writing(writing) = &self.access {
            // What commands look at are extents: content must not wait in memory.
            writing.filesystem.write_back()?;
        }
        self.context.enter(Place {
            opened: self.view(),
            image: self.image.clone(),
            directory: self.directory.clone(),
        });
        Ok(())
    }

    /// The session ends after this line.
    fn leave(&mut self, leaving: Leaving) {
        self.leaving = Some(leaving);
    }
}
