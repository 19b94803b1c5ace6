//! Names: directories, links, special files, moves and removals.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::{DeviceNumber, ErrorKind, FileKind, Follow, Location, NodeKind, RenameMode};
use clap::{Args, ValueEnum};

use super::mode::Mode;
use crate::exit::Advice;
use crate::opening::absolute;
use crate::removal::remove_all;
use crate::replacing::{directory_in_the_way, non_directory_in_the_way, same_file};
use crate::shell::Session;
use crate::shell::table::Word;
use crate::writing::Writing;

/// Create directories
#[derive(Args, Debug)]
pub struct Mkdir {
    /// Make those above it too, and do not mind one that is there
    #[arg(short = 'p', long)]
    parents: bool,
    /// The mode, as chmod takes it
    #[arg(short = 'm', long, value_name = "MODE")]
    mode: Option<Mode>,
    /// The directories
    #[arg(value_name = "DIRECTORY", required = true)]
    directories: Vec<OsString>,
}

impl Word for Mkdir {
    const NAME: &'static str = "mkdir";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for directory in &self.directories {
            let path = session.path(directory);
            self.make(&writing, &path)
                .with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

impl Mkdir {
    fn make(&self, writing: &Writing, path: &[u8]) -> Result<()> {
        if self.parents {
            writing.make_parents(path)?;
            if writing.resolve(path, Follow::All).is_ok() {
                return Ok(());
            }
        }
        let (directory, name) = writing.place(path)?;
        let mut new = writing.new_inode(0o777);
        if let Some(mode) = &self.mode {
            new.mode = mode.apply(0o777, true);
            new.umask = 0;
        }
        writing.volume().create_dir(directory, &name, &new)?;
        Ok(())
    }
}

/// Remove empty directories
#[derive(Args, Debug)]
pub struct Rmdir {
    /// The directories
    #[arg(value_name = "DIRECTORY", required = true)]
    directories: Vec<OsString>,
}

impl Word for Rmdir {
    const NAME: &'static str = "rmdir";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for directory in &self.directories {
            let path = session.path(directory);
            let (directory, name) = writing.place(&path)?;
            writing
                .volume()
                .remove_dir(directory, &name)
                .with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

/// Remove files
#[derive(Args, Debug)]
pub struct Rm {
    /// Remove directories too, with all they hold
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Do not mind what is not there
    #[arg(short = 'f', long)]
    force: bool,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Rm {
    const NAME: &'static str = "rm";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for file in &self.files {
            let path = session.path(file);
            let removed = self.remove(session, &writing, &path);
            removed.with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

impl Rm {
    fn remove(&self, session: &Session<'_>, writing: &Writing, path: &[u8]) -> Result<()> {
        if self.force && writing.resolve(path, Follow::NotLast).is_err() {
            return Ok(());
        }
        let (directory, name) = writing.place(path)?;
        if self.recursive {
            remove_all(writing.volume(), directory, &name, &session.context().progress())?;
            return Ok(());
        }
        match writing.volume().unlink(directory, &name) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                Err(error).context(Advice::new("to remove directories recursively, give -r"))
            }
            other => Ok(other?),
        }
    }
}

/// Rename files, or move them into a directory
#[derive(Args, Debug)]
pub struct Mv {
    /// Do not replace what has the new name
    #[arg(short = 'n', long, conflicts_with = "exchange")]
    no_clobber: bool,
    /// Let both change places
    #[arg(long)]
    exchange: bool,
    /// Never move into the destination: it is the new name
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// What to move, then where to
    #[arg(value_name = "SOURCE… DESTINATION", required = true, num_args = 2..)]
    places: Vec<OsString>,
}

impl Word for Mv {
    const NAME: &'static str = "mv";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let Some((destination, sources)) = self.places.split_last() else {
            bail!("the destination is missing");
        };
        let mode = match (self.no_clobber, self.exchange) {
            (true, _) => RenameMode::NoReplace,
            (false, true) => RenameMode::Exchange,
            (false, false) => RenameMode::Replace,
        };
        let destination = session.path(destination);
        let into = if self.no_target_directory || self.exchange {
            None
        } else {
            writing.directory_at(&destination)
        };
        if sources.len() > 1 && into.is_none() {
            bail!(
                "{} is not a directory, but several sources are given",
                destination.escape_ascii()
            );
        }
        let mut made = HashSet::new();
        for source in sources {
            let path = session.path(source);
            let (directory, name) = writing.place(&path)?;
            let (new_directory, new_name, new_path) = match into {
                Some(into) => (into, name.clone(), absolute(&destination, &name)),
                None => {
                    let (directory, name) = writing.place(&destination)?;
                    (directory, name, destination.clone())
                }
            };
            let shown = [&path, &new_path].map(|path| path.escape_ascii().to_string());
            let [old, new] = [(directory, &name[..]), (new_directory, &new_name[..])];
            let referent = writing.resolve(&path, Follow::All).ok();
            // An exchange overwrites nothing.
            if !self.exchange {
                look_at_move(&writing, old, new, referent, &shown)?;
            }
            if !made.insert(new_name.clone()) {
                bail!(
                    "will not overwrite just-created '{}' with '{}'",
                    shown[1],
                    shown[0]
                );
            }
            let moved = writing
                .volume()
                .rename(directory, &name, new_directory, &new_name, mode);
            moved.map_err(|error| match error.kind() {
                ErrorKind::Invalid => {
                    anyhow!(
                        "cannot move '{}' to a subdirectory of itself, '{}'",
                        shown[0],
                        shown[1]
                    )
                }
                _ => anyhow::Error::new(error).context(shown[0].clone()),
            })?;
        }
        Ok(())
    }
}

/// Refuses moves that mv refuses: a file onto itself or onto another of its names, a directory onto
/// another kind of file, and another kind of file onto a directory.
fn look_at_move(
    writing: &Writing,
    old: (Location, &[u8]),
    new: (Location, &[u8]),
    referent: Option<Location>,
    shown: &[String; 2],
) -> Result<()> {
    let filesystem = writing.volume();
    let [from, to] = shown;
    let (Some(moved), Some(there)) = (filesystem.lookup(old.0, old.1)?, filesystem.lookup(new.0, new.1)?)
    else {
        return Ok(());
    };
    // A link must not replace its own target.
    if old == new || moved.target == there.target || referent == Some(there.target) {
        return Err(same_file(from, to));
    }
    match (
        moved.kind == FileKind::Directory,
        there.kind == FileKind::Directory,
    ) {
        (true, false) => Err(non_directory_in_the_way(to, from)),
        (false, true) => Err(directory_in_the_way(to)),
        _ => Ok(()),
    }
}

/// Create a hard link or a symbolic link
#[derive(Args, Debug)]
pub struct Ln {
    /// Make a symbolic link
    #[arg(short = 's', long)]
    symbolic: bool,
    /// Remove a file that has the name
    #[arg(short = 'f', long)]
    force: bool,
    /// Target of the new name
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name, or a directory for it
    #[arg(value_name = "NAME")]
    name: OsString,
}

impl Word for Ln {
    const NAME: &'static str = "ln";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let filesystem = writing.volume();
        let path = session.path(&self.name);
        let (directory, name) = match writing.directory_at(&path) {
            Some(directory) => {
                let (_, last) = crate::writing::split(self.target.as_bytes());
                (directory, last.to_vec())
            }
            None => writing.place(&path)?,
        };
        let target = if self.symbolic {
            None
        } else {
            Some(session.resolve(&self.target, Follow::NotLast)?)
        };
        let there = filesystem.lookup(directory, &name)?.filter(|_| self.force);
        let Some(there) = there else {
            return self.make(&writing, target, directory, &name);
        };
        // The target of a link must not disappear before the name refers to the new file.
        let meant = match target {
            Some(target) => Some(target),
            None => session.resolve(&self.target, Follow::NotLast).ok(),
        };
        if meant == Some(there.target) {
            let own_entry = writing.place(&session.path(&self.target)).ok();
            let is_own = own_entry.is_some_and(|own| own == (directory, name.clone()));
            if is_own || filesystem.metadata(there.target)?.nlink == 1 {
                return Err(same_file(
                    &self.target.to_string_lossy(),
                    &self.name.to_string_lossy(),
                ));
            }
            if target.is_some() {
                // The new name already refers to the same file.
                return Ok(());
            }
        }
        if there.kind == FileKind::Directory {
            bail!("{}: cannot overwrite directory", self.name.display());
        }
        // Create the link under a temporary name, then rename it over the existing file, so that a
        // failure loses nothing.
        let temporary = free_name(&writing, directory)?;
        self.make(&writing, target, directory, &temporary)?;
        let renamed = filesystem.rename(directory, &temporary, directory, &name, RenameMode::Replace);
        if renamed.is_err() {
            filesystem.unlink(directory, &temporary)?;
        }
        Ok(renamed?)
    }
}

impl Ln {
    fn make(
        &self,
        writing: &Writing,
        target: Option<Location>,
        directory: Location,
        name: &[u8],
    ) -> Result<()> {
        let filesystem = writing.volume();
        match target {
            Some(target) => filesystem.link(target, directory, name)?,
            None => {
                let target = self.target.as_bytes();
                filesystem.create_symlink(directory, name, &writing.new_inode(0o777), target)?;
            }
        }
        Ok(())
    }
}

/// Returns an unused name in the directory.
fn free_name(writing: &Writing, directory: Location) -> Result<Vec<u8>> {
    for number in 0..1000 {
        let name = format!(".ln-{number}").into_bytes();
        if writing.volume().lookup(directory, &name)?.is_none() {
            return Ok(name);
        }
    }
    bail!("the directory has no free name for a moment")
}

/// Kind of node that mknod creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A named pipe.
    #[value(name = "p")]
    Pipe,
    /// A character device.
    #[value(name = "c", alias = "u")]
    Character,
    /// A block device.
    #[value(name = "b")]
    Block,
    /// A socket.
    #[value(name = "s")]
    Socket,
}

/// Create a pipe (p), a socket (s), or a device (c or b, with its major and minor number)
#[derive(Args, Debug)]
pub struct Mknod {
    /// The mode, as chmod takes it
    #[arg(short = 'm', long, value_name = "MODE")]
    mode: Option<Mode>,
    /// The new name
    #[arg(value_name = "NAME")]
    name: OsString,
    /// What it is to be
    #[arg(value_name = "p|s|c|b")]
    kind: Kind,
    /// The major number of a device
    #[arg(value_name = "MAJOR", requires = "minor")]
    major: Option<u32>,
    /// Its minor number
    #[arg(value_name = "MINOR")]
    minor: Option<u32>,
}

impl Word for Mknod {
    const NAME: &'static str = "mknod";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let number = match (self.major, self.minor) {
            (Some(major), Some(minor)) => Some(DeviceNumber { major, minor }),
            _ => None,
        };
        let kind = match (self.kind, number) {
            (Kind::Pipe, None) => NodeKind::Fifo,
            (Kind::Socket, None) => NodeKind::Socket,
            (Kind::Character, Some(number)) => NodeKind::CharacterDevice(number),
            (Kind::Block, Some(number)) => NodeKind::BlockDevice(number),
            (Kind::Pipe | Kind::Socket, Some(_)) => bail!("pipes and sockets take no device numbers"),
            (Kind::Character | Kind::Block, None) => bail!("a device needs its major and minor number"),
        };
        let (directory, name) = writing.place(&session.path(&self.name))?;
        let mut new = writing.new_inode(0o666);
        if let Some(mode) = &self.mode {
            new.mode = mode.apply(0o666, false);
            new.umask = 0;
        }
        writing.volume().create_node(directory, &name, &new, kind)?;
        Ok(())
    }
}
