//! The invariants of layouts, on random devices and on devices at their limits.

use super::*;
use core::ops::Range;
use proptest::prelude::*;

const SECTOR: u64 = 4096;

/// A device: its size in sectors, and used ranges of sectors.
#[derive(Clone, Debug)]
struct Device {
    sectors: u64,
    used: Vec<Range<u64>>,
}

impl Device {
    fn units(&self) -> Units {
        let mut units = Units::new(self.sectors * SECTOR);
        for range in self.used_bytes() {
            units.mark_bytes(range);
        }
        units
    }

    fn used_bytes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.used
            .iter()
            .map(|range| range.start * SECTOR..range.end * SECTOR)
    }
}

/// Devices of up to 1 GiB with ranges of all lengths, the start of the device always among them.
fn devices() -> impl Strategy<Value = Device> {
    let gaps = prop_oneof![1_u64..4, 1_u64..40, 1_u64..2000, 1_u64..60_000];
    let lengths = prop_oneof![1_u64..4, 1_u64..300, 1_u64..20_000];
    (
        prop::collection::vec((gaps, lengths), 0..60),
        1_u64..40,
        0_u64..40_000,
    )
        .prop_map(|(pairs, first, tail)| {
            let start = 0..first;
            let mut used = vec![start];
            let mut at = first;
            for (gap, length) in pairs {
                used.push(at + gap..at + gap + length);
                at += gap + length;
            }
            let sectors = at + tail;
            Device { sectors, used }
        })
}

fn needs() -> impl Strategy<Value = Needs> {
    (1_u64..4 << 20, 1_u64..80 << 20).prop_map(|(system, metadata)| Needs {
        system: ByteCount::new(system),
        metadata: ByteCount::new(metadata),
    })
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn check(device: &Device, needs: Needs, layout: &Layout) {
    let device_bytes = device.sectors * SECTOR;
    let copies = |placed: &Placed| {
        let length = placed.length.get();
        let ranges = placed
            .copies
            .iter()
            .map(move |copy| copy.get()..copy.get() + length);
        ranges.collect::<Vec<_>>()
    };
    let new: Vec<_> = layout
        .metadata
        .iter()
        .chain([&layout.system])
        .flat_map(copies)
        .collect();
    let mut all: Vec<_> = new.iter().chain(&layout.data).cloned().collect();
    all.sort_by_key(|range| range.start);
    for range in &all {
        assert!(range.start < range.end && range.end <= device_bytes, "{range:?}");
        assert_eq!(range.start % UNIT_BYTES, 0);
        assert!(range.end % UNIT_BYTES == 0 || range.end == device_bytes);
        assert!(
            !RESERVED.iter().any(|reserved| overlaps(reserved, range)),
            "{range:?}"
        );
    }
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{all:?}");
    for range in device.used_bytes() {
        assert!(!new.iter().any(|chunk| overlaps(chunk, &range)), "{range:?}");
    }
    let sum: u64 = layout.metadata.iter().map(|chunk| chunk.length.get()).sum();
    assert!(sum >= needs.metadata.get() && layout.system.length >= needs.system);
    check_moved(device, layout, &new);
    check_pieces(device, layout);
}

/// Copies of reserved units are in free units, one for each used unit.
fn check_moved(device: &Device, layout: &Layout, new: &[Range<u64>]) {
    let places: Vec<_> = layout
        .moved
        .iter()
        .map(|moved| moved.to.get()..moved.to.get() + UNIT_BYTES)
        .collect();
    for (index, place) in places.iter().enumerate() {
        assert!(
            layout
                .data
                .iter()
                .any(|chunk| chunk.start <= place.start && place.end <= chunk.end)
        );
        assert!(!device.used_bytes().any(|used| overlaps(&used, place)));
        assert!(!new.iter().any(|chunk| overlaps(chunk, place)));
        assert!(!places[..index].contains(place));
    }
}

/// Pieces cover the used bytes once, each in one chunk.
fn check_pieces(device: &Device, layout: &Layout) {
    for range in device.used_bytes() {
        let mut at = range.start;
        for piece in layout.pieces(range.clone()) {
            assert_eq!(piece.offset, at);
            assert!(piece.length > 0 && piece.length <= EXTENT_BYTES_MAX);
            let logical = piece.logical..piece.logical + piece.length;
            let chunk = layout
                .data
                .iter()
                .find(|chunk| overlaps(chunk, &logical))
                .unwrap();
            assert!(chunk.start <= logical.start && logical.end <= chunk.end);
            let bytes = piece.offset..piece.offset + piece.length;
            let is_reserved = RESERVED.iter().any(|reserved| overlaps(reserved, &bytes));
            assert!(is_reserved || piece.logical == piece.offset);
            at += piece.length;
        }
        assert_eq!(at, range.end, "pieces of {range:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn layouts_keep_their_invariants(device in devices(), needs in needs()) {
        match Layout::new(&device.units(), needs) {
            Ok(layout) => check(&device, needs, &layout),
            Err(NoSpace { needed, free }) => {
                // Only free runs below the shortest chunk, or too few bytes, are a reason.
                prop_assert!(free.get() < 64 * (needed.get() + (4 << 20)), "{needed} of {free}");
            }
        }
    }
}

#[test]
fn metadata_has_two_copies_if_they_fit() {
    let needs = Needs {
        system: ByteCount::new(1 << 20),
        metadata: ByteCount::new(8 << 20),
    };
    let copies = |free_mib: u64| {
        // 1 MiB of a used range at the start, free space, then used space up to 512 MiB.
        let first_used = (2 + free_mib) << 8;
        let device = Device {
            sectors: 128 << 10,
            used: vec![0..256, first_used..128 << 10],
        };
        let layout = Layout::new(&device.units(), needs).ok()?;
        check(&device, needs, &layout);
        Some((layout.metadata[0].copies.len(), layout.system.copies.len()))
    };
    assert_eq!(copies(24), Some((2, 2)));
    assert_eq!(copies(12), Some((1, 1)));
    assert_eq!(copies(4), None);
}

#[test]
fn files_at_the_superblock_copies_are_moved() {
    let end = (256 << 30) / SECTOR + 100;
    let device = Device {
        sectors: end + 100_000,
        used: vec![0..300, 16_000..17_000, end - 200..end],
    };
    let needs = Needs {
        system: ByteCount::new(4 << 20),
        metadata: ByteCount::new(3 << 30),
    };
    let layout = Layout::new(&device.units(), needs).unwrap();
    check(&device, needs, &layout);
    assert_eq!(layout.moved.len(), 18);
    assert!(layout.metadata.len() >= 3, "chunks have 1 GiB at most");
}

#[test]
fn a_device_without_free_space_is_refused_with_numbers() {
    let whole = 0..50_000;
    let device = Device {
        sectors: 50_000,
        used: vec![whole],
    };
    let needs = Needs {
        system: ByteCount::new(1 << 20),
        metadata: ByteCount::new(1 << 20),
    };
    let error = Layout::new(&device.units(), needs).unwrap_err();
    let expected = NoSpace {
        needed: ByteCount::new(2 << 20),
        free: ByteCount::ZERO,
    };
    assert_eq!(error, expected);
}
