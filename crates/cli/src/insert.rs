//! Files into a volume: from the host ([`host`]), from another volume or the same one ([`volume`]).
//!
//! [`Inserter`] makes what it is told of, in the order of a walk: a directory, what it holds, and the way back up. What
//! becomes of what is there already, [`crate::replacing`] says. Content comes in pieces with holes left out, so that sparse
//! files stay sparse and large ones need no memory. Where names of one file are to stay that, it is made once and linked
//! to. Directories get their times when everything in them is made.
//!
//! A file whose content could not be copied is not left behind in part, if it was new. When the volume is full, nothing more
//! is tried ([`Inserter::is_over`]): every further file would fail in the same way.
//!
//! Unless all is to be preserved, what is made belongs to who runs the command, with a mode that its umask lessens, as
//! `cp -r` does it on a mounted volume.

pub mod host;
mod replacing;
pub mod volume;

use std::cell::Cell;
use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use buttress::unstable::writer_of;
use buttress::{
    AttributeChanges, ByteCount, DeviceNumber, Error, ErrorKind, FileKind, FileOffset, Location, NewInode,
    NodeKind, Progress, SetXattr, Timestamp, Xattr,
};

use crate::context::Context;
use crate::exit::Advice;
use crate::extract::{Preserve, Totals};
use crate::opening::absolute;
use crate::replacing::{Replacing, non_directory_in_the_way};
use crate::writing::Writing;

use replacing::Way;

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
    /// The inode itself, where it is one of the volume that is being changed.
    pub origin: Option<Location>,
    /// What a symbolic link of that volume leads to.
    pub referent: Option<Location>,
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
    Stream(Box<buttress::FileReader>),
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
    /// Its path, for messages and links.
    path: Vec<u8>,
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
    /// The path of the base.
    base_path: Vec<u8>,
    replacing: Replacing,
    /// Where in the volume that is being changed the copied name stands.
    source_entry: Option<(Location, Vec<u8>)>,
    /// What the user calls the source.
    source_name: String,
    is_full: bool,
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
            base_path: Vec::new(),
            replacing: Replacing {
                by_others: true,
                keep_links: preserve.all(),
                ..Replacing::default()
            },
            source_entry: None,
            source_name: String::new(),
            is_full: false,
            links: HashMap::new(),
            totals: Totals::default(),
        }
    }

    /// What becomes of what is there already, with the path of the base, which begins with a slash.
    pub fn replacing(mut self, replacing: Replacing, base_path: Vec<u8>) -> Self {
        self.replacing = replacing;
        self.base_path = base_path;
        self
    }

    /// What the user calls the source, and, in the volume that is being changed, where it stands.
    pub fn source(mut self, name: &str, entry: Option<(Location, Vec<u8>)>) -> Self {
        name.clone_into(&mut self.source_name);
        self.source_entry = entry;
        self
    }

    /// Whether nothing more is to be tried: the job was cancelled, or the volume is full.
    pub fn is_over(&self) -> bool {
        self.is_full || self.progress.is_cancelled()
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

    /// Whether it stands at what the user named.
    fn is_top(&self) -> bool {
        self.levels.is_empty()
    }

    /// The path of a name here.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let directory = self.levels.last().map_or(&self.base_path, |level| &level.path);
        absolute(directory, name)
    }

    /// The path of the base, for messages.
    fn base_shown(&self) -> String {
        self.base_path.escape_ascii().to_string()
    }

    /// The same, for messages.
    fn shown(&self, name: &[u8]) -> String {
        self.path(name).escape_ascii().to_string()
    }

    /// What is copied under a name here, for messages.
    fn source_shown(&self, name: &[u8]) -> String {
        if self.is_top() {
            return self.source_name.clone();
        }
        let base = self.levels.first().map_or(0, |level| level.path.len());
        let path = self.path(name);
        let below = path.get(base..).unwrap_or_default();
        format!("{}{}", self.source_name, below.escape_ascii())
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
                path: self.base_path.clone(),
                finish: self.preserve.all().then_some(facts),
            });
            return Ok(());
        };
        let parent = self.here();
        let filesystem = self.writing.volume();
        let made = filesystem.create_dir(parent, name, &self.new_inode(&facts));
        let directory = match made {
            Ok(directory) => directory,
            Err(error) if error.kind() == ErrorKind::Exists => {
                let entry = filesystem.lookup(parent, name)?;
                match entry.filter(|entry| entry.kind == FileKind::Directory) {
                    Some(entry) => entry.target,
                    None => {
                        return Err(non_directory_in_the_way(
                            &self.shown(name),
                            &self.source_shown(name),
                        ));
                    }
                }
            }
            Err(error) => return Err(self.failed(error)),
        };
        self.totals.directories = self.totals.directories.saturating_add(1);
        self.progress.advance(1, ByteCount::ZERO);
        let path = self.path(name);
        self.levels.push(Level {
            directory,
            path,
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
                ..
            }) => self.finish(directory, &facts),
            _ => Ok(()),
        }
    }

    /// Makes anything but a directory. `target` is where a link leads to, `source` the content of a file.
    pub fn make(&mut self, name: &[u8], facts: &Facts, target: &[u8], source: Option<Source>) -> Result<()> {
        if self.link_to_earlier(name, facts)? {
            return Ok(());
        }
        let way = self.way(name, facts)?;
        if way == Way::Closed {
            return Ok(());
        }
        let made = self.make_at(way, name, facts, target, source);
        made.inspect_err(|error| {
            self.is_full |= error
                .downcast_ref::<Error>()
                .is_some_and(|error| error.kind() == ErrorKind::NoSpace);
        })
    }

    /// An error of the volume. When it is full, nothing more is tried.
    fn failed(&mut self, error: Error) -> anyhow::Error {
        self.is_full |= error.kind() == ErrorKind::NoSpace;
        error.into()
    }

    fn make_at(
        &mut self,
        way: Way,
        name: &[u8],
        facts: &Facts,
        target: &[u8],
        source: Option<Source>,
    ) -> Result<()> {
        let directory = self.here();
        let new = self.new_inode(facts);
        let filesystem = self.writing.volume();
        let number = facts.device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
        let node = |kind| filesystem.create_node(directory, name, &new, kind);
        let location = match facts.kind {
            FileKind::Regular => match way {
                Way::Into(location) => {
                    filesystem.open_file(location)?.set_size(ByteCount::ZERO)?;
                    location
                }
                Way::Free | Way::Closed => filesystem.create_file(directory, name, &new)?,
            },
            FileKind::Symlink => filesystem.create_symlink(directory, name, &new, target)?,
            FileKind::CharacterDevice => node(NodeKind::CharacterDevice(number))?,
            FileKind::BlockDevice => node(NodeKind::BlockDevice(number))?,
            FileKind::Fifo => node(NodeKind::Fifo)?,
            FileKind::Socket => node(NodeKind::Socket)?,
            FileKind::Directory | FileKind::Unknown | FileKind::Xattr => bail!("it is no kind of file"),
        };
        if let Some(source) = source {
            if let Err(error) = self.fill(location, facts, source) {
                return Err(self.incomplete(way, name, error));
            }
            self.totals.files = self.totals.files.saturating_add(1);
        } else {
            self.totals.others = self.totals.others.saturating_add(1);
        }
        self.progress.advance(1, ByteCount::ZERO);
        if facts.links > 1 && self.replacing.keep_links {
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
        if facts.links < 2 || !self.replacing.keep_links {
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
        match self.way_for_link(name, location)? {
            None => {}
            Some(Way::Closed) => return Ok(true),
            Some(_) => self
                .writing
                .volume()
                .link(location, directory, name)
                .map_err(|error| self.failed(error))?,
        }
        self.totals.hard_links = self.totals.hard_links.saturating_add(1);
        self.progress.advance(1, ByteCount::ZERO);
        Ok(true)
    }

    /// The content could not be copied, or not all of it. A new file goes again; of one that was there it is said what is
    /// left.
    fn incomplete(&self, way: Way, name: &[u8], error: anyhow::Error) -> anyhow::Error {
        let Way::Into(location) = way else {
            // Where not even that is possible, the volume is not written any more, and the first error says why.
            let _ = self.writing.volume().unlink(self.here(), name);
            return error;
        };
        let bytes = self
            .writing
            .volume()
            .metadata(location)
            .map_or(0, |found| found.size.get());
        let shown = self.shown(name);
        error.context(format!(
            "{shown} has only the first {bytes} bytes of the new content, and lost its old one"
        ))
    }

    fn fill(&mut self, location: Location, facts: &Facts, source: Source) -> Result<()> {
        let size = facts.size_bytes;
        let filesystem = writer_of(self.writing.volume());
        let mut written_to = 0;
        let mut written = 0u64;
        let progress = &self.progress;
        // Distinguishes an error of a read from an error of the volume, which may be full.
        let is_read = Cell::new(true);
        let mut write = |piece: Piece| -> Result<()> {
            is_read.set(false);
            filesystem
                .write_at(location, piece.offset, &piece.bytes)
                .map_err(Error::from)?;
            let length = ByteCount::of(piece.bytes.len());
            written_to = piece.offset.get().saturating_add(length.get());
            written = written.saturating_add(length.get());
            progress.advance(0, length);
            progress.check()?;
            is_read.set(true);
            Ok(())
        };
        match source {
            Source::Host(file) => {
                let read = host::read(&file, size, &mut write);
                read.map_err(|error| {
                    if is_read.get() {
                        error.context("reading it")
                    } else {
                        error
                    }
                })?;
            }
            Source::Stream(mut reader) => volume::read(&mut reader, self.context, &mut write)?,
            Source::Same(from) => {
                let whole = FileOffset::MIN..FileOffset::new(size);
                if size > 0 {
                    filesystem
                        .copy_range(from, whole, location, FileOffset::MIN)
                        .map_err(Error::from)?;
                }
                written_to = size;
                written = size;
            }
        }
        if written_to < size {
            filesystem
                .truncate(location, ByteCount::new(size))
                .map_err(Error::from)?;
        }
        self.totals.bytes = self.totals.bytes.saturating_add(written);
        Ok(())
    }

    /// Owner, attributes, mode and times, in an order in which none undoes another.
    fn finish(&self, location: Location, facts: &Facts) -> Result<()> {
        let filesystem = self.writing.volume();
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
