//! Writes tar archives in the pax interchange format, as GNU tar reads and writes them.
//!
//! A member is a 512-byte ustar header, before it an extended header (`x`) with what ustar cannot hold:
//!
//! - `path`, `linkpath`: names over 100 bytes or not ASCII; `hdrcharset=BINARY` where one is not UTF-8;
//! - `mtime`, `atime`, `ctime` with nanoseconds; `size`, `uid`, `gid` beyond the octal fields;
//! - `SCHILY.xattr.NAME`: extended attributes, as GNU tar's `--xattrs`;
//! - `SCHILY.acl.access`, `SCHILY.acl.default`: POSIX ACLs as text with numeric ids, as GNU tar's `--acls`;
//! - `GNU.sparse.*`: sparse files in GNU tar's format 1.0, so that holes stay holes: the content begins with
//!   the map of data ranges as decimal lines, padded to 512 bytes, and only the data follows.
//!
//! The same members give the same bytes: no process id, no clock and no user names get in.
//!
//! After [`Archive::begin`] the content follows in rising order through [`Archive::content`], then
//! [`Archive::end`]. Invariant: exactly the promised number of bytes is written; what is not given is filled with
//! zeros, so the archive stays readable when a file turns out to be damaged half-way.
//!
//! Source: POSIX.1-2017, pax, "pax Interchange Format"; GNU tar manual, appendix "Tar Internals", sections
//! "Extensions to the POSIX header" and "Storing Sparse Files".

mod acl;
mod data_map;
mod header;

use buttress_exact::{Exact as _, at_most};
use std::io::{self, Write};

pub use acl::acl_text;
pub use data_map::DataMap;
use header::{Header, Records};

/// The unit that headers and contents are padded to.
pub const BLOCK_BYTES: u64 = 512;
/// The unit that the whole archive is padded to, as GNU tar does.
const RECORD_BYTES: u64 = 10_240;

/// A moment: seconds since 1970 (maybe before) and nanoseconds below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z, rounded down.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: u32,
}

/// What kind of member it is, with what only that kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A file with this many bytes of content.
    File {
        /// Its size.
        size_bytes: u64,
    },
    /// A file of which only some ranges are stored; the rest are holes.
    SparseFile {
        /// The ranges that hold data, and the size with holes.
        map: &'a DataMap,
    },
    /// Another name of the member with this path.
    HardLink {
        /// The path of the earlier member.
        target: &'a [u8],
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: &'a [u8],
    },
    /// A character device.
    CharacterDevice {
        /// The driver.
        major: u64,
        /// The device.
        minor: u64,
    },
    /// A block device.
    BlockDevice {
        /// The driver.
        major: u64,
        /// The device.
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
    /// Its path; that of a directory ends with `/`.
    pub path: &'a [u8],
    /// What it is.
    pub kind: Kind<'a>,
    /// Permission bits with set-uid, set-gid and sticky.
    pub permissions: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The last change of content.
    pub modified: Time,
    /// The last access, if it is to be recorded.
    pub accessed: Option<Time>,
    /// The last change of anything, if it is to be recorded.
    pub changed: Option<Time>,
    /// Extended attributes: name and value.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

/// Writes members one after the other.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
    written_bytes: u64,
    /// The ranges of the present member's content that are still to be written: `[start, end)`.
    ranges: std::collections::VecDeque<(u64, u64)>,
    padding_bytes: u64,
}

impl<W: Write> Archive<W> {
    /// An archive that goes to `out`.
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

    /// Writes the bytes of the file from `offset` on, as far as they lie in the ranges that the member stores.
    /// Ranges passed over read as zeros.
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

    /// Ends a member: fills it up with zeros to the promised length and to a whole block.
    pub fn end(&mut self) -> io::Result<()> {
        while let Some((start, end)) = self.ranges.pop_front() {
            self.zeros(end.saturating_sub(start))?;
        }
        let padding = std::mem::take(&mut self.padding_bytes);
        self.zeros(padding)
    }

    /// Ends the archive and gives back what it was written to, not flushed.
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

/// How many zeros follow `length_bytes` up to a whole block.
fn padding_after(length_bytes: u64) -> u64 {
    match length_bytes.checked_rem(BLOCK_BYTES) {
        None | Some(0) => 0,
        Some(rest) => BLOCK_BYTES.saturating_sub(rest),
    }
}

#[cfg(test)]
mod tests;
