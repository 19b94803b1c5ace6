//! Tests that the work of a build depends on a file's data, not on its length.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use buttress_build::{
    Attributes, BuildOptions, ContentReader, Contents, DataExtent, Entry, EntryKind, EntryPath, FileContent,
    ImageBuilder, Precedence, Source, SourceError,
};
use buttress_device::Device;
use buttress_format::{ByteCount, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{File, Follow, OpenOptions, Progress};
use buttress_mkfs::Identity;
use core::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE_BYTES: u64 = 1 << 40;
const DEVICE_BYTES: usize = 256 << 20;

/// A source of one file with holes, which counts its opens and its queries for data.
#[derive(Clone, Default)]
struct Holes {
    ranges: Arc<Vec<Range<u64>>>,
    opened: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    given: bool,
}

/// Returns the byte of the file at this place of a range of data.
fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1
}

impl Holes {
    fn new(ranges: Vec<Range<u64>>) -> Self {
        Self {
            ranges: Arc::new(ranges),
            ..Self::default()
        }
    }
}

impl Source for Holes {
    fn name(&self) -> String {
        "holes".to_owned()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        if std::mem::replace(&mut self.given, true) {
            return Ok(None);
        }
        let sum = |sum: DataExtent, range: &Range<u64>| sum.with_range(range.end - range.start);
        Ok(Some(Entry {
            path: EntryPath::new(b"file").unwrap(),
            precedence: Precedence::default(),
            kind: EntryKind::File(FileContent {
                data: Some(self.ranges.iter().fold(DataExtent::default(), sum)),
                size: ByteCount::new(FILE_BYTES),
                locator: Vec::new(),
                share: None,
            }),
            attributes: Attributes::default(),
        }))
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Contents for Holes {
    fn open(&self, _: &EntryPath, _: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.clone()))
    }
}

impl ContentReader for Holes {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let next = self.ranges.iter().find(|range| range.end > from.get());
        Ok(next.map(|range| FileOffset::new(range.start.max(from.get()))..FileOffset::new(range.end)))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        for (place, byte) in (at.get()..).zip(into) {
            let is_data = self.ranges.iter().any(|range| range.contains(&place));
            *byte = if is_data { byte_at(place) } else { 0 };
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

fn read_exact(file: &File, from: u64, into: &mut [u8]) {
    let mut filled = 0;
    while filled < into.len() {
        let read = file
            .read_at(FileOffset::new(from + filled as u64), &mut into[filled..])
            .unwrap();
        assert_ne!(read, 0, "at {from}");
        filled += read;
    }
}

/// Builds a volume of one file with these ranges, and compares its content. Returns how often the
/// build opened the file, and how often it queried the file's ranges.
fn build(ranges: Vec<Range<u64>>) -> (u64, u64) {
    let source = Holes::new(ranges.clone());
    let (opened, asked) = (Arc::clone(&source.opened), Arc::clone(&source.asked));
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    let device = Device::memory(vec![0; DEVICE_BYTES]);
    let progress = Progress::new();
    let builder = ImageBuilder::new(BuildOptions::default()).source(source);
    let gathered = builder.gather(1, identity.time, &progress).unwrap();
    gathered
        .write(std::slice::from_ref(&device), &identity, &progress)
        .unwrap();

    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    let root = filesystem.root_directory(SubvolumeId::TOP_LEVEL);
    let location = filesystem.resolve(root, b"file", Follow::NotLast).unwrap();
    let file = filesystem.open_file(location).unwrap();
    assert_eq!(file.size().get(), FILE_BYTES);
    for range in ranges {
        let mut read = vec![0; (range.end - range.start) as usize];
        read_exact(&file, range.start, &mut read);
        assert!(
            (range.start..)
                .zip(&read)
                .all(|(place, byte)| *byte == byte_at(place)),
            "{range:?}"
        );
        if range.end < FILE_BYTES {
            let mut after = [9; 1];
            read_exact(&file, range.end, &mut after);
            assert_eq!(after, [0], "{range:?}");
        }
    }
    (opened.load(Ordering::Relaxed), asked.load(Ordering::Relaxed))
}

#[test]
fn long_hole_takes_no_more_steps_than_a_short_one() {
    let (opened, asked) = build(std::iter::once(1 << 30..(1 << 30) + 5).collect());
    assert!(
        opened <= 8 && asked <= 40,
        "opened {opened} times, asked {asked} times"
    );
    let (opened, asked) = build(Vec::new());
    assert!(
        opened <= 8 && asked <= 20,
        "opened {opened} times, asked {asked} times"
    );
}

#[test]
fn steps_follow_the_ranges_of_data() {
    let spread = (0..500).map(|number| number * (FILE_BYTES / 500) + 7..number * (FILE_BYTES / 500) + 4000);
    let (opened, asked) = build(spread.collect());
    assert!(
        opened <= 40 && asked <= 5000,
        "opened {opened} times, asked {asked} times"
    );
}

/// All data of the long file lies in one job. The job's worker waits for the pass over the items,
/// and the pass continues.
#[test]
fn data_in_one_place_of_a_long_file_is_built() {
    let mut ranges: Vec<Range<u64>> = (0..24)
        .map(|number| number << 21..(number << 21) + (1 << 20) + 100)
        .collect();
    ranges.push(FILE_BYTES - 10_000..FILE_BYTES - 1);
    let (opened, _) = build(ranges);
    assert!(opened <= 100, "opened {opened} times");
}
