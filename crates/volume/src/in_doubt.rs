//! Devices in doubt, which may have missed the newest commit.
//!
//! A crash between the superblock writes of a commit leaves some devices with the superblock of the
//! previous commit. Such a device holds all blocks of the commit, because they were durable on all
//! devices before the first superblock write. A device that was absent only during this commit has
//! the same superblock, but lacks the blocks. The roots of the newest commit distinguish the two
//! cases: each commit writes at least the root tree's block. A device missed the commit if it
//! should hold a copy of such a root and does not.
//!
//! Parity of a block counts as its copy if it can be judged. A row's parity can be judged if the
//! row has one data column, or if no other device is behind.
//!
//! Left out: a device that should hold neither a copy of these roots nor judgeable parity.

use crate::Volume;
use crate::copies::MappingContent;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::notice::Notice;
use crate::read::ExtentRead;
use crate::replacement::exchanged;
use buttress_format::superblock::Superblock;
use buttress_format::{ByteCount, Generation, Logical};
use std::sync::Arc;

impl Volume {
    /// Marks devices as stale that missed the newest commit, according to its roots.
    pub(crate) fn settle_doubts(&self) -> Result<(), Error> {
        for slot in self.devices().into_iter().filter(|slot| slot.is_in_doubt()) {
            if !self.lacks_newest_roots(&slot) || buttress_faults::on("volume-doubts-unsettled") {
                continue;
            }
            let Some(stale) = slot.as_stale().map(Arc::new) else {
                continue;
            };
            self.exchange_slot(&slot, &stale, |map| exchanged(map, &slot, &stale))?;
            self.notices_of_stale(&stale);
        }
        Ok(())
    }

    pub(crate) fn notices_of_stale(&self, slot: &DeviceSlot) {
        if let Some(generations) = slot.stale() {
            self.notice(Notice::StaleDevice {
                device: slot.name().to_string(),
                id: slot.id(),
                generations,
            });
        }
    }

    /// Returns true if the device's own copy of a root of the newest commit is bad, and another
    /// copy is good.
    fn lacks_newest_roots(&self, slot: &DeviceSlot) -> bool {
        let superblock = self.superblock();
        let newest = superblock.generation;
        roots_of(&superblock)
            .into_iter()
            .any(|logical| self.lacks_copy(slot, logical, newest))
    }

    fn lacks_copy(&self, slot: &DeviceSlot, logical: Logical, generation: Generation) -> bool {
        let length = buttress_exact::usize_of(self.block_format().node_bytes);
        let (Ok(mappings), Ok(ways)) = (self.map(logical, ByteCount::of(length)), self.copies(logical))
        else {
            return false;
        };
        let map = self.chunk_map();
        let has_one_column = map
            .find(logical)
            .is_some_and(|chunk| chunk.layout().data_columns() == 1);
        let judges_parity = has_one_column || self.all_current_but(slot);
        let mut on_slot = mappings
            .iter()
            .filter(|mapping| mapping.device_uuid == slot.uuid());
        // Find the way to read the root block that uses this device.
        let own = on_slot.find_map(|mapping| match mapping.content {
            MappingContent::Data { copy } => Some(copy),
            MappingContent::P => judges_parity.then_some(2),
            MappingContent::Q => judges_parity.then_some(3),
        });
        let read = ExtentRead { logical, length };
        let is_whole = |copy: u32| {
            let bytes = self.read_copy(read, copy);
            bytes.is_ok_and(|bytes| self.is_block_of(&bytes, logical, generation))
        };
        own.is_some_and(|own| !is_whole(own) && (1..=ways).any(|copy| copy != own && is_whole(copy)))
    }
}

impl Volume {
    /// Returns true if every device except this one has the newest commit.
    fn all_current_but(&self, slot: &DeviceSlot) -> bool {
        let is_current = |other: &Arc<DeviceSlot>| other.is_written() && !other.is_in_doubt();
        self.devices()
            .iter()
            .all(|other| other.uuid() == slot.uuid() || is_current(other))
    }
}

/// Returns the roots that the newest commit wrote.
fn roots_of(superblock: &Superblock) -> Vec<Logical> {
    let newest = superblock.generation;
    let mut roots = vec![superblock.root];
    let backups = superblock.backup_roots.iter();
    let backup = backups
        .filter(|backup| backup.tree_root.generation == newest)
        .flat_map(|backup| {
            [
                &backup.chunk_root,
                &backup.extent_root,
                &backup.fs_root,
                &backup.dev_root,
                &backup.csum_root,
            ]
        });
    roots.extend(
        backup
            .filter(|tree| tree.generation == newest)
            .map(|tree| tree.logical),
    );
    roots
}
