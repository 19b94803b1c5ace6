//! The subvolumes of a stream, from the command that begins each to the end of the stream.

use super::encoded::Batch;
use super::error::{Error, Problem, Result};
use super::gathered::NewFiles;
use super::keeping::Keeping;
use super::made_names::{CommandPlace, MadeNames};
use super::names::Names;
use super::new_file::NewFile;
use super::notes::Told;
use super::scouting::Scouts;
use super::settling::Directories;
use super::sources::{self, Found};
use super::taken_names::TakenNames;
use super::{Event, Options, ReceivedSubvolume, Summary};
use crate::command::Command;
use crate::decoder::{Decoder, Frame};
use buttress_format::send::Version;
use buttress_format::{ByteCount, Decompressor, Generation, SubvolumeId, Uuid};
use buttress_fs::{Location, Progress};
use buttress_tree::HeldMemory;
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::{AttributeChanges, FinishedSubvolume, Received};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;

/// Largest number of subvolumes in a stream, and of clone sources at a time.
const SUBVOLUMES_MAX: usize = 1024;

/// A subvolume under construction.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) id: SubvolumeId,
    pub(super) name: Vec<u8>,
    pub(super) uuid: Uuid,
    pub(super) transid: Generation,
    /// UUID of the parent subvolume.
    pub(super) parent: Option<Uuid>,
    /// True if the subvolume began as a snapshot and so has content.
    pub(super) has_content: bool,
}

/// State of a receive.
pub(super) struct Receiver<'a> {
    pub(super) filesystem: &'a WritableFilesystem,
    pub(super) directory: Location,
    pub(super) options: &'a Options,
    notify: &'a mut dyn FnMut(&Event<'_>),
    pub(super) sector_bytes: u64,
    pub(super) names: Names,
    /// Names that are pending for their directories.
    pub(super) made_names: MadeNames,
    /// Names that are known to be taken.
    pub(super) taken_names: TakenNames,
    /// The current command.
    pub(super) current: CommandPlace,
    /// Pending attribute changes of one inode, which later commands may extend.
    pub(super) changes: Option<(Location, AttributeChanges)>,
    /// The newest file of the stream, if the receiver has not created it on the volume yet.
    pub(super) new_file: Option<NewFile>,
    /// Earlier files of the stream that the receiver has not created on the volume yet.
    pub(super) new_files: NewFiles,
    /// Pending changes of directories, to apply after `new_files`.
    pub(super) directories: Directories,
    /// Pending extents of one file, which later commands may extend.
    pub(super) batch: Batch,
    pub(super) decompressor: Decompressor,
    /// Subvolume that the current commands change.
    pub(super) making: Option<Making>,
    /// Progress of keeping the subvolume under construction.
    pub(super) keeping: Keeping,
    /// Complete subvolumes of the same stream; they get their names at the end of the stream.
    pub(super) made: Vec<Making>,
    /// Subvolumes that earlier clones used as source, by uuid.
    clone_sources: HashMap<[u8; 16], SubvolumeId>,
    /// Stream offset up to which scouts have read the metadata that commands will change, or are
    /// reading it.
    pub(super) scouted_to: u64,
    pub(super) scouts: Option<Scouts>,
    summary: Summary,
    /// Kinds of notes that the receive has already reported to the caller.
    pub(super) told: Told,
    /// Memory reserved for stream pieces, pending names and files, and writes in flight.
    _memory: HeldMemory,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(
        filesystem: &'a WritableFilesystem,
        directory: Location,
        options: &'a Options,
        notify: &'a mut dyn FnMut(&Event<'_>),
    ) -> Self {
        Self {
            filesystem,
            directory,
            options,
            notify,
            sector_bytes: u64::from(filesystem.view().sector_bytes()),
            names: Names::default(),
            made_names: MadeNames::default(),
            taken_names: TakenNames::default(),
            current: CommandPlace::BEGINNING,
            changes: None,
            new_file: None,
            new_files: NewFiles::default(),
            directories: Directories::default(),
            batch: Batch::default(),
            decompressor: Decompressor::default(),
            making: None,
            keeping: Keeping::default(),
            made: Vec::new(),
            clone_sources: HashMap::new(),
            scouted_to: 0,
            scouts: None,
            summary: Summary::default(),
            told: Told::default(),
            _memory: filesystem.hold_memory(),
        }
    }

    pub(super) fn tell(&mut self, event: &Event<'_>) {
        (self.notify)(event);
    }

    pub(super) fn into_summary(self) -> Summary {
        self.summary
    }

    pub(super) fn receive<R: Read>(&mut self, decoder: &mut Decoder<R>) -> Result<()> {
        if self.options.skip_unknown {
            decoder.skip_unknown();
        }
        loop {
            self.scout(decoder);
            self.note_skipped(decoder);
            let Some(frame) = decoder.next_command()? else {
                self.note_skipped(decoder);
                return Ok(());
            };
            self.note_oddity(&frame);
            self.options.progress.check()?;
            let bytes = ByteCount::of(frame.bytes().len());
            self.options.progress.advance(1, bytes);
            self.summary.commands = self.summary.commands.saturating_add(1);
            self.summary.stream_bytes = self.summary.stream_bytes.saturating_add(bytes);
            if let Err(problem) = self.take_with_room(&frame) {
                self.keeping.is_sure = false;
                self.judge(&frame, problem)?;
            }
            self.keep_on(&frame)?;
        }
    }

    /// Executes one command. If the volume lacks space, it drops subvolumes that earlier streams
    /// deleted, then retries once.
    fn take_with_room(&mut self, frame: &Frame<'_>) -> Result<(), Problem> {
        let taken = self.take(frame);
        let is_full = taken.as_ref().is_err_and(Problem::is_no_space);
        if !is_full
            || self
                .filesystem
                .subvolumes()
                .deleted()
                .map_err(about(b""))?
                .is_empty()
        {
            return taken;
        }
        self.drop_deleted(&self.options.progress).map_err(about(b""))?;
        self.take(frame)
    }

    /// Decides whether the receive continues after a failed command.
    fn judge(&mut self, frame: &Frame<'_>, problem: Problem) -> Result<()> {
        let goes_on = problem.is_of_one_command();
        let error = refused(frame, problem);
        let errors = self.summary.errors.saturating_add(1);
        let most = self.options.errors_max;
        if !goes_on || (most > 0 && errors >= most) {
            return Err(error);
        }
        self.summary.errors = errors;
        (self.notify)(&Event::Skipped(&error));
        Ok(())
    }

    /// Executes one command.
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Problem> {
        self.current = CommandPlace {
            place: frame.place(),
            command: frame.command().kind(),
        };
        if frame.version() > Version::V2 {
            return Err(Problem::Version(frame.version()));
        }
        match *frame.command() {
            Command::Subvolume { path, uuid, transid } => {
                self.end_subvolume()?;
                let name = self.name(path)?;
                (self.notify)(&Event::Subvolume {
                    name: path,
                    uuid,
                    transid,
                });
                let id = self.filesystem.subvolumes().begin().map_err(about(path))?;
                self.begin(Making {
                    id,
                    name,
                    uuid,
                    transid,
                    parent: None,
                    has_content: false,
                })?;
                self.taken_names.add_directory(Location::root_of(id));
                Ok(())
            }
            Command::Snapshot {
                path,
                uuid,
                transid,
                clone_uuid,
                clone_transid,
            } => {
                self.end_subvolume()?;
                let name = self.name(path)?;
                let (parent, parent_uuid) = self.parent(clone_uuid, clone_transid)?;
                (self.notify)(&Event::Snapshot {
                    name: path,
                    uuid,
                    transid,
                    parent,
                });
                let id = self
                    .filesystem
                    .subvolumes()
                    .begin_snapshot(parent)
                    .map_err(about(path))?;
                self.begin(Making {
                    id,
                    name,
                    uuid,
                    transid,
                    parent: Some(parent_uuid),
                    has_content: true,
                })
            }
            Command::End => {
                self.end_subvolume()?;
                self.end_stream()
            }
            _ => {
                let root = match &self.making {
                    Some(making) => Location::root_of(making.id),
                    None => return Err(crate::view::Problem::NoSubvolume.into()),
                };
                let command = self.plain(frame);
                self.apply(root, &command)
            }
        }
    }

    pub(super) fn begin(&mut self, making: Making) -> Result<(), Problem> {
        self.names = Names::default();
        let id = making.id;
        self.making = Some(making);
        self.begin_names(id)
    }

    /// Returns the name of a new subvolume.
    pub(super) fn name(&self, path: &[u8]) -> Result<Vec<u8>, Problem> {
        let is_one_name = buttress_fs::directory::is_valid_name(path);
        if !is_one_name || path.len() > buttress_format::NAME_BYTES_MAX {
            return Err(Problem::Name { name: path.to_vec() });
        }
        if self.made.len() >= SUBVOLUMES_MAX {
            return Err(Problem::TooMany {
                limit: SUBVOLUMES_MAX,
            });
        }
        let present = self
            .filesystem
            .live()
            .lookup(self.directory, path)
            .map_err(about(path))?;
        if present.is_some() || self.made.iter().any(|made| made.name == path) {
            return Err(Problem::Exists { name: path.to_vec() });
        }
        Ok(path.to_vec())
    }

    /// Returns the parent subvolume of a stream, and its own uuid.
    fn parent(&self, uuid: Uuid, transid: Generation) -> Result<(SubvolumeId, Uuid), Problem> {
        let own_uuid = |id: SubvolumeId| {
            let view = self.filesystem.view();
            let item = view.root_item(id.tree()).map_err(about(b""))?;
            Ok::<_, Problem>(item.uuid)
        };
        if let Some(made) = self.made.iter().rev().find(|made| made.uuid == uuid) {
            return Ok((made.id, own_uuid(made.id)?));
        }
        let Found { info, is_original } = self.look_for(uuid)?.ok_or(Problem::ParentMissing { uuid })?;
        // A received parent cannot have changed: it is read-only, or it lost its received uuid when
        // it became writable.
        let is_unchanged = info.is_read_only() || info.root_item.ctransid == transid;
        if is_original && !is_unchanged {
            let path = info.path.unwrap_or_default();
            return Err(Problem::ParentChanged {
                uuid,
                path: OsString::from_vec(path).into(),
            });
        }
        Ok((info.id, info.root_item.uuid))
    }

    fn look_for(&self, uuid: Uuid) -> Result<Option<Found>, Problem> {
        sources::find(&self.filesystem.view(), uuid).map_err(about(b""))
    }

    /// Returns the subvolume to clone from.
    pub(super) fn clone_source(&mut self, uuid: Uuid) -> Result<SubvolumeId, Problem> {
        if let Some(making) = self.making.as_ref().filter(|making| making.uuid == uuid) {
            return Ok(making.id);
        }
        if let Some(id) = self.clone_sources.get(uuid.as_bytes()) {
            return Ok(*id);
        }
        let made = self.made.iter().rev().find(|made| made.uuid == uuid);
        let id = match made {
            Some(made) => made.id,
            None => {
                let found = self.look_for(uuid)?;
                found.ok_or(Problem::CloneSourceMissing { uuid })?.info.id
            }
        };
        if self.clone_sources.len() >= SUBVOLUMES_MAX {
            self.clone_sources.clear();
        }
        self.clone_sources.insert(*uuid.as_bytes(), id);
        Ok(id)
    }

    /// Ends the subvolume that the receiver is filling; no later command changes it.
    fn end_subvolume(&mut self) -> Result<(), Problem> {
        self.flush_all()?;
        self.made_names = MadeNames::default();
        self.made.extend(self.making.take());
        Ok(())
    }

    /// Publishes all subvolumes of the stream durably.
    fn end_stream(&mut self) -> Result<(), Problem> {
        let finished: Vec<FinishedSubvolume> = self
            .made
            .iter()
            .map(|made| FinishedSubvolume {
                id: made.id,
                directory: self.directory,
                name: made.name.clone(),
                parent: made.parent,
                received: Some(Received {
                    uuid: made.uuid,
                    transid: made.transid,
                }),
            })
            .collect();
        let name = self.made.last().map_or(Vec::new(), |made| made.name.clone());
        self.filesystem
            .subvolumes()
            .finish(&finished)
            .map_err(about(&name))?;
        // From this point on, the subvolumes are visible, even if the commit fails.
        let made = core::mem::take(&mut self.made);
        self.clone_sources.clear();
        self.names = Names::default();
        let kept = self.give_up_kept().map_err(about(&name))?;
        self.filesystem.commit().map_err(about(&name))?;
        if kept {
            self.drop_deleted(&Progress::new()).map_err(about(&name))?;
        }
        self.summary
            .subvolumes
            .extend(made.into_iter().map(|made| ReceivedSubvolume {
                id: made.id,
                name: made.name,
                uuid: made.uuid,
                transid: made.transid,
            }));
        Ok(())
    }

    /// Discards all subvolumes of the current stream.
    pub(super) fn discard(&mut self) {
        for made in self.making.take().into_iter().chain(self.made.drain(..)) {
            // If discarding fails, writing has stopped, and the next open drops the subvolume.
            drop(self.filesystem.subvolumes().discard(made.id));
        }
    }

    /// Writes everything pending, because the stream command that ends a subvolume changes nothing
    /// itself.
    pub(super) fn flush_all(&mut self) -> Result<(), Problem> {
        self.make_files()?;
        self.flush_batch()?;
        self.flush_changes()?;
        self.put_names()
    }
}

/// Builds the error of a command. The problem may belong to this command or to an earlier command.
pub(super) fn refused(frame: &Frame<'_>, problem: Problem) -> Error {
    match problem {
        Problem::Filesystem {
            error: error @ buttress_fs::Error::Cancelled,
            ..
        } => Error::Filesystem(error),
        Problem::Earlier {
            place,
            command,
            problem,
        } => Error::Refused {
            place,
            command,
            problem,
        },
        problem => Error::Refused {
            place: frame.place(),
            command: frame.command().kind(),
            problem: Box::new(problem),
        },
    }
}

/// Attaches a path to an error that the volume returned.
pub(super) fn about(path: &[u8]) -> impl Fn(buttress_fs::Error) -> Problem + '_ {
    move |error| Problem::Filesystem {
        path: path.to_vec(),
        error,
    }
}
