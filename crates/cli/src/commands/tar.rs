//! `buttress tar IMAGE:/directory`: writes a directory tree as a tar archive to standard output.
//!
//! The members are those of `tar -C directory -c .`: `./`, then everything below, directories
//! before their entries, in directory order. The archive contains all attributes that btrfs has:
//! see [`crate::pax`]. Sockets cannot be archived; they are skipped with a warning, as in GNU tar.
//!
//! Reading and writing overlap: the walk reads ahead on its threads, and another thread writes to
//! the pipe. Unreadable ranges of a damaged file become zeros, so the archive stays readable. The
//! command reports unreadable ranges and exits with 1.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use buttress::{
    Content, FileKind, FileReader, Follow, Progress, RangeKind, Timestamp, WalkEntry, WalkItem, WalkOptions,
};
use clap::{Args, ValueEnum};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::generation;
use crate::output::destination::{Destination, named, refuse_terminal};
use crate::output::json::written_file;
use crate::output::writer_thread::WriterThread;
use crate::pax::{Archive, DataMap, Kind, Member, Time};
use crate::progress::Watch;
use crate::table::Subcommand;
use crate::target::Target;

/// Largest number of data ranges of a sparse member. Files with more data ranges than this are
/// stored whole, because the map must be known before the first byte.
const RANGES_MAX: usize = 1 << 20;

/// Write a directory tree to standard output as a tar archive (pax format)
#[derive(Args, Debug)]
pub struct Tar {
    /// Write to this file, not to standard output
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Do not descend into nested subvolumes
    #[arg(long)]
    one_file_system: bool,
    /// Leave out extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Times to record, with nanoseconds
    #[arg(long, value_name = "WHICH", default_value = "all")]
    times: Times,
    /// Files and directories to archive
    #[arg(value_name = "IMAGE[:/path]")]
    source: OsString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Times {
    /// Modification, access and change times
    All,
    /// Preserve modification times only.
    Mtime,
}

impl Subcommand for Tar {
    const NAME: &'static str = "tar";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress tar backup.img:/home | tar -t",
            "Lists the archive of a directory tree with GNU tar",
        ),
        example(
            "buttress tar -f home.tar backup.img:/home",
            "Writes an archive file; a failure leaves no partial file",
        ),
    ];

    fn writes_contents(&self) -> bool {
        named(self.file.as_deref()).is_none()
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = generation::parsed(context, &self.source);
        refuse_terminal(self.file.as_deref(), "an archive")?;
        let (opened, start) = context.open_target(&target, Follow::All)?;
        let out = Destination::open(context, self.file.as_deref())?;
        let options = WalkOptions {
            one_file_system: self.one_file_system,
            ..WalkOptions::default()
        };
        let watch = Watch::start(context, "tar", options.progress.clone());
        let mut archive = Archiver {
            command: &self,
            context,
            target: &target,
            start_name: target
                .path
                .rsplit(|byte| *byte == b'/')
                .find(|name| !name.is_empty())
                .unwrap_or(b"root"),
            archive: Archive::new(WriterThread::new(out)),
            progress: options.progress.clone(),
        };
        let progress = options.progress.clone();
        for item in opened.volume().walk(start, options) {
            match item {
                WalkItem::Entry(entry) => archive.add(*entry)?,
                WalkItem::Failed(error) => {
                    context.lost(&target.name_in(error));
                }
                WalkItem::Enter(_) | WalkItem::Leave(_) => {}
            }
        }
        archive.archive.finish()?.finish()?.finish()?;
        watch.end();
        if let Some(file) = named(self.file.as_deref()).filter(|_| context.json()) {
            context.print_json("tar", written_file(file, &progress.snapshot()))?;
        }
        Ok(Outcome::Done)
    }
}

struct Archiver<'a> {
    command: &'a Tar,
    context: &'a Context,
    target: &'a Target,
    /// Name of the member if the walk begins at a file.
    start_name: &'a [u8],
    archive: Archive<WriterThread<Destination>>,
    progress: Progress,
}

impl Archiver<'_> {
    fn add(&mut self, mut entry: WalkEntry) -> Result<()> {
        let metadata = entry.metadata().clone();
        let path = self.member_path(&entry);
        let kind = metadata.kind;
        let device = metadata.device.map_or((0, 0), |device| {
            (u64::from(device.major), u64::from(device.minor))
        });
        let link_path = entry.hard_link.as_deref().map(|first| [b"./", first].concat());
        let target = match kind {
            FileKind::Symlink => match entry.link_target() {
                Ok(target) => target,
                Err(error) => {
                    self.lost(&path, error);
                    return Ok(());
                }
            },
            _ => Vec::new(),
        };
        let mut content = None;
        let map;
        let member_kind = match (kind, &link_path) {
            (FileKind::Directory, _) => Kind::Directory,
            (FileKind::Socket, _) => {
                self.context
                    .warn(format!("{}: socket ignored", path.escape_ascii()));
                return Ok(());
            }
            (_, Some(first)) => Kind::HardLink { target: first },
            (FileKind::Regular, None) => {
                let reader = match entry.reader() {
                    Ok(reader) => reader,
                    Err(error) => {
                        self.lost(&path, error);
                        return Ok(());
                    }
                };
                map = self.data_map(&entry, &reader, &path);
                content = Some(reader);
                match &map {
                    Some(map) => Kind::SparseFile { map },
                    None => Kind::File {
                        size_bytes: metadata.size.get(),
                    },
                }
            }
            (FileKind::Symlink, None) => Kind::Symlink { target: &target },
            (FileKind::CharacterDevice, None) => Kind::CharacterDevice {
                major: device.0,
                minor: device.1,
            },
            (FileKind::BlockDevice, None) => Kind::BlockDevice {
                major: device.0,
                minor: device.1,
            },
            (FileKind::Fifo, None) => Kind::Fifo,
            (FileKind::Unknown | FileKind::Xattr, None) => {
                let error = anyhow::anyhow!("mode {:o} has no valid file type", metadata.mode);
                self.context.lost(&error.context(format!(
                    "{}: {}",
                    self.target.display(),
                    path.escape_ascii()
                )));
                return Ok(());
            }
        };
        let xattrs: Vec<(&[u8], &[u8])> = match self.command.no_xattrs || link_path.is_some() {
            true => Vec::new(),
            false => entry
                .xattrs()
                .iter()
                .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()))
                .collect(),
        };
        let further = self.command.times == Times::All;
        let member = Member {
            path: &path,
            kind: member_kind,
            permissions: metadata.permissions(),
            uid: metadata.uid,
            gid: metadata.gid,
            modified: time(metadata.modified),
            accessed: further.then(|| time(metadata.accessed)),
            changed: further.then(|| time(metadata.changed)),
            xattrs: &xattrs,
        };
        self.archive.begin(&member)?;
        if let Some(reader) = content {
            self.copy(reader, &path)?;
        }
        Ok(self.archive.end()?)
    }

    /// Returns `./` and the path from the start of the walk; a directory's path ends with a slash.
    fn member_path(&self, entry: &WalkEntry) -> Vec<u8> {
        let inner = entry.path();
        if entry.metadata().kind != FileKind::Directory {
            let inner = if inner.is_empty() { self.start_name } else { &inner };
            return [b"./", inner].concat();
        }
        if inner.is_empty() {
            b"./".to_vec()
        } else {
            [b"./", inner.as_slice(), b"/"].concat()
        }
    }

    /// Returns the data ranges of a sparse file; `None` for a file without holes, or with too many
    /// ranges.
    fn data_map(&self, entry: &WalkEntry, reader: &FileReader, path: &[u8]) -> Option<DataMap> {
        let size = entry.metadata().size.get();
        let mut map = DataMap::new(size);
        if let Some(ranges) = &entry.record.extents {
            for range in ranges.iter().filter(|range| !range.is_zero()) {
                map.add(range.offset.get(), range.length.get());
            }
            return map.has_holes().then_some(map);
        }
        for range in reader.file().extents().ok()? {
            match range {
                Ok(range) => {
                    if !matches!(range.kind, RangeKind::Hole | RangeKind::Preallocated(_)) {
                        map.add(range.offset.get(), range.length.get());
                    }
                }
                // The archive then stores the file whole, and reading its content reports the same
                // error.
                Err(_) => return None,
            }
            if map.range_count() > RANGES_MAX {
                self.context.notice(format!(
                    "{}: more than {RANGES_MAX} data ranges: stored without holes",
                    path.escape_ascii()
                ));
                return None;
            }
        }
        map.has_holes().then_some(map)
    }

    fn copy(&mut self, mut reader: FileReader, path: &[u8]) -> Result<()> {
        loop {
            match reader.next_chunk() {
                Ok(Some(chunk)) => match chunk.content {
                    Content::Data(bytes) => {
                        self.progress.advance(0, chunk.length);
                        self.archive.content(chunk.offset.get(), &bytes)?;
                    }
                    Content::Hole => {}
                    Content::Damaged(error) => self.lost(path, error),
                },
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.lost(path, error);
                    return Ok(());
                }
            }
        }
    }

    fn lost(&self, path: &[u8], error: buttress::unstable::fs::Error) {
        let place = format!("{}: {}", self.target.display(), path.escape_ascii());
        self.context.lost(&anyhow::Error::new(error).context(place));
    }
}

fn time(time: Timestamp) -> Time {
    Time {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}
