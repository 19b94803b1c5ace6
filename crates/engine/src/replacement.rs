//! Replacing a device: the progress item in the device tree, in Linux's format, and the commit that
//! ends the replacement.
//!
//! | step | durable state after the step |
//! |---|---|
//! | [start](Replacements::start) | the item says *started*; the target has superblocks of its own, with id 0. From here on all writes to the source also reach the target |
//! | [progress](Replacements::set_progress), with each commit | the item's cursor: the target has everything below it |
//! | [finish](Replacements::finish) | the item says *finished*; the target has the source's id and uuid, the source no newer superblock. No chunk changes |
//! | [cancel](Replacements::cancel) | the item says *canceled*; then the target's superblocks are wiped |
//!
//! A crash therefore leaves a replacement that is finished, or a replacement that continues at its
//! cursor. An interrupted replacement continues here, or when Linux mounts the volume with both
//! devices. A replacement whose target missed a commit fills the target from the beginning again.
//!
//! Left out: copying data, which is a job above this module. The copying job also wipes the source
//! at the end, or the target of a cancelled replacement.

use crate::areas::Replacements;
use crate::core_state::Core;
use crate::exclusive::Change;
use crate::replacing::Replacing;
use crate::running_parts::DeviceItems;
use buttress_device::Device;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use buttress_format::{ByteCount, DeviceId, Physical, ReplaceItem, ReplaceState, TreeId, Uuid};
use buttress_fs::error::{Corruption, Error, Result, WritingRefusal};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::NonBlocking;
use buttress_volume::{Replacement, WriteRefusal};
use std::sync::Arc;

/// Returns the replacement item, if the volume ever had a replacement.
///
/// # Errors
/// Fails if the device tree cannot be read.
pub fn replacement_item(filesystem: &Filesystem) -> Result<Option<ReplaceItem>> {
    let Some(found) = filesystem.tree(TreeId::DEVICE)?.get(&ReplaceItem::KEY)? else {
        return Ok(None);
    };
    let item = ReplaceItem::parse(&ReplaceItem::KEY, found.data());
    Ok(Some(item.map_err(|error| Corruption::Item {
        tree: TreeId::DEVICE,
        error,
    })?))
}

/// Returns whether a replacement is unfinished.
pub const fn is_open(item: &ReplaceItem) -> bool {
    matches!(item.state, ReplaceState::Started | ReplaceState::Suspended)
}

/// Resumes writing to the target of an unfinished replacement. Refuses the volume if the
/// replacement's target is missing, unless the caller wants to cancel the replacement.
pub fn take_up(filesystem: &Filesystem, gives_up: bool) -> Result<Option<Replacing>> {
    let Some(mut item) = replacement_item(filesystem)?.filter(is_open) else {
        return Ok(None);
    };
    let volume = filesystem.volume();
    if !gives_up {
        let Some(target) = volume.found_target() else {
            return Err(Error::WritingRefused(WritingRefusal::State {
                name: "an unfinished replacement of a device without its target",
                remedy: "give the target with --device, or cancel the replacement with `buttress replace cancel`",
            }));
        };
        if target.generation != filesystem.superblock().generation {
            // The writes that the replacement's target missed may lie anywhere on the device.
            item.cursor_left = Physical::MIN;
            item.cursor_right = Physical::MIN;
        }
        volume.begin_replacement(item.source, target.device, target.uuid)?;
    }
    Ok(Some(Replacing {
        item,
        is_changed: false,
        finishes: false,
    }))
}

impl Replacements<'_> {
    /// Returns the progress of the replacement, if one is in progress.
    #[must_use]
    pub fn current(&self) -> Option<ReplaceItem> {
        self.engine
            .shared
            .running
            .lock()
            .core
            .replacing
            .map(|replacing| replacing.item)
    }

    /// Starts replacing the device `source` by `target`, and commits. The target device loses its
    /// old content. From the start of a replacement on, every write to the source also goes to the
    /// target.
    ///
    /// # Errors
    /// Fails if another exclusive operation is in progress, if the target is too small, or if the
    /// commit fails.
    pub fn start(&self, source: DeviceId, target: Device, avoids_source: bool) -> Result<Arc<Replacement>> {
        let _alone = self.engine.begin_change(Change::Replace)?;
        let volume = Arc::clone(self.engine.forest().volume());
        if !volume.devices().iter().any(|slot| slot.id() == source) {
            return Err(buttress_volume::Error::from(WriteRefusal::NoSuchDevice { device: source }).into());
        }
        // The copy writes nothing between superblocks, so old signatures between them would remain
        // on the target.
        buttress_volume::wiping::forget(&target).map_err(buttress_volume::Error::from)?;
        let uuid = self.engine.new_uuid();
        let replacement = volume.begin_replacement(source, target, uuid)?;
        let item = ReplaceItem {
            source,
            cursor_left: Physical::MIN,
            cursor_right: Physical::MIN,
            source_reading_mode: u64::from(avoids_source),
            state: ReplaceState::Started,
            time_started_seconds: self.seconds(),
            time_stopped_seconds: 0,
            write_errors: 0,
            uncorrectable_read_errors: 0,
        };
        self.change(Some(item), false);
        self.engine.commit_metadata()?;
        Ok(replacement)
    }

    /// Records in the next commit that the replacement's target has all bytes of the source below
    /// `cursor`. [`ReplaceState`] records whether the replacement is suspended or running.
    pub fn set_progress(&self, cursor: Physical, state: ReplaceState, uncorrectable: u64) {
        let Some(item) = self.current() else { return };
        let errors = self.engine.forest().volume().replacement();
        let write_errors = errors.map_or(0, |replacement| replacement.target().errors().writes);
        let stopped = match state {
            ReplaceState::Suspended => self.seconds(),
            _ => 0,
        };
        let item = ReplaceItem {
            cursor_left: cursor,
            cursor_right: cursor,
            state,
            time_stopped_seconds: stopped,
            write_errors: item.write_errors.max(write_errors),
            uncorrectable_read_errors: uncorrectable,
            ..item
        };
        self.change(Some(item), false);
    }

    /// Finishes the replacement and commits. The target device then takes the source's place.
    /// Returns the replacement with the source's former slot; the caller wipes the source device.
    ///
    /// # Errors
    /// Fails if no replacement is in progress, or if the commit fails, also on the target alone. On
    /// an error, the source device stays in the volume.
    pub fn finish(&self, uncorrectable: u64) -> Result<Arc<Replacement>> {
        let replacement = self.engine.forest().volume().replacement();
        let (Some(replacement), Some(item)) = (replacement, self.current()) else {
            return Err(buttress_volume::Error::from(WriteRefusal::NoTarget).into());
        };
        if !replacement.target().is_written() {
            return Err(buttress_volume::Error::from(WriteRefusal::NoTarget).into());
        }
        let item = ReplaceItem {
            state: ReplaceState::Finished,
            time_stopped_seconds: self.seconds(),
            cursor_left: Physical::MAX,
            cursor_right: Physical::MAX,
            uncorrectable_read_errors: uncorrectable,
            ..item
        };
        self.change(Some(item), true);
        self.engine.commit_metadata()?;
        Ok(replacement)
    }

    /// Cancels the replacement and commits. Returns the replacement's target, if it is present; the
    /// caller wipes it.
    ///
    /// # Errors
    /// Fails if the commit fails.
    pub fn cancel(&self) -> Result<Option<Arc<Replacement>>> {
        let Some(item) = self.current() else {
            return Ok(None);
        };
        let item = ReplaceItem {
            state: ReplaceState::Canceled,
            time_stopped_seconds: self.seconds(),
            ..item
        };
        self.change(Some(item), false);
        self.engine.commit_metadata()?;
        let volume = self.engine.forest().volume();
        let replacement = volume.replacement();
        volume.give_up_replacement();
        self.engine.shared.running.lock().core.replacing = None;
        Ok(replacement)
    }

    fn seconds(&self) -> u64 {
        u64::try_from(self.engine.now().seconds).unwrap_or(0)
    }

    fn change(&self, item: Option<ReplaceItem>, finishes: bool) {
        let mut running = self.engine.shared.running.lock();
        running.core.replacing = item.map(|item| Replacing {
            item,
            is_changed: true,
            finishes,
        });
    }
}

/// Wipes the superblocks of a device, which then belongs to no volume. In superblock copies, only
/// the magic number is erased, so other content at these addresses stays readable.
///
/// # Errors
/// Fails if the device fails.
pub fn wipe_superblocks(device: &Device, uuid: Uuid) -> core::result::Result<(), buttress_device::IoError> {
    wipe_superblocks_past(device, uuid, ByteCount::ZERO)
}

/// Wipes superblocks that end beyond a given byte of a device.
pub(crate) fn wipe_superblocks_past(
    device: &Device,
    uuid: Uuid,
    kept: ByteCount,
) -> core::result::Result<(), buttress_device::IoError> {
    // Wipe the superblock copies before the primary, because the primary alone decides whether the
    // device opens.
    for at in SUPERBLOCK_OFFSETS.into_iter().rev() {
        let end = at.saturating_add(ByteCount::of(SUPERBLOCK_BYTES));
        if end.get() > device.size_bytes() || end.get() <= kept.get() {
            continue;
        }
        let mut bytes = device.read(at.get(), SUPERBLOCK_BYTES)?;
        let raw = buttress_format::Superblock::raw(&bytes).ok();
        if raw.is_some_and(|raw| raw.dev_item.uuid == uuid.into_bytes())
            && let Some(magic) = bytes.get_mut(MAGIC)
        {
            magic.fill(0);
            device.write(at.get(), &bytes)?;
        }
    }
    device.flush()
}

/// The offset of the magic number in a superblock.
const MAGIC: core::ops::Range<usize> = 64..72;

impl Core {
    /// Returns whether the replacement's item is newer than the item in the device tree.
    pub fn has_replacement_change(&self) -> bool {
        self.replacing.is_some_and(|replacing| replacing.is_changed)
    }
}

impl DeviceItems<'_> {
    /// Updates the replacement's item in the device tree. If a tree block is missing, the call ends
    /// before any change.
    pub fn record_replacement(&mut self) -> Result<()> {
        let Some(replacing) = self
            .running
            .core
            .replacing
            .filter(|replacing| replacing.is_changed)
        else {
            return Ok(());
        };
        self.running.reach(TreeId::DEVICE, &ReplaceItem::KEY)?;
        NonBlocking::lifted(|| {
            self.running
                .put(TreeId::DEVICE, &ReplaceItem::KEY, &replacing.item.to_bytes())
        })?;
        if let Some(replacing) = &mut self.running.core.replacing {
            replacing.is_changed = false;
        }
        Ok(())
    }
}
