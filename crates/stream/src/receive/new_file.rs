//! A file that was made and is not in the volume yet: small ones are made at once, with content and attributes.
//!
//! What a stream says next is mostly about the file that it has just made. As long as that is so, and the content is not large,
//! it is gathered; the times come last and end it, as does any command about something else. Where names wait, files that are
//! gathered wait for more of them, and are made together: nearly everything but another file ends that. That there is room for
//! the name is seen when the command comes that asks for it, so that an error names that one; any other error that a file has
//! which waited names the command that ended it.

use super::error::Problem;
use super::made_names::CommandPlace;
use super::making::{Receiver, about};
use super::names::Node;
use crate::command::Command;
use buttress_format::FileKind;
use buttress_fs::Location;
use buttress_writer::operations::{self, AttributeChanges, NewInode};

/// The permissions of a bare new file, until the stream gives it others.
const FILE_MODE: u32 = 0o600;

/// How much content a file has at most that is made at once. Of larger ones this is the beginning.
const GATHERED_BYTES_MAX: usize = 256 << 10;

/// How many files are made together at most, and with how much content.
const FILES_MAX: usize = 64;
const FILES_BYTES_MAX: usize = 1 << 20;

/// The usual size of a sector.
const SECTOR_BYTES: usize = 4096;

/// A file to be made.
#[derive(Debug)]
pub(super) struct NewFile {
    root: Location,
    path: Vec<u8>,
    directory: Location,
    name: Vec<u8>,
    attributes: AttributeChanges,
    content: Vec<u8>,
    /// The command that asked for it.
    maker: CommandPlace,
    /// The one that ended it, if that is known.
    ender: Option<CommandPlace>,
}

/// Files that were gathered, and wait to be made.
#[derive(Debug, Default)]
pub(super) struct NewFiles {
    files: Vec<NewFile>,
    content_bytes: usize,
}

impl NewFiles {
    fn is_full(&self) -> bool {
        self.files.len() >= FILES_MAX || self.content_bytes >= FILES_BYTES_MAX
    }

    fn push(&mut self, file: NewFile) {
        self.content_bytes = self.content_bytes.saturating_add(file.content.len());
        self.files.push(file);
    }
}

impl Receiver<'_> {
    /// Begins a file.
    pub(super) fn begin_file(&mut self, root: Location, path: &[u8]) -> Result<(), Problem> {
        let (directory, name) = match self.names.place(self.filesystem, root, path) {
            Err(_) if !self.new_files.files.is_empty() => {
                // The error may be of one of those.
                self.make_files()?;
                self.names.place(self.filesystem, root, path)?
            }
            place => place?,
        };
        // Where names wait, that one is there already is found later.
        if !self.made_names.wait()
            && self
                .filesystem
                .lookup(directory, name)
                .map_err(about(path))?
                .is_some()
        {
            return Err(about(path)(buttress_fs::Error::Exists {
                name: buttress_fs::error::Name::from(name),
            }));
        }
        self.new_file = Some(NewFile {
            root,
            path: path.to_vec(),
            directory,
            name: name.to_vec(),
            attributes: AttributeChanges::default(),
            content: Vec::new(),
            maker: self.current,
            ender: None,
        });
        Ok(())
    }

    /// Whether a path is that of the file that is to be made.
    pub(super) fn is_made_now(&self, root: Location, path: &[u8]) -> bool {
        let file = self.new_file.as_ref();
        file.is_some_and(|file| file.root == root && file.path == path)
    }

    /// Takes what a command says of the file that is to be made; `false`, and that file is made, where it is about anything
    /// else.
    pub(super) fn gather(&mut self, root: Location, command: &Command<'_>) -> Result<bool, Problem> {
        let Some(file) = &mut self.new_file else {
            return Ok(false);
        };
        let is_same = |path: &[u8]| file.root == root && file.path == path;
        match *command {
            Command::Write { path, offset, data }
                if is_same(path)
                    && usize::try_from(offset.get()) == Ok(file.content.len())
                    && file.content.len().saturating_add(data.len()) <= GATHERED_BYTES_MAX =>
            {
                if file.content.is_empty() {
                    // With what fills the last sector, so that nothing is copied again.
                    file.content
                        .reserve_exact(data.len().next_multiple_of(SECTOR_BYTES));
                }
                file.content.extend_from_slice(data);
                Ok(true)
            }
            // A mode that was set before loses bits.
            Command::Chown { path, uid, gid } if is_same(path) && file.attributes.mode.is_none() => {
                let (uid, gid) = super::applying::owner(uid, gid)?;
                (file.attributes.uid, file.attributes.gid) = (Some(uid), Some(gid));
                Ok(true)
            }
            Command::Chmod { path, mode } if is_same(path) => {
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

    /// No more comes for the file that was gathered: it is made, or waits for others.
    fn end_file(&mut self) -> Result<(), Problem> {
        if !self.made_names.wait() {
            return self.make_file();
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

    /// Makes all files that were gathered.
    pub(super) fn make_files(&mut self) -> Result<(), Problem> {
        let mut waiting = core::mem::take(&mut self.new_files).files;
        if waiting.len() > 1 && self.make_together(&mut waiting) {
            return self.make_file();
        }
        let latest = self.new_file.take();
        let mut rest = waiting.into_iter();
        while let Some(file) = rest.next() {
            let ender = file.ender;
            self.new_file = Some(file);
            if let Err(problem) = self.make_file() {
                // What is left is made if room can be.
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

    /// Makes files in one step. False, and none is made, where that cannot be: one by one it is seen which, and why.
    fn make_together(&mut self, files: &mut [NewFile]) -> bool {
        let mut together: Vec<operations::NewFile<'_>> = files
            .iter_mut()
            .map(|file| operations::NewFile {
                directory: file.directory,
                name: &file.name,
                attributes: file.attributes,
                content: &mut file.content,
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

    /// Makes the file that was begun last.
    fn make_file(&mut self) -> Result<(), Problem> {
        let Some(mut file) = self.new_file.take() else {
            return Ok(());
        };
        let new = NewInode::of_root(FILE_MODE);
        let made = self
            .filesystem
            .create_whole(
                file.directory,
                &file.name,
                &new,
                &file.attributes,
                &mut file.content,
            )
            .map_err(about(&file.path));
        match made {
            Ok(location) => {
                let node = Node {
                    location,
                    kind: FileKind::Regular,
                };
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
                    // It is tried again if room can be made.
                    self.new_file = Some(file);
                }
                Err(problem)
            }
        }
    }
}
