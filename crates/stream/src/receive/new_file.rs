//! A new inode that is not in the volume yet: small files are made at once, with content and attributes.
//!
//! Most commands after a new inode concern this inode. The receiver gathers such commands while the
//! content is small. A command that sets times ends the pending inode, as does a command about
//! another inode. If names wait, gathered files wait for more files and are made together; nearly
//! every other command ends this. Each command that makes a name checks that the name fits, so the
//! error names this command. Any other error of a pending file names the command that ended the
//! file.
//!
//! Linux makes every inode under a made-up name and renames it. If new names are pending, the name
//! [settles](super::settling) before the inode is made.

use super::error::Problem;
use super::made_names::CommandPlace;
use super::making::{Receiver, about};
use super::names::Node;
use crate::command::Command;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileKind};
use buttress_fs::Location;
use buttress_fs::executor::Task;
use buttress_writer::data::EncodedExtent;
use buttress_writer::operations::{self, AttributeChanges, NewInode, NodeKind};

/// The permissions of a new file or directory until a command of the stream changes them.
pub(super) const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Largest content of a file that is created in one operation, in bytes. The receiver gathers only
/// the first part of a larger file.
const GATHERED_BYTES_MAX: usize = 256 << 10;
/// Largest number of gathered extents of a file.
const GATHERED_EXTENTS_MAX: usize = 256;

/// The usual size of a sector in bytes.
const SECTOR_BYTES: usize = 4096;

/// The kind of a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NewKind {
    File,
    Directory,
    /// An inode with these permissions.
    Node(NodeKind, u32),
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
}

impl NewKind {
    const fn file_kind(&self) -> FileKind {
        match self {
            Self::File => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Node(NodeKind::Fifo, _) => FileKind::Fifo,
            Self::Node(NodeKind::Socket, _) => FileKind::Socket,
            Self::Node(NodeKind::CharacterDevice(_), _) => FileKind::CharacterDevice,
            Self::Node(NodeKind::BlockDevice(_), _) => FileKind::BlockDevice,
            Self::Symlink(_) => FileKind::Symlink,
        }
    }
}

/// A pending inode: a file or, if its name may settle, any other inode.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) root: Location,
    pub(super) path: Vec<u8>,
    pub(super) directory: Location,
    pub(super) name: Vec<u8>,
    pub(super) kind: NewKind,
    /// No other inode had the file's name when the receiver chose its final name.
    pub(super) is_settled: bool,
    attributes: AttributeChanges,
    content: Vec<u8>,
    /// Content that is stored encoded, in place of `content`.
    encoded: Vec<EncodedExtent>,
    /// Sum of the stored bytes of `encoded`.
    encoded_bytes: usize,
    /// Pending checks by index in `encoded`: an extent ends in part of a sector, and only zeros may follow there.
    checks: Vec<(usize, Task<bool>)>,
    /// Index in `encoded` of the first extent that must be decoded.
    decoded_from: usize,
    /// Command that created the inode.
    maker: CommandPlace,
    /// Command that ended the gathering of commands for this inode, if it is known.
    ender: Option<CommandPlace>,
}

impl NewFile {
    /// Begins a pending inode without attributes and content.
    fn begin(
        (root, path): (Location, &[u8]),
        (directory, name): (Location, Vec<u8>),
        kind: NewKind,
        maker: CommandPlace,
    ) -> Self {
        Self {
            root,
            path: path.to_vec(),
            directory,
            name,
            kind,
            is_settled: false,
            attributes: AttributeChanges::default(),
            content: Vec::new(),
            encoded: Vec::new(),
            encoded_bytes: 0,
            checks: Vec::new(),
            decoded_from: usize::MAX,
            maker,
            ender: None,
        }
    }

    /// Returns the memory of the pending content in bytes.
    pub(super) fn content_bytes(&self) -> usize {
        self.content.len().exact_add(self.encoded_bytes)
    }

    /// Returns the offset at which the pending content ends.
    fn end(&self) -> u64 {
        match self.encoded.last() {
            Some(last) => last.offset.get().saturating_add(last.length.get()),
            None => ByteCount::of(self.content.len()).get(),
        }
    }

    /// Returns whether the pending inode is a file and has this path.
    pub(super) fn is_file(&self, root: Location, path: &[u8]) -> bool {
        self.kind == NewKind::File && self.root == root && self.path == path
    }

    /// Appends an extent. Returns its index, or `None` if the extent does not fit. An extent without
    /// stored bytes never fits: no volume can store it, so its own command reports the error.
    pub(super) fn push_encoded(&mut self, extent: EncodedExtent) -> Option<usize> {
        let number = self.encoded.len();
        let bytes = self.encoded_bytes.exact_add(extent.stored.len());
        let has_room = number < GATHERED_EXTENTS_MAX && bytes <= GATHERED_BYTES_MAX;
        let follows = self.content.is_empty() && extent.offset.get() >= self.end();
        if !has_room || !follows || extent.stored.is_empty() {
            return None;
        }
        self.encoded_bytes = bytes;
        self.encoded.push(extent);
        Some(number)
    }

    /// Adds a check of the extent with this index. If the check returns true, the extent can be
    /// stored encoded.
    pub(super) fn check_later(&mut self, number: usize, check: Task<bool>) {
        self.checks.push((number, check));
    }

    /// Waits for the checks of encoded extents. Returns whether all extents can be stored encoded.
    fn are_storable(&mut self) -> bool {
        for (number, check) in self.checks.drain(..) {
            if check.take() != Ok(true) {
                self.decoded_from = self.decoded_from.min(number);
            }
        }
        self.decoded_from >= self.encoded.len()
    }
}

impl Receiver<'_> {
    /// Begins a pending file.
    pub(super) fn begin_file(&mut self, root: Location, path: &[u8]) -> Result<(), Problem> {
        self.begin_new(root, path, NewKind::File)
    }

    /// Begins a pending inode.
    pub(super) fn begin_new(&mut self, root: Location, path: &[u8], kind: NewKind) -> Result<(), Problem> {
        let (directory, name) = match self.names.place(self.filesystem, root, path) {
            Err(_) if !self.new_files.files.is_empty() => {
                // The error may belong to one of the gathered files.
                self.make_files()?;
                self.names.place(self.filesystem, root, path)?
            }
            place => place?,
        };
        // If names are pending, their later insertion detects an existing name.
        if !self.made_names.wait()
            && self
                .filesystem
                .live()
                .lookup(directory, name)
                .map_err(about(path))?
                .is_some()
        {
            return Err(about(path)(buttress_fs::Error::Exists {
                name: buttress_fs::error::Name::from(name),
            }));
        }
        let name = name.to_vec();
        self.made_name_in(directory);
        let named = (directory, name);
        self.new_file = Some(NewFile::begin((root, path), named, kind, self.current));
        Ok(())
    }

    /// Returns whether a path is that of the pending file.
    pub(super) fn is_made_now(&self, root: Location, path: &[u8]) -> bool {
        let file = self.new_file.as_ref();
        file.is_some_and(|file| file.root == root && file.path == path)
    }

    /// Applies a command to the pending file. For a command about anything else, it creates the
    /// pending file and returns `false`.
    pub(super) fn gather(&mut self, root: Location, command: &Command<'_>) -> Result<bool, Problem> {
        match *command {
            Command::Rename { from, to } if self.is_made_now(root, from) && self.settle(to) => {
                return Ok(true);
            }
            Command::EncodedWrite { path, .. }
                if self.is_made_now(root, path) && self.gather_encoded(root, command)? =>
            {
                return Ok(true);
            }
            _ => {}
        }
        let Some(file) = &mut self.new_file else {
            return Ok(false);
        };
        let is_file = file.kind == NewKind::File;
        let is_symlink = matches!(file.kind, NewKind::Symlink(_));
        let is_same = |path: &[u8]| file.root == root && file.path == path;
        match *command {
            Command::Write { path, offset, data }
                if is_same(path)
                    && is_file
                    && file.encoded.is_empty()
                    && usize::try_from(offset.get()) == Ok(file.content.len())
                    && file.content.len().saturating_add(data.len()) <= GATHERED_BYTES_MAX =>
            {
                if file.content.is_empty() {
                    // Reserve space for the zeros that fill the last sector, so that growing does
                    // not copy the content again.
                    file.content
                        .reserve_exact(data.len().next_multiple_of(SECTOR_BYTES));
                }
                file.content.extend_from_slice(data);
                Ok(true)
            }
            Command::Truncate { path, size } if is_same(path) && is_file && size.get() == file.end() => {
                Ok(true)
            }
            // Changing the owner clears bits of a mode that was set before.
            Command::Chown { path, uid, gid } if is_same(path) && file.attributes.mode.is_none() => {
                let (uid, gid) = super::applying::owner(uid, gid)?;
                (file.attributes.uid, file.attributes.gid) = (Some(uid), Some(gid));
                Ok(true)
            }
            Command::Chmod { path, mode } if is_same(path) && !is_symlink => {
                file.attributes.mode = Some(super::applying::permissions(mode));
                Ok(true)
            }
            Command::Utimes {
                path,
                atime,
                mtime,
                ctime,
                otime,
            } if is_same(path) => {
                let attributes = &mut file.attributes;
                (attributes.accessed, attributes.modified) = (Some(atime), Some(mtime));
                (attributes.changed, attributes.created) = (Some(ctime), otime.or(attributes.created));
                self.end_file()?;
                Ok(true)
            }
            _ => {
                self.end_file()?;
                Ok(false)
            }
        }
    }

    /// Ends the gathering of the pending file: creates the file, or adds it to the gathered files.
    fn end_file(&mut self) -> Result<(), Problem> {
        let is_file = self
            .new_file
            .as_ref()
            .is_some_and(|file| file.kind == NewKind::File);
        if !self.made_names.wait() || !is_file {
            return self.make_files();
        }
        if let Some(mut file) = self.new_file.take() {
            file.ender = Some(self.current);
            self.new_files.push(file);
        }
        match self.new_files.is_full() {
            true => self.make_files(),
            false => Ok(()),
        }
    }

    /// Makes all gathered inodes, then sets the pending times of directories.
    pub(super) fn make_files(&mut self) -> Result<(), Problem> {
        self.make_new()?;
        self.settle_directories()
    }

    fn make_new(&mut self) -> Result<(), Problem> {
        let mut waiting = core::mem::take(&mut self.new_files).files;
        let are_encoded = waiting.iter().any(|file| !file.encoded.is_empty());
        if (waiting.len() > 1 || are_encoded) && self.make_together(&mut waiting) {
            return self.make_file();
        }
        let latest = self.new_file.take();
        let mut rest = waiting.into_iter();
        while let Some(file) = rest.next() {
            let ender = file.ender;
            self.new_file = Some(file);
            if let Err(problem) = self.make_file() {
                // If the caller can free space, it creates the remaining files.
                for file in self.new_file.take().into_iter().chain(rest) {
                    self.new_files.push(file);
                }
                self.new_file = latest;
                return Err(match (ender, problem) {
                    (None, problem) | (_, problem @ Problem::Earlier { .. }) => problem,
                    (Some(ender), problem) => ender.had(problem),
                });
            }
        }
        self.new_file = latest;
        self.make_file()
    }

    /// Creates the gathered files in one operation. If creating all files at once fails, it creates
    /// none and returns false; the caller then creates the files one by one to find the failing
    /// file.
    fn make_together(&mut self, files: &mut [NewFile]) -> bool {
        if !files.iter_mut().all(NewFile::are_storable) {
            return false;
        }
        let mut together: Vec<operations::NewFile<'_>> = files
            .iter_mut()
            .map(|file| operations::NewFile {
                directory: file.directory,
                name: &file.name,
                attributes: file.attributes,
                content: &mut file.content,
                encoded: &file.encoded,
            })
            .collect();
        let new = NewInode::of_root(FILE_MODE);
        let Ok(locations) = self.filesystem.create_many(&new, &mut together) else {
            return false;
        };
        drop(together);
        for file in files.iter() {
            self.note_name(file.directory, &file.name, file.maker);
        }
        if let Some((file, location)) = files.last().zip(locations.last()) {
            let node = Node {
                location: *location,
                kind: FileKind::Regular,
            };
            self.names.remember(file.root, &file.path, node);
        }
        true
    }

    /// Creates the file that began last.
    fn make_file(&mut self) -> Result<(), Problem> {
        let Some(mut file) = self.new_file.take() else {
            return Ok(());
        };
        let attributes = &file.attributes;
        let node = |mode: u32, kind: operations::NewKind<'_>| {
            let new = NewInode::of_root(mode);
            self.filesystem
                .make_with(file.directory, &file.name, &new, kind, attributes)
        };
        if !file.encoded.is_empty() {
            file.are_storable();
            let made = self.make_encoded(&file);
            return self.made(file, made);
        }
        let made = match &file.kind {
            NewKind::File => self.filesystem.create_whole(
                file.directory,
                &file.name,
                &NewInode::of_root(FILE_MODE),
                attributes,
                &mut file.content,
            ),
            NewKind::Directory => node(DIRECTORY_MODE, operations::NewKind::Directory),
            NewKind::Node(kind, mode) => node(*mode, operations::NewKind::Node(*kind)),
            NewKind::Symlink(target) => node(0o777, operations::NewKind::Symlink(target)),
        };
        let made = made.map_err(about(&file.path));
        self.made(file, made)
    }

    /// Records the outcome of creating a file.
    fn made(&mut self, file: NewFile, made: Result<Location, Problem>) -> Result<(), Problem> {
        match made {
            Ok(location) => {
                let node = Node {
                    location,
                    kind: file.kind.file_kind(),
                };
                if node.kind == FileKind::Directory {
                    self.names.insert(file.directory, &file.name, node);
                    self.taken_names.add_directory(location);
                }
                self.names.remember(file.root, &file.path, node);
                self.note_name(file.directory, &file.name, file.maker);
                Ok(())
            }
            Err(
                problem @ Problem::Filesystem {
                    error: buttress_fs::Error::Exists { .. },
                    ..
                },
            ) => Err(file.maker.had(problem)),
            Err(problem) => {
                if problem.is_no_space() {
                    // The caller may free space and retry.
                    self.new_file = Some(file);
                    return Err(problem);
                }
                // Any other error of an inode that is not a file concerns the command that created
                // the inode.
                Err(match file.kind {
                    NewKind::File => problem,
                    _ => file.maker.had(problem),
                })
            }
        }
    }

    /// Creates a file whose encoded content the volume may be unable to store encoded.
    fn make_encoded(&mut self, file: &NewFile) -> Result<Location, Problem> {
        let new = NewInode::of_root(FILE_MODE);
        let location = self
            .filesystem
            .create(file.directory, &file.name, &new)
            .map_err(about(&file.path))?;
        let (stored, decoded) = file.encoded.split_at(file.decoded_from.min(file.encoded.len()));
        let filled = self.fill(location, stored, decoded).and_then(|()| {
            self.filesystem
                .set_attributes(location, &file.attributes)
                .map_err(about(&file.path))
        });
        if filled.is_err() {
            // The caller may free space and create the file again.
            self.filesystem
                .unlink(file.directory, &file.name)
                .map_err(about(&file.path))?;
        }
        filled.map(|()| location)
    }

    fn fill(
        &mut self,
        location: Location,
        stored: &[EncodedExtent],
        decoded: &[EncodedExtent],
    ) -> Result<(), Problem> {
        if !stored.is_empty() {
            self.write_extents(location, stored)?;
        }
        decoded
            .iter()
            .try_for_each(|extent| self.write_decoded(location, extent))
    }
}

#[cfg(test)]
mod tests;
