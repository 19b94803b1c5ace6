//! Tar archives: pax, GNU, ustar and v7, as one list of members.
//!
//! [`Reader`] reads the headers of a [`Store`] one after another, and skips the content. A
//! [`Member`] holds the place of its content. [`Layers`](crate::layers::Layers) converts members to
//! entries of an image.
//!
//! The tar parser is part of this crate; the crate `tar` is not used. The crate `tar` supports one
//! of the four forms of sparse files, ignores global extended headers, reads only sequentially, and
//! reports errors without their place.
//!
//! Several headers describe a member, in this order: a global extended header (`g`), the member's
//! own (`x`), GNU's long names (`K`, `L`), the header. Invariants: the same bytes yield the same
//! members. The size limit of extended headers bounds memory. The reader compares every stated size
//! with the archive before use: a size beyond the archive's end is an error at its header.
//!
//! Left out: parts of several volumes (`M`), which are refused by name; names of owners, whose
//! numbers would depend on the machine; times of access and change.
//!
//! Source: POSIX.1-2017, pax; GNU tar manual, appendix "Tar Internals"; star(5);
//! libarchive-formats(5).

mod error;
mod header;
mod path;
mod pax;
mod sparse;

use buttress_exact::{Exact as _, at_most, u64_of};
pub use error::{Problem, TarError};

use buttress_format::Timestamp;

use crate::store::Store;
use header::{BLOCK_BYTES, Dialect, Header};
use pax::Extended;

/// The size of the largest accepted extended header, including long names.
const EXTENDED_BYTES_MAX: u64 = 16 << 20;
/// The maximum total size of all global extended headers.
const GLOBAL_BYTES_MAX: u64 = 64 << 10;
/// The maximum length of a symbolic link's target, which is the kernel's limit for paths.
const TARGET_BYTES_MAX: usize = 4095;
/// The number of bytes that the reader reads at a time from a header on.
const WINDOW_BYTES: usize = 8192;

/// A range of a file's data, and its place in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset in the file.
    pub offset: u64,
    /// The length of the data range.
    pub length: u64,
    /// The offset in the archive.
    pub at: u64,
}

/// The kind of file of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file: its size including holes, and its data in ascending order.
    File {
        /// The size of the file.
        size: u64,
        /// The ranges of the file that are not holes.
        segments: Vec<Segment>,
    },
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// Another name of the member with this path.
    HardLink(Vec<u8>),
    /// A character device: major and minor number.
    CharacterDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The offset of the member's first header.
    pub offset: u64,
    /// The path as stored in the archive.
    pub path: Vec<u8>,
    /// The kind of file.
    pub kind: Kind,
    /// Permission bits with set-uid, set-gid and sticky.
    pub permissions: u32,
    /// The numeric id of the owner.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The time of the last change of the member's content.
    pub modified: Timestamp,
    /// Extended attributes, in the order of the archive, each name once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A reader of the members of an archive.
#[derive(Debug)]
pub struct Reader {
    store: Store,
    /// The offset of the next member's header.
    at: u64,
    global: Extended,
    global_bytes: u64,
    window: Vec<u8>,
    window_at: u64,
    header_bytes: u64,
    /// True after an error or the archive's end: the reader returns no more members.
    ended: bool,
}

/// The extended headers before a member's header.
#[derive(Debug, Default)]
struct Before {
    /// The offset of the first of these headers.
    first: Option<u64>,
    extended: Option<Extended>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// The total size of the content's data.
    bytes: u64,
}

impl Reader {
    /// Makes a reader that begins at the first member.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self::at(store, 0)
    }

    /// Makes a reader that begins at a known member's offset. The reader ignores global headers
    /// before this member's offset.
    #[must_use]
    pub fn at(store: Store, offset: u64) -> Self {
        Self {
            store,
            at: offset,
            global: Extended::default(),
            global_bytes: 0,
            window: Vec::new(),
            window_at: 0,
            header_bytes: 0,
            ended: false,
        }
    }

    /// Makes a reader that begins at an earlier member, with the global headers of this reader.
    #[must_use]
    pub fn revisit(&self, offset: u64) -> Self {
        let mut reader = Self::at(self.store.clone(), offset);
        reader.global = self.global.clone();
        reader.global_bytes = self.global_bytes;
        reader
    }

    /// Returns the offset of the next header: the number of bytes read so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Returns the number of bytes that this reader has read from headers and maps of sparse files.
    pub(crate) const fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Returns the next member; `None` at the end of the archive.
    ///
    /// # Errors
    /// Fails with the problem and the place. After an error, the reader returns no further members.
    pub fn next_member(&mut self) -> Result<Option<Member>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let mut offset = self.at;
        let found = self.find(&mut offset);
        if !matches!(found, Ok(Some(_))) {
            self.ended = true;
        }
        found.map_err(|problem| TarError { offset, problem })
    }

    /// Searches for a member from `offset` on. `offset` is that of the current member's header.
    fn find(&mut self, offset: &mut u64) -> Result<Option<Member>, Problem> {
        let mut before = Before::default();
        loop {
            *offset = self.at;
            let Some(header) = self.header()? else {
                return match before.first {
                    None => Ok(None),
                    Some(_) => Err(Problem::NoMember),
                };
            };
            let letter = header.letter();
            if matches!(letter, b'g' | b'x' | b'X' | b'L' | b'K') {
                let most = if letter == b'g' {
                    GLOBAL_BYTES_MAX.saturating_sub(self.global_bytes)
                } else {
                    EXTENDED_BYTES_MAX.saturating_sub(before.bytes)
                };
                let body = self.body(&header, most)?;
                let bytes = body.len() as u64;
                if letter == b'g' {
                    self.global_bytes = self.global_bytes.saturating_add(bytes);
                } else {
                    before.bytes = before.bytes.saturating_add(bytes);
                }
                match letter {
                    b'g' => self.global.add(&body)?,
                    b'L' => before.name = Some(up_to_zero(body)),
                    b'K' => before.link = Some(up_to_zero(body)),
                    _ => before
                        .extended
                        .get_or_insert_with(|| self.global.clone())
                        .add(&body)?,
                }
                if letter != b'g' {
                    before.first.get_or_insert(*offset);
                }
                continue;
            }
            if letter == b'V' {
                // This member is the label of the archive.
                self.body(&header, EXTENDED_BYTES_MAX)?;
                continue;
            }
            let first = before.first.unwrap_or(*offset);
            return self.member(&header, before, first).map(Some);
        }
    }

    /// Reads the block at the current offset and advances. Returns `None` at the end of the
    /// archive.
    fn header(&mut self) -> Result<Option<Header>, Problem> {
        if self.at == self.store.size() {
            return Ok(None);
        }
        let block = self.block(self.at, "a header")?;
        let header = Header::check(&block)?;
        self.at = self.at.saturating_add(BLOCK_BYTES);
        Ok(header)
    }

    /// Reads a block of the archive, usually from the window that was read with the previous block.
    fn block(&mut self, at: u64, what: &'static str) -> Result<[u8; 512], Problem> {
        let held = |window: &[u8], window_at: u64| -> Option<[u8; 512]> {
            let start = usize::try_from(at.checked_sub(window_at)?).ok()?;
            window.get(start..)?.first_chunk::<512>().copied()
        };
        if let Some(block) = held(&self.window, self.window_at) {
            return Ok(block);
        }
        let left = self.store.size().saturating_sub(at);
        if left < BLOCK_BYTES {
            return Err(Problem::Ends {
                what,
                needed: BLOCK_BYTES,
                left,
            });
        }
        let length = at_most(left, WINDOW_BYTES);
        self.window.resize(length, 0);
        self.window_at = at;
        self.header_bytes = self.header_bytes.exact_add(u64_of(length));
        if let Err(error) = self.store.read_exact_at(at, &mut self.window) {
            self.window.clear();
            return Err(error.into());
        }
        held(&self.window, at).ok_or(Problem::Ends {
            what,
            needed: BLOCK_BYTES,
            left,
        })
    }

    /// Reads a header's body of at most `most` bytes to memory and advances.
    fn body(&mut self, header: &Header, most: u64) -> Result<Vec<u8>, Problem> {
        let what = "an extended header";
        let bytes = header.count(124, 12, "size")?;
        if bytes > most {
            return Err(Problem::TooLong { what, bytes, most });
        }
        let at = self.at;
        self.pass(bytes, what)?;
        self.header_bytes = self.header_bytes.exact_add(bytes);
        let mut body = vec![0; bytes.narrow::<usize>()];
        let start = at.saturating_sub(self.window_at);
        let held = usize::try_from(start)
            .ok()
            .and_then(|start| self.window.get(start..start.saturating_add(body.len())));
        match held {
            Some(held) if at >= self.window_at => body.copy_from_slice(held),
            _ => self.store.read_exact_at(at, &mut body)?,
        }
        Ok(body)
    }

    /// Skips the content of a member and its padding.
    fn pass(&mut self, bytes: u64, what: &'static str) -> Result<(), Problem> {
        let left = self.store.size().saturating_sub(self.at);
        if bytes > left {
            return Err(Problem::Ends {
                what,
                needed: bytes,
                left,
            });
        }
        let padded = bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(bytes);
        // Some programs omit the padding of an archive's last member.
        self.at = self.at.saturating_add(padded.min(left));
        Ok(())
    }

    fn member(&mut self, header: &Header, before: Before, offset: u64) -> Result<Member, Problem> {
        let mut extended = before.extended.unwrap_or_else(|| self.global.clone());
        let letter = header.letter();
        let name = extended.sparse.name.take().or_else(|| extended.path.take());
        let path = name.or(before.name).unwrap_or_else(|| header.name());
        path::check(&path)?;
        let target = extended
            .link
            .take()
            .or(before.link)
            .unwrap_or_else(|| header.text(157, 100).to_vec());
        // v7 has no type letter for directories.
        let is_directory =
            letter == b'5' || letter == b'D' || (is_file(letter) && path.last() == Some(&b'/'));
        let kind = match letter {
            _ if is_directory => {
                let has_list = letter == b'D';
                let bytes = if has_list {
                    header.count(124, 12, "size")?
                } else {
                    0
                };
                self.pass(bytes, "the list of a directory")?;
                Kind::Directory
            }
            letter if is_file(letter) || letter == b'S' => self.file(header, &mut extended)?,
            b'1' if target.is_empty() => return Err(Problem::NoTarget("hard")),
            b'1' => Kind::HardLink(target),
            b'2' if target.is_empty() => return Err(Problem::NoTarget("symbolic")),
            b'2' if target.len() > TARGET_BYTES_MAX => {
                return Err(Problem::TooLong {
                    what: "the target of a symbolic link",
                    bytes: target.len() as u64,
                    most: TARGET_BYTES_MAX as u64,
                });
            }
            b'2' => Kind::Symlink(target),
            b'3' => {
                let (major, minor) = device(header, &extended)?;
                Kind::CharacterDevice(major, minor)
            }
            b'4' => {
                let (major, minor) = device(header, &extended)?;
                Kind::BlockDevice(major, minor)
            }
            b'6' => Kind::Fifo,
            _ => return Err(unknown(letter)),
        };
        let seconds = || header.number(136, 12, "mtime");
        let modified = match extended.modified {
            Some(time) => time,
            None => Timestamp {
                seconds: seconds()?,
                nanoseconds: 0,
            },
        };
        let mode = header.count(100, 8, "mode")?;
        Ok(Member {
            offset,
            path,
            kind,
            permissions: u32::try_from(mode & 0o7777).unwrap_or(0),
            uid: owner(extended.uid, header, 108, "uid")?,
            gid: owner(extended.gid, header, 116, "gid")?,
            modified,
            xattrs: extended.xattrs,
        })
    }

    fn file(&mut self, header: &Header, extended: &mut Extended) -> Result<Kind, Problem> {
        let mut stored = match extended.size {
            Some(size) => size,
            None => header.count(124, 12, "size")?,
        };
        let old =
            header.letter() == b'S' && header.dialect == Dialect::Gnu && !extended.sparse.is_in_content();
        if old && !extended.sparse.is_in_records() {
            let size = header.count(483, 12, "realsize")?;
            let ranges = self.old_ranges(header)?;
            return self.sparse(&ranges, stored, size);
        }
        let size = extended.sparse.size.unwrap_or(stored);
        if extended.sparse.is_in_content() {
            let content = self.at;
            let limit = stored;
            let (ranges, taken) = sparse::ranges_in_content(|at| {
                let left = limit.saturating_sub(at);
                if left < BLOCK_BYTES {
                    return Err(Problem::Sparse(format!(
                        "it is longer than the {limit} bytes of the content"
                    )));
                }
                self.block(content.saturating_add(at), "the map of a sparse file")
            })?;
            stored = stored.saturating_sub(taken);
            self.pass(taken, "the map of a sparse file")?;
            return self.sparse(&ranges, stored, size);
        }
        if extended.sparse.is_in_records() {
            let ranges = extended.sparse.take_ranges();
            return self.sparse(&ranges, stored, size);
        }
        let at = self.at;
        self.pass(stored, "the content")?;
        let whole = Segment {
            offset: 0,
            length: stored,
            at,
        };
        Ok(Kind::File {
            size: stored,
            segments: if stored == 0 { Vec::new() } else { vec![whole] },
        })
    }

    fn sparse(&mut self, ranges: &[(u64, u64)], stored: u64, size: u64) -> Result<Kind, Problem> {
        if i64::try_from(size).is_err() {
            return Err(Problem::Large {
                field: "size",
                number: size,
                most: i64::MAX.cast_unsigned(),
            });
        }
        let at = self.at;
        self.pass(stored, "the content")?;
        Ok(Kind::File {
            size,
            segments: sparse::segments(ranges, at, stored, size)?,
        })
    }

    /// Returns the ranges in an old sparse header and in the blocks that follow it.
    fn old_ranges(&mut self, header: &Header) -> Result<Vec<(u64, u64)>, Problem> {
        let mut ranges = sparse::old_ranges(header)?;
        let mut more = header.field(482, 1) != [0];
        while more {
            let block = self.block(self.at, "the map of a sparse file")?;
            self.at = self.at.saturating_add(BLOCK_BYTES);
            let (table, rest) = block.split_at_checked(21 * 24).unwrap_or_default();
            sparse::add_old_entries(&mut ranges, table)?;
            more = rest.first().is_some_and(|more| *more != 0);
        }
        Ok(ranges)
    }
}

fn is_file(letter: u8) -> bool {
    matches!(letter, b'0' | 0 | b'7')
}

fn up_to_zero(mut text: Vec<u8>) -> Vec<u8> {
    if let Some(end) = text.iter().position(|byte| *byte == 0) {
        text.truncate(end);
    }
    text
}

fn unknown(letter: u8) -> Problem {
    let hint = match letter {
        b'M' => ": a part of a multi-volume archive; join the volumes first",
        b'N' => ": long names in the format of GNU tar before 1990",
        b'S' => ": a sparse file without a map",
        _ => "",
    };
    Problem::Kind {
        letter: char::from(letter),
        hint,
    }
}

fn owner(extended: Option<u64>, header: &Header, at: usize, field: &'static str) -> Result<u32, Problem> {
    let number = match extended {
        Some(number) => number,
        None => header.count(at, 8, field)?,
    };
    small(number, field)
}

fn device(header: &Header, extended: &Extended) -> Result<(u32, u32), Problem> {
    let count = |known: Option<u64>, at, field| match known {
        Some(number) => Ok(number),
        None if header.dialect == Dialect::V7 => Ok(0),
        None => header.count(at, 8, field),
    };
    let major = count(extended.device_major, 329, "device major number")?;
    let minor = count(extended.device_minor, 337, "device minor number")?;
    Ok((
        small(major, "device major number")?,
        small(minor, "device minor number")?,
    ))
}

fn small(number: u64, field: &'static str) -> Result<u32, Problem> {
    u32::try_from(number).map_err(|_| Problem::Large {
        field,
        number,
        most: u64::from(u32::MAX),
    })
}

#[cfg(test)]
mod tests;
