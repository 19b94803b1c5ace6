//! Copying of files into a volume: from the host ([`host`]), or from another volume or the same one
//! ([`volume`]).
//!
//! [`Inserter`] creates the items of a walk in order: a directory, its entries, and the return to
//! the parent. [`crate::replacing`] defines the treatment of existing files. The copy passes on
//! content in pieces without holes, so sparse files stay sparse and large files need little memory.
//! To preserve hard links, a file is created once, and its further names are linked to it. A
//! directory gets its times after all its entries.
//!
//! If the content of a new file cannot be copied completely, the inserter removes the file. If the
//! volume is full, the inserter tries no further files ([`Inserter::is_over`]), because each would
//! fail in the same way.
//!
//! If the user does not ask to preserve attributes, new files belong to the user of the command,
//! with a mode reduced by the umask, as with `cp -r`.

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

/// Properties of a file to create.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kind of file.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last change of content.
    pub modified: Timestamp,
    /// Number of names of the source file.
    pub links: u32,
    /// Identity that all names of the file share: device or subvolume, and inode.
    pub identity: (u64, u64),
    /// Device number of a device node.
    pub device: Option<DeviceNumber>,
    /// Size of the content in bytes.
    pub size_bytes: u64,
    /// Extended attributes; empty unless they are to be preserved.
    pub xattrs: Vec<Xattr>,
    /// Source inode, if it belongs to the target volume.
    pub origin: Option<Location>,
    /// Inode that a symbolic link of the target volume leads to.
    pub referent: Option<Location>,
}

/// A piece of a file's content.
#[derive(Debug)]
pub struct Piece {
    /// Offset of the piece in the file.
    pub offset: FileOffset,
    /// Content of the piece.
    pub bytes: bytes::Bytes,
}

/// Source of a file's content.
#[derive(Debug)]
pub enum Source {
    /// A file of the host.
    Host(std::fs::File),
    /// A reader of another volume's file.
    Stream(Box<buttress::FileReader>),
    /// A file of the target volume, whose extents are shared.
    Same(Location),
}

/// Builds the error for a directory that the user did not ask to copy.
fn refuse_directory() -> anyhow::Error {
    anyhow::anyhow!("it is a directory").context(Advice::new(
        "to copy directories, give -r, or -a to preserve owners and times too",
    ))
}

/// A directory between the base and the current position.
#[derive(Debug)]
struct Level {
    directory: Location,
    /// Path of the directory, for messages and links.
    path: Vec<u8>,
    /// Attributes that the directory gets when the walk leaves it.
    finish: Option<Facts>,
}

/// A created file with further names to come.
#[derive(Clone, Copy, Debug)]
struct Linked {
    location: Location,
    names_left: u32,
}

/// Inserter of a walk's items.
#[derive(Debug)]
pub struct Inserter<'a> {
    context: &'a Context,
    writing: &'a Writing,
    preserve: Preserve,
    progress: Progress,
    levels: Vec<Level>,
    base: Location,
    /// Path of the base directory.
    base_path: Vec<u8>,
    replacing: Replacing,
    /// Directory and name of the source, if it belongs to the target volume.
    source_entry: Option<(Location, Vec<u8>)>,
    /// Name of the source as the user gave it.
    source_name: String,
    is_full: bool,
    links: HashMap<(u64, u64), Linked>,
    totals: Totals,
}

impl<'a> Inserter<'a> {
    /// Creates an inserter into the directory `base`.
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

    /// Sets the treatment of existing files, and the path of the base, which begins with a slash.
    pub fn replacing(mut self, replacing: Replacing, base_path: Vec<u8>) -> Self {
        self.replacing = replacing;
        self.base_path = base_path;
        self
    }

    /// Sets the user's name of the source and, if it belongs to the target volume, its directory
    /// and name there.
    pub fn source(mut self, name: &str, entry: Option<(Location, Vec<u8>)>) -> Self {
        name.clone_into(&mut self.source_name);
        self.source_entry = entry;
        self
    }

    /// Returns whether the inserter tries no further files: the job was cancelled, or the volume is
    /// full.
    pub fn is_over(&self) -> bool {
        self.is_full || self.progress.is_cancelled()
    }

    /// Returns the counts of created items.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns which attributes the copy preserves.
    pub fn preserve(&self) -> Preserve {
        self.preserve
    }

    fn here(&self) -> Location {
        self.levels.last().map_or(self.base, |level| level.directory)
    }

    /// Returns whether the current position is the item that the user named.
    fn is_top(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns the path of a name in the current directory.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let directory = self.levels.last().map_or(&self.base_path, |level| &level.path);
        absolute(directory, name)
    }

    /// Returns the path of the base, for messages.
    fn base_shown(&self) -> String {
        self.base_path.escape_ascii().to_string()
    }

    /// Returns the path of a name in the current directory, for messages.
    fn shown(&self, name: &[u8]) -> String {
        self.path(name).escape_ascii().to_string()
    }

    /// Returns the source of a name in the current directory, for messages.
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

    /// Enters the directory `name`, and creates it if it does not exist. If no name is given, the
    /// inserter enters the base directory.
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

    /// Leaves the current directory, which gets its attributes.
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

    /// Creates anything but a directory. `target` is the target of a symbolic link, `source` the
    /// content of a file.
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

    /// Converts an error of the volume. If the volume is full, the inserter copies no further
    /// files.
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
            FileKind::Directory | FileKind::Unknown | FileKind::Xattr => bail!("its file type is unknown"),
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

    /// Links to the first name of the file, if it was created.
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

    /// Handles a file whose content could not be copied completely. Removes a new file; for an
    /// existing file, the error states its remaining content.
    fn incomplete(&self, way: Way, name: &[u8], error: anyhow::Error) -> anyhow::Error {
        let Way::Into(location) = way else {
            // If this removal fails as well, the volume is no longer writable, and the first error
            // gives the reason.
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
            "{shown} has only the first {bytes} bytes of the new content; its old content is lost"
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

    /// Sets owner, attributes, mode and times, in an order in which no setting undoes another.
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
