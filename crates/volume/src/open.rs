//! The selection of a volume's devices, and of the superblock that leads.
//!
//! Devices are given in any order, and are identified by their superblocks:
//!
//! - devices with the fsid of the volume belong to it. Two devices with one uuid are a device and
//!   its copy, and are refused;
//! - devices marked as seeds may have another fsid. The sprout lists the seeds in its chunk tree.
//!   If all given devices are seeds, the newest generation is the volume;
//! - any other fsid is refused, with both names in the error;
//! - a device with id 0 is the target of an unfinished replacement. The replacement's target is
//!   kept apart and not read ([`crate::replacement`]);
//! - among the volume's devices, the newest generation leads. A device of an older generation
//!   missed commits, and its copies are used last;
//! - two devices that were each written without the other are refused. Either their superblocks
//!   have one generation and different roots, or their backup roots of the older generation differ.
//!
//! Finally, the features of the leading superblock are checked. An opening refuses unknown incompat
//! bits, and names them. Unknown `compat_ro` feature bits make the volume read-only.

use crate::devices::DeviceSlot;
use crate::error::{DevicesError, Error, Stale};
use crate::notice::Notice;
use crate::replacement::{FoundTarget, TARGET_ID};
use crate::superblocks::{self, DeviceSuperblock};
use buttress_device::Device;
use buttress_format::superblock::{Superblock, SuperblockFlags};
use buttress_format::{BlockFormat, ByteCount, ChecksumType, Generation, Incompat};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use uuid::Uuid;

/// Options for opening a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Opens with missing devices, and reads the content that the remaining devices hold.
    pub degraded: bool,
    /// The checks and trees to skip, to read data of a damaged volume.
    pub rescue: Rescue,
    /// The change of the whole volume that the caller makes or finishes.
    pub change: WholeChange,
}

/// A change of a whole volume. An interruption leaves states that only the caller that finishes
/// the change may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WholeChange {
    /// Whether devices of one commit belong to one volume although their fsids differ.
    pub fsid: bool,
    /// The new type of checksums. Tree blocks may have checksums of this type or of the type that
    /// the superblock names.
    pub checksum_type: Option<ChecksumType>,
}

/// The kernel's `rescue=` options. This layer passes them to the layers that implement them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// `usebackuproot`: uses the superblock's backup roots if the root tree cannot be read.
    pub use_backup_root: bool,
    /// `ignorebadroots`: continues without global trees that cannot be read.
    pub ignore_bad_roots: bool,
    /// `ignoredatacsums`: do not verify file data.
    pub ignore_data_checksums: bool,
    /// `nologreplay`: ignores a log tree.
    pub no_log_replay: bool,
}

/// The result of reading the superblocks of all devices.
pub(crate) struct Opened {
    pub(crate) lead: Device,
    pub(crate) superblock: Superblock,
    pub(crate) format: BlockFormat,
    pub(crate) slots: Vec<DeviceSlot>,
    pub(crate) notices: Vec<Notice>,
    /// The target of an unfinished replacement.
    pub(crate) target: Option<FoundTarget>,
}

/// A device with its superblock.
struct Candidate {
    device: Device,
    superblock: Superblock,
}

impl Candidate {
    fn is_seed(&self) -> bool {
        self.superblock.flags.contains(SuperblockFlags::SEEDING)
    }

    fn belongs_to(&self, fsid: Uuid) -> bool {
        self.superblock.fsid == fsid
    }
}

pub(crate) fn choose(devices: Vec<Device>, change: WholeChange) -> Result<Opened, Error> {
    let mut notices = Vec::new();
    let mut candidates = Vec::with_capacity(devices.len());
    for device in devices {
        let DeviceSuperblock {
            superblock, notice, ..
        } = superblocks::choose(&device)?;
        notices.extend(notice);
        candidates.push(Candidate { device, superblock });
    }
    refuse_duplicates(&candidates)?;
    let targets = take_targets(&mut candidates);
    let is_cut = change.fsid && take_in(&mut candidates);
    let lead = choose_lead(&candidates)?;
    refuse_diverged(lead, &candidates)?;
    let superblock = lead.superblock.clone();
    superblock.incompat.require_readable()?;
    if let Err(unsupported) = superblock.compat_ro.require_writable() {
        notices.push(Notice::UnknownCompatRo {
            names: unsupported.names,
        });
    }
    notices.extend(state_of(&superblock));
    let others = candidates
        .iter()
        .filter(|candidate| !candidate.belongs_to(superblock.fsid))
        .map(|candidate| candidate.superblock.metadata_uuid);
    let mut format = superblock.block_format().with_seeds(others);
    if let Some(checksum_type) = change.checksum_type {
        format = format.changing_checksums_to(checksum_type);
    }
    let lead = lead.device.clone();
    let last_whole = match is_cut {
        // The blocks of the cut commit decide.
        true => generation_before(&superblock),
        false => last_on_all_devices(&candidates, &superblock),
    };
    let mut slots = Vec::with_capacity(candidates.len());
    for Candidate {
        device,
        superblock: own,
    } in candidates
    {
        let id = own.device_item.device;
        // Seeds are no longer written once they have a sprout, so an older generation is normal for
        // them.
        let behind = own.fsid == superblock.fsid
            && own.generation < last_whole
            && !buttress_faults::on("volume-stale-device-trusted");
        let generations = Stale {
            generation: own.generation,
            newest: superblock.generation,
        };
        let stale = behind.then_some(generations);
        // The newest commit seems to have ended between the superblock writes of the devices.
        let is_older = own.fsid == superblock.fsid && own.generation < superblock.generation;
        let in_doubt = (is_older && !behind).then_some(generations);
        // [`Volume::settle_idle_devices`] decides with the device's item whether the device missed
        // a commit.
        let is_idle = own.device_item.bytes_used == ByteCount::ZERO;
        if let Some(generations) = stale.filter(|_| !is_idle) {
            notices.push(Notice::StaleDevice {
                device: device.name().to_owned(),
                id,
                generations,
            });
        }
        let slot = DeviceSlot::given(id, own.device_item.uuid, own.fsid, device, stale);
        slots.push(slot.with_doubt(in_doubt).with_idleness(is_idle));
    }
    let target = target_among(targets, &lead, &superblock, &mut notices)?;
    Ok(Opened {
        target,
        lead,
        superblock,
        format,
        slots,
        notices,
    })
}

/// Gives devices whose superblocks differ from the lead's only in the fsid the lead's fsid. Returns
/// whether such a device is one commit older.
///
/// A change of the fsid writes the superblocks of all devices without a commit between, so a cut
/// leaves superblocks of one generation with the same roots. The flag of the change is on all
/// devices before the first fsid differs; devices without it are copies of another volume. The
/// chunk tree then decides whether the device belongs to the volume. The lead is a device with the
/// new fsid if one exists.
///
/// btrfstune sets a metadata uuid by two commits. The first one sets the flag, and the second one
/// changes the fsid and clears the flag. A cut in the second commit leaves devices of the first one.
fn take_in(candidates: &mut [Candidate]) -> bool {
    let changes = SuperblockFlags::CHANGING_FSID.union(SuperblockFlags::CHANGING_FSID_V2);
    let newest = candidates
        .iter()
        .filter(|candidate| !candidate.is_seed())
        .max_by_key(|candidate| {
            let flags = candidate.superblock.flags;
            let has_new = flags.contains(SuperblockFlags::CHANGING_FSID)
                && candidate.superblock.former_fsid().is_some();
            (
                candidate.superblock.generation,
                has_new,
                flags.intersects(changes),
                core::cmp::Reverse(candidate.superblock.device_item.device),
            )
        })
        .map(|candidate| candidate.superblock.clone());
    let Some(newest) = newest else {
        return false;
    };
    let is_of_first_commit = |superblock: &Superblock| {
        superblock.flags.contains(SuperblockFlags::CHANGING_FSID_V2)
            && superblock.generation == generation_before(&newest)
            && superblock.metadata_uuid == newest.metadata_uuid
            && superblock.num_devices == newest.num_devices
            && superblock.device_item.fsid == newest.device_item.fsid
    };
    let mut is_cut = false;
    for Candidate { superblock, .. } in candidates {
        if superblock.fsid == newest.fsid {
            continue;
        }
        let changes_now = superblock.flags.union(newest.flags).intersects(changes);
        let is_older = is_of_first_commit(superblock);
        is_cut |= is_older;
        if is_older || changes_now && rest_of(superblock) == rest_of(&newest) {
            superblock.fsid = newest.fsid;
            superblock.metadata_uuid = newest.metadata_uuid;
            let has_uuid = newest.incompat.contains(Incompat::METADATA_UUID);
            superblock.incompat.set(Incompat::METADATA_UUID, has_uuid);
            superblock.flags |= newest.flags;
        }
    }
    is_cut
}

/// Returns the fields that a change of the fsid does not change.
fn rest_of(superblock: &Superblock) -> impl PartialEq + use<> {
    (
        superblock.generation,
        superblock.root,
        superblock.chunk_root,
        superblock.bytes_used,
        superblock.total_bytes,
        superblock.num_devices,
        superblock.device_item.fsid,
    )
}

fn generation_before(superblock: &Superblock) -> Generation {
    // Clamp: the number comes from disk; no superblock has generation 0.
    Generation::new(superblock.generation.get().saturating_sub(1))
}

/// Removes targets of replacements from the candidates, unless only targets were given.
fn take_targets(candidates: &mut Vec<Candidate>) -> Vec<Candidate> {
    let is_target = |candidate: &Candidate| candidate.superblock.device_item.device == TARGET_ID;
    if candidates.iter().all(is_target) {
        return Vec::new();
    }
    candidates
        .extract_if(.., |candidate| is_target(candidate))
        .collect()
}

/// Returns the volume's own replacement target; the newest if there are several.
fn target_among(
    targets: Vec<Candidate>,
    lead: &Device,
    superblock: &Superblock,
    notices: &mut Vec<Notice>,
) -> Result<Option<FoundTarget>, DevicesError> {
    let mut own: Vec<FoundTarget> = Vec::new();
    for target in targets {
        if !target.belongs_to(superblock.fsid) {
            return Err(DevicesError::Foreign {
                first: lead.name().to_owned(),
                first_fsid: superblock.fsid,
                second: target.device.name().to_owned(),
                second_fsid: target.superblock.fsid,
            });
        }
        own.push(FoundTarget {
            uuid: target.superblock.device_item.uuid,
            generation: target.superblock.generation,
            device: target.device,
        });
    }
    own.sort_by_key(|target| target.generation);
    let newest = own.pop();
    notices.extend(
        own.into_iter()
            .chain(newest.clone())
            .map(|target| Notice::ReplacementTarget {
                device: target.device.name().to_owned(),
                uuid: target.uuid,
            }),
    );
    Ok(newest)
}

/// Returns the notices that the leading superblock implies.
fn state_of(superblock: &Superblock) -> Vec<Notice> {
    let flags = superblock.flags;
    let seed = flags.contains(SuperblockFlags::SEEDING).then_some(Notice::Seed);
    let image = flags.intersects(SuperblockFlags::METADATA_IMAGE);
    let unfinished = flags.unfinished().map(Notice::Unfinished);
    let used_bytes = superblock.used_bytes_problem().map(Notice::UsedBytes);
    let notices = [
        seed,
        image.then_some(Notice::MetadataImage),
        unfinished,
        used_bytes,
    ];
    notices.into_iter().flatten().collect()
}

/// Returns the generation from which a device has all blocks of the newest superblock. The result
/// is the newest generation, or the one before if a crash cut the newest commit off between the
/// superblocks of its devices.
///
/// A commit writes superblocks only when all blocks are durable on all devices. The commit writes
/// the copies of superblocks when all primaries are durable, or the primaries after the copies if a
/// log is pending. If the newest devices hold only older superblock copies, a device with a primary
/// of the copies' generation missed no blocks. If a device was absent during a complete commit, the
/// other devices hold newer superblock copies. If a device was away only during the cut-off commit,
/// the blocks that it lacks reveal this ([`crate::in_doubt`]).
fn last_on_all_devices(candidates: &[Candidate], newest: &Superblock) -> Generation {
    let before = generation_before(newest);
    let is_before = |candidate: &Candidate| candidate.superblock.generation == before;
    if !candidates.iter().any(is_before) {
        return newest.generation;
    }
    let copies: Vec<Generation> = candidates
        .iter()
        .filter(|candidate| candidate.belongs_to(newest.fsid))
        .filter(|candidate| candidate.superblock.generation == newest.generation)
        .flat_map(|candidate| superblocks::copy_generations(&candidate.device, &candidate.superblock))
        .collect();
    if !copies.is_empty() && copies.iter().all(|copy| *copy == before) {
        return before;
    }
    // If the newest superblock has a pending log, the commit wrote the superblock copies before the
    // primary.
    let has_newest_copies = |candidate: &Candidate| {
        let copies = superblocks::copy_generations(&candidate.device, &candidate.superblock);
        !copies.is_empty() && copies.iter().all(|copy| *copy == newest.generation)
    };
    let mut behind = candidates
        .iter()
        .filter(|candidate| candidate.belongs_to(newest.fsid) && is_before(candidate));
    if behind.all(has_newest_copies) {
        return before;
    }
    newest.generation
}

fn refuse_duplicates(candidates: &[Candidate]) -> Result<(), DevicesError> {
    let mut seen: HashMap<Uuid, &Candidate> = HashMap::new();
    for candidate in candidates {
        let item = &candidate.superblock.device_item;
        match seen.entry(item.uuid) {
            Entry::Vacant(entry) => {
                entry.insert(candidate);
            }
            Entry::Occupied(entry) => {
                return Err(DevicesError::Duplicate {
                    first: entry.get().device.name().to_owned(),
                    second: candidate.device.name().to_owned(),
                    device: item.device,
                    uuid: item.uuid,
                });
            }
        }
    }
    Ok(())
}

/// Refuses devices of the volume whose states do not follow from each other, as far as the
/// superblocks show. The backup roots of a superblock reach back three commits. For a device that
/// missed more commits, a resynchronisation compares the extents before it writes.
fn refuse_diverged(lead: &Candidate, candidates: &[Candidate]) -> Result<(), DevicesError> {
    if buttress_faults::on("volume-diverged-devices-accepted") {
        return Ok(());
    }
    let newest = &lead.superblock;
    let follows = |other: &Superblock| {
        if other.generation == newest.generation {
            let state = |superblock: &Superblock| {
                let superblock = superblock.clone();
                (superblock.root, superblock.chunk_root, superblock.bytes_used)
            };
            return state(other) == state(newest);
        }
        let of_then = |superblock: &Superblock| {
            let mut backups = superblock.backup_roots.into_iter();
            backups.find(|backup| backup.tree_root.generation == other.generation)
        };
        let then = of_then(newest).zip(of_then(other));
        then.is_none_or(|(newest, other)| newest == other)
    };
    let others = candidates
        .iter()
        .filter(|candidate| candidate.belongs_to(newest.fsid));
    match others
        .map(|other| (other, &other.superblock))
        .find(|(_, other)| !follows(other))
    {
        None => Ok(()),
        Some((candidate, other)) => Err(DevicesError::Diverged {
            first: lead.device.name().to_owned(),
            first_generation: newest.generation,
            second: candidate.device.name().to_owned(),
            second_generation: other.generation,
        }),
    }
}

/// Returns the candidate device with the volume's newest generation. Among equals, it has the
/// smallest device id.
fn choose_lead(candidates: &[Candidate]) -> Result<&Candidate, DevicesError> {
    let newest = |candidates: &mut dyn Iterator<Item = &'_ Candidate>| -> Option<(u64, Uuid)> {
        candidates
            .map(|candidate| (candidate.superblock.generation.get(), candidate.superblock.fsid))
            .max_by_key(|(generation, _)| *generation)
    };
    let mut own = candidates.iter().filter(|candidate| !candidate.is_seed());
    let (_, fsid) = newest(&mut own.clone())
        .or_else(|| newest(&mut candidates.iter()))
        .ok_or(DevicesError::None)?;
    let lead = candidates
        .iter()
        .filter(|candidate| candidate.belongs_to(fsid))
        .max_by_key(|candidate| {
            let id = candidate.superblock.device_item.device;
            (candidate.superblock.generation, core::cmp::Reverse(id))
        })
        .ok_or(DevicesError::None)?;
    match own.find(|candidate| !candidate.belongs_to(fsid)) {
        None => Ok(lead),
        // The device item has the uuid of the blocks, also while the blocks get another one.
        Some(other) if other.superblock.device_item.fsid == lead.superblock.device_item.fsid => {
            Err(DevicesError::FsidChangeCutOff {
                first: lead.device.name().to_owned(),
                first_fsid: fsid,
                second: other.device.name().to_owned(),
                second_fsid: other.superblock.fsid,
                metadata_uuid: lead.superblock.device_item.fsid,
            })
        }
        Some(foreign) => Err(DevicesError::Foreign {
            first: lead.device.name().to_owned(),
            first_fsid: fsid,
            second: foreign.device.name().to_owned(),
            second_fsid: foreign.superblock.fsid,
        }),
    }
}
