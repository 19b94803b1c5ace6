//! Stream rewriting without a volume: [`merge`] makes a full stream of a chain, [`rebase`] gives an
//! incremental stream another parent.
//!
//! A merged stream creates the final state of the chain: names, attributes, times, holes and hard
//! links. The merge sends each piece of data once and clones it for further places. The merged
//! stream has the uuid and generation of the chain's last snapshot, so later streams of the chain
//! apply to its result. Encoded data stays encoded. Files come in the order of their names, times
//! last.
//!
//! Left out: extents that the chain shared with other subvolumes (a merged stream needs none), and
//! sharing of partial sectors.

use crate::command::Command;
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::send::attributes::content_flags;
use crate::view::extents::{Encoded, Piece, Source};
use crate::view::{File, Inode, Node, NodeId, Series, Snapshot};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::send::{EncodedCompression, Version};
use buttress_format::{ByteCount, ErrorKind, FileOffset, Generation, Uuid};
use buttress_fs::Progress;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Size of one write of the output, in bytes.
const OUTPUT_BYTES: usize = 1 << 20;

/// Granularity of clones in bytes. The largest sector size of btrfs as granularity would share less
/// than most volumes can.
const CLONE_BYTES: u64 = 4096;

/// The extended attribute that a change of owner removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Error of making a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The decoder or encoder failed.
    #[error(transparent)]
    Stream(#[from] crate::Error),
    /// The content of the streams is impossible.
    #[error(transparent)]
    View(#[from] crate::view::Error),
    /// The output failed.
    #[error("the new stream cannot be written: {0}")]
    Output(#[from] io::Error),
    /// The caller cancelled the merge.
    #[error(transparent)]
    Cancelled(buttress_fs::Error),
    /// A file has fs-verity, which needs the descriptor that only the chain's sender has.
    #[error("{}: fs-verity cannot be merged", path.escape_ascii())]
    Verity {
        /// Path of the file.
        path: Vec<u8>,
    },
    /// The stream to rebase has no parent.
    #[error("the stream is a full stream and has no parent to replace")]
    Full,
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Stream(error) => error.kind(),
            Self::View(error) => error.kind(),
            Self::Output(_) => ErrorKind::Io,
            Self::Cancelled(error) => error.kind(),
            Self::Verity { .. } => ErrorKind::Unsupported,
            Self::Full => ErrorKind::Caller,
        }
    }
}

/// Writes a full stream of the content of `snapshot`, which belongs to the series.
///
/// # Errors
/// See [`Error`]. The output then holds a stream without its end command, which a receiver refuses.
pub fn merge(
    series: &Series,
    snapshot: &Snapshot,
    sink: &mut dyn Write,
    progress: &Progress,
) -> Result<(), Error> {
    let newest = series.snapshots().iter().map(|one| one.version).max();
    let version = newest.unwrap_or(Version::V1);
    let mut merging = Merging {
        series,
        snapshot,
        encoder: Encoder::new(version),
        version,
        sink,
        progress,
        out: Vec::new(),
        places: HashMap::new(),
        paths: HashMap::new(),
    };
    merging.run()
}

/// Start of bytes in a stream file that the merged stream has already sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct From {
    file: u32,
    position: u64,
    /// Offset in the decoded content of encoded bytes; zero for other bytes.
    skip: u64,
}

/// Target of bytes that the merged stream has already sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: NodeId,
    offset: u64,
    length: u64,
}

struct Merging<'a> {
    series: &'a Series,
    snapshot: &'a Snapshot,
    encoder: Encoder,
    version: Version,
    sink: &'a mut dyn Write,
    progress: &'a Progress,
    out: Vec<u8>,
    places: HashMap<From, Sent>,
    /// First path of each file that has several paths or is a clone source.
    paths: HashMap<NodeId, Arc<[u8]>>,
}

impl Merging<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let snapshot = self.snapshot;
        self.encoder.header(&mut self.out);
        self.put(&Command::Subvolume {
            path: &snapshot.name,
            uuid: snapshot.uuid,
            transid: snapshot.transid,
        })?;
        let tree = &snapshot.tree;
        let mut late = Vec::new();
        for entry in tree.walk(NodeId::ROOT) {
            let Some(inode) = tree.inode(entry.id) else {
                continue;
            };
            if let Some(first) = self.paths.get(&entry.id).filter(|_| inode.links > 1).cloned() {
                self.put(&Command::Link {
                    path: &entry.path,
                    target: &first,
                })?;
                continue;
            }
            let path: Arc<[u8]> = entry.path.into();
            self.paths.insert(entry.id, Arc::clone(&path));
            self.make(entry.id, inode, &path)?;
            let is_directory = matches!(inode.node, Node::Directory(_));
            if !is_directory {
                self.attributes(inode, &path)?;
            }
            if is_directory || inode.links > 1 {
                // New entries of a directory would inherit its attributes (default access lists,
                // compression, groups). Each new name also changes the directory's times.
                late.push((entry.id, path));
            } else {
                self.times(inode, &path)?;
            }
        }
        for (id, path) in late {
            let Some(inode) = tree.inode(id) else { continue };
            if matches!(inode.node, Node::Directory(_)) {
                self.attributes(inode, &path)?;
            }
            self.times(inode, &path)?;
        }
        self.put(&Command::End)?;
        self.flush()
    }

    fn make(&mut self, id: NodeId, inode: &Inode, path: &Arc<[u8]>) -> Result<(), Error> {
        let number = inode.number;
        match &inode.node {
            Node::Directory(_) if id == NodeId::ROOT => Ok(()),
            Node::Directory(_) => self.put(&Command::Mkdir { path, inode: number }),
            Node::Symlink { target } => self.put(&Command::Symlink {
                path,
                inode: number,
                target,
            }),
            Node::Fifo => self.put(&Command::Mkfifo {
                path,
                inode: number,
                device: Some(0),
                mode: Some(0o010_000 | u64::from(inode.permissions)),
            }),
            Node::Socket => self.put(&Command::Mksock {
                path,
                inode: number,
                device: Some(0),
                mode: Some(0o140_000 | u64::from(inode.permissions)),
            }),
            Node::Device { block, major, minor } => {
                let kind = if *block { 0o060_000 } else { 0o020_000 };
                let (major, minor) = (u64::from(*major), u64::from(*minor));
                self.put(&Command::Mknod {
                    path,
                    inode: number,
                    device: (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12,
                    mode: kind | u64::from(inode.permissions),
                })
            }
            Node::File(file) => {
                self.put(&Command::Mkfile { path, inode: number })?;
                let flags = inode.flags.and_then(content_flags);
                if let Some(attributes) = flags.filter(|_| self.version >= Version::V2) {
                    self.put(&Command::FileAttributes { path, attributes })?;
                }
                self.content(id, file, path)
            }
        }
    }

    fn content(&mut self, id: NodeId, file: &File, path: &Arc<[u8]>) -> Result<(), Error> {
        if file.has_verity() {
            return Err(Error::Verity { path: path.to_vec() });
        }
        if file.lacks_data() {
            let path = path.to_vec();
            return Err(crate::view::Error::NoData { path }.into());
        }
        let mut end = 0;
        for piece in file.pieces() {
            self.progress.check().map_err(Error::Cancelled)?;
            let Some((skip, source)) = &piece.data else {
                continue;
            };
            end = piece.offset.saturating_add(piece.length);
            let (from, encoded) = match source {
                Source::Stored { file, position } => (
                    From {
                        file: *file,
                        position: position.saturating_add(*skip),
                        skip: 0,
                    },
                    None,
                ),
                Source::Encoded(encoded) if encoded.compression == EncodedCompression::None => (
                    From {
                        file: encoded.file,
                        position: encoded.position.saturating_add(*skip),
                        skip: 0,
                    },
                    None,
                ),
                Source::Encoded(encoded) => (
                    From {
                        file: encoded.file,
                        position: encoded.position,
                        skip: *skip,
                    },
                    Some(encoded),
                ),
                // In a merge, `Pieces` never yields a shared source.
                Source::Shared(_) => continue,
            };
            if self.clone_range(from, &piece, path)? {
                continue;
            }
            match encoded {
                None => self.plain(from, &piece, path)?,
                Some(encoded) => self.encoded(encoded, from.skip, &piece, path)?,
            }
            let sent = Sent {
                id,
                offset: piece.offset,
                length: piece.length,
            };
            self.places.entry(from).or_insert(sent);
        }
        let size = file.size();
        if end == size.get() {
            return Ok(());
        }
        self.put(&Command::Truncate { path, size })
    }

    /// Clones a range if the merged stream has already sent its bytes. Returns false if the merged
    /// stream has not sent these bytes.
    fn clone_range(&mut self, from: From, piece: &Piece, path: &[u8]) -> Result<bool, Error> {
        let Some(sent) = self.places.get(&from).copied() else {
            return Ok(false);
        };
        let is_whole = |at: u64| at.checked_rem(CLONE_BYTES) == Some(0);
        let fits = piece.length <= sent.length
            && is_whole(piece.offset)
            && is_whole(sent.offset)
            && is_whole(piece.length);
        let Some(source_path) = self.paths.get(&sent.id).filter(|_| fits).cloned() else {
            return Ok(false);
        };
        self.put(&Command::Clone {
            offset: FileOffset::new(piece.offset),
            length: ByteCount::new(piece.length),
            path,
            source_uuid: self.snapshot.uuid,
            source_transid: self.snapshot.transid,
            source_path: &source_path,
            source_offset: FileOffset::new(sent.offset),
        })?;
        Ok(true)
    }

    fn plain(&mut self, from: From, piece: &Piece, path: &[u8]) -> Result<(), Error> {
        let most = u64_of(self.version.write_bytes_max());
        let mut done = 0;
        while done < piece.length {
            let length = piece.length.exact_sub(done).min(most);
            let mut data = vec![0; length.narrow()];
            self.series
                .read_input(from.file, from.position.exact_add(done), &mut data)?;
            self.put(&Command::Write {
                path,
                offset: FileOffset::new(piece.offset.exact_add(done)),
                data: &data,
            })?;
            done = done.exact_add(length);
        }
        Ok(())
    }

    fn encoded(&mut self, encoded: &Encoded, skip: u64, piece: &Piece, path: &[u8]) -> Result<(), Error> {
        let mut data = vec![0; encoded.encoded_bytes.narrow()];
        self.series
            .read_input(encoded.file, encoded.position, &mut data)?;
        self.put(&Command::EncodedWrite {
            path,
            offset: FileOffset::new(piece.offset),
            unencoded_file_bytes: ByteCount::new(piece.length),
            unencoded_bytes: ByteCount::new(encoded.unencoded_bytes),
            unencoded_offset: ByteCount::new(skip),
            compression: Some(encoded.compression.to_raw()),
            encryption: None,
            data: &data,
        })
    }

    fn attributes(&mut self, inode: &Inode, path: &[u8]) -> Result<(), Error> {
        let xattrs = inode.xattrs();
        let set = |merging: &mut Self, is_capability: bool| {
            let wanted = xattrs
                .iter()
                .filter(|(name, _)| (*name == CAPABILITY) == is_capability);
            wanted
                .into_iter()
                .try_for_each(|(name, value)| merging.put(&Command::SetXattr { path, name, value }))
        };
        set(self, false)?;
        self.put(&Command::Chown {
            path,
            uid: u64::from(inode.uid),
            gid: u64::from(inode.gid),
        })?;
        if !matches!(inode.node, Node::Symlink { .. }) {
            self.put(&Command::Chmod {
                path,
                mode: u64::from(inode.permissions),
            })?;
        }
        set(self, true)?;
        match inode.flags {
            Some(attributes) if self.version >= Version::V2 => {
                self.put(&Command::FileAttributes { path, attributes })
            }
            _ => Ok(()),
        }
    }

    fn times(&mut self, inode: &Inode, path: &[u8]) -> Result<(), Error> {
        self.put(&Command::Utimes {
            path,
            atime: inode.times.accessed,
            mtime: inode.times.modified,
            ctime: inode.times.changed,
            otime: inode.times.created,
        })
    }

    fn put(&mut self, command: &Command<'_>) -> Result<(), Error> {
        self.encoder.encode(command, &mut self.out)?;
        if self.out.len() < OUTPUT_BYTES {
            return Ok(());
        }
        self.progress.check().map_err(Error::Cancelled)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.sink.write_all(&self.out)?;
        self.progress.advance(0, ByteCount::of(self.out.len()));
        self.out.clear();
        Ok(())
    }
}

/// Identity of a subvolume in streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// UUID of the subvolume.
    pub uuid: Uuid,
    /// Generation at which the subvolume last changed.
    pub transid: Generation,
}

/// Returns the last subvolume that the streams of `input` create.
///
/// # Errors
/// [`Error::Stream`].
pub fn last_subvolume(input: impl Read) -> Result<Option<Named>, Error> {
    let mut decoder = Decoder::new(input);
    let mut last = None;
    while let Some(frame) = decoder.next_command()? {
        if let Command::Subvolume { uuid, transid, .. } | Command::Snapshot { uuid, transid, .. } =
            *frame.command()
        {
            last = Some(Named { uuid, transid });
        }
    }
    Ok(last)
}

/// Writes the streams of `input` with `parent` in place of the first stream's parent, also where
/// that parent is a clone source. The caller guarantees that the new `parent` has the same content
/// as the old parent. Returns the old parent.
///
/// # Errors
/// [`Error::Full`] if the first stream has no parent, and the other errors of [`Error`].
pub fn rebase(
    input: impl Read,
    parent: Named,
    sink: &mut dyn Write,
    progress: &Progress,
) -> Result<Uuid, Error> {
    let mut decoder = Decoder::new(input);
    let mut out = Vec::new();
    let (mut stream, mut old) = (0, None);
    while let Some(frame) = decoder.next_command()? {
        progress.check().map_err(Error::Cancelled)?;
        let encoder = Encoder::new(frame.version());
        if frame.stream() != stream {
            stream = frame.stream();
            encoder.header(&mut out);
        }
        let mut command = *frame.command();
        match &mut command {
            Command::Subvolume { .. } if old.is_none() => return Err(Error::Full),
            Command::Snapshot {
                clone_uuid,
                clone_transid,
                ..
            } if *old.get_or_insert(*clone_uuid) == *clone_uuid => {
                (*clone_uuid, *clone_transid) = (parent.uuid, parent.transid);
            }
            Command::Clone {
                source_uuid,
                source_transid,
                ..
            } if old == Some(*source_uuid) => {
                (*source_uuid, *source_transid) = (parent.uuid, parent.transid);
            }
            _ => {}
        }
        if command == *frame.command() {
            out.extend_from_slice(frame.bytes());
        } else {
            encoder.encode(&command, &mut out)?;
        }
        if out.len() >= OUTPUT_BYTES {
            sink.write_all(&out)?;
            progress.advance(0, ByteCount::of(out.len()));
            out.clear();
        }
    }
    sink.write_all(&out)?;
    progress.advance(0, ByteCount::of(out.len()));
    old.ok_or(Error::Full)
}
