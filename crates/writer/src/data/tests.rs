//! Tests of file content against byte vectors, on volumes that btrfs-progs makes and checks.

mod extents;
mod leaving;
mod model;
mod small_files;

use crate::WritableFilesystem;
use crate::operations::NewInode;
use crate::operations::tests::volume::{Image, ROOT, open_with};
use buttress_engine::data_options::DataOptions;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::error::Error;
use buttress_fs::location::Location;

const NEW: NewInode = NewInode::of_root(0o644);

fn open(image: &Image, options: DataOptions) -> WritableFilesystem {
    open_with(&image.path, options)
}

fn offset(at: u64) -> FileOffset {
    FileOffset::new(at)
}

/// Returns all content of a file, as a reader of the running state sees it.
fn content(filesystem: &WritableFilesystem, file: Location) -> Vec<u8> {
    let size = usize::try_from(filesystem.contents().size_of(file).unwrap()).unwrap();
    let mut bytes = vec![0xee; size + 10];
    assert_eq!(
        filesystem.live().read_at(file, offset(0), &mut bytes).unwrap(),
        size
    );
    bytes.truncate(size);
    bytes
}

/// Returns all content of a file after a write-back.
fn written(filesystem: &WritableFilesystem, file: Location) -> Vec<u8> {
    let view = filesystem.view();
    let file = view.open_file(file).unwrap();
    let mut bytes = vec![0xee; usize::try_from(file.size().get()).unwrap()];
    assert_eq!(file.read_at(offset(0), &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A random number generator with a fixed sequence for each seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// Returns random test content: noise, compressible text, or a repeated byte.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let kind = self.below(3);
        let byte = u8::try_from(self.below(256)).unwrap();
        (0..length)
            .map(|at| match kind {
                0 => u8::try_from(self.below(256)).unwrap(),
                1 => b"the quick brown fox jumps over the lazy dog\n"[(at + usize::from(byte)) % 44],
                _ => byte,
            })
            .collect()
    }
}

fn small_memory() -> DataOptions {
    DataOptions {
        delalloc_bytes_max: ByteCount::new(1 << 20),
        ..DataOptions::default()
    }
}

#[test]
fn file_that_releases_more_than_it_reserved_stops_writing() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.write_at(file, offset(0), &[7; 5000]).unwrap();
    let released = filesystem.contents().with(file, |content| {
        content.release(3 * 4096);
        Ok(content.state.reserved)
    });
    assert_eq!(released.unwrap(), 2 * 4096);
    let error = filesystem.commit().unwrap_err();
    assert!(matches!(error, Error::WritingStopped { .. }), "{error}");
    assert!(error.to_string().contains("sum 8192, less 12288"), "{error}");
    filesystem.abandon();
}
