//! The whole volume: its label, making changes durable, leaving.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use buttress::fs::Follow;
use clap::Args;

use crate::shell::table::Word;
use crate::shell::{Leaving, Session};

/// Make a file durable (for the time being this is a whole commit)
#[derive(Args, Debug)]
pub struct Fsync {
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Fsync {
    const NAME: &'static str = "fsync";
    const ALIASES: &'static [&'static str] = &["fdatasync"];
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.resolve(&self.file, Follow::All)?;
        session.require_writing()?.commit()
    }
}

/// Make all changes durable: commit
#[derive(Args, Debug)]
pub struct Sync {}

impl Word for Sync {
    const NAME: &'static str = "sync";
    const ALIASES: &'static [&'static str] = &["syncfs"];
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.require_writing()?.commit()
    }
}

/// Print the volume's label, or set it
#[derive(Args, Debug)]
pub struct Label {
    /// The new label; an empty one takes it away
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

impl Word for Label {
    const NAME: &'static str = "label";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        if let Some(new) = &self.label {
            let writing = session.require_writing()?;
            writing.filesystem.set_label(new.as_bytes())?;
            // It is part of the superblock, which only a commit writes.
            return writing.commit();
        }
        let mut out = session.context().stdout();
        let label = session.view().filesystem.superblock().label.clone();
        out.write_all(&session.context().printable(&label))?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// Leave, and commit what was done
#[derive(Args, Debug)]
pub struct Quit {}

impl Word for Quit {
    const NAME: &'static str = "quit";
    const ALIASES: &'static [&'static str] = &["q", "exit"];

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.leave(Leaving::Asked);
        Ok(())
    }
}

/// Leave, and forget what was not committed
#[derive(Args, Debug)]
pub struct Abort {}

impl Word for Abort {
    const NAME: &'static str = "abort";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.leave(Leaving::Forgetting);
        Ok(())
    }
}
