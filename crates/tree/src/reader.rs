//! The block reader, which reads blocks from the volume and checks them, without a cache.
//!
//! All reads of tree blocks from devices pass through this module, on any thread.

use crate::error::{Error, Failure, Result};
use crate::pointer::BlockPointer;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::node::{BlockFormat, TreeBlock};
use buttress_volume::{ExtentRead, PendingExtent, Rejection, Volume};
use bytes::Bytes;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// The simulated cost of checking 4 KiB of a block.
///
/// The cost is 2 µs for 4 KiB, so 8 µs for a block of 16 KiB. The cost covers the checksum at 10
/// GB/s, some 150 items at 20 ns each, and the delivery of the block to a caller that reads its
/// items. The cost is an assumption, not a measurement of this machine, so that virtual times are
/// the same everywhere.
pub const CHECK_COST_PER_4_KIB: Duration = Duration::from_micros(2);

/// The number of blocks of a window that are sampled to predict if the window is in the page cache.
const CACHED_SAMPLE: usize = 8;

/// Reads and checks blocks of one volume.
#[derive(Debug)]
pub(crate) struct BlockReader {
    volume: Arc<Volume>,
    format: BlockFormat,
    check_cost: Duration,
    simulated: bool,
    rotational: bool,
    opened: Instant,
}

impl BlockReader {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let format = volume.block_format().clone();
        let units = format.node_bytes.quotient(4096).max(1);
        // Clamp: the cost of checking a block is simulated time.
        let check_cost = CHECK_COST_PER_4_KIB.saturating_mul(units);
        let simulated = volume.virtual_clock().is_some();
        let devices = volume.devices();
        let rotational = devices
            .iter()
            .any(|slot| slot.device().is_some_and(|device| device.is_rotational()));
        Self {
            volume,
            format,
            check_cost,
            simulated,
            rotational,
            opened: Instant::now(),
        }
    }

    pub(crate) const fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    pub(crate) const fn format(&self) -> &BlockFormat {
        &self.format
    }

    pub(crate) const fn node_bytes(&self) -> u32 {
        self.format.node_bytes
    }

    /// Returns true if all work runs on the calling thread, because the devices are simulated.
    pub(crate) const fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Returns true if a device of the volume is rotational.
    pub(crate) const fn is_rotational(&self) -> bool {
        self.rotational
    }

    /// Returns the current time on the devices' clock.
    pub(crate) fn now(&self) -> Duration {
        match self.volume.virtual_clock() {
            Some(clock) => clock.now(),
            None => self.opened.elapsed(),
        }
    }

    /// Checks again a block that was checked before, because its memory was outside this crate's
    /// control since.
    pub(crate) fn check_again(&self, bytes: Bytes, pointer: &BlockPointer) -> Option<TreeBlock> {
        self.charge_cpu(self.check_cost);
        TreeBlock::check(bytes, &self.format, &pointer.expectation()).ok()
    }

    /// Advances a simulated clock by computing time.
    pub(crate) fn charge_cpu(&self, cost: Duration) {
        if self.simulated {
            self.volume.charge_cpu(cost);
        }
    }

    /// Starts reads of blocks in one plug. The devices receive them in address order, with
    /// neighbours merged.
    pub(crate) fn start<'a>(
        &self,
        pointers: impl IntoIterator<Item = &'a BlockPointer>,
    ) -> Vec<PendingExtent> {
        let reads: Vec<_> = pointers.into_iter().map(|pointer| self.extent(pointer)).collect();
        self.volume.start_reads(&reads)
    }

    /// Returns the block, if the page cache holds it and it passes its checks.
    ///
    /// A copy that fails is read again like any other block. The second read skips the copy, and
    /// reports and records the failure.
    pub(crate) fn read_cached(&self, pointer: &BlockPointer) -> Option<TreeBlock> {
        let bytes = self.volume.read_cached(self.extent(pointer))?.into_bytes();
        let block = TreeBlock::check(bytes, &self.format, &pointer.expectation()).ok()?;
        pointer.key_past_end(&block).is_none().then_some(block)
    }

    /// Returns true if a sample of these blocks is in the page cache. The caller is about to read
    /// all of them.
    pub(crate) fn seem_cached<'a>(&self, pointers: impl ExactSizeIterator<Item = &'a BlockPointer>) -> bool {
        let step = pointers.len().div_ceil(CACHED_SAMPLE).max(1);
        pointers.step_by(step).all(|pointer| {
            self.volume.seems_cached(ExtentRead {
                logical: pointer.logical,
                length: 1,
            })
        })
    }

    /// Waits for a started read, and checks the block. If a copy fails, reads the next copy.
    pub(crate) fn finish(&self, read: PendingExtent, pointer: &BlockPointer) -> Result<TreeBlock> {
        self.checked(pointer, |verify| read.wait_verified(&self.volume, verify))
    }

    /// Reads one block and waits for it.
    pub(crate) fn read(&self, pointer: &BlockPointer) -> Result<TreeBlock> {
        self.checked(pointer, |verify| {
            self.volume.read_verified(self.extent(pointer), verify)
        })
    }

    /// Returns the extent to read for a block.
    pub(crate) fn extent(&self, pointer: &BlockPointer) -> ExtentRead {
        let length = usize_of(self.format.node_bytes);
        ExtentRead {
            logical: pointer.logical,
            length,
        }
    }

    /// Runs `read` with a verifier that checks the block. If all copies fail the check, keeps the
    /// failure of the last copy.
    fn checked(
        &self,
        pointer: &BlockPointer,
        read: impl FnOnce(
            &mut dyn FnMut(Bytes) -> Result<TreeBlock, Rejection>,
        ) -> Result<TreeBlock, buttress_volume::Error>,
    ) -> Result<TreeBlock> {
        let expectation = pointer.expectation();
        let mut failure = None;
        let result = read(&mut |bytes| {
            self.charge_cpu(self.check_cost);
            let checked = TreeBlock::check(bytes, &self.format, &expectation).map_err(Failure::Block);
            let checked = checked.and_then(|block| match pointer.key_past_end(&block) {
                None => Ok(block),
                Some((last_key, end_key)) => Err(Failure::KeysPastEnd { last_key, end_key }),
            });
            checked.map_err(|error| {
                let rejection = Rejection::new(&error);
                failure = Some(error);
                rejection
            })
        });
        result.map_err(|error| match failure {
            Some(failure) => Error::damaged(pointer, failure),
            None => Error::unreadable(pointer, error),
        })
    }
}
