//! `buttress stream tar FILE… [FILE:/directory]`: writes the snapshot of streams as a tar archive.
//!
//! Members equal those of `buttress tar` for the sent snapshot, byte for byte. Only their order
//! differs: streams do not contain directory order, so members are sorted by the bytes of their
//! names. Sockets are skipped with a warning. A file whose content was not sent is omitted and
//! reported, and the exit code is 1.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use buttress::Timestamp;
use buttress::stream::view;
use buttress::stream::view::{Content, Inode, Node, NodeId, WalkEntry};
use clap::Args;
use serde_json::{Map, Value};

use super::{Loaded, Streams};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::destination::{Destination, named, refuse_terminal};
use crate::output::json::insert_name;
use crate::output::writer_thread::WriterThread;
use crate::pax::{Archive, DataMap, Kind, Member, Time};
use crate::table::Subcommand;

/// Largest number of data ranges of a sparse member, as in `buttress tar`. Files with more data
/// ranges are stored whole.
const RANGES_MAX: usize = 1 << 20;

/// Write the files of a stream, or of a chain, to standard output as a tar archive (pax format)
#[derive(Args, Debug)]
pub(super) struct Tar {
    /// Write to this file, not to standard output
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave out extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    streams: Streams,
}

impl Subcommand for Tar {
    const NAME: &'static str = "tar";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream tar -f tuesday.tar monday.stream tuesday.stream",
        "Writes the files of both streams as an archive",
    )];

    fn writes_contents(&self) -> bool {
        named(self.file.as_deref()).is_none()
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        refuse_terminal(self.file.as_deref(), "an archive")?;
        let loaded = self.streams.load(context, "stream tar")?;
        let (start, path) = loaded.start()?;
        let out = Destination::open(context, self.file.as_deref())?;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut archiver = Archiver {
            context,
            loaded: &loaded,
            no_xattrs: self.no_xattrs,
            start_name: name,
            first_names: HashMap::new(),
            archive: Archive::new(WriterThread::new(out)),
        };
        for entry in loaded.tree()?.walk(start) {
            archiver.add(&entry)?;
        }
        archiver.archive.finish()?.finish()?.finish()?;
        if let Some(file) = named(self.file.as_deref()).filter(|_| context.json()) {
            let mut written = Map::new();
            insert_name(&mut written, "file", file.as_os_str().as_bytes());
            context.print_json("stream-tar", Value::Object(written))?;
        }
        Ok(Outcome::Done)
    }
}

struct Archiver<'a> {
    context: &'a Context,
    loaded: &'a Loaded,
    no_xattrs: bool,
    /// Name of the member if the walk begins at a file.
    start_name: &'a [u8],
    /// First path of each file with several names.
    first_names: HashMap<NodeId, Vec<u8>>,
    archive: Archive<WriterThread<Destination>>,
}

impl Archiver<'_> {
    fn add(&mut self, entry: &WalkEntry) -> Result<()> {
        let inode = self.loaded.inode(entry.id)?;
        let path = self.member_path(entry, inode);
        if let Node::Socket = inode.node {
            self.context
                .warn(format!("{}: socket ignored", path.escape_ascii()));
            return Ok(());
        }
        if let Some(first) = self.first_names.get(&entry.id) {
            let member = member(&path, Kind::HardLink { target: first }, inode, &[]);
            self.archive.begin(&member)?;
            return Ok(self.archive.end()?);
        }
        let mut reader = None;
        if let Node::File(_) = inode.node {
            match self.loaded.series.content(self.loaded.tree()?, entry.id, &path) {
                Ok(content) => reader = Some(content),
                Err(error) => {
                    self.context.lost(&error.into());
                    return Ok(());
                }
            }
        }
        let xattrs = if self.no_xattrs {
            Vec::new()
        } else {
            inode.xattrs()
        };
        let map = data_map(inode);
        let member = member(&path, kind(inode, map.as_ref()), inode, &xattrs);
        self.archive.begin(&member)?;
        if inode.links > 1 {
            self.first_names.insert(entry.id, path.clone());
        }
        while let Some(chunk) = reader.as_mut().and_then(view::ContentReader::next_chunk) {
            match chunk.content {
                Content::Data(bytes) => self.archive.content(chunk.offset.get(), bytes)?,
                Content::Hole => {}
                Content::Damaged(error) => {
                    let place = path.escape_ascii().to_string();
                    self.context.lost(&anyhow!(error).context(place));
                }
            }
        }
        Ok(self.archive.end()?)
    }

    /// Returns `./` and the path from the start of the walk; a directory's path ends with a slash.
    fn member_path(&self, entry: &WalkEntry, inode: &Inode) -> Vec<u8> {
        let is_directory = matches!(inode.node, Node::Directory(_));
        match (entry.path.as_slice(), is_directory) {
            (b"", true) => b"./".to_vec(),
            (b"", false) => [b"./", self.start_name].concat(),
            (path, true) => [b"./", path, b"/"].concat(),
            (path, false) => [b"./", path].concat(),
        }
    }
}

fn member<'a>(
    path: &'a [u8],
    kind: Kind<'a>,
    inode: &Inode,
    xattrs: &'a [(&'a [u8], &'a [u8])],
) -> Member<'a> {
    Member {
        path,
        kind,
        permissions: inode.permissions,
        uid: inode.uid,
        gid: inode.gid,
        modified: time(inode.times.modified),
        accessed: Some(time(inode.times.accessed)),
        changed: Some(time(inode.times.changed)),
        xattrs,
    }
}

fn kind<'a>(inode: &'a Inode, map: Option<&'a DataMap>) -> Kind<'a> {
    match (&inode.node, map) {
        (Node::Directory(_), _) => Kind::Directory,
        (Node::File(_), Some(map)) => Kind::SparseFile { map },
        (Node::File(file), None) => Kind::File {
            size_bytes: file.size().get(),
        },
        (Node::Symlink { target }, _) => Kind::Symlink { target },
        (Node::Device { block, major, minor }, _) => {
            let (major, minor) = (u64::from(*major), u64::from(*minor));
            if *block {
                Kind::BlockDevice { major, minor }
            } else {
                Kind::CharacterDevice { major, minor }
            }
        }
        (Node::Fifo | Node::Socket, _) => Kind::Fifo,
    }
}

/// Returns the data ranges of a sparse file; `None` for a file without holes, or with too many
/// ranges.
fn data_map(inode: &Inode) -> Option<DataMap> {
    let Node::File(file) = &inode.node else {
        return None;
    };
    let mut map = DataMap::new(file.size().get());
    for (start, end) in file.data_ranges() {
        map.add(start.get(), end.get().saturating_sub(start.get()));
        if map.range_count() > RANGES_MAX {
            return None;
        }
    }
    map.has_holes().then_some(map)
}

fn time(time: Timestamp) -> Time {
    Time {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}
