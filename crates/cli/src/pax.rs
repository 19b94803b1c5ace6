//! A writer of tar archives in the pax interchange format, compatible with GNU tar.
//!
//! A member is a 512-byte ustar header. An extended header (`x`) precedes a member whose values
//! ustar cannot hold:
//!
//! - `path`, `linkpath`: names over 100 bytes or not ASCII; `hdrcharset=BINARY` for names that are
//!   not UTF-8;
//! - `mtime`, `atime`, `ctime` with nanoseconds; `size`, `uid`, `gid` beyond the octal fields;
//! - `SCHILY.xattr.NAME`: extended attributes, as GNU tar's `--xattrs`;
//! - `SCHILY.acl.access`, `SCHILY.acl.default`: POSIX ACLs as text with numeric ids, as GNU tar's
//!   `--acls`;
//! - `GNU.sparse.*`: sparse files in GNU tar's format 1.0, to preserve holes: the content begins
//!   with the map of data ranges as decimal lines, padded to 512 bytes, and only the data follows.
//!
//! The same members give the same bytes: the archive contains no process id, no current time and no
//! user names.
//!
//! After [`Archive::begin`] of a member, the content follows in ascending order through
//! [`Archive::content`], then [`Archive::end`]. Invariant: the writer writes exactly the promised
//! number of bytes. The archive writer fills missing content with zeros, so the archive stays
//! readable if a file is damaged.
//!
//! Source: POSIX.1-2017, pax, "pax Interchange Format"; GNU tar manual, appendix "Tar Internals",
//! sections "Extensions to the POSIX header" and "Storing Sparse Files" of the GNU tar manual.

mod acl;
mod data_map;
mod header;

use buttress_exact::{Exact as _, at_most};
use std::io::{self, Write};

pub use acl::acl_text;
pub use data_map::DataMap;
use header::{Header, Records};

/// Unit to which headers and contents are padded, in bytes.
pub const BLOCK_BYTES: u64 = 512;
/// Unit to which the whole archive is padded, as in GNU tar, in bytes.
const RECORD_BYTES: u64 = 10_240;

/// A time: seconds since 1970 (possibly negative) and nanoseconds below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z, rounded down.
    pub seconds: i64,
    /// Nanoseconds after the full second of the time.
    pub nanoseconds: u32,
}

/// Kind of a member, with its kind-specific data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A regular file without holes.
    File {
        /// Size of the content in bytes.
        size_bytes: u64,
    },
    /// A sparse file: the archive stores only its data ranges.
    SparseFile {
        /// Data ranges and total size of the file.
        map: &'a DataMap,
    },
    /// A hard link to an earlier member.
    HardLink {
        /// Path of the earlier member.
        target: &'a [u8],
    },
    /// A symbolic link.
    Symlink {
        /// Target of the symbolic link.
        target: &'a [u8],
    },
    /// A character device node.
    CharacterDevice {
        /// Major device number.
        major: u64,
        /// Minor device number.
        minor: u64,
    },
    /// A block device node.
    BlockDevice {
        /// Major device number.
        major: u64,
        /// Minor device number.
        minor: u64,
    },
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// A member of an archive.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Path of the member; the path of a directory ends with `/`.
    pub path: &'a [u8],
    /// Kind of the member.
    pub kind: Kind<'a>,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Time of the last change of content.
    pub modified: Time,
    /// Time of the last access, if the archive should record it.
    pub accessed: Option<Time>,
    /// Time of the last change of the inode, if the archive should record it.
    pub changed: Option<Time>,
    /// Names and values of the extended attributes.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

/// Writer of an archive.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
    written_bytes: u64,
    /// Ranges of the current member's content that are still to be written: `[start, end)`.
    ranges: std::collections::VecDeque<(u64, u64)>,
    padding_bytes: u64,
}

impl<W: Write> Archive<W> {
    /// Creates an archive that writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            written_bytes: 0,
            ranges: std::collections::VecDeque::new(),
            padding_bytes: 0,
        }
    }

    /// Writes the headers of a member.
    pub fn begin(&mut self, member: &Member<'_>) -> io::Result<()> {
        let mut map_text = Vec::new();
        let mut data_bytes = 0;
        match &member.kind {
            Kind::File { size_bytes } => {
                data_bytes = *size_bytes;
                self.ranges.push_back((0, *size_bytes));
            }
            Kind::SparseFile { map } => {
                map_text = map.text();
                data_bytes = map.data_bytes();
                self.ranges.extend(map.ranges());
            }
            _ => {}
        }
        let stored_bytes = data_bytes.saturating_add(map_text.len() as u64);
        let records = Records::of(member, stored_bytes);
        if !records.is_empty() {
            let body = records.bytes();
            let header = Header::extended(member.path, body.len() as u64);
            self.write(header.bytes())?;
            self.write(body)?;
            self.zeros(padding_after(body.len() as u64))?;
        }
        self.write(Header::of(member, stored_bytes).bytes())?;
        self.write(&map_text)?;
        self.padding_bytes = padding_after(data_bytes);
        Ok(())
    }

    /// Writes the part of the given bytes at `offset` that belongs to the member's stored ranges.
    /// Skipped ranges of a member read as zeros.
    pub fn content(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        while let Some((start, range_end)) = self.ranges.front().copied() {
            if start >= end {
                break;
            }
            let skipped = offset.min(range_end).saturating_sub(start);
            self.zeros(skipped)?;
            let from = start.max(offset);
            let until = range_end.min(end);
            if from < until {
                let first = from.saturating_sub(offset).narrow::<usize>();
                let last = until.saturating_sub(offset).narrow::<usize>();
                self.write(bytes.get(first..last).unwrap_or_default())?;
            }
            self.ranges.pop_front();
            let reached = until.max(from);
            if reached < range_end {
                self.ranges.push_front((reached, range_end));
                break;
            }
        }
        Ok(())
    }

    /// Ends a member: pads it with zeros to the promised length and to a whole block.
    pub fn end(&mut self) -> io::Result<()> {
        while let Some((start, end)) = self.ranges.pop_front() {
            self.zeros(end.saturating_sub(start))?;
        }
        let padding = std::mem::take(&mut self.padding_bytes);
        self.zeros(padding)
    }

    /// Ends the archive and returns its output, not flushed.
    pub fn finish(mut self) -> io::Result<W> {
        self.zeros(BLOCK_BYTES.saturating_mul(2))?;
        let rest = self.written_bytes.checked_rem(RECORD_BYTES).unwrap_or(0);
        if rest != 0 {
            self.zeros(RECORD_BYTES.saturating_sub(rest))?;
        }
        Ok(self.out)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written_bytes = self.written_bytes.wrapping_add(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, count: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = count;
        while left > 0 {
            let length = at_most(left, ZEROS.len());
            let (zeros, _) = ZEROS.split_at_checked(length).unwrap_or((&ZEROS, &[]));
            self.write(zeros)?;
            left = left.saturating_sub(length as u64);
        }
        Ok(())
    }
}

/// Returns the number of zeros that pad `length_bytes` to a whole block.
fn padding_after(length_bytes: u64) -> u64 {
    match length_bytes.checked_rem(BLOCK_BYTES) {
        None | Some(0) => 0,
        Some(rest) => BLOCK_BYTES.saturating_sub(rest),
    }
}

#[cfg(test)]
mod tests;
