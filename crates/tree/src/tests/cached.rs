//! Tests that blocks and errors do not depend on which blocks are in the page cache.

use super::corruption::walk;
use super::{Image, MODES, key};
use crate::testing::{CHUNK_LOGICAL, ImageOptions, Placement, Random, TreeShape};
use crate::{Forest, ReadAhead, Tree};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, Logical};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory in which some blocks count as cached pages of a file, and other blocks as those of its
/// medium.
#[derive(Debug)]
struct PartlyCached {
    memory: MemoryBackend,
    /// Returns true if the 4 KiB with this number are cached.
    is_cached: fn(u64) -> bool,
    /// The number of reads from the medium.
    waited: Arc<AtomicUsize>,
}

impl Backend for PartlyCached {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.memory.read_vectored_at(offset_bytes, buffers)
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let last = offset_bytes + bytes as u64 - 1;
        if !(offset_bytes / 4096..=last / 4096).all(self.is_cached) {
            return Ok(false);
        }
        self.memory.read_vectored_at(offset_bytes, buffers)?;
        Ok(true)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Opens the tree of an image over such memory. Returns it with the count of reads from the medium.
fn open(image: Image, budget: u64, is_cached: fn(u64) -> bool) -> (Tree, Arc<AtomicUsize>) {
    let waited = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&waited);
    let volume = image.builder.open(&image.root, |bytes| {
        let backend = PartlyCached {
            memory: MemoryBackend::new("partly cached", bytes),
            is_cached,
            waited: counter,
        };
        Device::with_backend(Arc::new(backend), Engine::Threads)
    });
    let forest = Forest::new(volume, ByteCount::new(budget));
    (forest.tree(image.root), waited)
}

/// The sets of cached blocks: all, none, most, few, and the front of the image, so that windows
/// begin with cached blocks.
const CACHED: [fn(u64) -> bool; 5] = [
    |_| true,
    |_| false,
    |block| !block.is_multiple_of(7),
    |block| block.is_multiple_of(7),
    |block| block < 400,
];

/// Returns a tree of some 170 blocks scattered over 180, a few of them damaged. The seed determines
/// the tree.
fn damaged(seed: u64) -> Image {
    let items = (0..1000).map(|number| (key(number), vec![3; 20])).collect();
    let options = ImageOptions {
        chunk_bytes: 180 * 4096,
        placement: Placement::Scattered { seed },
        ..ImageOptions::default()
    };
    let shape = TreeShape {
        items_per_leaf: 7,
        children_per_node: 8,
    };
    let mut image = Image::new(options, shape, items);
    let mut random = Random::new(seed);
    for _ in 0..random.below(6) {
        let block = Logical::new(CHUNK_LOGICAL.get() + random.below(180) * 4096);
        let place = random.below(4096) as usize;
        image.builder.block_mut(block)[place] ^= 1;
    }
    image
}

#[test]
fn page_cache_state_changes_neither_blocks_nor_errors() {
    for seed in buttress_oracle::seeds::seeds("tree::cached", "BUTTRESS_SEED", &Vec::from_iter(0..12)) {
        let expected = {
            let sample = damaged(seed).open(ByteCount::new(1 << 20));
            walk(&sample.tree, ReadAhead::None).0
        };
        for budget in [50_000, 1 << 20] {
            for is_cached in CACHED {
                let (tree, _) = open(damaged(seed), budget, is_cached);
                for mode in MODES {
                    assert_eq!(walk(&tree, mode).0, expected, "seed {seed}, {mode:?}");
                }
            }
        }
    }
}

#[test]
fn a_sweep_over_cached_leaves_waits_for_no_device() {
    for passing in [false, true] {
        let (tree, waited) = open(Image::scattered(), 4 << 20, |_| true);
        let mut leaves = tree.leaves(.., ReadAhead::sweep());
        if passing {
            leaves = leaves.passing();
        }
        let before = waited.load(Ordering::Relaxed);
        let mut count = 0;
        while leaves.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 400);
        // The reads are those of the path to the first leaf.
        assert!(waited.load(Ordering::Relaxed) - before <= 3);
        let kept = tree.forest().cache_statistics().blocks;
        assert!(
            if passing { kept <= 22 } else { kept > 300 },
            "{kept} of 421 blocks kept"
        );
    }
}
