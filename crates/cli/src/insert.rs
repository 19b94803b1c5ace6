//! Files into a volume: from the host ([`host`]), from another volume or the same one ([`volume`]).
//!
//! [`Inserter`] makes what it is told of, in the order of a walk: a directory, what it holds, and the way back up. What is
//! in the way is removed and made anew, never written through; a directory in the way is taken as it is. Content comes in
//! pieces with holes left out, so that sparse files stay sparse and large ones need no memory. Files with several names
//! are made once and linked to. Directories get their times when everything in them is made.
//!
//! Unless all is to be preserved, what is made belongs to who runs the command, with a mode that its umask lessens, as
//! `cp -r` does it on a mounted volume.

pub mod host;
pub mod volume;

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use buttress_format::{ByteCount, FileKind, FileOffset, Timestamp};
use buttress_fs::operations::{AttributeChanges, NewInode, NodeKind, SetXattr};
use buttress_fs::{DeviceNumber, Error, Location, Progress, Xattr};

use crate::context::Context;
use crate::exit::Advice;
use crate::extract::{Preserve, Totals};
use crate::writing::Writing;

/// What is known of a file before it is made.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kind of file.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky.
    pub permissions: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The last access.
    pub accessed: Timestamp,
    /// The last change of content.
    pub modified: Timestamp,
    /// How many names it has.
    pub links: u32,
    /// What its names have in common: device or subvolume, and inode.
    pub identity: (u64, u64),
    /// The number of a device node.
    pub device: Option<DeviceNumber>,
    /// Content of files, in bytes.
    pub size_bytes: u64,
    /// Extended attributes; empty unless they are to be preserved.
    pub xattrs: Vec<Xattr>,
}

/// A piece of a file's content.
#[derive(Debug)]
pub struct Piece {
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// What is there.
    pub bytes: bytes::Bytes,
}

/// Where a file's content comes from.
#[derive(Debug)]
pub enum Source {
    /// A file of the host.
    Host(std::fs::File),
    /// A stream of another volume's file.
    Stream(Box<buttress_fs::FileReader>),
    /// A file of this very volume: its extents are shared.
    Same(Location),
}

/// The error of a directory that nobody asked to copy.
fn refuse_directory() -> anyhow::Error {
    anyhow::anyhow!("it is a directory").context(Advice::new(
        "give -r to copy directories, or -a to keep owners and times too",
    ))
}

/// A directory on the way down.
#[derive(Debug)]
struct Level {
    directory: Location,
    /// What it gets when it is left.
    finish: Option<Facts>,
}

/// A file with further names to come.
#[derive(Clone, Copy, Debug)]
struct Linked {
    location: Location,
    names_left: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Inserter<'a> {
    context: &'a Context,
    writing: &'a Writing,
    preserve: Preserve,
    progress: Progress,
    levels: Vec<Level>,
    base: Location,
    links: HashMap<(u64, u64), Linked>,
    totals: Totals,
}

impl<'a> Inserter<'a> {
    /// Makes what it is told of in the directory `base`.
    pub fn new(
        context: &'a Context,
        writing: &'a Writing,
        base: Location,
        preserve: Preserve,
        progress: Progress,
    ) -> Self {
        Self {
            context,
            writing,
            preserve,
            progress,
            levels: Vec::new(),
            base,
            links: HashMap::new(),
            totals: Totals::default(),
        }
    }

    /// What was made so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is to be preserved.
    pub fn preserve(&self) -> Preserve {
        self.preserve
    }

    fn here(&self) -> Location {
        self.levels.last().map_or(self.base, |level| level.directory)
    }

    fn new_inode(&self, facts: &Facts) -> NewInode {
        if self.preserve.all() {
            NewInode {
                mode: facts.permissions,
                umask: 0,
                uid: facts.uid,
                gid: facts.gid,
            }
        } else {
            self.writing.new_inode(facts.permissions & 0o777)
        }
    }

    /// Goes into the directory `name`, which is made if it is not there; without a name, into the directory in which
    /// this one began.
    pub fn enter(&mut self, name: Option<&[u8]>, facts: Facts) -> Result<()> {
        let Some(name) = name else {
            self.levels.push(Level {
                directory: self.base,
                finish: self.preserve.all().then_some(facts),
            });
            return Ok(());
        };
        let parent = self.here();
        let filesystem = &self.writing.filesystem;
        let made = filesystem.make_directory(parent, name, &self.new_inode(&facts));
        let directory = match made {
            Ok(directory) => directory,
            Err(Error::Exists { .. }) => {
                let entry = filesystem.lookup(parent, name)?;
                match entry.filter(|entry| entry.kind == FileKind::Directory) {
                    Some(entry) => entry.target,
                    None => bail!("something that is not a directory is in the way"),
                }
            }
            Err(error) => return Err(error.into()),
        };
        self.totals.directories = self.totals.directories.saturating_add(1);
        self.progress.advance(1, ByteCount::ZERO);
        self.levels.push(Level {
            directory,
            finish: self.preserve.all().then_some(facts),
        });
        Ok(())
    }

    /// Leaves the directory that was entered last, which gets its attributes.
    pub fn leave(&mut self) -> Result<()> {
        match self.levels.pop() {
            Some(Level {
                directory,
                finish: Some(facts),
            }) => self.finish(directory, &facts),
            _ => Ok(()),
        }
    }

    /// Makes anything but a directory. `target` is where a link leads to, `source` the content of a file.
    pub fn make(&mut self, name: &[u8], facts: &Facts, target: &[u8], source: Option<Source>) -> Result<()> {
        if self.link_to_earlier(name, facts)? {
            return Ok(());
        }
        let directory = self.here();
        let new = self.new_inode(facts);
        let filesystem = &self.writing.filesystem;
        let number = facts.device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
        let node = |kind| self.make_way(name, || filesystem.make_node(directory, name, &new, kind));
        let location = match facts.kind {
            FileKind::Regular => self.make_way(name, || filesystem.create(directory, name, &new))?,
            FileKind::Symlink => {
                self.make_way(name, || filesystem.make_symlink(directory, name, &new, target))?
            }
            FileKind::CharacterDevice => node(NodeKind::CharacterDevice(number))?,
            FileKind::BlockDevice => node(NodeKind::BlockDevice(number))?,
            FileKind::Fifo => node(NodeKind::Fifo)?,
            FileKind::Socket => node(NodeKind::Socket)?,
            FileKind::Directory | FileKind::Unknown | FileKind::Xattr => bail!("it is no kind of file"),
        };
        if let Some(source) = source {
            self.fill(location, facts, source)?;
            self.totals.files = self.totals.files.saturating_add(1);
        } else {
            self.totals.others = self.totals.others.saturating_add(1);
        }
        self.progress.advance(1, ByteCount::ZERO);
        if facts.links > 1 {
            let names_left = facts.links.saturating_sub(1);
            self.links.insert(facts.identity, Linked { location, names_left });
        }
        if self.preserve.all() {
            self.finish(location, facts)?;
        }
        Ok(())
    }

    /// Links to the first name of the file, if that was made.
    fn link_to_earlier(&mut self, name: &[u8], facts: &Facts) -> Result<bool> {
        if facts.links < 2 {
            return Ok(false);
        }
        let Some(linked) = self.links.get_mut(&facts.identity) else {
            return Ok(false);
        };
        let location = linked.location;
        linked.names_left = linked.names_left.saturating_sub(1);
        if linked.names_left == 0 {
            self.links.remove(&facts.identity);
        }
        let directory = self.here();
        if location.subvolume != directory.subvolume {
            return Ok(false);
        }
        let filesystem = &self.writing.filesystem;
        self.make_way(name, || filesystem.link(location, directory, name))?;
        self.totals.hard_links = self.totals.hard_links.saturating_add(1);
        self.progress.advance(1, ByteCount::ZERO);
        Ok(true)
    }

    /// Calls `make`; if something is in the way that is no directory, removes it and calls again.
    fn make_way<T>(&self, name: &[u8], make: impl Fn() -> buttress_fs::Result<T>) -> Result<T> {
        match make() {
            Err(Error::Exists { .. }) => {
                self.writing.filesystem.unlink(self.here(), name)?;
                Ok(make()?)
            }
            other => Ok(other?),
        }
    }

    fn fill(&mut self, location: Location, facts: &Facts, source: Source) -> Result<()> {
        let size = facts.size_bytes;
        let filesystem = &self.writing.filesystem;
        let mut written_to = 0;
        let mut written = 0u64;
        let progress = &self.progress;
        let mut write = |piece: Piece| -> Result<()> {
            filesystem.write_at(location, piece.offset, &piece.bytes)?;
            let length = ByteCount::of(piece.bytes.len());
            written_to = piece.offset.get().saturating_add(length.get());
            written = written.saturating_add(length.get());
            progress.advance(0, length);
            Ok(progress.check()?)
        };
        match source {
            Source::Host(file) => host::read(&file, size, &mut write).context("reading it")?,
            Source::Stream(mut reader) => volume::read(&mut reader, self.context, &mut write)?,
            Source::Same(from) => {
                let whole = FileOffset::MIN..FileOffset::new(size);
                if size > 0 {
                    filesystem.copy_range(from, whole, location, FileOffset::MIN)?;
                }
                written_to = size;
                written = size;
            }
        }
        if written_to < size {
            filesystem.truncate(location, ByteCount::new(size))?;
        }
        self.totals.bytes = self.totals.bytes.saturating_add(written);
        Ok(())
    }

    /// Owner, attributes, mode and times, in an order in which none undoes another.
    fn finish(&self, location: Location, facts: &Facts) -> Result<()> {
        let filesystem = &self.writing.filesystem;
        let is_link = facts.kind == FileKind::Symlink;
        let owned = AttributeChanges {
            uid: Some(facts.uid),
            gid: Some(facts.gid),
            ..AttributeChanges::default()
        };
        let finished = AttributeChanges {
            mode: (!is_link).then_some(facts.permissions),
            accessed: Some(facts.accessed),
            modified: Some(facts.modified),
            ..AttributeChanges::default()
        };
        if facts.xattrs.is_empty() {
            let all = AttributeChanges {
                uid: owned.uid,
                gid: owned.gid,
                ..finished
            };
            return filesystem
                .set_attributes(location, &all)
                .context("setting its attributes");
        }
        filesystem
            .set_attributes(location, &owned)
            .context("setting its owner")?;
        for Xattr { name, value } in &facts.xattrs {
            filesystem
                .set_xattr(location, name, value, SetXattr::CreateOrReplace)
                .with_context(|| format!("setting its attribute {}", name.escape_ascii()))?;
        }
        filesystem
            .set_attributes(location, &finished)
            .context("setting its attributes")
    }
}
