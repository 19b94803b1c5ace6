//! Comparison of contents without reading holes.

use buttress_exact::at_most;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;

use anyhow::Result;
use buttress::{Content, FileReader};
use rustix::io::Errno;

use super::planned::{PlannedContent, Run};

/// Size of one read of a host file in bytes.
const READ_BYTES: usize = 256 << 10;

/// A file as a sequence of data and holes.
#[derive(Debug)]
pub(super) struct Segments {
    source: Source,
    /// Unread rest of the current segment.
    current: Segment,
}

#[derive(Debug)]
enum Source {
    Image(Box<FileReader>),
    Host {
        file: File,
        offset: u64,
        size_bytes: u64,
    },
    Planned(Box<PlannedContent>),
    Ended,
}

/// A segment of a file: data or a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Data { bytes: bytes::Bytes },
    Hole { length: u64 },
}

impl Segment {
    fn length(&self) -> u64 {
        match self {
            Self::Data { bytes } => bytes.len() as u64,
            Self::Hole { length } => *length,
        }
    }

    /// Removes `count` bytes from the front, or all if there are fewer.
    fn advance(&mut self, count: u64) {
        match self {
            Self::Data { bytes } => {
                let count = at_most(count, bytes.len());
                drop(bytes.split_to(count));
            }
            Self::Hole { length } => *length = length.saturating_sub(count),
        }
    }

    fn front(&self, count: u64) -> &[u8] {
        match self {
            Self::Data { bytes } => bytes.get(..at_most(count, bytes.len())).unwrap_or_default(),
            Self::Hole { .. } => &[],
        }
    }
}

impl Segments {
    pub(super) fn image(reader: FileReader) -> Self {
        Self {
            source: Source::Image(Box::new(reader)),
            current: Segment::Hole { length: 0 },
        }
    }

    pub(super) fn planned(content: PlannedContent) -> Self {
        Self {
            source: Source::Planned(Box::new(content)),
            current: Segment::Hole { length: 0 },
        }
    }

    pub(super) fn host(file: File) -> io::Result<Self> {
        let size_bytes = file.metadata()?.len();
        Ok(Self {
            source: Source::Host {
                file,
                offset: 0,
                size_bytes,
            },
            current: Segment::Hole { length: 0 },
        })
    }

    /// Returns up to `count` bytes from the beginning; holes are zeros.
    pub(super) fn beginning(mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count && self.fill()? {
            let room = count.saturating_sub(bytes.len());
            match &self.current {
                Segment::Data { bytes: data } => bytes.extend(data.iter().take(room)),
                Segment::Hole { length } => {
                    let zeros = usize::try_from(*length).unwrap_or(room).min(room);
                    bytes.extend(std::iter::repeat_n(0, zeros));
                }
            }
            let length = self.current.length();
            self.current.advance(length);
        }
        Ok(bytes)
    }

    /// Loads the next segment if `current` is empty. Returns false at the end.
    fn fill(&mut self) -> Result<bool> {
        while self.current.length() == 0 {
            let next = match &mut self.source {
                Source::Image(reader) => match reader.next_chunk()? {
                    Some(chunk) => match chunk.content {
                        Content::Data(bytes) => Some(Segment::Data { bytes }),
                        Content::Hole => Some(Segment::Hole {
                            length: chunk.length.get(),
                        }),
                        Content::Damaged(error) => return Err(error.into()),
                    },
                    None => None,
                },
                Source::Host {
                    file,
                    offset,
                    size_bytes,
                } => next_of_host(file, offset, *size_bytes)?,
                Source::Planned(content) => content.next(READ_BYTES)?.map(|run| match run {
                    Run::Data(bytes) => Segment::Data { bytes: bytes.into() },
                    Run::Hole(length) => Segment::Hole { length },
                }),
                Source::Ended => None,
            };
            match next {
                Some(segment) => self.current = segment,
                None => {
                    self.source = Source::Ended;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn next_of_host(file: &mut File, offset: &mut u64, size_bytes: u64) -> io::Result<Option<Segment>> {
    if *offset >= size_bytes {
        return Ok(None);
    }
    let data = match rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Data(*offset)) {
        Ok(data) => data,
        Err(Errno::NXIO) => size_bytes,
        // This file system does not report holes.
        Err(_) => *offset,
    };
    if data > *offset {
        let end = data.min(size_bytes);
        let length = end.saturating_sub(*offset);
        *offset = end;
        return Ok(Some(Segment::Hole { length }));
    }
    let hole = rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Hole(*offset)).unwrap_or(size_bytes);
    let until = hole.max(offset.saturating_add(1)).min(size_bytes);
    let length = at_most(until.saturating_sub(*offset), READ_BYTES);
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(*offset))?;
    file.read_exact(&mut bytes)?;
    *offset = offset.saturating_add(length as u64);
    Ok(Some(Segment::Data { bytes: bytes.into() }))
}

/// Result of comparing two contents of equal size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContentDifference {
    /// True if the bytes differ.
    pub(super) bytes: bool,
    /// True if one side stores zeros where the other has a hole.
    pub(super) holes: bool,
}

/// Compares two contents; stops at the first differing byte.
pub(super) fn compare(mut old: Segments, mut new: Segments) -> Result<ContentDifference> {
    let mut difference = ContentDifference::default();
    loop {
        match (old.fill()?, new.fill()?) {
            (true, true) => {}
            (false, false) => return Ok(difference),
            _ => {
                return Ok(ContentDifference {
                    bytes: true,
                    ..difference
                });
            }
        }
        let count = old.current.length().min(new.current.length());
        let (a, b) = (old.current.front(count), new.current.front(count));
        match (&old.current, &new.current) {
            (Segment::Data { .. }, Segment::Data { .. }) => difference.bytes |= a != b,
            (Segment::Hole { .. }, Segment::Hole { .. }) => {}
            _ => {
                difference.holes = true;
                difference.bytes |= a.iter().chain(b).any(|byte| *byte != 0);
            }
        }
        if difference.bytes {
            return Ok(difference);
        }
        old.current.advance(count);
        new.current.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn file(size: u64, writes: &[(u64, &[u8])]) -> Segments {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (offset, bytes) in writes {
            file.write_all_at(bytes, *offset).unwrap();
        }
        Segments::host(file).unwrap()
    }

    #[test]
    fn contents_compare_by_bytes_not_by_layout() {
        const SIZE: u64 = 5 << 40;
        let bytes = |old, new| compare(old, new).unwrap().bytes;
        assert!(!bytes(file(SIZE, &[]), file(SIZE, &[])));
        assert!(!bytes(
            file(SIZE, &[(1 << 30, b"x")]),
            file(SIZE, &[(1 << 30, b"x")])
        ));
        assert!(!bytes(file(SIZE, &[(1 << 30, &[0; 10_000])]), file(SIZE, &[])));
        assert!(bytes(file(SIZE, &[(1 << 30, b"x")]), file(SIZE, &[])));
        assert!(bytes(
            file(SIZE, &[(SIZE - 1, b"x")]),
            file(SIZE, &[(SIZE - 1, b"y")])
        ));
        assert!(bytes(file(3, &[]), file(4, &[])));
    }
}
