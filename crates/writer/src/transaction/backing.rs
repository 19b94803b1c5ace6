//! Space of the host for metadata, reserved ahead of the commits that need it.
//!
//! On an image file with holes a commit could find the host's disk full, and a commit that cannot write its tree blocks
//! stops writing for good. So an address of metadata is handed out only after the host has given space for it
//! ([`buttress_volume::Volume::reserve`]). Until then its bytes are in the share *unbacked* of their block group and do
//! not count as free: what was promised to edits fits into what the host has given.
//!
//! Invariants:
//! - In a block group that is backed, each free byte has space of the host ([`BlockGroups::allocate`] takes nothing else).
//! - What is discarded loses its space, and becomes unbacked ([`super::trimming`]).
//! - When the host has no space, edits that need more fail as they do on a full volume. Edits that free space have a part
//!   of the reserve, which is backed since the first edit.
//!
//! Space is reserved in steps, as it is needed: an image that is hardly written to stays small. A volume that was not
//! written to since it was opened has nothing reserved, though its free ranges may have space from before. When the host
//! is full these are found by asking for small pieces.
//!
//! Block groups of data are not backed. A write-back that finds the host full leaves its data in memory. Mixed block
//! groups are backed, data included.
//!
//! [`BlockGroups::allocate`]: super::block_groups::BlockGroups::allocate

use super::block_groups::{Purpose, Share};
use super::running::Running;
use buttress_device::IoError;
use buttress_format::{BlockGroupFlags, ByteCount, Logical};
use buttress_fs::error::{Error, Result};

/// How much is reserved at least at once, as far as there is as much in one piece.
const STEP_BYTES: u64 = 4 << 20;

/// The same for the chunk tree.
const SYSTEM_STEP_BYTES: u64 = 1 << 20;

/// The pieces that a full host is asked for: what a block group was given space for before lies in larger ones.
const PIECE_BYTES: u64 = 256 << 10;

/// How many pieces are asked for in one call. The next call goes on after them.
const PIECES_MAX: usize = 64;

/// What asking the host for space came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// There is more free space than before.
    More,
    /// Block groups have no free range without space: a new block group may help.
    AllBacked,
    /// The host is full.
    HostFull,
}

/// Whether addresses in block groups of this kind are handed out only with space of the host.
pub(super) fn wants_backing(flags: BlockGroupFlags) -> bool {
    flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)
}

/// An error of the volume layer, with want of space on the host as a kind of its own.
pub(crate) fn of_host(error: buttress_volume::Error) -> Error {
    match error {
        buttress_volume::Error::Io(failure) if failure.is_out_of_space() => Error::OutOfHostSpace(failure),
        other => other.into(),
    }
}

impl Running {
    /// Has the host give space for more of what block groups of a kind have free: `lacking` bytes or more, as far as one
    /// free range has as much. A block that is missing to know what is free ends it before anything changed.
    ///
    /// # Errors
    /// That free space cannot be read; that writing has stopped; what a device fails with, except want of space.
    pub(crate) fn back_more(&mut self, purpose: Purpose, lacking: u64) -> Result<Backing> {
        let cursor = self.core.groups.cursor(purpose);
        let groups = self.core.groups.iter();
        let mut backed: Vec<(u64, bool)> = groups
            .filter(|group| group.is_backed && !group.read_only && group.serves(purpose))
            .map(|group| (group.start, group.free.is_none()))
            .collect();
        // From the group on that allocations go on in.
        let ahead = backed
            .partition_point(|(start, _)| *start <= cursor)
            .saturating_sub(1);
        backed.rotate_left(ahead);
        for (start, is_unloaded) in backed {
            if is_unloaded {
                self.load_group(start)?;
            }
            let Some(range) = self.next_unbacked(start, cursor) else {
                continue;
            };
            return self.back(purpose, range, lacking);
        }
        self.core.host_failure = None;
        Ok(Backing::AllBacked)
    }

    /// The first free range of a group without space of the host, from `cursor` on if there is one.
    fn next_unbacked(&self, start: u64, cursor: u64) -> Option<(u64, u64)> {
        let group = self.core.groups.holding(start)?;
        let ahead = group.unbacked.from(cursor).next();
        ahead.or_else(|| group.unbacked.iter().next())
    }

    fn back(&mut self, purpose: Purpose, (start, length): (u64, u64), lacking: u64) -> Result<Backing> {
        let step = match purpose {
            Purpose::System => SYSTEM_STEP_BYTES,
            Purpose::Metadata | Purpose::Data => STEP_BYTES,
        };
        let node_bytes = self.core.node_bytes().get();
        let wanted = lacking
            .max(step)
            .checked_next_multiple_of(node_bytes)
            .unwrap_or(step);
        let taken = length.min(wanted);
        match self.back_range(start, taken)? {
            None => {
                self.core.host_failure = None;
                Ok(Backing::More)
            }
            Some(failure) => {
                self.core.host_failure = Some(failure);
                self.back_what_has_space(purpose)
            }
        }
    }

    /// Reserves a range, which is free from then on. Gives the failure where the host has no space.
    fn back_range(&mut self, start: u64, length: u64) -> Result<Option<IoError>> {
        let volume = self.core.forest.volume();
        match volume.reserve(Logical::new(start), ByteCount::new(length)) {
            Ok(()) => {
                self.core
                    .groups
                    .shift(start, length, Share::Unbacked, Share::Free)?;
                Ok(None)
            }
            Err(buttress_volume::Error::Io(failure)) if failure.is_out_of_space() => Ok(Some(failure)),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks for free ranges that have space from before: those need nothing of a host that is full.
    fn back_what_has_space(&mut self, purpose: Purpose) -> Result<Backing> {
        let from = self.core.asked_host_at;
        let groups = self.core.groups.iter();
        let mut pieces: Vec<(u64, u64)> = groups
            .filter(|group| group.is_backed && !group.read_only && group.serves(purpose))
            .flat_map(|group| group.unbacked.iter())
            .flat_map(|(start, length)| pieces_of(start, length))
            .collect();
        let ahead = pieces.partition_point(|(start, _)| *start <= from);
        pieces.rotate_left(ahead);
        for (start, length) in pieces.into_iter().take(PIECES_MAX) {
            self.core.asked_host_at = start;
            if self.back_range(start, length)?.is_none() {
                return Ok(Backing::More);
            }
        }
        Ok(Backing::HostFull)
    }

    /// The host's failure, if that is why there is no space: for the error instead of one that blames the volume.
    pub(crate) fn host_failure(&self) -> Option<Error> {
        self.core.host_failure.clone().map(Error::OutOfHostSpace)
    }
}

fn pieces_of(start: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = start.saturating_add(length);
    let step = usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX);
    (start..end)
        .step_by(step)
        .map(move |at| (at, PIECE_BYTES.min(end.saturating_sub(at))))
}
