//! The checksum tree, from the readable items of the old one.
//!
//! An item keeps the checksums of data in use. A part of an item without data is surplus, and falls
//! away. Checksums of an unreadable leaf are lost; a later step may compute them again.

use super::errors::refused;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ItemType, Key, ObjectId, TreeId};
use buttress_fs::{Error, Filesystem, Result};
use buttress_tree::{Leaves, ReadAhead};
use std::collections::VecDeque;

/// A run of checksums.
#[derive(Debug)]
struct Run {
    start: u64,
    end: u64,
    sums: Vec<u8>,
    /// The first address of the old item. Parts of an item that touch stay in one item.
    item: u64,
}

/// A cursor over the old checksums, for data extents in the order of their addresses.
#[derive(Debug)]
pub(super) struct OldSums {
    leaves: Option<Leaves>,
    loaded: VecDeque<Run>,
    pending: Option<Run>,
    /// The end of the last loaded item.
    end: u64,
    sector_bytes: u64,
    sum_bytes: u64,
}

/// The receiver of new items.
type Put<'a> = &'a mut dyn FnMut(&Key, &[u8]) -> Result<()>;

impl OldSums {
    pub(super) fn new(filesystem: &Filesystem) -> Result<Self> {
        let leaves = match filesystem.tree(TreeId::CHECKSUM) {
            Ok(tree) => Some(tree.leaves(.., ReadAhead::sweep())),
            Err(Error::TreeNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            leaves,
            loaded: VecDeque::new(),
            pending: None,
            end: 0,
            sector_bytes: filesystem.sector_bytes().into(),
            sum_bytes: u64_of(filesystem.checksum_type().size_bytes()),
        })
    }

    /// Loads the next leaf with items if no item is loaded.
    fn load(&mut self) -> Result<()> {
        while self.loaded.is_empty() {
            let Some(leaves) = &mut self.leaves else {
                return Ok(());
            };
            let leaf = match leaves.next() {
                Ok(Some(leaf)) => leaf,
                Ok(None) => {
                    self.leaves = None;
                    return Ok(());
                }
                // The leaves after an unreadable block may be readable.
                Err(_) => continue,
            };
            for item in leaf
                .items()
                .filter(|item| item.key.item_type == ItemType::EXTENT_CSUM)
            {
                let start = item.key.offset;
                let sectors = u64_of(item.data.len()).quotient(self.sum_bytes);
                let length = sectors.checked_mul(self.sector_bytes);
                let end = length.and_then(|length| start.checked_add(length));
                let end = end.ok_or_else(|| refused("checksums end above all addresses"))?;
                if start < self.end {
                    return Err(refused("two items of the checksum tree overlap"));
                }
                self.end = end;
                self.loaded.push_back(Run {
                    start,
                    end,
                    sums: item.data.to_vec(),
                    item: start,
                });
            }
        }
        Ok(())
    }

    /// Keeps the checksums of data in `[start, end)`.
    pub(super) fn keep(&mut self, start: u64, end: u64, put: Put<'_>) -> Result<()> {
        loop {
            self.load()?;
            let Some(run) = self.loaded.front() else {
                return Ok(());
            };
            if run.end > start && run.start < end {
                let (from, to) = (run.start.max(start), run.end.min(end));
                let place = |at: u64| {
                    let sector = at.exact_sub(run.start).quotient(self.sector_bytes);
                    sector.exact_mul(self.sum_bytes).narrow::<usize>()
                };
                // Clamp: the part lies in the run.
                let sums = run.sums.get(place(from)..place(to)).unwrap_or_default();
                match &mut self.pending {
                    Some(pending) if pending.end == from && pending.item == run.item => {
                        pending.sums.extend_from_slice(sums);
                        pending.end = to;
                    }
                    pending => {
                        let new = Run {
                            start: from,
                            end: to,
                            sums: sums.to_vec(),
                            item: run.item,
                        };
                        if let Some(done) = pending.replace(new) {
                            emit(&done, put)?;
                        }
                    }
                }
            }
            if run.end > end {
                return Ok(());
            }
            self.loaded.pop_front();
        }
    }

    /// Passes on the last item.
    pub(super) fn finish(self, put: Put<'_>) -> Result<()> {
        self.pending.map_or(Ok(()), |run| emit(&run, put))
    }
}

fn emit(run: &Run, put: Put<'_>) -> Result<()> {
    let key = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, run.start);
    put(&key, &run.sums)
}
