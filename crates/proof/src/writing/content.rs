//! Changes of a file's content: writes, truncation, preallocation and holes, shared extents.

use super::model::{Inode, Model};
use super::newborn::share_extents;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{AllocateMode, ByteCount, FileAttributes, FileOffset, Location};
use buttress_oracle::content::Random;
use std::fmt;
use std::sync::Arc;

/// Largest size of a file in bytes.
const SIZE_MAX: u64 = 600_000;

/// Unit of shared ranges in bytes.
const SECTOR: u64 = 4096;

/// A change of content.
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes bytes at an offset.
    Write(u64, Arc<Vec<u8>>),
    /// Appends bytes.
    Append(Arc<Vec<u8>>),
    /// Sets another size of the file.
    Truncate(u64),
    /// Preallocates, punches or zeroes: offset, length, mode.
    Allocate(u64, u64, AllocateMode),
    /// Clones a range of another file or of this one: source, offset in the source, length, offset
    /// in this file.
    Clone(Location, u64, u64, u64),
    /// Copies a range, with the same fields as `Clone`.
    Copy(Location, u64, u64, u64),
    /// Shares a range if both contents are equal, with the same fields as `Clone`.
    Dedupe(Location, u64, u64, u64),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = |source: &Location| format!("{}:{}", source.subvolume, source.inode);
        match self {
            Self::Write(offset, bytes) => write!(f, "{offset}+{}", bytes.len()),
            Self::Append(bytes) => write!(f, "{}", bytes.len()),
            Self::Truncate(size) => write!(f, "{size}"),
            Self::Allocate(offset, length, _) => write!(f, "{offset}+{length}"),
            Self::Clone(source, at, length, to)
            | Self::Copy(source, at, length, to)
            | Self::Dedupe(source, at, length, to) => {
                write!(f, "{} {at}+{length} to {to}", from(source))
            }
        }
    }
}

impl Change {
    /// Draws a change of `file`, possibly with a range of `source`.
    #[must_use]
    pub fn draw(model: &Model, random: &mut Random, file: Location, source: Location) -> Self {
        let size_of = |location| {
            model
                .inode(location)
                .map_or(0, |inode: &Inode| inode.content.len() as u64)
        };
        let size = size_of(file);
        let offset = match random.below(4) {
            0 => size,
            1 => random.below(size + 1),
            2 => random.below(size / SECTOR + 3) * SECTOR,
            _ => random.below(SIZE_MAX / 2),
        };
        let length = match random.below(4) {
            0 => random.below(200) + 1,
            1 => (random.below(16) + 1) * SECTOR,
            2 => random.below(5000) + 1,
            _ => random.below(150_000) + 1,
        };
        let compressible = random.below(2) == 0;
        match random.below(20) {
            0..9 => Self::Write(offset, Arc::new(content(random, length, compressible))),
            9..11 => Self::Append(Arc::new(content(random, length, compressible))),
            11..13 => {
                let new = random.below(size + 10_000);
                Self::Truncate(if new == size { size + 1 } else { new })
            }
            13..16 => {
                let modes = [
                    AllocateMode::Allocate,
                    AllocateMode::AllocateKeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ];
                let mode = modes[usize::try_from(random.below(5)).unwrap_or(0)];
                Self::Allocate(offset, length, mode)
            }
            choice => {
                let sectors = size_of(source) / SECTOR;
                let at = random.below(sectors.max(1));
                let count = random.below((sectors - at.min(sectors)).max(1)) + 1;
                let to = random.below(size / SECTOR + 4) * SECTOR;
                let (at, length) = (at * SECTOR, count * SECTOR);
                match choice {
                    16 | 17 => Self::Clone(source, at, length, to),
                    18 => Self::Copy(source, at, length, to),
                    // If both offsets are equal, the contents may be equal.
                    _ => {
                        let inside = (size / SECTOR).saturating_sub(at / SECTOR).max(1) * SECTOR;
                        Self::Dedupe(source, at, length.min(inside), at)
                    }
                }
            }
        }
    }

    /// Returns the name of the change's kind.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Write(..) => "write",
            Self::Append(_) => "append",
            Self::Truncate(_) => "truncate",
            Self::Allocate(_, _, mode) => match mode {
                AllocateMode::Allocate => "allocate",
                AllocateMode::AllocateKeepSize => "allocate keeping the size",
                AllocateMode::PunchHole => "punch",
                AllocateMode::ZeroRange => "zero",
                AllocateMode::ZeroRangeKeepSize => "zero keeping the size",
            },
            Self::Clone(..) => "clone",
            Self::Copy(..) => "copy",
            Self::Dedupe(..) => "dedupe",
        }
    }

    /// Returns whether the change only appends to a file of `size` bytes; append-only files allow
    /// nothing else.
    #[must_use]
    pub const fn only_adds(&self, size: u64) -> bool {
        match self {
            Self::Write(offset, _) => *offset == size,
            Self::Allocate(_, _, mode) => {
                matches!(mode, AllocateMode::Allocate | AllocateMode::AllocateKeepSize)
            }
            Self::Append(_) | Self::Dedupe(..) => true,
            _ => false,
        }
    }

    /// Returns the shared range, if the change has one.
    pub(crate) const fn shared(&self) -> Option<(Location, u64, u64, u64)> {
        match self {
            Self::Clone(source, at, length, to)
            | Self::Copy(source, at, length, to)
            | Self::Dedupe(source, at, length, to) => Some((*source, *at, *length, *to)),
            _ => None,
        }
    }

    /// Returns whether the source of the clone is not a regular file.
    #[must_use]
    pub fn comes_from_no_file(&self, model: &Model) -> bool {
        self.shared()
            .is_some_and(|(source, ..)| model.inode(source).is_none_or(|inode| !inode.is_file()))
    }

    /// Returns whether the change is possible on a file of a writable subvolume: the file's flags
    /// allow it, and the shared or copied range allows it.
    #[must_use]
    pub fn is_possible(&self, model: &Model, file: Location) -> bool {
        let allows = |inode: &Inode| {
            let size = inode.content.len() as u64;
            !inode.flags.contains(FileAttributes::IMMUTABLE)
                && (!inode.flags.contains(FileAttributes::APPEND) || self.only_adds(size))
        };
        if !model.inode(file).is_some_and(allows) {
            return false;
        }
        let Some((source, at, length, to)) = self.shared() else {
            return true;
        };
        let size = |location| {
            let inode = model.inode(location).filter(|inode| inode.is_file());
            inode.map_or(0, |inode| inode.content.len() as u64)
        };
        let (Some(from), Some(into)) = (model.inode(source), model.inode(file)) else {
            return false;
        };
        if !from.is_file() {
            return false;
        }
        let overlaps = source == file && at < to + length && to < at + length;
        let is_inside = at + length <= size(source);
        match self {
            // The part of a copy's source range after the end of the file is not copied.
            Self::Copy(..) => {
                let length = length.min(size(source).saturating_sub(at));
                source != file || length == 0 || at >= to + length || to >= at + length
            }
            Self::Dedupe(..) => {
                !overlaps && is_inside && to + length <= size(file) && share_extents(from, into)
            }
            _ => !overlaps && is_inside && share_extents(from, into),
        }
    }

    /// Returns whether the change punches an existing hole, which changes no times.
    pub(crate) fn punches_hole(&self, filesystem: &WritableFilesystem, file: Location) -> bool {
        let Self::Allocate(offset, length, AllocateMode::PunchHole) = self else {
            return false;
        };
        let start = offset / SECTOR * SECTOR;
        let end = (offset + length).next_multiple_of(SECTOR);
        let found = filesystem
            .live()
            .fiemap(file, FileOffset::new(start)..FileOffset::new(end));
        found.is_ok_and(|map| map.without_sharing().next().is_none())
    }

    /// Makes the change on the volume.
    pub fn write(
        &self,
        filesystem: &WritableFilesystem,
        file: Location,
    ) -> buttress::unstable::fs::Result<()> {
        let range = |offset: u64, length: u64| FileOffset::new(offset)..FileOffset::new(offset + length);
        match self {
            Self::Write(offset, bytes) => filesystem.write_at(file, FileOffset::new(*offset), bytes),
            Self::Append(bytes) => filesystem.append(file, bytes).map(drop),
            Self::Truncate(size) => filesystem.truncate(file, ByteCount::new(*size)),
            Self::Allocate(offset, length, mode) => filesystem.allocate(file, range(*offset, *length), *mode),
            Self::Clone(source, at, length, to) => {
                filesystem.clone_range(*source, range(*at, *length), file, FileOffset::new(*to))
            }
            Self::Copy(source, at, length, to) => filesystem
                .copy_range(*source, range(*at, *length), file, FileOffset::new(*to))
                .map(drop),
            Self::Dedupe(source, at, length, to) => filesystem
                .dedupe_range(*source, range(*at, *length), file, FileOffset::new(*to))
                .map(drop),
        }
    }

    /// Makes the change on the model.
    pub fn follow(&self, model: &mut Model, file: Location, now: i64) {
        let taken = self.shared().and_then(|(source, at, length, to)| {
            let content = &model.inode(source)?.content;
            let (from, end) = (
                index(at).min(content.len()),
                index(at + length).min(content.len()),
            );
            Some((to, content[from..end].to_vec()))
        });
        let Some(inode) = model.inode_mut(file) else {
            return;
        };
        let mut content = inode.content.to_vec();
        let mut is_touched = true;
        match self {
            Self::Write(offset, bytes) => put(&mut content, *offset, bytes),
            Self::Append(bytes) => content.extend_from_slice(bytes),
            Self::Truncate(size) => content.resize(index(*size), 0),
            Self::Allocate(offset, length, mode) => allocate(&mut content, *offset, *length, *mode),
            Self::Dedupe(..) => is_touched = false,
            Self::Clone(..) | Self::Copy(..) => match taken {
                Some((to, bytes)) if !bytes.is_empty() => put(&mut content, to, &bytes),
                _ => is_touched = false,
            },
        }
        inode.content = Arc::new(content);
        if is_touched {
            inode.touch(now);
        }
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn content(random: &mut Random, length: u64, compressible: bool) -> Vec<u8> {
    let length = index(length);
    if !compressible {
        return random.bytes(length, false);
    }
    let pattern = random.bytes(97, false);
    pattern.iter().copied().cycle().take(length).collect()
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (index(offset), index(offset) + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

fn allocate(content: &mut Vec<u8>, offset: u64, length: u64, mode: AllocateMode) {
    let (start, end) = (index(offset), index(offset + length));
    let grows = matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange);
    if grows && content.len() < end {
        content.resize(end, 0);
    }
    if !matches!(mode, AllocateMode::Allocate | AllocateMode::AllocateKeepSize) {
        let size = content.len();
        content[start.min(size)..end.min(size)].fill(0);
    }
}
