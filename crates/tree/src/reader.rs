//! Reading blocks from the volume and checking them, without any cache.
//!
//! Everything that takes a block from a device into memory goes through here, on whichever thread.

use crate::error::{Error, Failure, Result};
use crate::pointer::BlockPointer;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::node::{BlockFormat, TreeBlock};
use buttress_volume::{ExtentRead, PendingExtent, Rejection, Volume};
use bytes::Bytes;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// What checking a block is taken to cost on a simulated device, for each 4 KiB of it.
///
/// 2 µs for 4 KiB, 8 µs for a block of 16 KiB: checksum at 10 GB/s, some 150 items at 20 ns each, and handing the
/// block to a caller that looks at its items. It is an assumption, not a measurement of this machine, so that
/// virtual times are the same everywhere.
pub const CHECK_COST_PER_4_KIB: Duration = Duration::from_micros(2);

/// How many of the blocks of a window are looked at to guess whether all of them are in memory.
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
        // Clamp: a simulated time.
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

    /// Whether everything is to run on the calling thread, because time is simulated.
    pub(crate) const fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Whether a device of the volume is said to turn.
    pub(crate) const fn is_rotational(&self) -> bool {
        self.rotational
    }

    /// The time, on the devices' clock.
    pub(crate) fn now(&self) -> Duration {
        match self.volume.virtual_clock() {
            Some(clock) => clock.now(),
            None => self.opened.elapsed(),
        }
    }

    /// Checks a block that was checked before, and was out of sight since.
    pub(crate) fn check_again(&self, bytes: Bytes, pointer: &BlockPointer) -> Option<TreeBlock> {
        self.charge_cpu(self.check_cost);
        TreeBlock::check(bytes, &self.format, &pointer.expectation()).ok()
    }

    /// Lets a simulated clock move on by computing time.
    pub(crate) fn charge_cpu(&self, cost: Duration) {
        if self.simulated {
            self.volume.charge_cpu(cost);
        }
    }

    /// Asks for blocks, all in one plug: the devices see them in order of address, neighbours merged.
    pub(crate) fn start<'a>(
        &self,
        pointers: impl IntoIterator<Item = &'a BlockPointer>,
    ) -> Vec<PendingExtent> {
        let reads: Vec<_> = pointers.into_iter().map(|pointer| self.extent(pointer)).collect();
        self.volume.start_reads(&reads)
    }

    /// The block, if it is in memory already (in the page cache) and is what it should be.
    ///
    /// A copy that is not is left to be read again, as any other block: that way tells, records and passes it over.
    pub(crate) fn read_cached(&self, pointer: &BlockPointer) -> Option<TreeBlock> {
        let bytes = self.volume.read_cached(self.extent(pointer))?.into_bytes();
        let block = TreeBlock::check(bytes, &self.format, &pointer.expectation()).ok()?;
        pointer.key_past_end(&block).is_none().then_some(block)
    }

    /// Whether a sample of these blocks, which are about to be read, is in memory already.
    pub(crate) fn seem_cached<'a>(&self, pointers: impl ExactSizeIterator<Item = &'a BlockPointer>) -> bool {
        let step = pointers.len().div_ceil(CACHED_SAMPLE).max(1);
        pointers.step_by(step).all(|pointer| {
            self.volume.seems_cached(ExtentRead {
                logical: pointer.logical,
                length: 1,
            })
        })
    }

    /// Waits for a block that was asked for, and checks it; a copy that fails is passed over for the next one.
    pub(crate) fn finish(&self, read: PendingExtent, pointer: &BlockPointer) -> Result<TreeBlock> {
        self.checked(pointer, |verify| read.wait_verified(&self.volume, verify))
    }

    /// Reads one block and waits for it.
    pub(crate) fn read(&self, pointer: &BlockPointer) -> Result<TreeBlock> {
        self.checked(pointer, |verify| {
            self.volume.read_verified(self.extent(pointer), verify)
        })
    }

    /// The block's place.
    pub(crate) fn extent(&self, pointer: &BlockPointer) -> ExtentRead {
        let length = usize_of(self.format.node_bytes);
        ExtentRead {
            logical: pointer.logical,
            length,
        }
    }

    /// Runs `read` with a verifier that checks the block, and keeps what was wrong with the last copy.
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
