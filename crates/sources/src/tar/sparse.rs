//! Maps of sparse files, in all forms that GNU tar has written.
//!
//! - old: kind `S`, four ranges in the header, 21 more in each block that follows;
//! - Form 0.0: records `GNU.sparse.offset` and `GNU.sparse.numbytes` in turn;
//! - 0.1: a record `GNU.sparse.map` with all of them, `GNU.sparse.name` with the name;
//! - 1.0: the map as decimal lines at the beginning of the content, padded to a block.
//!
//! The reader checks the map of every form: ranges ascend, do not overlap, and end within the file.
//! The total length of the ranges equals the length of the stored content.
//!
//! Source: GNU tar manual, appendix "Tar Internals", "Storing Sparse Files".

use super::Segment;
use super::error::Problem;
use super::header::{BLOCK_BYTES, Header, number};
use super::pax::{decimal, wrong_value};
use buttress_exact::Exact as _;

/// The maximum number of ranges of one sparse file.
pub(super) const RANGES_MAX: usize = 1 << 20;

/// The fields of a sparse file in pax records.
#[derive(Clone, Debug, Default)]
pub(super) struct Sparse {
    pub(super) major: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    ranges: Vec<(u64, u64)>,
    /// The offset of a range whose length has not been read yet.
    offset: Option<u64>,
    has_map: bool,
}

impl Sparse {
    /// Adds a record `GNU.sparse.KEY`.
    pub(super) fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Problem> {
        let number = || decimal(value).ok_or_else(|| wrong_value(&[b"GNU.sparse.", key].concat(), value));
        match key {
            b"major" => self.major = Some(number()?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number()?),
            b"numblocks" => {
                self.has_map = true;
                let count = number()?;
                if count > RANGES_MAX as u64 {
                    return Err(too_many(count));
                }
            }
            b"offset" => {
                self.has_map = true;
                self.offset = Some(number()?);
            }
            b"numbytes" => {
                let offset = self
                    .offset
                    .take()
                    .ok_or_else(|| Problem::Sparse("a length without an offset before it".into()))?;
                self.push(offset, number()?)?;
            }
            b"map" => {
                self.has_map = true;
                self.ranges.clear();
                let mut numbers = value.split(|byte| *byte == b',').filter(|text| !text.is_empty());
                while let Some(offset) = numbers.next() {
                    let pair = decimal(offset).zip(numbers.next().and_then(decimal));
                    let (offset, length) = pair.ok_or_else(|| {
                        Problem::Sparse("GNU.sparse.map is not a list of offsets and lengths".into())
                    })?;
                    self.push(offset, length)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true if the pax records, not the content, hold the map of ranges.
    pub(super) fn is_in_records(&self) -> bool {
        self.has_map && !self.is_in_content()
    }

    /// Returns true if the member's content begins with the map of the sparse file.
    pub(super) fn is_in_content(&self) -> bool {
        self.major == Some(1)
    }

    pub(super) fn take_ranges(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.ranges)
    }

    fn push(&mut self, offset: u64, length: u64) -> Result<(), Problem> {
        push(&mut self.ranges, offset, length)
    }
}

fn too_many(count: u64) -> Problem {
    Problem::Sparse(format!(
        "too many ranges (found {count}, expected at most {RANGES_MAX})"
    ))
}

fn push(ranges: &mut Vec<(u64, u64)>, offset: u64, length: u64) -> Result<(), Problem> {
    if ranges.len() >= RANGES_MAX {
        return Err(too_many((RANGES_MAX as u64).saturating_add(1)));
    }
    ranges.push((offset, length));
    Ok(())
}

/// Adds the ranges of a table of 24-byte entries in a header or an extension block.
pub(super) fn add_old_entries(ranges: &mut Vec<(u64, u64)>, table: &[u8]) -> Result<(), Problem> {
    for entry in table.chunks_exact(24) {
        let (offset, length) = entry.split_at_checked(12).unwrap_or_default();
        if length.iter().all(|byte| *byte == 0) && offset.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let count = |bytes, field| {
            let number = number(bytes, field)?;
            u64::try_from(number).map_err(|_| Problem::Negative { field, number })
        };
        push(
            ranges,
            count(offset, "sparse offset")?,
            count(length, "sparse length")?,
        )?;
    }
    Ok(())
}

/// Returns the ranges in an old header.
pub(super) fn old_ranges(header: &Header) -> Result<Vec<(u64, u64)>, Problem> {
    let mut ranges = Vec::new();
    add_old_entries(&mut ranges, header.field(386, 4 * 24))?;
    Ok(ranges)
}

/// Reads the map at the beginning of the content, one block after another. Returns the ranges and
/// the number of content bytes that the map takes up.
pub(super) fn ranges_in_content(
    mut block: impl FnMut(u64) -> Result<[u8; 512], Problem>,
) -> Result<(Vec<(u64, u64)>, u64), Problem> {
    let mut text: Vec<u8> = Vec::new();
    let mut taken = 0_u64;
    let mut blocks = 0_u64;
    let mut line = |what: &str| -> Result<u64, Problem> {
        loop {
            let start = taken.narrow::<usize>();
            let rest = text.get(start..).unwrap_or_default();
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let digits = rest.get(..end).unwrap_or_default();
                taken = taken.saturating_add(end as u64).saturating_add(1);
                return decimal(digits).ok_or_else(|| Problem::Sparse(format!("{what} is not a number")));
            }
            if rest.len() > 32 {
                return Err(Problem::Sparse(format!("{what} is not a number")));
            }
            // The parsed text is dropped.
            text.drain(..start.min(text.len()));
            taken = 0;
            text.extend_from_slice(&block(blocks.saturating_mul(BLOCK_BYTES))?);
            blocks = blocks.saturating_add(1);
        }
    };
    let count = line("the number of ranges")?;
    if count > RANGES_MAX as u64 {
        return Err(too_many(count));
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        let offset = line("an offset")?;
        let length = line("a length")?;
        ranges.push((offset, length));
    }
    Ok((ranges, blocks.saturating_mul(BLOCK_BYTES)))
}

/// Assigns ranges to the `stored` bytes of content from `at` on, of a file of `size` bytes.
pub(super) fn segments(
    ranges: &[(u64, u64)],
    at: u64,
    stored: u64,
    size: u64,
) -> Result<Vec<Segment>, Problem> {
    let mut segments = Vec::new();
    let (mut end, mut used) = (0_u64, 0_u64);
    for &(offset, length) in ranges {
        let until = offset
            .checked_add(length)
            .filter(|until| *until <= size)
            .ok_or_else(|| {
                Problem::Sparse(format!(
                    "a range of {length} bytes at {offset} ends past the file's {size} bytes"
                ))
            })?;
        if offset < end {
            return Err(Problem::Sparse(format!(
                "a range at {offset} overlaps the range before it, which ends at {end}"
            )));
        }
        end = until;
        if length == 0 {
            continue;
        }
        segments.push(Segment {
            offset,
            length,
            at: at.saturating_add(used),
        });
        used = used.saturating_add(length);
    }
    if used != stored {
        return Err(Problem::Sparse(format!(
            "wrong amount of data (found {stored} bytes in the archive, expected {used})"
        )));
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_fit_the_file_and_what_is_stored() {
        let made = segments(&[(0, 512), (4096, 100), (9000, 0)], 1024, 612, 9000).unwrap();
        assert_eq!(made.len(), 2);
        assert_eq!((made[1].offset, made[1].length, made[1].at), (4096, 100, 1536));
        for (ranges, stored, size) in [
            (&[(0_u64, 512_u64)][..], 511, 512),
            (&[(0, 512)], 512, 511),
            (&[(512, 512), (0, 512)], 1024, 1024),
            (&[(0, 512), (511, 1)], 513, 1024),
            (&[(u64::MAX, 1)], 1, u64::MAX),
        ] {
            assert!(matches!(
                segments(ranges, 0, stored, size),
                Err(Problem::Sparse(_))
            ));
        }
    }

    #[test]
    fn a_map_in_the_content_may_take_up_several_blocks() {
        let count = 100;
        let mut text = format!("{count}\n");
        for index in 0..count {
            text.push_str(&format!("{}\n512\n", index * 4096));
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let read = |at: u64| Ok(bytes[at as usize..at as usize + 512].try_into().unwrap());
        let (ranges, taken) = ranges_in_content(read).unwrap();
        assert_eq!(ranges.len(), 100);
        assert_eq!(ranges[99], (99 * 4096, 512));
        assert_eq!(taken, bytes.len() as u64);
        assert!(ranges_in_content(|_| Ok([b'1'; 512])).is_err());
        assert!(ranges_in_content(|_| Ok([b'\n'; 512])).is_err());
    }
}
