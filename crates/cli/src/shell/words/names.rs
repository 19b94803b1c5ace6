//! Names: directories, links, special files, and what moves and removes them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::{Context as _, Result, bail};
use buttress_fs::operations::{NodeKind, RenameMode};
use buttress_fs::{DeviceNumber, Error, Follow};
use clap::{Args, ValueEnum};

use super::mode::Mode;
use crate::exit::Advice;
use crate::removal::remove_all;
use crate::shell::Session;
use crate::shell::table::Word;
use crate::writing::Writing;

/// Make directories
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
        writing.filesystem.make_directory(directory, &name, &new)?;
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
                .filesystem
                .remove_directory(directory, &name)
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
    /// The files
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
            let removed = self.remove(&writing, &path);
            removed.with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

impl Rm {
    fn remove(&self, writing: &Writing, path: &[u8]) -> Result<()> {
        if self.force && writing.resolve(path, Follow::NotLast).is_err() {
            return Ok(());
        }
        let (directory, name) = writing.place(path)?;
        if self.recursive {
            remove_all(&writing.filesystem, directory, &name)?;
            return Ok(());
        }
        match writing.filesystem.unlink(directory, &name) {
            Err(error @ Error::IsADirectory { .. }) => {
                Err(error).context(Advice::new("-r removes directories with all they hold"))
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
            bail!("a destination is missing");
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
                "{} is not a directory, and there are several sources",
                destination.escape_ascii()
            );
        }
        for source in sources {
            let path = session.path(source);
            let (directory, name) = writing.place(&path)?;
            let (new_directory, new_name) = match into {
                Some(into) => (into, name.clone()),
                None => writing.place(&destination)?,
            };
            writing
                .filesystem
                .rename(directory, &name, new_directory, &new_name, mode)
                .with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

/// Give a file another name, or make a symbolic link
#[derive(Args, Debug)]
pub struct Ln {
    /// Make a symbolic link
    #[arg(short = 's', long)]
    symbolic: bool,
    /// Remove a file that has the name
    #[arg(short = 'f', long)]
    force: bool,
    /// What the name leads to
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
        let filesystem = &writing.filesystem;
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
        if self.force && filesystem.lookup(directory, &name)?.is_some() {
            filesystem.unlink(directory, &name)?;
        }
        match target {
            Some(target) => filesystem.link(target, directory, &name)?,
            None => {
                let target = self.target.into_vec();
                filesystem.make_symlink(directory, &name, &writing.new_inode(0o777), &target)?;
            }
        }
        Ok(())
    }
}

/// What mknod makes.
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

/// Make a pipe (p), a socket (s), or a device (c or b, with its major and minor number)
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
            (Kind::Pipe | Kind::Socket, Some(_)) => bail!("pipes and sockets have no numbers"),
            (Kind::Character | Kind::Block, None) => bail!("a device needs its major and minor number"),
        };
        let (directory, name) = writing.place(&session.path(&self.name))?;
        let mut new = writing.new_inode(0o666);
        if let Some(mode) = &self.mode {
            new.mode = mode.apply(0o666, false);
            new.umask = 0;
        }
        writing.filesystem.make_node(directory, &name, &new, kind)?;
        Ok(())
    }
}
