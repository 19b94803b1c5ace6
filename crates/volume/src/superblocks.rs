//! The superblock of one device: the primary, or what stands in for it.
//!
//! A device carries copies at 64 KiB, 64 MiB and 256 GiB, as far as it is large enough. The primary is used if
//! it is valid, as the kernel does: newer copies do not outrank it. Else the newest valid copy that has the
//! primary's fsid and device uuid; where the primary no longer tells them, all valid copies must agree.
//!
//! Zoned devices, whose sequential zones cannot be overwritten, keep the primary in a log instead: superblocks
//! one after another from byte 0 on, in two zones that take turns. An image of such a device is recognised by a
//! superblock at byte 0; the newest in both zones is used.
//!
//! Source: on-disk format documentation, sections "Superblock" and "Zoned mode" (manual page btrfs(5)).

use crate::error::{Corruption, Error};
use crate::notice::Notice;
use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::superblock::{
    Incompat, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
};
use buttress_format::{ErrorKind, Generation, Physical, Unsupported};
use uuid::Uuid;

/// Why a primary superblock is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrimaryFailure {
    /// It does not pass its checks.
    #[error(transparent)]
    Invalid(#[from] SuperblockError),
    /// It cannot be read.
    #[error(transparent)]
    Unread(#[from] IoError),
    /// The device ends before it.
    #[error("the device is too short")]
    PastEnd,
}

impl PrimaryFailure {
    /// The kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(error) => error.kind(),
            Self::Unread(_) => ErrorKind::Io,
            Self::PastEnd => ErrorKind::Corrupt,
        }
    }
}

/// The superblock that a device is opened by.
#[derive(Clone, Debug)]
pub struct DeviceSuperblock {
    /// It.
    pub superblock: Superblock,
    /// Where it was read.
    pub at: Physical,
    /// Set when it is not the primary.
    pub notice: Option<Notice>,
}

/// The smallest and the largest size of a zone.
const ZONE_BYTES: core::ops::RangeInclusive<u64> = 4 << 20..=8 << 30;

/// Reads and checks the superblock at `at`.
fn read_at(device: &Device, at: Physical) -> Result<Superblock, PrimaryFailure> {
    let bytes = read_raw(device, at)?;
    Ok(Superblock::check(&bytes, at)?)
}

/// The refusal of a primary that is intact, but fails a check because of features that are not known here.
fn refusal(device: &Device, at: Physical, failure: &PrimaryFailure) -> Option<Unsupported> {
    use SuperblockError::{Address, Checksum, ChecksumType, Magic, Size};
    match failure {
        PrimaryFailure::Invalid(
            Size { .. } | Magic { .. } | ChecksumType { .. } | Checksum { .. } | Address { .. },
        )
        | PrimaryFailure::Unread(_)
        | PrimaryFailure::PastEnd => None,
        PrimaryFailure::Invalid(_) => {
            let bytes = read_raw(device, at).ok()?;
            let raw = Superblock::raw(&bytes).ok()?;
            Incompat::from_bits_retain(raw.incompat_flags.get())
                .require_readable()
                .err()
        }
    }
}

fn read_raw(device: &Device, at: Physical) -> Result<buttress_device::Buffer, PrimaryFailure> {
    // Clamp: an end past the last address is past the device, too.
    let end = at.get().saturating_add(SUPERBLOCK_BYTES as u64);
    if end > device.size_bytes() {
        return Err(PrimaryFailure::PastEnd);
    }
    Ok(device.read(at.get(), SUPERBLOCK_BYTES)?)
}

/// The fsid and device uuid that make copies copies of one another.
fn identity(superblock: &Superblock) -> (Uuid, Uuid) {
    (superblock.fsid, superblock.device_item.uuid)
}

/// Chooses the superblock of a device.
///
/// # Errors
/// [`Corruption::NoSuperblock`] when no copy is valid, [`Corruption::SuperblockCopiesDisagree`] when the
/// primary is bad and its copies are not of one device; the refusal of a valid superblock that uses an unknown
/// checksum type.
pub fn choose(device: &Device) -> Result<DeviceSuperblock, Error> {
    let [primary_at, copies_at @ ..] = SUPERBLOCK_OFFSETS;
    let primary = match read_at(device, primary_at) {
        Ok(superblock) => {
            let zoned = superblock.incompat.contains(Incompat::ZONED);
            let newest = if zoned { newest_in_log(device) } else { None };
            let (at, superblock) = newest
                .filter(|(_, logged)| identity(logged) == identity(&superblock))
                // Clamp: the primary counts if no log has a newer one.
                .unwrap_or((primary_at, superblock));
            return Ok(DeviceSuperblock {
                superblock,
                at,
                notice: None,
            });
        }
        Err(failure) => failure,
    };
    if let Some(unsupported) = refusal(device, primary_at, &primary) {
        return Err(unsupported.into());
    }
    if let Some((at, superblock)) = newest_in_log(device) {
        return Ok(DeviceSuperblock {
            superblock,
            at,
            notice: None,
        });
    }
    let mut copies: Vec<(Physical, Superblock)> = copies_at
        .iter()
        .filter_map(|at| Some((*at, read_at(device, *at).ok()?)))
        .collect();
    if let Some(expected) = identity_of_damaged(device, primary_at)
        && copies.iter().any(|(_, copy)| identity(copy) == expected)
    {
        copies.retain(|(_, copy)| identity(copy) == expected);
    }
    let device_name = || device.name().to_owned();
    let Some((at, superblock)) = copies.iter().max_by_key(|(_, copy)| copy.generation).cloned() else {
        return Err(Error::from(Corruption::NoSuperblock {
            device: device_name(),
            size_bytes: device.size_bytes(),
            primary,
        }));
    };
    if let Some((_, other)) = copies
        .iter()
        .find(|(_, copy)| identity(copy) != identity(&superblock))
    {
        return Err(Error::from(Corruption::SuperblockCopiesDisagree {
            device: device_name(),
            primary,
            first: superblock.fsid,
            second: other.fsid,
        }));
    }
    let notice = Notice::SuperblockCopyUsed {
        device: device_name(),
        primary,
        copy: at,
        generation: superblock.generation,
    };
    Ok(DeviceSuperblock {
        superblock,
        at,
        notice: Some(notice),
    })
}

/// The generations of the valid copies beside the primary that belong to the same device. Zoned devices have none.
pub(crate) fn copy_generations(device: &Device, superblock: &Superblock) -> Vec<Generation> {
    if superblock.incompat.contains(Incompat::ZONED) {
        return Vec::new();
    }
    let [_, copies_at @ ..] = SUPERBLOCK_OFFSETS;
    copies_at
        .iter()
        .filter_map(|at| read_at(device, *at).ok())
        .filter(|copy| identity(copy) == identity(superblock))
        .map(|copy| copy.generation)
        .collect()
}

/// What a damaged primary still says of its identity; of use only if some copy says the same.
fn identity_of_damaged(device: &Device, at: Physical) -> Option<(Uuid, Uuid)> {
    let bytes = read_raw(device, at).ok()?;
    let raw = Superblock::raw(&bytes).ok()?;
    Some(raw_identity(raw))
}

fn raw_identity(raw: &RawSuperblock) -> (Uuid, Uuid) {
    (Uuid::from_bytes(raw.fsid), Uuid::from_bytes(raw.dev_item.uuid))
}

/// The newest superblock of a zoned device's log, with its place; `None` when there is no log.
///
/// How large a zone is stands nowhere: the second zone is looked for at every size that one can have.
fn newest_in_log(device: &Device) -> Option<(Physical, Superblock)> {
    let first = log_entry(device, 0)?;
    // Clamp: the first entry counts if no other follows.
    let mut newest = last_entry(device, 0, *ZONE_BYTES.end()).unwrap_or((Physical::new(0), first));
    let sizes = core::iter::successors(Some(*ZONE_BYTES.start()), |size| size.checked_mul(2));
    for zone_bytes in sizes.take_while(|size| size <= ZONE_BYTES.end() && *size < device.size_bytes()) {
        if let Some((at, superblock)) = last_entry(device, zone_bytes, zone_bytes)
            && identity(&superblock) == identity(&newest.1)
            && superblock.generation > newest.1.generation
        {
            newest = (at, superblock);
        }
    }
    Some(newest)
}

/// A valid superblock of a log at `offset`. Each claims to be the primary, wherever in the log it lies.
fn log_entry(device: &Device, offset: u64) -> Option<Superblock> {
    let bytes = read_raw(device, Physical::new(offset)).ok()?;
    let [primary_at, ..] = SUPERBLOCK_OFFSETS;
    Superblock::check(&bytes, primary_at)
        .ok()
        .filter(|entry| entry.incompat.contains(Incompat::ZONED))
}

/// The last entry of the log in the zone at `start`: entries are dense from its beginning, so that their end is
/// found by halving.
fn last_entry(device: &Device, start: u64, zone_bytes: u64) -> Option<(Physical, Superblock)> {
    let entry_bytes = SUPERBLOCK_BYTES as u64;
    let place = |index: u64| start.exact_add(index.exact_mul(entry_bytes));
    let mut last = log_entry(device, start)?;
    let (mut valid, mut beyond) = (0, zone_bytes.checked_div(entry_bytes)?);
    while beyond.exact_sub(valid) > 1 {
        let middle = valid.midpoint(beyond);
        match log_entry(device, place(middle)) {
            Some(entry) if identity(&entry) == identity(&last) => (valid, last) = (middle, entry),
            _ => beyond = middle,
        }
    }
    Some((Physical::new(place(valid)), last))
}
