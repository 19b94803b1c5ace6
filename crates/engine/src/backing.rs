//! Space of the host for metadata, reserved before the commits that need it.
//!
//! On a sparse image file, a commit could find the host's disk full. A commit that cannot write its
//! tree blocks makes the volume refuse all later writes. The allocator therefore hands out an
//! address of metadata only after it has reserved space on the host for that address
//! ([`buttress_volume::Volume::reserve`]). Until space on the host is reserved, the bytes belong to
//! their block group's share *unbacked* and are not free. Space that edits were promised is
//! therefore reserved on the host.
//!
//! Invariants:
//! - In a block group with reserved space, each free byte has space on the host
//!   ([`BlockGroups::allocate`] takes no other).
//! - A discarded range loses its space on the host, and becomes unbacked ([`super::trimming`]).
//! - When the host has no space, edits that need host space fail as they do on a full volume. Edits
//!   that free space use a part of the reserve, which has space on the host since the first edit.
//!
//! The engine reserves host space in steps, as edits need it, so an image with few writes stays
//! small. Before the first edit of a session, no host space is reserved, though free ranges may
//! have some from earlier sessions. On a full host, requests for small pieces find the free ranges
//! that already have host space.
//!
//! Block groups of data do not reserve space on the host. A write-back that finds the host's file
//! system full leaves its data in memory. Mixed block groups have reserved space on the host,
//! including their data.
//!
//! [`BlockGroups::allocate`]: super::block_groups::BlockGroups::allocate

use super::block_groups::{Purpose, Share};
use crate::core_state::Core;
use crate::running_parts::HostSpace;
use buttress_device::IoError;
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, ByteCount, Logical};
use buttress_fs::error::{Error, Result};

/// The least number of bytes that one step reserves on the host, if one free range has that length.
const STEP_BYTES: u64 = 4 << 20;

/// The least number of bytes that one step reserves for the chunk tree.
const SYSTEM_STEP_BYTES: u64 = 1 << 20;

/// The bytes of one request to a host file system that is full. Ranges that already have host space
/// are larger than this size.
const PIECE_BYTES: u64 = 256 << 10;

/// The maximum number of allocation requests to a full host in one call. The next call continues
/// after the requests of this call.
const PIECES_MAX: usize = 64;

/// The result of a request for space on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Block groups gained free bytes with space reserved on the host.
    More,
    /// Block groups have no free range that lacks host space. All block groups are backed
    /// completely, so only a new block group may help.
    AllBacked,
    /// The host's file system is full.
    HostFull,
}

/// Returns whether the allocator hands out addresses in these block groups only with space on the
/// host.
pub fn wants_backing(flags: BlockGroupFlags) -> bool {
    flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)
}

/// Converts an error of the volume layer. Lack of space on the host becomes a separate kind of
/// error.
pub fn of_host(error: buttress_volume::Error) -> Error {
    match error {
        buttress_volume::Error::Io(failure) if failure.is_out_of_space() => Error::OutOfHostSpace(failure),
        other => other.into(),
    }
}

impl HostSpace<'_> {
    /// Reserves space on the host for more free bytes of a kind of block groups. If one free range
    /// has at least `lacking` bytes, reserves at least `lacking` bytes. Fails before any change if
    /// a block of the free-space tree is not in memory.
    ///
    /// # Errors
    /// Fails if free space cannot be read, if writing has stopped, or if a device fails, except for
    /// lack of host space.
    pub fn back_more(&mut self, purpose: Purpose, lacking: u64) -> Result<Backing> {
        let cursor = self.running.core.groups.cursor(purpose);
        let groups = self.running.core.groups.iter();
        let mut backed: Vec<(u64, bool)> = groups
            .filter(|group| group.is_backed && !group.read_only && group.serves(purpose))
            .map(|group| (group.start, group.free.is_none()))
            .collect();
        // Start with the group in which allocations continue.
        let ahead = backed
            .partition_point(|(start, _)| *start <= cursor)
            .saturating_sub(1);
        backed.rotate_left(ahead);
        for (start, is_unloaded) in backed {
            if is_unloaded {
                self.running.load_group(start)?;
            }
            let Some(range) = self.next_unbacked(start, cursor) else {
                continue;
            };
            return self.back(purpose, range, lacking);
        }
        self.running.core.host_failure = None;
        Ok(Backing::AllBacked)
    }

    /// Returns the first free range of a group without space on the host, from `cursor` on if
    /// possible.
    fn next_unbacked(&self, start: u64, cursor: u64) -> Option<(u64, u64)> {
        let group = self.running.core.groups.holding(start)?;
        let ahead = group.unbacked.from(cursor).next();
        ahead.or_else(|| group.unbacked.iter().next())
    }

    fn back(&mut self, purpose: Purpose, (start, length): (u64, u64), lacking: u64) -> Result<Backing> {
        let step = match purpose {
            Purpose::System => SYSTEM_STEP_BYTES,
            Purpose::Metadata | Purpose::Data => STEP_BYTES,
        };
        let node_bytes = self.running.core.node_bytes().get();
        let wanted = lacking
            .max(step)
            .checked_next_multiple_of(node_bytes)
            .unwrap_or(step);
        let taken = length.min(wanted);
        match self.back_range(start, taken)? {
            None => {
                self.running.core.host_failure = None;
                Ok(Backing::More)
            }
            Some(failure) => {
                self.running.core.host_failure = Some(failure);
                self.back_what_has_space(purpose)
            }
        }
    }

    /// Reserves host space for a range and makes the range free. Returns the failure if the host
    /// has no space.
    fn back_range(&mut self, start: u64, length: u64) -> Result<Option<IoError>> {
        let volume = self.running.core.forest.volume();
        match volume.reserve(Logical::new(start), ByteCount::new(length)) {
            Ok(()) => {
                self.running
                    .core
                    .groups
                    .shift(start, length, Share::Unbacked, Share::Free)?;
                Ok(None)
            }
            Err(buttress_volume::Error::Io(failure)) if failure.is_out_of_space() => Ok(Some(failure)),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds free ranges that already have host space. Ranges that already have host space need no
    /// space of a full host.
    fn back_what_has_space(&mut self, purpose: Purpose) -> Result<Backing> {
        let from = self.running.core.asked_host_at;
        let groups = self.running.core.groups.iter();
        let mut pieces: Vec<(u64, u64)> = groups
            .filter(|group| group.is_backed && !group.read_only && group.serves(purpose))
            .flat_map(|group| group.unbacked.iter())
            .flat_map(|(start, length)| pieces_of(start, length))
            .collect();
        let ahead = pieces.partition_point(|(start, _)| *start <= from);
        pieces.rotate_left(ahead);
        for (start, length) in pieces.into_iter().take(PIECES_MAX) {
            self.running.core.asked_host_at = start;
            if self.back_range(start, length)?.is_none() {
                return Ok(Backing::More);
            }
        }
        Ok(Backing::HostFull)
    }
}

impl Core {
    /// Returns the host's failure if it caused the lack of space. Callers return the host's failure
    /// instead of an error that names the volume.
    pub fn host_failure(&self) -> Option<Error> {
        self.host_failure.clone().map(Error::OutOfHostSpace)
    }
}

fn pieces_of(start: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = start.saturating_add(length);
    let step = PIECE_BYTES.narrow::<usize>();
    (start..end)
        .step_by(step)
        .map(move |at| (at, PIECE_BYTES.min(end.saturating_sub(at))))
}
