//! Recovery of damaged superblocks from good copies on the same device.
//!
//! A device holds up to three copies of its superblock. The newest valid copy with the device's own
//! fsid and uuid is good, and each valid copy of the same generation is good, too. Each other copy is bad:
//! damaged, older, or of another volume.
//!
//! Invariants:
//! - The survey writes nothing.
//! - Recovery writes only bad copies, copies before the primary. A cut therefore leaves the good
//!   copies, and a primary that was good stays good.
//! - A device gets only its own superblock. A device that missed commits keeps its generation, so it
//!   never seems to be up to date.
//!
//! Left out: devices without a good copy, and zoned devices, whose superblocks are logs.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfs-rescue(8).

use crate::error::Error;
use crate::superblocks::choose;
use buttress_device::Device;
use buttress_format::superblock::{Incompat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{ByteCount, DeviceId, FeatureSet, Logical, Physical, Unsupported};
use uuid::Uuid;

/// The superblocks of one device.
#[derive(Clone, Debug)]
pub struct DeviceSuperblocks {
    device: Device,
    best: Superblock,
    /// The addresses of good copies.
    pub good: Vec<Physical>,
    /// The addresses of bad copies.
    pub bad: Vec<Physical>,
}

impl DeviceSuperblocks {
    /// Inspects all superblocks of a device.
    ///
    /// # Errors
    /// Fails if no copy is valid, if valid copies belong to several volumes and no primary decides,
    /// or for a zoned device.
    pub fn survey(device: &Device) -> Result<Self, Error> {
        let identity = |superblock: &Superblock| (superblock.fsid, superblock.device_item.uuid);
        let chosen = choose(device)?.superblock;
        if chosen.incompat.contains(Incompat::ZONED) {
            let names = vec!["zoned".to_owned()];
            let set = FeatureSet::Incompat;
            return Err(Unsupported { set, names }.into());
        }
        // The primary of a device may be older than its copies, and `choose` prefers it.
        let own = |found: &Superblock| identity(found) == identity(&chosen);
        let copies: Vec<(Physical, Option<Superblock>)> = places(device, &chosen)
            .map(|at| (at, read(device, at).filter(own)))
            .collect();
        let valid = copies.iter().filter_map(|(_, found)| found.clone());
        let best = valid.max_by_key(|found| found.generation);
        // Clamp: `choose` found a valid superblock, unless the device changes meanwhile.
        let best = best.unwrap_or(chosen);
        let mut surveyed = Self {
            device: device.clone(),
            good: Vec::new(),
            bad: Vec::new(),
            best,
        };
        for (at, found) in &copies {
            let is_good = found
                .as_ref()
                .is_some_and(|found| found.generation == surveyed.best.generation);
            match is_good {
                true => surveyed.good.push(*at),
                false => surveyed.bad.push(*at),
            }
        }
        Ok(surveyed)
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns the id of the device in its volume.
    #[must_use]
    pub const fn id(&self) -> DeviceId {
        self.best.device_item.device
    }

    /// Returns the fsid of the volume.
    #[must_use]
    pub const fn fsid(&self) -> Uuid {
        self.best.fsid
    }

    /// Writes the good superblock over each bad copy of `onto`, which holds the same bytes as the
    /// surveyed device.
    ///
    /// # Errors
    /// Fails with an error of the device.
    pub fn recover(&self, onto: &Device) -> Result<(), Error> {
        let [primary, ..] = SUPERBLOCK_OFFSETS;
        let is_primary = |at: &&Physical| **at == primary;
        for at in self.bad.iter().filter(|at| !is_primary(at)) {
            self.write(onto, *at)?;
        }
        onto.flush()?;
        for at in self.bad.iter().filter(is_primary) {
            self.write(onto, *at)?;
        }
        onto.flush()?;
        Ok(())
    }

    fn write(&self, onto: &Device, at: Physical) -> Result<(), Error> {
        let mut superblock = self.best.clone();
        let [primary, ..] = SUPERBLOCK_OFFSETS;
        if at != primary {
            // Only the primary names a log: a copy could lead to a log that was replaced.
            superblock.log_root = Logical::MIN;
            superblock.log_root_level = 0;
        }
        let encoded = superblock.encode_for(&superblock.device_item, at);
        let bytes = encoded.map_err(crate::write::WriteRefusal::Superblock)?;
        onto.write(at.get(), &bytes)?;
        Ok(())
    }
}

/// Returns the addresses of the superblocks on a device.
fn places(device: &Device, superblock: &Superblock) -> impl Iterator<Item = Physical> {
    let end = device.size_bytes().min(superblock.device_item.total_bytes.get());
    let fits = move |at: &Physical| at.exact_add(ByteCount::of(SUPERBLOCK_BYTES)).get() <= end;
    SUPERBLOCK_OFFSETS.into_iter().filter(fits)
}

/// Returns the valid superblock at `at`.
fn read(device: &Device, at: Physical) -> Option<Superblock> {
    let bytes = device.read(at.get(), SUPERBLOCK_BYTES).ok()?;
    Superblock::check(&bytes, at).ok()
}
