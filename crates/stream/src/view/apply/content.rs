//! Commands that change file content.

use super::{CAPABILITY, Target};
use crate::command::Command;
use crate::view::content::{COMPRESSED_BYTES_MAX, decompress};
use crate::view::error::Problem;
use crate::view::extents::{Encoded, Extent, ExtentMap, FILE_BYTES_MAX, Source};
use crate::view::tree::{File, Node, NodeId, Tree};
use buttress_exact::Exact as _;
use buttress_format::Uuid;
use buttress_format::send::EncodedCompression;
use std::sync::Arc;

/// Mode bit of fallocate(2): keep the file size.
const KEEP_SIZE: u32 = 0x01;
/// Mode bit of fallocate(2): punch a hole.
const PUNCH_HOLE: u32 = 0x02;
/// Mode bit of fallocate(2): make the range read as zeros.
const ZERO_RANGE: u32 = 0x10;

/// Source and target of a cloned range.
struct CloneRange<'a> {
    path: &'a [u8],
    offset: u64,
    length: u64,
    source_uuid: Uuid,
    source_path: &'a [u8],
    source_offset: u64,
}

/// The range of an encoded write.
struct EncodedRange<'a> {
    path: &'a [u8],
    offset: u64,
    file_bytes: u64,
    unencoded_bytes: u64,
    skip: u64,
    compression: u32,
    encryption: u32,
    data: &'a [u8],
}

impl Target<'_> {
    pub(super) fn apply_content(&mut self, command: &Command<'_>) -> Result<(), Problem> {
        match *command {
            Command::Write { path, offset, data } => self.write(path, offset.get(), data),
            Command::Clone {
                path,
                offset,
                length,
                source_uuid,
                source_path,
                source_offset,
                ..
            } => self.clone_range(&CloneRange {
                path,
                offset: offset.get(),
                length: length.get(),
                source_uuid,
                source_path,
                source_offset: source_offset.get(),
            }),
            Command::Truncate { path, size } => {
                range_end(0, size.get())?;
                self.change_content(path)?.truncate(size.get());
                Ok(())
            }
            Command::UpdateExtent { path, offset, length } => {
                range_end(offset.get(), length.get())?;
                self.file(path)?.1.lacks_data = true;
                Ok(())
            }
            Command::Fallocate {
                path,
                mode,
                offset,
                length,
            } => self.allocate(path, mode, offset.get(), length.get()),
            Command::EncodedWrite {
                path,
                offset,
                unencoded_file_bytes,
                unencoded_bytes,
                unencoded_offset,
                compression,
                encryption,
                data,
            } => self.write_encoded(&EncodedRange {
                path,
                offset: offset.get(),
                file_bytes: unencoded_file_bytes.get(),
                unencoded_bytes: unencoded_bytes.get(),
                skip: unencoded_offset.get(),
                compression: compression.unwrap_or(0),
                encryption: encryption.unwrap_or(0),
                data,
            }),
            Command::EnableVerity { path, .. } => {
                self.file(path)?.1.has_verity = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the regular file at `path`.
    fn file(&mut self, path: &[u8]) -> Result<(NodeId, &mut File), Problem> {
        let id = self.tree.find(path)?;
        let inode = self.inode_of(id, path)?;
        let found = inode.node.kind_name();
        match &mut inode.node {
            Node::File(file) => Ok((id, file)),
            _ => Err(not_a_file(path, found)),
        }
    }

    /// Returns the regular file at `path` for a change of its content, and removes its
    /// capabilities.
    fn change_content(&mut self, path: &[u8]) -> Result<&mut File, Problem> {
        let (id, _) = self.file(path)?;
        let inode = self.inode_of(id, path)?;
        inode.remove_xattr(CAPABILITY);
        let found = inode.node.kind_name();
        match &mut inode.node {
            Node::File(file) => Ok(file),
            _ => Err(not_a_file(path, found)),
        }
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<(), Problem> {
        let length = data.len() as u64;
        let end = range_end(offset, length)?;
        let source = Source::Stored {
            file: self.file,
            position: self.data_position,
        };
        let file = self.change_content(path)?;
        if length > 0 {
            file.extents.insert(
                offset,
                Extent {
                    length,
                    skip: 0,
                    source,
                },
            );
            file.grow_to(end);
        }
        Ok(())
    }

    fn allocate(&mut self, path: &[u8], mode: u32, offset: u64, length: u64) -> Result<(), Problem> {
        let end = range_end(offset, length)?;
        let empties = match mode & !KEEP_SIZE {
            0 => false,
            // Punching a hole keeps the file size, and fallocate(2) requires the `KEEP_SIZE` bit
            // for this.
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => true,
            ZERO_RANGE => true,
            _ => return Err(Problem::FallocateMode { mode }),
        };
        let file = self.change_content(path)?;
        if empties {
            file.extents.remove(offset, end);
        }
        if mode & KEEP_SIZE == 0 {
            file.grow_to(end);
        }
        Ok(())
    }

    fn write_encoded(&mut self, range: &EncodedRange<'_>) -> Result<(), Problem> {
        let end = range_end(range.offset, range.file_bytes)?;
        if range.encryption != 0 {
            return Err(Problem::Encrypted {
                number: range.encryption,
            });
        }
        let compression =
            EncodedCompression::from_raw(range.compression).ok_or(Problem::CompressionUnknown {
                number: range.compression,
            })?;
        range.check_sizes(compression)?;
        if let Some(decompressor) = self.decode.as_deref_mut()
            && compression != EncodedCompression::None
        {
            let mut out = vec![0; range.unencoded_bytes.narrow()];
            decompress(decompressor, compression, range.data, &mut out).map_err(Problem::Encoded)?;
        }
        let encoded = Encoded {
            file: self.file,
            position: self.data_position,
            encoded_bytes: range.data.len() as u64,
            unencoded_bytes: range.unencoded_bytes,
            compression,
        };
        let file = self.change_content(range.path)?;
        file.extents.insert(
            range.offset,
            Extent {
                length: range.file_bytes,
                skip: range.skip,
                source: Source::Encoded(Arc::new(encoded)),
            },
        );
        file.grow_to(end);
        Ok(())
    }

    fn clone_range(&mut self, range: &CloneRange<'_>) -> Result<(), Problem> {
        let end = range_end(range.offset, range.length)?;
        let (target, _) = self.file(range.path)?;
        let (extents, lacks_data) = self.clone_source(range, target)?;
        let budget_left = &mut *self.budget;
        let inode = self.tree.inode_mut(target);
        if let Some(inode) = inode {
            inode.remove_xattr(CAPABILITY);
            if let Node::File(file) = &mut inode.node {
                file.extents.clone_range(
                    range.offset,
                    &extents,
                    range.source_offset,
                    range.length,
                    budget_left,
                )?;
                file.grow_to(end);
                file.lacks_data |= lacks_data;
            }
        }
        Ok(())
    }

    /// Returns the extents of the clone source, and whether content of the source is missing.
    fn clone_source(&self, range: &CloneRange<'_>, target: NodeId) -> Result<(ExtentMap, bool), Problem> {
        let own = range.source_uuid == self.uuid;
        let tree: &Tree = if own {
            self.tree
        } else {
            self.earlier.tree(range.source_uuid).ok_or_else(|| {
                let mut given = vec![self.uuid];
                given.extend(self.earlier.uuids());
                Problem::CloneSourceUnknown {
                    wanted: range.source_uuid,
                    given,
                }
            })?
        };
        let path = range.source_path;
        let id = tree.find(path)?;
        let file = match tree.inode(id).map(|inode| &inode.node) {
            Some(Node::File(file)) => file,
            other => return Err(not_a_file(path, other.map_or("nothing", Node::kind_name))),
        };
        let source_end = range_end(range.source_offset, range.length)?;
        if source_end > file.size {
            return Err(Problem::CloneRange {
                path: path.to_vec(),
                offset: range.source_offset,
                length: range.length,
                size: file.size,
            });
        }
        if own && id == target && range.offset.abs_diff(range.source_offset) < range.length {
            return Err(Problem::CloneOverlap {
                source_offset: range.source_offset,
                offset: range.offset,
                length: range.length,
            });
        }
        Ok((file.extents.clone(), file.lacks_data))
    }
}

impl EncodedRange<'_> {
    fn check_sizes(&self, compression: EncodedCompression) -> Result<(), Problem> {
        let encoded = self.data.len() as u64;
        let used_end = self.skip.saturating_add(self.file_bytes);
        let fits = match compression {
            EncodedCompression::None => used_end <= encoded,
            _ => encoded <= COMPRESSED_BYTES_MAX && self.unencoded_bytes <= COMPRESSED_BYTES_MAX,
        };
        if fits && used_end <= self.unencoded_bytes {
            return Ok(());
        }
        Err(Problem::EncodedSizes {
            file_bytes: self.file_bytes,
            skip: self.skip,
            unencoded: self.unencoded_bytes,
            encoded,
        })
    }
}

/// Returns the end of a range, if the largest file includes it.
fn range_end(offset: u64, length: u64) -> Result<u64, Problem> {
    offset
        .checked_add(length)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(Problem::RangeTooLarge { offset, length })
}

fn not_a_file(path: &[u8], found: &'static str) -> Problem {
    Problem::WrongKind {
        path: path.to_vec(),
        found,
        wanted: "a regular file",
    }
}
