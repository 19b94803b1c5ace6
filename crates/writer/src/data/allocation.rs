//! Allocation of space for extents, their checksums, and their writes to devices.

use super::compressing::{EXTENT_BYTES_MAX, NewExtent, length_of};
use super::insertion::Placed;
use super::sums::Sums;
use crate::areas::WriteBack;
use buttress_engine::backing::of_host;
use buttress_engine::block_groups::Purpose;
use buttress_engine::data_extents::DataRange;
use buttress_engine::reservation::Handle;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ChecksumType, Compression, Logical};
use buttress_fs::error::Result;
use buttress_fs::executor::{Task, take_all};
use buttress_volume::ExtentWrite;
use bytes::Bytes;

/// The least number of bytes for which one thread computes checksums.
const SUMMED_AT_ONCE: usize = 512 << 10;

/// Allocated space that is handed out piece by piece.
struct Room {
    logical: u64,
    left: u64,
}

impl WriteBack<'_> {
    /// Allocates space for extents. If no free range is long enough, a plain extent is cut. If a
    /// compressed extent fits no free range, it is stored plain. After an error, no extent stays
    /// allocated.
    pub(super) fn place_extents(&self, extents: &[NewExtent]) -> Result<Vec<Placed>> {
        let wanted = extents.first().map_or(0, NewExtent::stored_bytes);
        self.filesystem.fault_in_free_space(Purpose::Data, wanted)?;
        let handle = self.filesystem.start_unchecked();
        let (_, placed) = self.filesystem.retry(handle, |handle| {
            let mut placed = Vec::with_capacity(extents.len());
            let result = place(handle, extents.to_vec(), &mut placed);
            if let Err(error) = result {
                placed
                    .drain(..)
                    .for_each(|placed: Placed| handle.data_space().give_back(placed.range));
                return Err(error);
            }
            Ok(placed)
        })?;
        Ok(placed)
    }

    /// Frees space that a write-back allocated and does not need.
    pub(super) fn give_back_extents(&self, placed: Vec<Placed>) {
        let mut handle = self.filesystem.start_unchecked();
        placed
            .into_iter()
            .for_each(|placed| handle.data_space().give_back(placed.range));
    }

    /// Writes data to the devices, and computes its checksums at the same time if `has_checksums`
    /// is set. Returns the checksums in order of address, with those of adjacent extents joined.
    pub(super) fn write_extents_out(&self, writes: &[ExtentWrite], has_checksums: bool) -> Result<Vec<Sums>> {
        let tasks = if has_checksums {
            self.start_sums(writes)
        } else {
            Vec::new()
        };
        let _edit = buttress_faults::on("lock-edit-held-over-data").then(|| self.filesystem.start_reading());
        let written = self.filesystem.write_data_beside(writes).map_err(of_host);
        self.filesystem.data().note_host_space(&written);
        written?;
        let mut all: Vec<Sums> = take_all(tasks)?;
        all.sort_unstable_by_key(|sums| sums.logical);
        let mut joined: Vec<Sums> = Vec::new();
        for sums in all {
            match joined.last_mut() {
                Some(last) if last.logical.get().saturating_add(last.bytes) == sums.logical.get() => {
                    last.bytes = last.bytes.saturating_add(sums.bytes);
                    last.sums.extend_from_slice(&sums.sums);
                }
                _ => joined.push(sums),
            }
        }
        Ok(joined)
    }

    fn start_sums(&self, writes: &[ExtentWrite]) -> Vec<Task<Vec<Sums>>> {
        let checksum_type = self.filesystem.forest().block_format().checksum_type;
        let sector_bytes = self
            .filesystem
            .forest()
            .block_format()
            .sector_bytes
            .narrow::<usize>();
        let mut tasks = Vec::new();
        let mut batch: Vec<(Logical, Bytes)> = Vec::new();
        let mut batch_bytes = 0_usize;
        let mut start = |batch: Vec<(Logical, Bytes)>| {
            let job = move || {
                let sums = |(logical, bytes): (Logical, Bytes)| {
                    sums_of(checksum_type, sector_bytes, logical, &bytes)
                };
                batch.into_iter().map(sums).collect()
            };
            tasks.push(self.filesystem.executor().spawn(job));
        };
        for write in writes {
            batch_bytes = batch_bytes.saturating_add(write.bytes.len());
            batch.push((write.logical, write.bytes.clone()));
            if batch_bytes >= SUMMED_AT_ONCE {
                start(core::mem::take(&mut batch));
                batch_bytes = 0;
            }
        }
        if !batch.is_empty() {
            start(batch);
        }
        tasks
    }
}

fn sums_of(checksum_type: ChecksumType, sector_bytes: usize, logical: Logical, bytes: &[u8]) -> Sums {
    let mut sums = Vec::new();
    checksum_type.compute_sectors(bytes, sector_bytes, &mut sums);
    Sums {
        logical,
        bytes: length_of(bytes),
        sums,
    }
}

/// Returns the writes of extents that have addresses.
pub(super) fn writes_of(placed: &[Placed]) -> Vec<ExtentWrite> {
    let mut writes = Vec::new();
    for Placed { extent, range } in placed {
        let mut logical = range.logical;
        for part in &extent.parts {
            writes.push(ExtentWrite {
                logical,
                bytes: part.clone(),
            });
            logical = logical.saturating_add(ByteCount::of(part.len()));
        }
    }
    writes
}

fn place(handle: &mut Handle<'_>, extents: Vec<NewExtent>, placed: &mut Vec<Placed>) -> Result<()> {
    let mut room = Room { logical: 0, left: 0 };
    let total = |extents: &[NewExtent]| {
        let sum = extents
            .iter()
            .fold(0_u64, |sum, extent| sum.saturating_add(extent.stored_bytes()));
        sum.min(EXTENT_BYTES_MAX)
    };
    let mut rest: Vec<NewExtent> = extents;
    rest.reverse();
    let result = loop {
        let Some(extent) = rest.pop() else {
            break Ok(());
        };
        let wanted = extent.stored_bytes();
        if room.left == 0 {
            match handle.data_space().allocate(ByteCount::new(
                total(&rest).saturating_add(wanted).min(EXTENT_BYTES_MAX),
            )) {
                Ok(range) => {
                    room = Room {
                        logical: range.logical.get(),
                        left: range.length.get(),
                    };
                }
                Err(error) => break Err(error),
            }
        }
        if wanted <= room.left {
            placed.push(room.take(wanted, extent));
        } else if extent.compression == Compression::None {
            let mut head = extent;
            rest.push(head.split_off(room.left));
            placed.push(room.take(room.left, head));
        } else {
            // Search a free range for the whole extent; otherwise store the extent like plain
            // content.
            room.give_back(handle);
            match handle.data_space().allocate(ByteCount::new(wanted)) {
                Ok(range) => {
                    room = Room {
                        logical: range.logical.get(),
                        left: range.length.get(),
                    };
                    if room.left < wanted && extent.plain.is_none() {
                        // The plain content is not available to this call, so the caller must write
                        // it.
                        break Err(handle.data_space().no_space(ByteCount::new(wanted)));
                    } else if room.left < wanted {
                        rest.push(extent.into_plain());
                    } else {
                        placed.push(room.take(wanted, extent));
                    }
                }
                Err(error) => break Err(error),
            }
        }
    };
    room.give_back(handle);
    result
}

impl Room {
    fn take(&mut self, bytes: u64, extent: NewExtent) -> Placed {
        let range = DataRange {
            logical: Logical::new(self.logical),
            length: ByteCount::new(bytes),
        };
        self.logical = self.logical.saturating_add(bytes);
        self.left = self.left.saturating_sub(bytes);
        Placed { extent, range }
    }

    fn give_back(&mut self, handle: &mut Handle<'_>) {
        if self.left > 0 {
            handle.data_space().give_back(DataRange {
                logical: Logical::new(self.logical),
                length: ByteCount::new(self.left),
            });
            self.left = 0;
        }
    }
}
