//! A reader of the content of one file that lies in segments of a store.

use buttress_exact::Exact as _;
use core::ops::Range;

use buttress_build::{ContentReader, SourceError};
use buttress_format::FileOffset;

use crate::store::Store;
use crate::tar::Segment;

/// A reader of the content of one file.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    name: String,
    store: Store,
    /// The segments, in ascending order and not adjacent.
    segments: Vec<Segment>,
    size: u64,
}

impl SegmentReader {
    pub(crate) const fn new(name: String, store: Store, segments: Vec<Segment>, size: u64) -> Self {
        Self {
            name,
            store,
            segments,
            size,
        }
    }

    /// Returns the segments that end after the offset `place`.
    fn from(&self, place: u64) -> impl Iterator<Item = &Segment> {
        let first = self
            .segments
            .partition_point(|segment| segment.offset.saturating_add(segment.length) <= place);
        self.segments.get(first..).unwrap_or_default().iter()
    }
}

impl ContentReader for SegmentReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        let next = self.from(from.get()).next();
        Ok(next.map(|segment| {
            let end = segment.offset.saturating_add(segment.length);
            FileOffset::new(segment.offset.max(from.get()))..FileOffset::new(end)
        }))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        let start = at.get();
        let end = start.saturating_add(into.len() as u64);
        if end > self.size {
            return Err(SourceError::Changed {
                place: self.name.clone(),
                what: format!("bytes up to {end} of a file of {} were asked for", self.size),
            });
        }
        let index = |place: u64| place.saturating_sub(start).narrow::<usize>();
        let mut filled = 0;
        for segment in self.from(start).take_while(|segment| segment.offset < end) {
            let from = segment.offset.max(start);
            let until = segment.offset.saturating_add(segment.length).min(end);
            if let Some(hole) = into.get_mut(filled..index(from)) {
                hole.fill(0);
            }
            let place = segment.at.saturating_add(from.saturating_sub(segment.offset));
            let Some(data) = into.get_mut(index(from)..index(until)) else {
                continue;
            };
            self.store
                .read_exact_at(place, data)
                .map_err(|cause| SourceError::Io {
                    action: "reading",
                    place: format!("byte {place} of {}", self.name),
                    cause,
                })?;
            filled = index(until);
        }
        if let Some(hole) = into.get_mut(filled..) {
            hole.fill(0);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.store.unchanged().map_err(|what| SourceError::Changed {
            place: self.name.clone(),
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_reader_returns_data_and_holes_in_place() {
        let store = Store::of_bytes((0..=255).collect::<Vec<u8>>());
        let segment = |offset, length, at| Segment { offset, length, at };
        let segments = vec![segment(10, 5, 100), segment(20, 10, 200)];
        let mut reader = SegmentReader::new("x".into(), store, segments.clone(), 40);
        let mut model = [0_u8; 40];
        for segment in &segments {
            for byte in 0..segment.length {
                model[(segment.offset + byte) as usize] = (segment.at + byte) as u8;
            }
        }
        for start in 0..40 {
            for end in start..=40 {
                let mut read = vec![99; end - start];
                reader
                    .read_exact_at(FileOffset::new(start as u64), &mut read)
                    .unwrap();
                assert_eq!(read, model[start..end]);
            }
        }
        let mut at = |from| {
            let range = reader.next_data(FileOffset::new(from)).unwrap()?;
            Some((range.start.get(), range.end.get()))
        };
        assert_eq!(at(0), Some((10, 15)));
        assert_eq!(at(12), Some((12, 15)));
        assert_eq!(at(15), Some((20, 30)));
        assert_eq!(at(30), None);
        assert!(reader.read_exact_at(FileOffset::new(39), &mut [0; 2]).is_err());
    }
}
