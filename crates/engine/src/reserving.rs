//! Reserves space for metadata in block groups, and allocates chunks for it.
//!
//! The worst case of dirty data needs far more space for metadata than the data takes in the end.
//! On a small volume, new chunks for the worst case would use the unallocated space that the data
//! itself needs. Chunks are therefore allocated sparingly at first ([`NewChunks`]); a caller that
//! finds no space writes back data or commits, and then reserves again.
//!
//! Left out: the size of a reservation ([`super::reservation`]), and of a chunk
//! ([`super::chunks`]).

use crate::backing::Backing;
use crate::block_groups::Purpose;
use crate::need::{Need, NewChunks, OTHER_PLACES};
use crate::running::Running;
use crate::running_parts::BlockReserve;
use buttress_format::ByteCount;
use buttress_fs::error::{Error, Result};

/// Chunks count as plentiful if the devices have unallocated space for this many chunks of this
/// size.
const CHUNKS_PLENTIFUL: u64 = 4;

impl Running {
    /// Returns whether the reserved need fits into block groups, with space on the host. Makes
    /// chunks while the need does not fit.
    pub fn reserve_space(&mut self, need: Need) -> Result<bool> {
        self.reserve(need, NewChunks::Always)
    }

    /// Reserves space as [`reserve_space`](Self::reserve_space) does, with a rule for new chunks.
    pub(crate) fn reserve(&mut self, need: Need, new_chunks: NewChunks) -> Result<bool> {
        let wanted = |bytes: u64| match buttress_faults::on("space-unreserved") {
            true => 0,
            false => bytes,
        };
        loop {
            let room = self.core.groups.room(Purpose::Metadata);
            let reservation = self.block_reserve().reservation(need);
            // Clamp: more space may be free than is wanted.
            let lacking = wanted(reservation.backed_bytes).saturating_sub(room.free_bytes);
            if lacking == 0 && room.with_unbacked() >= wanted(reservation.all_bytes) {
                return Ok(true);
            }
            if self.core.give_up_reserved_ahead() {
                continue;
            }
            let backing = match lacking {
                0 => Backing::AllBacked,
                lacking => self.host_space().back_more(Purpose::Metadata, lacking)?,
            };
            match backing {
                Backing::More => {}
                Backing::HostFull => return Ok(false),
                Backing::AllBacked
                    if self.block_reserve().may_make_chunk(need, new_chunks)
                        && self.chunks().allocate(Purpose::Metadata)? => {}
                Backing::AllBacked => return Ok(false),
            }
        }
    }
}

impl BlockReserve<'_> {
    /// Returns whether a reservation that does not fit may allocate a chunk.
    fn may_make_chunk(&self, need: Need, new_chunks: NewChunks) -> bool {
        match new_chunks {
            NewChunks::Never => return false,
            NewChunks::Always => return true,
            NewChunks::Sparing if buttress_faults::on("dirty-data-takes-chunks") => return true,
            NewChunks::Sparing => {}
        }
        let nodes = self.nodes_at_commit_of_data(need, 0);
        let without_data = self.reservation_of_nodes(need, nodes).all_bytes;
        self.running.core.groups.room(Purpose::Metadata).with_unbacked() < without_data
            || self
                .running
                .core
                .chunk_planner()
                .has_space_for(Purpose::Metadata, CHUNKS_PLENTIFUL)
    }

    /// Returns whether block groups have space for another edit beside dirty data, without a new
    /// chunk.
    pub fn has_space_beside_data(&self) -> bool {
        let wanted = self.metadata_bytes(Need::places(OTHER_PLACES));
        self.running.core.groups.room(Purpose::Metadata).with_unbacked() >= wanted
    }

    /// Returns the error for an edit that finds no space for metadata.
    pub fn no_metadata_space(&self, need: Need) -> Error {
        if let Some(error) = self.running.core.host_failure() {
            return error;
        }
        Error::NoSpace {
            what: "metadata",
            wanted: ByteCount::new(self.metadata_bytes(need)),
            pinned_by_readers: self.running.core.pinned_by_readers(),
            reclaimable: self.running.core.groups.reclaimable(Purpose::Metadata),
        }
    }
}
