//! Changes of a whole volume that a commit alone cannot make: the fsid, the seed flag, and the type
//! of all checksums.
//!
//! [`WholeVolume`] holds the devices of a volume that nothing else uses. Each call opens the volume
//! as often as it needs, and finishes the same change if it was interrupted earlier, by this
//! program or by btrfstune.
//!
//! | call | writes |
//! |---|---|
//! | [`WholeVolume::set_fsid`] | superblocks; tree blocks keep the metadata uuid |
//! | [`WholeVolume::clear_seed`] | superblocks |
//! | [`WholeVolume::rewrite_fsid`] | superblocks, all headers of tree blocks, device items |
//! | [`WholeVolume::change_checksums`] | new checksums of data, all headers of tree blocks |
//!
//! Invariants:
//! - A change does not begin on a volume with a missing or outdated device, since all superblocks
//!   must carry the new fsid or checksum type. An interrupted change can be finished without a
//!   missing device if every profile tolerates the loss ([`WholeVolume::degraded`]).
//! - A superblock is written in the generation that it has. Devices of an interrupted write
//!   therefore never seem to have missed a commit.
//! - A flag in all superblocks precedes the first write that Linux could not read. Linux and the
//!   other commands refuse the volume as long as the flag is set.
//! - Tree blocks are rewritten in place, and only bytes of the first 512 change. Devices do not
//!   tear a sector, so a crash leaves a block as before or as after, and both are accepted.
//!
//! Left out: volumes on seed devices, whose blocks no volume may change.
//!
//! [Decision 28](../../../docs/decisions/0028-changes-of-whole-volumes.md).

mod blocks;
mod superblocks;

use crate::WritableFilesystem;
use blocks::{Stamp, rewrite_blocks};
use buttress_device::Device;
use buttress_engine::checksum_change::unfinished_checksum_type;
use buttress_engine::opening::refuse_to_finish;
use buttress_engine::{BlockGroupPlace, WriteOptions};
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{ByteCount, ChecksumType, Incompat, Superblock, Uuid};
use buttress_fs::Progress;
use buttress_fs::error::{Error, Result, WritingRefusal};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::open::OpenOptions;
use buttress_tree::BlockPointer;
use buttress_volume::{DeviceSlot, Notice, WholeChange};
use std::sync::Arc;
use superblocks::write_superblocks;

/// All devices of a volume that nothing else uses. See the module's documentation.
#[derive(Clone, Debug)]
pub struct WholeVolume {
    devices: Vec<Device>,
    cache: Option<ByteCount>,
    degraded: bool,
    options: WriteOptions,
}

impl WholeVolume {
    /// Returns the volume on these devices, which must be open for writing. `options` apply to the
    /// commits.
    #[must_use]
    pub const fn new(devices: Vec<Device>, options: WriteOptions) -> Self {
        Self {
            devices,
            cache: None,
            degraded: false,
            options,
        }
    }

    /// Sets the budget of the node cache.
    #[must_use]
    pub const fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = Some(budget);
        self
    }

    /// Sets whether an interrupted change is finished without its missing devices. No change begins
    /// without a device. A missing device keeps its former superblock and blocks, so it can no
    /// longer return to the volume.
    #[must_use]
    pub const fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Returns the superblock by which the volume is opened. The superblock names unfinished changes.
    ///
    /// # Errors
    /// Fails if the devices have no usable superblocks, or do not belong together.
    pub fn superblock(&self) -> Result<Superblock> {
        // The chunk tree is unreadable here if its blocks have new checksums already.
        let options = buttress_volume::OpenOptions {
            change: by_fsid(),
            ..buttress_volume::OpenOptions::default()
        };
        let lead = buttress_volume::Volume::open(self.devices.clone(), options)?;
        Ok((*lead.superblock()).clone())
    }

    /// Changes the fsid, or finishes such a change. Tree blocks keep their uuid, which becomes the
    /// metadata uuid. Returns the new fsid; `None` chooses a random one.
    ///
    /// # Errors
    /// Fails for a nil fsid, a seed, an incomplete volume, and as
    /// [`WritableFilesystem::new`] does.
    pub fn set_fsid(&self, wanted: Option<Uuid>) -> Result<Uuid> {
        let fsid = self.usable_fsid(wanted)?;
        let change = by_fsid();
        self.start(change, SuperblockFlags::CHANGING_FSID_V2)?;
        let set = |superblock: &mut Superblock| {
            superblock.fsid = fsid;
            let differs = fsid != superblock.metadata_uuid;
            superblock.incompat.set(Incompat::METADATA_UUID, differs);
        };
        if self.devices.len() == 1 {
            write_superblocks(&self.open(change)?, |superblock| {
                set(superblock);
                superblock.flags.remove(SuperblockFlags::CHANGING_FSID_V2);
            })?;
            return Ok(fsid);
        }
        // The flag is on all devices before any has the new fsid, and until all have it.
        write_superblocks(&self.open(change)?, |superblock| {
            superblock.flags.insert(SuperblockFlags::CHANGING_FSID_V2);
        })?;
        write_superblocks(&self.open(change)?, set)?;
        write_superblocks(&self.open(change)?, |superblock| {
            superblock.flags.remove(SuperblockFlags::CHANGING_FSID_V2);
        })?;
        Ok(fsid)
    }

    /// Clears the seed flag. Volumes that are based on the seed may become unusable.
    ///
    /// # Errors
    /// Fails if the volume is no seed, has a metadata uuid or is incomplete, or with an error of a
    /// device.
    pub fn clear_seed(&self) -> Result<()> {
        let filesystem = self.open(WholeChange::default())?;
        let superblock = filesystem.superblock();
        if !superblock.flags.contains(SuperblockFlags::SEEDING) {
            let what = "the seeding flag is not set";
            return Err(Error::Invalid { what });
        }
        if superblock.incompat.contains(Incompat::METADATA_UUID) {
            let what = "the seeding flag cannot be changed on a volume whose fsid was changed with -m or -M";
            return Err(Error::Invalid { what });
        }
        self.require_devices(&filesystem, SuperblockFlags::empty())?;
        write_superblocks(&filesystem, |superblock| {
            superblock.flags.remove(SuperblockFlags::SEEDING);
        })
    }

    /// Gives all tree blocks and devices a new fsid, or finishes such a change. Returns the new
    /// fsid; `None` chooses a random one, or the fsid of the unfinished change.
    ///
    /// # Errors
    /// Fails for a nil fsid, a metadata uuid, another fsid than that of the unfinished change, seed
    /// devices, and an incomplete volume. Fails before the first change if a tree block has no
    /// intact copy. After any other error, a further call finishes the change.
    pub fn rewrite_fsid(&self, wanted: Option<Uuid>, progress: &Progress) -> Result<Uuid> {
        let change = by_fsid();
        let filesystem = self.open(change)?;
        let superblock = filesystem.superblock();
        let is_unfinished = superblock.flags.contains(SuperblockFlags::CHANGING_FSID);
        if superblock.incompat.contains(Incompat::METADATA_UUID) {
            let what = "the fsid cannot be rewritten while the volume has a metadata uuid (run `buttress tune -M` with the metadata uuid first)";
            return Err(Error::Invalid { what });
        }
        let fsid = match is_unfinished {
            true if wanted.is_some_and(|wanted| wanted != superblock.fsid) => {
                let what = "an unfinished change gives the volume another fsid (run `buttress tune -u` without a uuid to finish it)";
                return Err(Error::Invalid { what });
            }
            true => superblock.fsid,
            false => self.usable_fsid(wanted)?,
        };
        drop(filesystem);
        self.start(change, SuperblockFlags::CHANGING_FSID)?;
        let filesystem = self.open(change)?;
        require_no_seeds(&filesystem)?;
        let chunk_tree_uuid = match is_unfinished {
            true => root_chunk_tree_uuid(&filesystem)?,
            false => {
                // Every tree block is read and verified before the first one changes.
                rewrite_blocks(&filesystem, None, progress)?;
                self.options.environment.new_uuid()
            }
        };
        write_superblocks(&filesystem, |superblock| {
            superblock.flags.insert(SuperblockFlags::CHANGING_FSID);
            superblock.fsid = fsid;
        })?;
        let filesystem = self.open(change)?;
        let stamp = Stamp {
            uuids: Some((fsid, chunk_tree_uuid)),
            checksum_type: filesystem.checksum_type(),
        };
        // The root tree's root block records the uuid of the chunk tree for a later run.
        blocks::rewrite_root(&filesystem, &stamp)?;
        rewrite_blocks(&filesystem, Some(&stamp), progress)?;
        let writable = self.writable(self.open(change)?, true)?;
        writable.conversions().end_fsid_change(fsid)?;
        writable.close()?;
        Ok(fsid)
    }

    /// Replaces all checksums of data and tree blocks, or finishes such a change.
    ///
    /// # Errors
    /// Fails if the volume has this type already, or if an unfinished change has another type.
    /// Fails for seed devices, and for an incomplete volume. If data has no intact copy, fails with
    /// [`Error::DataDamaged`], and the volume keeps its former checksums. After any other error, a
    /// further call finishes the change.
    pub fn change_checksums(&self, to: ChecksumType, progress: &Progress) -> Result<()> {
        let flags = self.superblock()?.flags;
        if !flags.intersects(SuperblockFlags::CHANGING_CHECKSUMS) {
            if self.open(WholeChange::default())?.checksum_type() == to {
                let what = "the volume has checksums of this type already";
                return Err(Error::Invalid { what });
            }
            self.start(WholeChange::default(), SuperblockFlags::CHANGING_CHECKSUMS)?;
            let filesystem = self.open(WholeChange::default())?;
            require_no_seeds(&filesystem)?;
            // A tree block without an intact copy ends the change before it begins.
            rewrite_blocks(&filesystem, None, progress)?;
            let writable = self.writable(filesystem, false)?;
            writable.checksum_change().begin(to)?;
            writable.close()?;
        }
        if !self
            .superblock()?
            .flags
            .contains(SuperblockFlags::CHANGING_META_CSUM)
        {
            self.change_data_checksums(to, progress)?;
        }
        let change = by_checksums(self.target_of_blocks(to)?);
        let filesystem = self.open(change)?;
        self.require_devices(&filesystem, SuperblockFlags::CHANGING_CHECKSUMS)?;
        let stamp = Stamp {
            uuids: None,
            checksum_type: to,
        };
        rewrite_blocks(&filesystem, Some(&stamp), progress)?;
        let writable = self.writable(self.open(change)?, true)?;
        writable.checksum_change().end(to)?;
        writable.close()?;
        Ok(())
    }

    /// Moves the block group items into a tree of their own, or back, or finishes such a change.
    ///
    /// # Errors
    /// Fails as [`buttress_engine::areas::Conversions::move_block_group_items`] does.
    pub fn move_block_group_items(&self, place: BlockGroupPlace) -> Result<()> {
        let filesystem = self.open(WholeChange::default())?;
        require_unfinished_only(&filesystem, SuperblockFlags::CHANGING_BG_TREE)?;
        let writable = self.writable(filesystem, true)?;
        writable.conversions().move_block_group_items(place)?;
        writable.close()?;
        Ok(())
    }

    /// Replaces the checksums of data. After an error that leaves the old checksums in place, undoes
    /// the change.
    fn change_data_checksums(&self, to: ChecksumType, progress: &Progress) -> Result<()> {
        let filesystem = self.open(WholeChange::default())?;
        require_unfinished_only(&filesystem, SuperblockFlags::CHANGING_CHECKSUMS)?;
        require_same(unfinished_checksum_type(&filesystem)?, to)?;
        let writable = self.writable(filesystem, true)?;
        let changed = writable.checksum_change().change_data(to, progress);
        let Err(error) = changed else {
            writable.close()?;
            return Ok(());
        };
        let is_undone = matches!(error, Error::DataDamaged { .. } | Error::NoSpace { .. });
        if is_undone && writable.checksum_change().can_undo(to)? {
            writable.checksum_change().undo(to)?;
        }
        writable.close()?;
        Err(error)
    }

    /// Returns the type of the checksums that tree blocks get, while they are rewritten.
    fn target_of_blocks(&self, wanted: ChecksumType) -> Result<ChecksumType> {
        // Only the right type makes all blocks readable, and the item in the root tree names it.
        let mut first_error = None;
        let others = ChecksumType::ALL.into_iter().filter(|other| *other != wanted);
        for candidate in core::iter::once(wanted).chain(others) {
            let named = self
                .open(by_checksums(candidate))
                .and_then(|filesystem| unfinished_checksum_type(&filesystem));
            match named {
                Ok(Some(named)) => {
                    require_same(Some(named), wanted)?;
                    return Ok(named);
                }
                Ok(None) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let what = "no item of the root tree names the new type of the checksums";
        // Clamp: without an error, no root tree has an item.
        Err(first_error.unwrap_or(Error::Invalid { what }))
    }

    fn usable_fsid(&self, wanted: Option<Uuid>) -> Result<Uuid> {
        let fsid = wanted.unwrap_or_else(|| self.options.environment.new_uuid());
        if fsid.is_nil() {
            let what = "the fsid of a volume must not be nil";
            return Err(Error::Invalid { what });
        }
        Ok(fsid)
    }

    /// Makes the volume ready for a change: replays its log, and commits. `own` is the flag of the
    /// change, which may be unfinished.
    fn start(&self, change: WholeChange, own: SuperblockFlags) -> Result<()> {
        let filesystem = self.open(change)?;
        require_unfinished_only(&filesystem, own)?;
        self.require_devices(&filesystem, own)?;
        if filesystem.superblock().flags.intersects(own) {
            return Ok(());
        }
        self.writable(filesystem, false)?.close()?;
        Ok(())
    }

    fn open(&self, change: WholeChange) -> Result<Filesystem> {
        let options = OpenOptions::new(self.devices.clone())
            .degraded(self.degraded)
            .change(change);
        match self.cache {
            Some(cache) => options.cache(cache).open(),
            None => options.open(),
        }
    }

    /// Refuses a volume with a device that is outdated or not listed, or is missing. The caller may
    /// allow missing devices for the rest of an interrupted change, whose flag is `own`.
    fn require_devices(&self, filesystem: &Filesystem, own: SuperblockFlags) -> Result<()> {
        let is_unfinished = filesystem.superblock().flags.intersects(own);
        let may_miss = is_unfinished && self.degraded;
        let volume = filesystem.volume();
        let notices = volume.notices();
        if !may_miss
            && notices
                .iter()
                .any(|notice| matches!(notice, Notice::MissingDevice(_)))
        {
            let what = "a device is missing, and only an interrupted change can be finished without it (give the device with --device, or replace it with `buttress replace start` first)";
            return Err(Error::Invalid { what });
        }
        let is_other =
            |notice: &Notice| matches!(notice, Notice::StaleDevice { .. } | Notice::UnlistedDevice { .. });
        if let Some(notice) = notices.into_iter().find(is_other) {
            let notice = Box::new(notice);
            return Err(Error::WritingRefused(WritingRefusal::Devices { notice }));
        }
        let is_ready = |slot: &DeviceSlot| slot.is_written() || may_miss && slot.device().is_none();
        if !volume.devices().iter().all(|slot| is_ready(slot)) {
            let what = "all devices of the volume are needed, and none may have missed a commit (run `buttress device resync` first)";
            return Err(Error::Invalid { what });
        }
        Ok(())
    }

    fn writable(&self, filesystem: Filesystem, finishes_change: bool) -> Result<WritableFilesystem> {
        let options = WriteOptions {
            finishes_change,
            ..self.options.clone()
        };
        WritableFilesystem::new(filesystem, options)
    }
}

const fn by_fsid() -> WholeChange {
    WholeChange {
        fsid: true,
        checksum_type: None,
    }
}

const fn by_checksums(checksum_type: ChecksumType) -> WholeChange {
    WholeChange {
        fsid: false,
        checksum_type: Some(checksum_type),
    }
}

fn require_same(unfinished: Option<ChecksumType>, wanted: ChecksumType) -> Result<()> {
    if unfinished.is_some_and(|unfinished| unfinished != wanted) {
        let what = match unfinished {
            Some(ChecksumType::Crc32c) => {
                "an unfinished change makes checksums of type crc32c (finish it first)"
            }
            Some(ChecksumType::Xxhash64) => {
                "an unfinished change makes checksums of type xxhash (finish it first)"
            }
            Some(ChecksumType::Sha256) => {
                "an unfinished change makes checksums of type sha256 (finish it first)"
            }
            _ => "an unfinished change makes checksums of type blake2b (finish it first)",
        };
        return Err(Error::Invalid { what });
    }
    Ok(())
}

/// Refuses states that forbid writing, and unfinished changes without the flag `own`.
fn require_unfinished_only(filesystem: &Filesystem, own: SuperblockFlags) -> Result<()> {
    refuse_to_finish(filesystem)?;
    let others = filesystem.superblock().flags.difference(own);
    match others.unfinished() {
        None => Ok(()),
        Some(change) => Err(Error::WritingRefused(WritingRefusal::Unfinished {
            what: change.what,
            remedy: change.remedy,
        })),
    }
}

/// Refuses a volume that is based on seed devices. A missing device is none: its change began after
/// this check, and its item may still have the former fsid.
fn require_no_seeds(filesystem: &Filesystem) -> Result<()> {
    let fsid = filesystem.superblock().fsid;
    let volume = filesystem.volume();
    let is_seed = |slot: &&Arc<DeviceSlot>| slot.fsid() != fsid && slot.device().is_some();
    match volume.devices().iter().find(is_seed) {
        None => Ok(()),
        Some(seed) => Err(buttress_volume::Error::from(buttress_volume::WriteRefusal::Seed {
            device: Arc::clone(seed.name()),
        })
        .into()),
    }
}

/// Returns the uuid of the chunk tree in the root block of the root tree.
fn root_chunk_tree_uuid(filesystem: &Filesystem) -> Result<Uuid> {
    let pointer = BlockPointer::root(filesystem.root_tree().root());
    let block = filesystem.forest().read_block(&pointer)?;
    Ok(block.header().chunk_tree_uuid)
}
