//! The free-space tree of one block group, read as a list of ranges and compared with the gaps
//! between extents.

use crate::chunks::Group;
use crate::context::Check;
use crate::finding::Finding;
use crate::report::Note;
use crate::runs::{self, Run};
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, FreeSpaceBitmap, FreeSpaceExtent, FreeSpaceInfo, ItemType, Key, Logical, ObjectId,
};
use buttress_tree::{ReadAhead, Tree};

/// The recorded free space of a range of addresses.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    runs: Vec<Run>,
    /// The number of recorded ranges: each extent item counts, and adjacent bits count as one
    /// range.
    count: u64,
    info: Option<FreeSpaceInfo>,
    /// Whether the whole record of the free space was readable.
    complete: bool,
}

impl Recorded {
    /// Reads the record of `[start, end)`, which is a block group or the range between two.
    pub(crate) fn read(check: &Check<'_>, tree: &Tree, start: u64, end: u64, group: Option<&Group>) -> Self {
        let mut recorded = Self {
            complete: true,
            ..Self::default()
        };
        let first = Key::new(ObjectId::new(start), ItemType(0), 0);
        let last = Key::new(ObjectId::new(end), ItemType(0), 0);
        let mut leaves = tree.leaves(first..last, ReadAhead::sweep());
        loop {
            let leaf = match leaves.next() {
                Ok(Some(leaf)) => leaf,
                Ok(None) => break,
                Err(_) => {
                    recorded.complete = false;
                    continue;
                }
            };
            for item in leaf.items() {
                match group {
                    Some(group) => recorded.add(check, group, &item.key, item.data),
                    None => report_stray(check, &item.key, start == 0 && end != u64::MAX),
                }
            }
        }
        recorded
    }

    fn add(&mut self, check: &Check<'_>, group: &Group, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::FREE_SPACE_INFO => {
                let info = FreeSpaceInfo::parse(key, data, check.sector_bytes).ok();
                let fits = |info: &FreeSpaceInfo| {
                    info.start.get() == group.start && info.length.get() == group.length()
                };
                match info.filter(fits) {
                    Some(info) => self.info = Some(info),
                    None => report_stray(check, key, false),
                }
            }
            ItemType::FREE_SPACE_EXTENT => {
                if let Ok(extent) = FreeSpaceExtent::parse(key, data, check.sector_bytes) {
                    self.count = self.count.saturating_add(1);
                    let start = extent.start.get();
                    runs::push(&mut self.runs, start, start.saturating_add(extent.length.get()));
                }
            }
            ItemType::FREE_SPACE_BITMAP => {
                if let Ok(bitmap) = FreeSpaceBitmap::parse(key, data, check.sector_bytes) {
                    self.add_bitmap(&bitmap, u64::from(check.sector_bytes));
                }
            }
            _ => {}
        }
    }

    fn add_bitmap(&mut self, bitmap: &FreeSpaceBitmap<'_>, sector_bytes: u64) {
        let sectors = bitmap.length.get().checked_div(sector_bytes).unwrap_or(0);
        let at = |sector: u64| {
            let distance = sector.saturating_mul(sector_bytes);
            bitmap.start.get().saturating_add(distance)
        };
        let mut begun = None;
        for sector in 0..sectors {
            let free = bitmap.is_free(sector.narrow::<usize>());
            match (free, begun) {
                (true, None) => begun = Some(sector),
                (false, Some(first)) => {
                    runs::push(&mut self.runs, at(first), at(sector));
                    begun = None;
                }
                _ => {}
            }
        }
        if let Some(first) = begun {
            runs::push(&mut self.runs, at(first), at(sectors));
        }
    }

    /// Compares the free-space record with the free ranges of `group`.
    pub(crate) fn compare(mut self, check: &Check<'_>, group: &Group, free: &[Run]) {
        if !self.complete {
            return;
        }
        let logical = Logical::new(group.start);
        let Some(info) = self.info else {
            check.find(Finding::FreeSpaceInfoMissing { logical });
            return;
        };
        if info.uses_bitmaps() {
            self.count = ByteCount::of(self.runs.len()).get();
        }
        if u64::from(info.extent_count) != self.count {
            check.find(Finding::FreeSpaceCount {
                logical,
                stored: info.extent_count.into(),
                counted: self.count,
            });
        }
        let range = |start: u64, end: u64| {
            let length = ByteCount::new(end.saturating_sub(start));
            (Logical::new(start), length)
        };
        runs::compare(
            &self.runs,
            free,
            &mut |start, end| {
                let (logical, length) = range(start, end);
                check.find(Finding::FreeSpaceUsed { logical, length });
            },
            &mut |start, end| {
                let (logical, length) = range(start, end);
                check.find(Finding::FreeSpaceLost { logical, length });
            },
        );
    }
}

/// Reports an item that belongs to no block group. Below the first block group (`is_below`), older
/// versions of mkfs.btrfs leave such items for their first chunks; no other program leaves any.
fn report_stray(check: &Check<'_>, key: &Key, is_below: bool) {
    let (logical, length) = (Logical::new(key.objectid.get()), ByteCount::new(key.offset));
    if is_below {
        check.note(Note::FreeSpaceBelowBlockGroups { logical, length });
    } else {
        check.find(Finding::FreeSpaceWithoutBlockGroup { logical, length });
    }
}
