//! The order of a chunk's stripes where witnesses leave groups open: by exclusion, or by trials.

use super::evidence::{ChunkEvidence, Unproven};
use super::facts::Facts;
use super::order::{BLOCKS_MAX, Order};
use super::trials;
use crate::error::Result;
use buttress_format::{ByteCount, Profile, Stripe};
use buttress_fs::Progress;
use std::collections::BTreeSet;

impl Order {
    /// Returns the stripes in their order, with the evidence. `used` is the number of used bytes, if
    /// it is known.
    pub(super) fn settle(
        &self,
        facts: &mut Facts<'_>,
        used: Option<ByteCount>,
        progress: &Progress,
    ) -> Result<core::result::Result<(Vec<Stripe>, ChunkEvidence), Unproven>> {
        let partial = match self.witnesses() {
            Ok(partial) => partial,
            Err(reason) => return Ok(Err(reason)),
        };
        let rest = partial.rest();
        let distinct: BTreeSet<usize> = partial.open.iter().copied().collect();
        if distinct.len() <= 1 {
            let filled = partial.filled(&rest);
            if self.layout.has_parity() && !self.has_right_parity(facts, &filled, progress)? {
                return Ok(Err(self.contradiction()));
            }
            return Ok(Ok((self.in_order(&partial, &rest), ChunkEvidence::Content)));
        }
        if used == Some(ByteCount::ZERO) {
            return Ok(Ok((self.in_order(&partial, &rest), ChunkEvidence::Unused)));
        }
        let unknown = Unproven::Order { stripes: rest.len() };
        let Some(used) = facts.used(&(self.start..self.end))? else {
            return Ok(Err(unknown));
        };
        let is_open = |offset: u64| {
            let spot = self.spot(offset);
            spot.is_none_or(|spot| distinct.contains(&spot.group))
        };
        let sectors = trials::sectors(self.start, &used, facts.sector_bytes);
        let is_used = sectors.clone().any(is_open);
        if !is_used && self.layout.profile() != Profile::Raid6 {
            return Ok(Ok((self.in_order(&partial, &rest), ChunkEvidence::Unused)));
        }
        if !self.layout.has_parity() {
            return Ok(Err(unknown));
        }
        let found = trials::consistent(self, facts, &partial, sectors, progress)?;
        Ok(match found {
            trials::Found::Order(rest, is_free) => {
                let evidence = match is_free {
                    true => ChunkEvidence::Unused,
                    false => ChunkEvidence::Content,
                };
                Ok((self.in_order(&partial, &rest), evidence))
            }
            trials::Found::Nothing => Err(self.contradiction()),
            trials::Found::Unknown => Err(unknown),
        })
    }

    /// Returns whether the parity of most witnesses is right. A parity that equals a lost block can be
    /// taken for the block itself, but then the other rows contradict.
    fn has_right_parity(
        &self,
        facts: &Facts<'_>,
        groups: &[(usize, usize)],
        progress: &Progress,
    ) -> Result<bool> {
        let offsets = self.blocks.iter().chain(self.sums.keys().take(BLOCKS_MAX));
        let (right, wrong) = trials::count(self, facts, groups, offsets.copied(), progress)?;
        Ok(right > wrong)
    }
}
