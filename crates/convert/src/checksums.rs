//! The checksums of all content, and copies of the content of reserved ranges.
//!
//! Pieces come in the order of their new addresses, so reads of the device are sequential. All cores
//! compute checksums, and the caller's thread packs them in order. Bytes that are read but not
//! packed are at most [`AHEAD_BYTES`].

use crate::error::Result;
use crate::layout::Piece;
use crate::log::Log;
use buttress_device::{Buffer, Device, IoError, ReadRequest};
use buttress_exact::{Exact as _, u64_of, usize_of};
use buttress_format::{ByteCount, ChecksumItem, ChecksumType, Logical, TreeId};
use buttress_fs::Progress;
use buttress_fs::executor::{Executor, Task};
use buttress_packing::{PackedRoot, Packer};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use std::collections::VecDeque;

/// The number of bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The largest number of bytes that wait for their turn.
const AHEAD_BYTES: u64 = 32 << 20;

/// A part of a piece while a thread reads it and computes its checksums.
struct Ahead {
    logical: u64,
    length: u64,
    is_moved: bool,
    task: Task<Summed>,
}

/// The bytes of a part and its checksums.
type Summed = core::result::Result<(Buffer, Vec<u8>), IoError>;

/// The checksum tree while its items are packed, in the order of addresses.
pub(crate) struct Checksums<'a> {
    device: &'a Device,
    volume: &'a Volume,
    progress: &'a Progress,
    executor: Executor,
    /// The algorithm, or `None` for a volume whose files have no checksums.
    checksum: Option<ChecksumType>,
    unit_bytes: usize,
    sector_bytes: u32,
    item_bytes_max: usize,
    packer: Packer,
    /// The item that the next sectors continue: its first address, the address after it, its data.
    open: (u64, u64, Vec<u8>),
    ahead: VecDeque<Ahead>,
    ahead_bytes: u64,
}

impl<'a> Checksums<'a> {
    pub(crate) fn new(
        device: &'a Device,
        volume: &'a Volume,
        log: &Log<'_>,
        (sector_bytes, has_checksums): (u32, bool),
        progress: &'a Progress,
    ) -> Self {
        let format = log.format();
        let unit_bytes = format.checksum.size_bytes();
        let most = ChecksumItem::bytes_max(format.node_bytes, format.checksum);
        Self {
            device,
            volume,
            progress,
            executor: Executor::of_all_cores(),
            checksum: has_checksums.then_some(format.checksum),
            unit_bytes,
            sector_bytes,
            item_bytes_max: most.exact_sub(most.remainder(unit_bytes)),
            packer: Packer::new(TreeId::CHECKSUM, *format),
            open: (0, 0, Vec::new()),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
        }
    }

    /// Adds the checksums of a piece. The content of a piece with a new address is copied there.
    pub(crate) fn add(&mut self, log: &mut Log<'_>, piece: &Piece) -> Result<()> {
        let is_moved = piece.logical != piece.offset;
        if self.checksum.is_none() && !is_moved {
            self.progress.advance(0, ByteCount::new(piece.length));
            return Ok(self.progress.check()?);
        }
        let mut done = 0;
        while done < piece.length {
            while self.ahead_bytes >= AHEAD_BYTES {
                self.settle(log)?;
            }
            let length = piece.length.exact_sub(done).min(READ_BYTES);
            let read = self.device.start_read(ReadRequest {
                offset_bytes: piece.offset.exact_add(done),
                length: length.narrow(),
            });
            let (checksum, sector_bytes) = (self.checksum, usize_of(self.sector_bytes));
            let task = self.executor.spawn(move || {
                let bytes = read.wait()?;
                let mut sums = Vec::new();
                if let Some(checksum) = checksum {
                    checksum.compute_sectors(&bytes, sector_bytes, &mut sums);
                }
                Ok((bytes, sums))
            });
            self.ahead.push_back(Ahead {
                logical: piece.logical.exact_add(done),
                length,
                is_moved,
                task,
            });
            self.ahead_bytes = self.ahead_bytes.exact_add(length);
            done = done.exact_add(length);
        }
        Ok(())
    }

    /// Packs the checksums of the oldest part.
    fn settle(&mut self, log: &mut Log<'_>) -> Result<()> {
        let Some(part) = self.ahead.pop_front() else {
            return Ok(());
        };
        self.ahead_bytes = self.ahead_bytes.exact_sub(part.length);
        let (bytes, sums) = part.task.take()??;
        if part.is_moved {
            self.volume.write(&[ExtentWrite {
                logical: Logical::new(part.logical),
                bytes: Bytes::copy_from_slice(&bytes),
            }])?;
        }
        self.sums(log, part.logical, &sums)?;
        self.progress.advance(0, ByteCount::new(part.length));
        Ok(self.progress.check()?)
    }

    /// Adds the checksums of the sectors from `logical` on.
    fn sums(&mut self, log: &mut Log<'_>, logical: u64, mut sums: &[u8]) -> Result<()> {
        let mut at = logical;
        while !sums.is_empty() {
            if self.open.1 != at || self.open.2.len() >= self.item_bytes_max {
                self.close(log)?;
                self.open.0 = at;
            }
            let space = self.item_bytes_max.exact_sub(self.open.2.len());
            let (now, later) = sums.split_at(space.min(sums.len()));
            self.open.2.extend_from_slice(now);
            sums = later;
            let sectors = u64_of(now.len().quotient(self.unit_bytes));
            at = at.exact_add(sectors.exact_mul(u64::from(self.sector_bytes)));
            self.open.1 = at;
        }
        Ok(())
    }

    fn close(&mut self, log: &mut Log<'_>) -> Result<()> {
        if !self.open.2.is_empty() {
            let key = ChecksumItem::key(Logical::new(self.open.0));
            self.packer.push(log, &key, &self.open.2)?;
            self.open.2.clear();
        }
        Ok(())
    }

    /// Ends the tree.
    pub(crate) fn finish(mut self, log: &mut Log<'_>) -> Result<PackedRoot> {
        while !self.ahead.is_empty() {
            self.settle(log)?;
        }
        self.close(log)?;
        Ok(self.packer.finish(log)?.0)
    }
}
