//! The whole volume: its label, commits, and the end of the session.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use buttress::Follow;
use clap::Args;
use serde_json::{Value, json};

use crate::shell::table::Word;
use crate::shell::{Leaving, Session};

/// Make a file, directory or other inode durable
#[derive(Args, Debug)]
pub struct Fsync {
    /// Content and size only, as fdatasync does: times that changed alone need not last
    #[arg(short = 'd')]
    only_data: bool,
    /// A symlink itself, not what it leads to
    #[arg(short = 'h')]
    no_dereference: bool,
    /// The file or directory
    #[arg(value_name = "FILE")]
    file: OsString,
}

fn sync_path(session: &Session<'_>, file: &OsStr, only_data: bool, follow: Follow) -> Result<()> {
    let location = session.resolve(file, follow)?;
    let writing = session.require_writing()?;
    match only_data {
        true => Ok(writing.volume().sync_inode_data(location)?),
        false => Ok(writing.volume().sync_inode(location)?),
    }
}

impl Word for Fsync {
    const NAME: &'static str = "fsync";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let follow = match self.no_dereference {
            true => Follow::NotLast,
            false => Follow::All,
        };
        sync_path(session, &self.file, self.only_data, follow)
    }
}

/// Make the content of a file durable, but not changes of times alone
#[derive(Args, Debug)]
pub struct Fdatasync {
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Fdatasync {
    const NAME: &'static str = "fdatasync";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        sync_path(session, &self.file, true, Follow::All)
    }
}

/// Print the syncs of this session: logged, merged with other syncs, or done as commits, by cause
#[derive(Args, Debug)]
pub struct Stats {}

impl Word for Stats {
    const NAME: &'static str = "stats";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let statistics = session.require_writing()?.volume().log_statistics();
        let context = session.context();
        if context.json() {
            let commits = statistics.commits.iter();
            let commits: serde_json::Map<String, Value> = commits
                .map(|(cause, count)| (cause.name().to_owned(), json!(count)))
                .collect();
            let value = json!({
                "syncs": statistics.syncs,
                "unneeded": statistics.unneeded,
                "joined": statistics.joined,
                "logs-written": statistics.written,
                "log-blocks": statistics.blocks,
                "log-bytes": statistics.bytes,
                "commits": commits,
            });
            return context.print_json("stats", value);
        }
        let mut out = context.stdout();
        writeln!(out, "syncs            {}", statistics.syncs)?;
        writeln!(out, "  unneeded       {}", statistics.unneeded)?;
        writeln!(out, "  joined         {}", statistics.joined)?;
        writeln!(out, "logs written     {}", statistics.written)?;
        writeln!(
            out,
            "  blocks         {} ({} bytes)",
            statistics.blocks, statistics.bytes
        )?;
        let commits = statistics.commits.iter().map(|(_, count)| *count);
        writeln!(out, "commits instead  {}", commits.fold(0, u64::saturating_add))?;
        for (cause, count) in &statistics.commits {
            writeln!(out, "  {:<15}{count}", cause.name())?;
        }
        Ok(out.flush()?)
    }
}

/// Commit: make all changes durable
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

/// Print or set the label of the volume
#[derive(Args, Debug)]
pub struct Label {
    /// New label; an empty label removes it
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

impl Word for Label {
    const NAME: &'static str = "label";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        if let Some(new) = &self.label {
            let writing = session.require_writing()?;
            writing.volume().set_label(new.as_bytes())?;
            // The label is part of the superblock, which only a commit writes.
            return writing.commit();
        }
        let mut out = session.context().stdout();
        let label = session.view().volume().label();
        out.write_all(&session.context().printable(&label))?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// Commit, and exit
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

/// Exit, and discard uncommitted changes
#[derive(Args, Debug)]
pub struct Abort {}

impl Word for Abort {
    const NAME: &'static str = "abort";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.leave(Leaving::Forgetting);
        Ok(())
    }
}
