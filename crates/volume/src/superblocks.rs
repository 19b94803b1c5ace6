//! The superblock of one device: the primary, or the copy that replaces it.
//!
//! A device holds copies at 64 KiB, 64 MiB and 256 GiB, if it is large enough. A valid primary is
//! used, as in the kernel, even if a copy is newer. If no primary is valid, the newest valid copy
//! with the primary's fsid and device uuid is used. If the primary does not hold these ids, all
//! valid copies must agree.
//!
//! Zoned devices have sequential zones that cannot be overwritten, so they keep the primary
//! superblock in a log. In a zoned device, a log holds superblocks one after another from byte 0
//! on, in two alternating zones. A superblock at byte 0 identifies an image of a zoned device. The
//! reader uses the newest superblock of both zones.
//!
//! Source: on-disk format documentation, sections "Superblock" and "Zoned mode" (manual page
//! btrfs(5)).

use crate::error::{Corruption, Error};
use crate::notice::Notice;
use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::superblock::{
    Incompat, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
};
use buttress_format::{ErrorKind, Generation, Physical, Unsupported};
use uuid::Uuid;
use zerocopy::IntoBytes as _;

/// The reason why a primary superblock is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrimaryFailure {
    /// The primary superblock fails its checks.
    #[error(transparent)]
    Invalid(#[from] SuperblockError),
    /// The primary cannot be read.
    #[error(transparent)]
    Unread(#[from] IoError),
    /// The device ends before the primary.
    #[error("the device is too short")]
    PastEnd,
}

impl PrimaryFailure {
    /// Returns the kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(error) => error.kind(),
            Self::Unread(_) => ErrorKind::Io,
            Self::PastEnd => ErrorKind::Corrupt,
        }
    }
}

/// The superblock by which a device is opened.
#[derive(Clone, Debug)]
pub struct DeviceSuperblock {
    /// The superblock.
    pub superblock: Superblock,
    /// The physical address from which the superblock was read.
    pub at: Physical,
    /// The notice that the volume was opened by a superblock other than the primary.
    pub notice: Option<Notice>,
}

/// The size of the checksum field at the start of a superblock.
const CHECKSUM_FIELD_BYTES: usize = 32;

/// The range of zone sizes.
const ZONE_BYTES: core::ops::RangeInclusive<u64> = 4 << 20..=8 << 30;

/// Reads and checks the superblock at `at`.
fn read_at(device: &Device, at: Physical) -> Result<Superblock, PrimaryFailure> {
    let bytes = read_raw(device, at)?;
    Ok(Superblock::check(&bytes, at)?)
}

/// Returns the refusal of an intact primary that fails a check because of unsupported features.
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
    // Clamp: a superblock that ends beyond the last address also ends beyond the device.
    let end = at.get().saturating_add(SUPERBLOCK_BYTES as u64);
    if end > device.size_bytes() {
        return Err(PrimaryFailure::PastEnd);
    }
    Ok(device.read(at.get(), SUPERBLOCK_BYTES)?)
}

/// Returns the fsid and device uuid, which copies of one superblock share.
fn identity(superblock: &Superblock) -> (Uuid, Uuid) {
    (superblock.fsid, superblock.device_item.uuid)
}

/// Chooses the superblock of a device.
///
/// # Errors
/// Returns [`Corruption::NoSuperblock`] if no copy is valid. Returns
/// [`Corruption::SuperblockCopiesDisagree`] if the primary is bad and its copies belong to several
/// devices. Refuses a valid superblock with an unknown checksum type.
pub fn choose(device: &Device) -> Result<DeviceSuperblock, Error> {
    let [primary_at, copies_at @ ..] = SUPERBLOCK_OFFSETS;
    let primary = match read_at(device, primary_at) {
        Ok(superblock) => {
            let zoned = superblock.incompat.contains(Incompat::ZONED);
            let newest = if zoned { newest_in_log(device) } else { None };
            let (at, superblock) = newest
                .filter(|(_, logged)| identity(logged) == identity(&superblock))
                // Clamp: without a newer superblock in the log of a zone, the primary counts.
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

/// Writes a superblock copy over the primary of its device. `copy` is the number of the copy: 1 or 2;
/// with 0, the primary stays as it is. Returns the written superblock.
///
/// The copy must pass every check. Its bytes stay, except for the address and the checksum.
///
/// # Errors
/// Fails if the device ends before the copy, if the copy is damaged, or if the device cannot be
/// written. A power cut leaves the old or the new primary, or a damaged one, which the next call
/// repairs.
pub fn copy_to_primary(device: &Device, copy: usize) -> Result<Superblock, Error> {
    let [primary_at, ..] = SUPERBLOCK_OFFSETS;
    let refused = |at: Physical, primary| {
        Error::from(Corruption::NoSuperblock {
            device: format!("{} at {at}", device.name()),
            size_bytes: device.size_bytes(),
            primary,
        })
    };
    let Some(at) = SUPERBLOCK_OFFSETS.get(copy).copied() else {
        return Err(refused(primary_at, PrimaryFailure::PastEnd));
    };
    let bytes = read_raw(device, at).map_err(|failure| refused(at, failure))?;
    let checked = Superblock::check(&bytes, at).map_err(|error| refused(at, error.into()))?;
    if at == primary_at {
        return Ok(checked);
    }
    let mut raw = *Superblock::raw(&bytes).map_err(|error| refused(at, error.into()))?;
    raw.bytenr = primary_at.get().into();
    let covered = raw.as_bytes().get(CHECKSUM_FIELD_BYTES..);
    // Clamp: a superblock is longer than its checksum field.
    let checksum = checked.checksum_type.compute(covered.unwrap_or_default());
    raw.csum = [0; CHECKSUM_FIELD_BYTES];
    for (place, byte) in raw.csum.iter_mut().zip(checksum.as_bytes()) {
        *place = *byte;
    }
    let written = Superblock::check(raw.as_bytes(), primary_at);
    let written = written.map_err(|error| refused(at, error.into()))?;
    device.write(primary_at.get(), raw.as_bytes())?;
    device.flush()?;
    Ok(written)
}

/// Returns the generations of the superblock copies, except the primary, that are valid and belong
/// to the same device. A zoned device has no superblock copies.
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

/// Returns the ids in a damaged primary. The ids in a damaged primary are useful only if a copy
/// holds the same ids.
fn identity_of_damaged(device: &Device, at: Physical) -> Option<(Uuid, Uuid)> {
    let bytes = read_raw(device, at).ok()?;
    let raw = Superblock::raw(&bytes).ok()?;
    Some(raw_identity(raw))
}

fn raw_identity(raw: &RawSuperblock) -> (Uuid, Uuid) {
    (Uuid::from_bytes(raw.fsid), Uuid::from_bytes(raw.dev_item.uuid))
}

/// Returns the newest superblock of a zoned device's log with its address, or `None` without a log.
///
/// No field states the size of a zone, so the search tries every possible size for the second zone.
fn newest_in_log(device: &Device) -> Option<(Physical, Superblock)> {
    let first = log_entry(device, 0)?;
    // Clamp: if the zone has no later entry, the first entry is the newest.
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

/// Returns a valid superblock at `offset` in the superblock log of a zone. Each superblock in the
/// log has the address of the primary, at any position in the log.
fn log_entry(device: &Device, offset: u64) -> Option<Superblock> {
    let bytes = read_raw(device, Physical::new(offset)).ok()?;
    let [primary_at, ..] = SUPERBLOCK_OFFSETS;
    Superblock::check(&bytes, primary_at)
        .ok()
        .filter(|entry| entry.incompat.contains(Incompat::ZONED))
}

/// Returns the last entry of the log in the zone at `start`. Entries of a superblock log are dense
/// from the zone's beginning, so a binary search finds the last entry.
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
