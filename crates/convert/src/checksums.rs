//! The checksums of all content, and copies of the content of reserved ranges.

use crate::error::Result;
use crate::layout::Piece;
use crate::log::Log;
use buttress_device::Device;
use buttress_exact::{Exact as _, u64_of, usize_of};
use buttress_format::{ChecksumItem, ChecksumType, Logical, TreeId};
use buttress_packing::{PackedRoot, Packer};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;

/// The number of bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The checksum tree while its items are packed, in the order of addresses.
pub(crate) struct Checksums<'a> {
    device: &'a Device,
    volume: &'a Volume,
    checksum: ChecksumType,
    sector_bytes: u32,
    item_bytes_max: usize,
    packer: Packer,
    /// The item that the next sectors continue: its first address, the address after it, its data.
    open: (u64, u64, Vec<u8>),
}

impl<'a> Checksums<'a> {
    pub(crate) fn new(device: &'a Device, volume: &'a Volume, log: &Log<'_>, sector_bytes: u32) -> Self {
        let format = log.format();
        let unit = format.checksum.size_bytes();
        let most = ChecksumItem::bytes_max(format.node_bytes, format.checksum);
        Self {
            device,
            volume,
            checksum: format.checksum,
            sector_bytes,
            item_bytes_max: most.exact_sub(most.remainder(unit)),
            packer: Packer::new(TreeId::CHECKSUM, *format),
            open: (0, 0, Vec::new()),
        }
    }

    /// Adds the checksums of a piece. The content of a piece with a new address is copied there.
    pub(crate) fn add(&mut self, log: &mut Log<'_>, piece: &Piece) -> Result<()> {
        let mut done = 0;
        while done < piece.length {
            let length = piece.length.exact_sub(done).min(READ_BYTES);
            let bytes = self.device.read(piece.offset.exact_add(done), length.narrow())?;
            let mut sums = Vec::new();
            self.checksum
                .compute_sectors(&bytes, usize_of(self.sector_bytes), &mut sums);
            let logical = piece.logical.exact_add(done);
            if piece.logical != piece.offset {
                self.volume.write(&[ExtentWrite {
                    logical: Logical::new(logical),
                    bytes: Bytes::copy_from_slice(&bytes),
                }])?;
            }
            self.sums(log, logical, &sums)?;
            done = done.exact_add(length);
        }
        Ok(())
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
            let sectors = u64_of(now.len().quotient(self.checksum.size_bytes()));
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
        self.close(log)?;
        Ok(self.packer.finish(log)?.0)
    }
}
