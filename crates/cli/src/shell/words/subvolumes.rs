//! Subvolumes, with the commands of btrfs-progs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context as _, Result, anyhow};
use buttress::{Follow, SubvolumeId};
use clap::Args;

use crate::exit::Advice;
use crate::progress::Watch;
use crate::shell::Session;
use crate::shell::table::Word;

/// Returns the subvolume whose root directory an argument names.
fn subvolume_at(session: &Session<'_>, argument: &OsString) -> Result<SubvolumeId> {
    let location = session.resolve(argument, Follow::All)?;
    if !location.is_subvolume_root() || location.placeholder().is_some() {
        return Err(anyhow!("{} is not a subvolume", argument.display()))
            .context(Advice::new("`subvolume list` lists all subvolumes"));
    }
    Ok(location.subvolume)
}

/// Create empty subvolumes
#[derive(Args, Debug)]
pub struct Create {
    /// Create missing parent directories, too
    #[arg(short = 'p', long)]
    parents: bool,
    /// Paths of the new subvolumes
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

impl Word for Create {
    const NAME: &'static str = "create";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for path in &self.paths {
            let path = session.path(path);
            if self.parents {
                writing.make_parents(&path)?;
            }
            let (directory, name) = writing.place(&path)?;
            writing
                .volume()
                .create_subvolume(directory, &name)
                .with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

/// Create a snapshot of the current state of a subvolume
#[derive(Args, Debug)]
pub struct Snapshot {
    /// One that cannot be changed
    #[arg(short = 'r')]
    read_only: bool,
    /// The subvolume
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The snapshot, or the directory for it
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
}

impl Word for Snapshot {
    const NAME: &'static str = "snapshot";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let source = subvolume_at(session, &self.source)?;
        let path = session.path(&self.destination);
        let (directory, name) = match writing.directory_at(&path) {
            Some(directory) => {
                let source = session.path(&self.source);
                let (_, name) = crate::writing::split(&source);
                if name.is_empty() || name == b"." || name == b".." {
                    return Err(anyhow!("{} has no name", self.source.as_bytes().escape_ascii())).context(
                        Advice::new("give the name of the snapshot, not only its directory"),
                    );
                }
                (directory, name.to_vec())
            }
            None => writing.place(&path)?,
        };
        writing
            .volume()
            .create_snapshot(source, directory, &name, self.read_only)?;
        Ok(())
    }
}

/// Delete subvolumes and snapshots, and free their space
#[derive(Args, Debug)]
pub struct Delete {
    /// For compatibility: deletions are always committed
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// The subvolumes
    #[arg(value_name = "SUBVOLUME", required = true)]
    subvolumes: Vec<OsString>,
}

impl Word for Delete {
    const NAME: &'static str = "delete";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for subvolume in &self.subvolumes {
            let id = subvolume_at(session, subvolume)?;
            let deleted = writing.volume().delete_subvolume(id);
            deleted.with_context(|| subvolume.display().to_string())?;
        }
        writing.commit()?;
        let progress = session.context().progress();
        let watch = Watch::start(session.context(), "subvolume delete", progress.clone());
        let dropped = writing.volume().drop_deleted_subvolumes(&progress);
        watch.end_as(dropped.is_ok());
        dropped.context("freeing the space of deleted subvolumes")
    }
}

/// Set the default subvolume, which a mount without options shows
#[derive(Args, Debug)]
pub struct SetDefault {
    /// The subvolume
    #[arg(value_name = "SUBVOLUME")]
    subvolume: OsString,
}

impl Word for SetDefault {
    const NAME: &'static str = "set-default";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let id = subvolume_at(session, &self.subvolume)?;
        let default = writing.volume().subvolume_by_id(id)?;
        writing.volume().set_default_subvolume(default)?;
        Ok(())
    }
}
