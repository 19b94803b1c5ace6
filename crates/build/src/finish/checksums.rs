//! The checksum tree: one pass over the checksums of data in address order.

use super::Finish;
use crate::blocks::BlockLog;
use crate::error::Result;
use buttress_exact::Exact as _;
use buttress_format::{ChecksumItem, Logical, TreeId};
use buttress_packing::Packer;

impl Finish<'_> {
    /// Packs the checksum tree, whose items are as long as leaves allow and may cover adjacent
    /// extents.
    pub(super) fn pack_checksums(&mut self, log: &mut BlockLog) -> Result<()> {
        let most = ChecksumItem::bytes_max(self.settings.node_bytes, self.settings.checksum);
        let unit = self.settings.checksum.size_bytes();
        let sector_bytes = u64::from(self.settings.sector_bytes);
        let mut packer = Packer::new(TreeId::CHECKSUM, log.format);
        let mut reader = self.checksums.reader();
        let mut number = Vec::new();
        let mut sums = Vec::new();
        let mut item: Vec<u8> = Vec::new();
        let (mut start, mut end) = (0_u64, 0_u64);
        while !reader.at_end() {
            let mut next = || -> Result<u64> {
                reader.read(&mut number, 8)?;
                Ok(u64::from_le_bytes(
                    number.as_slice().try_into().unwrap_or_default(),
                ))
            };
            let (logical, bytes, length) = (next()?, next()?, next()?);
            reader.read(&mut sums, length.narrow::<usize>())?;
            if logical != end && !item.is_empty() {
                packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
                item.clear();
            }
            let mut at = logical;
            let mut rest = sums.as_slice();
            while !rest.is_empty() {
                if item.is_empty() {
                    start = at;
                }
                // A leaf is filled to its end if the remaining space is worth an item.
                let in_leaf = packer.room();
                let limit = if in_leaf < most && in_leaf >= unit.saturating_mul(8) {
                    in_leaf
                } else {
                    most
                };
                let limit = limit.saturating_sub(limit.checked_rem(unit).unwrap_or(0));
                let length = limit.saturating_sub(item.len()).min(rest.len());
                let (now, later) = rest.split_at(length);
                item.extend_from_slice(now);
                rest = later;
                let sectors = length.checked_div(unit).unwrap_or(0) as u64;
                at = at.saturating_add(sectors.saturating_mul(sector_bytes));
                if item.len() >= limit {
                    packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
                    item.clear();
                }
            }
            end = logical.saturating_add(bytes);
        }
        if !item.is_empty() {
            packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
        }
        self.roots.push(packer.finish(log)?.0);
        Ok(())
    }
}
