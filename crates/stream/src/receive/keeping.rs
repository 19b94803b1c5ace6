//! Keeping the received part of an interrupted stream, and resuming from it.
//!
//! During a receive, the target directory contains a subdirectory `.receive-UUID`, with the uuid of
//! the stream's subvolume. An extended attribute of this directory describes the receive. The
//! directory holds a read-only snapshot of the unfinished subvolume. The snapshot's name states its
//! position in the stream, and no uuid refers to the snapshot. A newer snapshot is durable before
//! the older one is deleted, so after a crash every snapshot found is one consistent position of
//! the stream.
//!
//! A resume makes a new unfinished subvolume as a snapshot of the kept one. When the stream is
//! complete, the directory disappears in the transaction that publishes the subvolume, or in the
//! next transaction.
//!
//! Left out: streams with several subvolumes before their end command. For a stream with several
//! subvolumes, the receiver keeps only the part before the end of the first subvolume.

use super::Options;
use super::error::{Error, Problem, Result};
use super::making::{Making, Receiver, about, refused};
use crate::decoder::{Decoder, Frame, Streams};
use crate::error::Place;
use crate::trail::Trail;
use buttress_format::send::{CommandKind, Version};
use buttress_format::{FileKind, Generation, SubvolumeId, Uuid};
use buttress_fs::directory::DirEntry;
use buttress_fs::{Filesystem, Location, Progress};
use buttress_writer::operations::{FinishedSubvolume, NewInode, SetXattr};
use std::io::Read;

/// Prefix of the names of directories with kept parts.
const PREFIX: &str = ".receive-";

/// Extended attribute that describes the receive.
const XATTR: &[u8] = b"user.buttress.receive";

/// The kept part of an interrupted stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Name that the subvolume gets when the receive is complete.
    pub name: Vec<u8>,
    /// The uuid of the subvolume in the stream.
    pub uuid: Uuid,
    /// Position in the stream; a sender that gets this trail resumes there.
    pub trail: Trail,
    transid: Generation,
    parent: Option<Uuid>,
    version: Version,
    /// Number of the stream in its input; the next field is the number of its next command.
    stream: u64,
    command: u64,
    /// Directory that holds the kept snapshot; the next field is the snapshot.
    holder: Location,
    snapshot: SubvolumeId,
}

/// Progress of keeping during a receive.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// Trail of the executed commands.
    trail: Trail,
    version: Option<Version>,
    stream: u64,
    command: u64,
    /// True if the receive skipped no command and no command failed.
    pub(super) is_sure: bool,
    /// Position of the trail at the last kept snapshot, in bytes.
    kept_bytes: u64,
    /// Directory that holds the kept snapshot.
    holder: Option<Location>,
}

/// Lists the kept parts of interrupted streams in a directory of the volume, one for each stream.
///
/// # Errors
/// The receiver cannot read the volume.
pub fn kept(filesystem: &Filesystem, directory: Location) -> buttress_fs::Result<Vec<Kept>> {
    let mut all = Vec::new();
    for entry in filesystem.read_dir(directory)? {
        let entry = entry?;
        let Some(uuid) = uuid_in(&entry.name).filter(|_| entry.kind == FileKind::Directory) else {
            continue;
        };
        let holder = entry.target;
        if holder.subvolume != directory.subvolume {
            continue;
        }
        let Some(text) = filesystem.xattr(holder, XATTR)? else {
            continue;
        };
        let inside: Vec<DirEntry> = filesystem.read_dir(holder)?.collect::<Result<_, _>>()?;
        let found = inside
            .iter()
            .filter(|entry| entry.target.subvolume != directory.subvolume)
            .filter_map(|entry| Kept::parse(uuid, &text, holder, &entry.name, entry.target.subvolume))
            .max_by_key(|kept| kept.trail.bytes());
        all.extend(found);
    }
    Ok(all)
}

fn uuid_in(name: &[u8]) -> Option<Uuid> {
    let text = core::str::from_utf8(name).ok()?;
    Uuid::parse_str(text.strip_prefix(PREFIX)?).ok()
}

impl Kept {
    /// Parses the extended attribute of the directory and the name of the snapshot.
    fn parse(uuid: Uuid, text: &[u8], holder: Location, place: &[u8], snapshot: SubvolumeId) -> Option<Self> {
        let mut words = text.splitn(4, |byte| *byte == b' ');
        let mut word = || core::str::from_utf8(words.next()?).ok();
        let version = Version::from_raw(word()?.parse().ok()?)?;
        let transid = Generation::new(word()?.parse().ok()?);
        let parent = match word()? {
            "-" => None,
            parent => Some(Uuid::parse_str(parent).ok()?),
        };
        let name = words.next()?.to_vec();
        let place = core::str::from_utf8(place).ok()?;
        let mut numbers = place.split(' ');
        let trail = numbers.next()?.parse().ok()?;
        let mut number = || numbers.next()?.parse().ok();
        let (stream, command) = (number()?, number()?);
        Some(Self {
            name,
            uuid,
            trail,
            transid,
            parent,
            version,
            stream,
            command,
            holder,
            snapshot,
        })
    }

    /// Creates a decoder of an input that begins at the end of the kept part.
    pub(super) fn decoder<R: Read>(&self, input: R, streams: Streams) -> Decoder<R> {
        let place = Place {
            offset: self.trail.bytes(),
            command: self.command,
        };
        Decoder::going_on(input, streams, place, self.stream, self.version)
    }

    /// Decodes and skips the commands of the kept part.
    pub(super) fn pass<R: Read>(&self, decoder: &mut Decoder<R>) -> Result<()> {
        let mut found = Trail::default();
        while found.bytes() < self.trail.bytes()
            && let Some(frame) = decoder.next_command()?
        {
            pass(&mut found, &frame);
        }
        if found == self.trail {
            return Ok(());
        }
        Err(Error::OtherStream {
            kept: self.trail,
            found,
        })
    }
}

/// Advances the trail by a command and, before the first command, by the stream header.
fn pass(trail: &mut Trail, frame: &Frame<'_>) {
    if trail.bytes() < frame.offset() {
        trail.pass_header(frame.version());
    }
    trail.pass_command(frame.bytes(), frame.bytes().len());
}

const fn keeps(options: &Options) -> bool {
    options.keep_every.is_some() || options.resume.is_some()
}

impl Receiver<'_> {
    /// Resumes from the kept part.
    pub(super) fn begin_again(&mut self, kept: &Kept) -> Result<()> {
        let again = |receiver: &mut Self| -> Result<Making, Problem> {
            let name = receiver.name(&kept.name)?;
            let begun = receiver.filesystem.subvolumes().begin_snapshot(kept.snapshot);
            Ok(Making {
                id: begun.map_err(about(&kept.name))?,
                name,
                uuid: kept.uuid,
                transid: kept.transid,
                parent: kept.parent,
                has_content: true,
            })
        };
        let begun = again(self).and_then(|making| self.begin(making));
        begun.map_err(|problem| Error::Refused {
            place: Place {
                offset: kept.trail.bytes(),
                command: kept.command,
            },
            command: match kept.parent {
                None => CommandKind::Subvolume,
                Some(_) => CommandKind::Snapshot,
            },
            problem: Box::new(problem),
        })?;
        self.keeping = Keeping {
            trail: kept.trail,
            version: Some(kept.version),
            stream: kept.stream,
            command: kept.command,
            is_sure: true,
            kept_bytes: kept.trail.bytes(),
            holder: Some(kept.holder),
        };
        Ok(())
    }

    /// Records that a command was executed, and keeps a snapshot at each interval.
    pub(super) fn keep_on(&mut self, frame: &Frame<'_>) -> Result<()> {
        if !keeps(self.options) {
            return Ok(());
        }
        let keeping = &mut self.keeping;
        let begins = matches!(
            frame.command().kind(),
            CommandKind::Subvolume | CommandKind::Snapshot
        );
        keeping.is_sure |= begins && self.made.is_empty();
        pass(&mut keeping.trail, frame);
        keeping.version = Some(frame.version());
        keeping.stream = frame.stream();
        keeping.command = frame.index().saturating_add(1);
        let since = keeping.trail.bytes().saturating_sub(keeping.kept_bytes);
        if self.options.keep_every.is_none_or(|every| since < every.get()) {
            return Ok(());
        }
        self.keep().map_err(|problem| refused(frame, problem))
    }

    /// Keeps a snapshot after the stream ended early. If keeping a new snapshot fails, the previous
    /// snapshot stays.
    pub(super) fn keep_after(&mut self, error: &Error) {
        let was_cut_off = match error {
            Error::Stream(_) | Error::Filesystem(buttress_fs::Error::Cancelled) => true,
            Error::Refused { .. } | Error::Filesystem(_) | Error::OtherStream { .. } => false,
        };
        if was_cut_off && keeps(self.options) {
            drop(self.keep());
        }
    }

    /// Keeps a durable snapshot of the unfinished subvolume.
    fn keep(&mut self) -> Result<(), Problem> {
        let keeping = &self.keeping;
        let (Some(making), Some(version)) = (&self.making, keeping.version) else {
            return Ok(());
        };
        let is_new = keeping.trail.bytes() > keeping.kept_bytes;
        if !keeping.is_sure || !self.made.is_empty() || !is_new {
            return Ok(());
        }
        let (id, uuid) = (making.id, making.uuid);
        let mut text = format!("{} {} ", version.to_raw(), making.transid).into_bytes();
        match making.parent {
            None => text.push(b'-'),
            Some(parent) => text.extend_from_slice(parent.to_string().as_bytes()),
        }
        text.push(b' ');
        text.extend_from_slice(&making.name);
        let place = format!("{} {} {}", keeping.trail, keeping.stream, keeping.command);
        self.flush_all()?;
        let holder = match self.keeping.holder {
            Some(holder) => holder,
            None => self.holder(uuid).map_err(about(b""))?,
        };
        self.keep_snapshot(id, holder, &text, place.as_bytes())
            .map_err(about(b""))?;
        self.keeping.holder = Some(holder);
        self.keeping.kept_bytes = self.keeping.trail.bytes();
        Ok(())
    }

    /// Creates the directory for the kept part, or empties an existing one of an earlier attempt.
    fn holder(&self, uuid: Uuid) -> buttress_fs::Result<Location> {
        let name = format!("{PREFIX}{uuid}");
        if let Some(present) = self.filesystem.live().lookup(self.directory, name.as_bytes())? {
            self.empty(present.target, None)?;
            return Ok(present.target);
        }
        let new = NewInode::of_root(0o700);
        self.filesystem
            .make_directory(self.directory, name.as_bytes(), &new)
    }

    fn keep_snapshot(
        &self,
        of: SubvolumeId,
        holder: Location,
        text: &[u8],
        place: &[u8],
    ) -> buttress_fs::Result<()> {
        let filesystem = self.filesystem;
        filesystem.set_xattr(holder, XATTR, text, SetXattr::CreateOrReplace)?;
        let id = filesystem.subvolumes().begin_snapshot(of)?;
        let finished = FinishedSubvolume {
            id,
            directory: holder,
            name: place.to_vec(),
            parent: None,
            received: None,
        };
        let named = filesystem.subvolumes().finish(&[finished]);
        if named.is_err() {
            drop(filesystem.subvolumes().discard(id));
        }
        named?;
        filesystem.commit()?;
        self.empty(holder, Some(id))?;
        self.drop_deleted(&Progress::new())
    }

    /// Deletes the subvolumes in a directory, except one.
    fn empty(&self, holder: Location, except: Option<SubvolumeId>) -> buttress_fs::Result<()> {
        for entry in self.filesystem.live().list(holder, 0, usize::MAX)? {
            let inside = entry.target.subvolume;
            if inside != holder.subvolume && Some(inside) != except {
                self.filesystem.subvolumes().delete(inside)?;
            }
        }
        Ok(())
    }

    /// Deletes the kept part after the stream is complete. Returns whether a kept part existed.
    pub(super) fn give_up_kept(&mut self) -> buttress_fs::Result<bool> {
        self.keeping.kept_bytes = self.keeping.trail.bytes();
        self.keeping.is_sure = false;
        let Some(holder) = self.keeping.holder.take() else {
            return Ok(false);
        };
        self.empty(holder, None)?;
        let entries = self.filesystem.live().list(self.directory, 0, usize::MAX)?;
        if let Some(entry) = entries.iter().find(|entry| entry.target == holder) {
            self.filesystem.remove_directory(self.directory, &entry.name)?;
        }
        Ok(true)
    }

    /// Drops deleted subvolumes durably. Subvolumes with damage stay; a later delete or sync
    /// reports them.
    pub(super) fn drop_deleted(&self, progress: &Progress) -> buttress_fs::Result<()> {
        match self.filesystem.subvolumes().drop_deleted(progress) {
            Ok(()) | Err(buttress_fs::Error::NotDropped { .. }) => {}
            Err(error) => return Err(error),
        }
        self.filesystem.commit().map(drop)
    }
}
