//! Data that does not match its checksums, and checksums that are computed again from the data.
//!
//! A program that changes its buffer during direct I/O leaves data that never had the stored
//! checksum. The data is then right, and the checksum is wrong. Only the owner knows this, so each
//! sector is accepted by its owner, with the copy that counts.
//!
//! # Invariants
//!
//! - A checksum changes only for a sector that the caller names, and only to the checksum of the
//!   named copy.
//! - Data never changes.
//!
//! # Left out
//!
//! Copies that differ after their checksum was accepted: a scrub then repairs the other copies.

use crate::rounds::{self, NoData};
use buttress_device::Device;
use buttress_engine::areas::ItemEdits;
use buttress_engine::{Engine, WriteOptions};
use buttress_exact::{Exact as _, copy_into, u64_of, usize_of};
use buttress_format::{ByteCount, ChecksumItem, ItemType, Key, Logical, TreeId};
use buttress_fs::error::WritingRefusal;
use buttress_fs::{Filesystem, OpenOptions, Progress, Result};
use buttress_tree::ReadAhead;
use buttress_volume::{ExtentRead, Volume};
use std::sync::Arc;

/// The most bytes of one copy that are read at once.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The number of sectors of one edit.
const SECTORS_OF_AN_EDIT: usize = 32;

/// The number of edits of one commit.
const EDITS_OF_A_COMMIT: usize = 64;

/// A sector of data of which at least one copy does not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The address of the sector.
    pub logical: Logical,
    /// The number of copies. With parity, each way to rebuild the sector counts as a copy.
    pub copies: u32,
    /// The numbers of the copies that do not match, from 1.
    pub wrong: Vec<u32>,
}

impl Mismatch {
    /// Returns whether a copy matches, so that a scrub repairs the other copies.
    #[must_use]
    pub fn has_good_copy(&self) -> bool {
        u64_of(self.wrong.len()) < u64::from(self.copies)
    }
}

/// Reads every copy of all data with checksums. Calls `found` for each sector that does not match,
/// in order of address.
///
/// # Errors
/// Fails if the checksum tree cannot be read, or if `progress` was cancelled.
pub fn find_mismatches(
    filesystem: &Filesystem,
    progress: &Progress,
    found: &mut dyn FnMut(Mismatch),
) -> Result<()> {
    let volume: &Volume = filesystem.volume();
    let superblock = filesystem.superblock();
    let sector_bytes = u64::from(superblock.sector_bytes);
    let tree = filesystem.tree(TreeId::CHECKSUM)?;
    for item in tree.range(.., ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        if key.item_type != ItemType::EXTENT_CSUM {
            continue;
        }
        let sums = ChecksumItem::parse(
            &key,
            item.data(),
            superblock.sector_bytes,
            superblock.checksum_type,
        );
        let sums = sums.map_err(|error| buttress_fs::error::Corruption::Item {
            tree: TreeId::CHECKSUM,
            error,
        })?;
        let (mut at, end) = (sums.start.get(), sums.end.get());
        while at < end {
            progress.check()?;
            let map = volume.chunk_map();
            let Some(chunk) = map.find(Logical::new(at)) else {
                // A checksum outside of all chunks describes no data.
                at = at.exact_add(sector_bytes);
                continue;
            };
            let stop = end.min(chunk.end().get()).min(at.exact_add(READ_BYTES_MAX));
            compare(filesystem, &sums, at..stop, found)?;
            progress.advance(0, ByteCount::new(stop.exact_sub(at)));
            at = stop;
        }
    }
    Ok(())
}

/// Compares all copies of a range inside a chunk with its checksums.
fn compare(
    filesystem: &Filesystem,
    sums: &ChecksumItem<'_>,
    range: core::ops::Range<u64>,
    found: &mut dyn FnMut(Mismatch),
) -> Result<()> {
    let volume: &Volume = filesystem.volume();
    let superblock = filesystem.superblock();
    let sector_bytes = usize_of(superblock.sector_bytes);
    let length: usize = range.end.exact_sub(range.start).narrow();
    let read = |at: u64, length: usize, copy: u32| {
        let logical = Logical::new(at);
        volume.read_copy(ExtentRead { logical, length }, copy).ok()
    };
    let copies = volume.copies(Logical::new(range.start))?;
    let whole: Vec<_> = (1..=copies).map(|copy| read(range.start, length, copy)).collect();
    for (number, at) in range.clone().step_by(sector_bytes).enumerate() {
        let Some(sum) = sums.get(Logical::new(at)) else {
            continue;
        };
        let first = number.exact_mul(sector_bytes);
        let last = first.exact_add(sector_bytes);
        let mut wrong = Vec::new();
        for (copy, bytes) in (1..).zip(&whole) {
            let matches = |sector: &[u8]| superblock.checksum_type.compute(sector).as_bytes() == sum;
            let is_right = match bytes {
                Some(bytes) => bytes.get(first..last).is_some_and(matches),
                // An unreadable sector fails the read of its range.
                None => read(at, sector_bytes, copy).is_some_and(|sector| matches(&sector)),
            };
            if !is_right {
                wrong.push(copy);
            }
        }
        if !wrong.is_empty() {
            found(Mismatch {
                logical: Logical::new(at),
                copies,
                wrong,
            });
        }
    }
    Ok(())
}

/// Computes the checksums of sectors again, each from the copy that its owner accepts. Returns the
/// number of changed checksums.
///
/// # Errors
/// Fails if the volume refuses writing or has a pending log, if a copy cannot be read, or with an
/// error of a device.
pub fn accept_data(
    devices: &[Device],
    cache: ByteCount,
    accepted: &[(Logical, u32)],
    progress: &Progress,
) -> Result<u64> {
    let filesystem = OpenOptions::new(devices.to_vec()).cache(cache).open()?;
    let opening = Engine::open(filesystem, WriteOptions::default(), Arc::new(NoData))?;
    if opening.log.is_some() {
        return Err(WritingRefusal::State {
            name: rounds::PENDING_LOG,
            remedy: rounds::LOG_REMEDY,
        }
        .into());
    }
    let engine = opening.end();
    let mut changed = 0_u64;
    for (number, sectors) in accepted.chunks(SECTORS_OF_AN_EDIT).enumerate() {
        progress.check()?;
        changed = changed.exact_add(change(&engine, sectors)?);
        if number.remainder(EDITS_OF_A_COMMIT) == EDITS_OF_A_COMMIT.exact_sub(1) {
            engine.commit()?;
        }
    }
    engine.commit()?;
    engine.close()?;
    Ok(changed)
}

/// Changes the checksums of a few sectors. Returns their number.
fn change(engine: &Engine, sectors: &[(Logical, u32)]) -> Result<u64> {
    let view = engine.committed_view();
    let volume: &Volume = view.volume();
    let superblock = view.superblock();
    let (sector_bytes, checksum) = (superblock.sector_bytes, superblock.checksum_type);
    let mut sums = Vec::new();
    for (logical, copy) in sectors {
        let read = ExtentRead {
            logical: *logical,
            length: usize_of(sector_bytes),
        };
        let sector = volume.read_copy(read, *copy)?;
        sums.push((*logical, checksum.compute(&sector)));
    }
    ItemEdits::of(engine).edit(u64_of(sums.len()), |running| {
        let mut changed = 0_u64;
        for (logical, sum) in &sums {
            let wanted = ChecksumItem::key(*logical);
            let Some(item) = running.at_or_before(TreeId::CHECKSUM, &wanted)? else {
                continue;
            };
            let key: Key = item.key();
            let distance = logical.get().checked_sub(key.offset);
            let index = distance.map(|distance| distance.quotient(sector_bytes.into()));
            let at = index.and_then(|index| usize::try_from(index).ok()?.checked_mul(checksum.size_bytes()));
            let Some(at) = at.filter(|_| key.item_type == ItemType::EXTENT_CSUM) else {
                continue;
            };
            let mut data = item.data().to_vec();
            let place = at..at.exact_add(checksum.size_bytes());
            if data.get(place.clone()).is_none_or(|old| old == sum.as_bytes()) {
                continue;
            }
            copy_into(&mut data, place, sum.as_bytes(), "a checksum in its item")?;
            running.put(TreeId::CHECKSUM, &key, &data)?;
            changed = changed.exact_add(1);
        }
        Ok(changed)
    })
}
