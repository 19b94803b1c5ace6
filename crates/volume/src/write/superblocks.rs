//! Flushes, and the superblock writes that complete a commit.
//!
//! This module ensures the order of writes (design: "Nothing live is overwritten"). The caller of
//! [`Volume::write_superblocks`] has flushed all blocks to the devices. Without a pending log, the
//! steps are: write all primaries, flush, write their copies, flush. A crash between the steps
//! leaves each device with a valid superblock, old or new: the first flush precedes all copies. If
//! the current superblock names a log, unlike its copies, the steps are: write copies, flush, write
//! primaries, flush. A device that fails is left out of the remaining steps, if the volume can do
//! without it. Each step must end on all devices that stay in use before the next step.
//!
//! Source: on-disk format documentation, section "Superblock", for the addresses of the copies:
//! those that end within the device.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::replacement::Replacement;
use crate::write::WriteRefusal;
use crate::write::failures::Failures;
use buttress_device::{Buffer, Device, IoError, WriteRequest};
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};
use buttress_format::{ByteCount, Logical, Physical};
use std::sync::Arc;
use uuid::Uuid;

impl Volume {
    /// Waits until all earlier writes are durable on all written devices.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::Needed`] if a device fails that the volume needs; this stops writing
    /// for good. Also fails if writing has stopped before.
    pub fn flush(&self) -> Result<(), Error> {
        self.require_writing()?;
        let _writes = self.writes().read();
        let mut slots = self.slots_to_write()?;
        slots.extend(self.returning_slot());
        if let Some(replacement) = self.replacement()
            && buttress_faults::on("replace-target-unflushed")
        {
            slots.retain(|slot| !Arc::ptr_eq(slot, replacement.target()));
        }
        self.go_on_without(flush_all(&slots))
    }

    /// Writes the superblock to all devices, and makes it the volume's current superblock. All
    /// blocks that the superblock leads to must be durable.
    ///
    /// `superblock` holds the fields that all devices share. The call sets `physical`,
    /// `device_item` and the checksum for each device and address. `items` are the device items of
    /// this commit, with an item for each present device.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::Superblock`], and writes nothing, if the superblock could not be
    /// opened again. Also fails if a device fails that the volume needs, or if writing has stopped.
    /// If a needed superblock write fails, writing stops for good. After a failed superblock write,
    /// the next open may or may not see the commit.
    pub fn write_superblocks(&self, superblock: &Superblock, items: &[DeviceItem]) -> Result<(), Error> {
        let _writes = self.writes().read();
        self.write_all_superblocks(superblock, items, None, &[])
    }

    /// Writes superblocks like [`Volume::write_superblocks`], with the target of `replaces` in
    /// place of the replaced device. The caller holds the lock `writes`.
    pub(crate) fn write_all_superblocks(
        &self,
        superblock: &Superblock,
        items: &[DeviceItem],
        replaces: Option<&Replacement>,
        leaving: &[Uuid],
    ) -> Result<(), Error> {
        self.require_writing()?;
        self.require_all_chunks()?;
        let needed = replaces.map(Replacement::target);
        let (mut targets, mut idle) = (Vec::new(), Vec::new());
        for slot in self.slots_to_write()? {
            if leaving.contains(&slot.uuid()) {
                continue;
            }
            if replaces.is_some_and(|replaces| Arc::ptr_eq(replaces.source(), &slot)) {
                continue;
            }
            let item = self.item_for(&slot, items, replaces);
            let item = item.ok_or_else(|| WriteRefusal::NoDeviceItem {
                device: Arc::clone(slot.name()),
            })?;
            let mut primary =
                requests_for(&slot, superblock, &item, usize::MAX).map_err(WriteRefusal::Superblock)?;
            let copies = primary.split_off(primary.len().min(1));
            let target = Target {
                slot,
                first: primary,
                then: copies,
                last: Vec::new(),
            };
            // In the commit that takes its last extent away, its own superblock still leads to it.
            let before = target.slot.item();
            let is_idle = before.is_none_or(|item| item.bytes_used == ByteCount::ZERO)
                && item.bytes_used == ByteCount::ZERO
                && !buttress_faults::on("volume-idle-device-first");
            match is_idle && needed.is_none_or(|needed| !Arc::ptr_eq(needed, &target.slot)) {
                true => idle.push(target),
                false => targets.push(target),
            }
        }
        if !targets.is_empty() {
            // The superblock of a device without device extents is written one step after the
            // others. An interrupted commit then never leaves the newest superblock on this device
            // alone.
            idle.iter_mut().for_each(Target::step_back);
        }
        targets.append(&mut idle);
        if buttress_faults::on("volume-superblock-copies-unwritten") {
            targets.iter_mut().for_each(|target| target.then.clear());
        }
        // Only primaries name a log. A torn primary superblock must not lead back to the state
        // before the log.
        let has_log =
            self.superblock().log_root != Logical::MIN && !buttress_faults::on("volume-primaries-over-log");
        if has_log {
            targets.iter_mut().for_each(Target::put_copies_first);
        }
        self.step(&mut targets, needed, |targets| {
            write_to(targets, |target| &target.first)
        })?;
        if !buttress_faults::on("volume-primaries-unflushed") {
            self.step(&mut targets, needed, flush_targets)?;
        }
        self.step(&mut targets, needed, |targets| {
            write_to(targets, |target| &target.then)
        })?;
        if !buttress_faults::on("volume-superblock-copies-unflushed") {
            self.step(&mut targets, needed, flush_targets)?;
        }
        if targets.iter().any(|target| !target.last.is_empty()) {
            self.step(&mut targets, needed, |targets| {
                write_to(targets, |target| &target.last)
            })?;
            self.step(&mut targets, needed, flush_targets)?;
        }
        self.set_superblock(superblock.clone());
        for item in items {
            self.set_device_item(*item)?;
        }
        Ok(())
    }

    /// Returns the device item in a device's superblocks.
    fn item_for(
        &self,
        slot: &Arc<DeviceSlot>,
        items: &[DeviceItem],
        replaces: Option<&Replacement>,
    ) -> Option<DeviceItem> {
        let of = |uuid| items.iter().find(|item| item.uuid == uuid).copied();
        if let Some(replaces) = replaces.filter(|replaces| Arc::ptr_eq(replaces.target(), slot)) {
            return of(replaces.source().uuid());
        }
        match self
            .replacement()
            .filter(|replacement| Arc::ptr_eq(replacement.target(), slot))
        {
            Some(replacement) => Some(replacement.target_item(&of(replacement.source().uuid())?)),
            None => of(slot.uuid()),
        }
    }

    /// Returns the number of written devices.
    #[must_use]
    pub fn written_devices(&self) -> usize {
        let devices = self.devices();
        devices.iter().filter(|slot| is_target(slot)).count()
    }

    /// Records a log in the superblocks: writes the primaries of all devices and flushes. All
    /// blocks of the log, and the data that the log refers to, must be durable. The superblock
    /// copies keep the last commit's state. All changes are in the first 512 bytes of the
    /// superblock, which no device tears.
    ///
    /// # Errors
    /// Fails as [`Volume::write_superblocks`] does.
    pub fn write_log_root(&self, root: Logical, level: u8) -> Result<(), Error> {
        self.require_writing()?;
        let _writes = self.writes().read();
        let superblock = Superblock {
            log_root: root,
            log_root_level: level,
            ..(*self.superblock()).clone()
        };
        let mut targets = Vec::new();
        for slot in self.slots_to_write()? {
            let items: Vec<DeviceItem> = self.devices().iter().filter_map(|slot| slot.item()).collect();
            let item = self.item_for(&slot, &items, None);
            let item = item.ok_or_else(|| WriteRefusal::NoDeviceItem {
                device: Arc::clone(slot.name()),
            })?;
            let primary = requests_for(&slot, &superblock, &item, 1).map_err(WriteRefusal::Superblock)?;
            targets.push(Target {
                slot,
                first: primary,
                then: Vec::new(),
                last: Vec::new(),
            });
        }
        self.step(&mut targets, None, |targets| {
            write_to(targets, |target| &target.first)
        })?;
        if !buttress_faults::on("volume-log-root-unflushed") {
            self.step(&mut targets, None, flush_targets)?;
        }
        self.set_superblock(superblock);
        Ok(())
    }

    /// Performs one step of a superblock write. Devices that fail in this step take no part in
    /// later steps. `needed` may not fail.
    fn step(
        &self,
        targets: &mut Vec<Target>,
        needed: Option<&Arc<DeviceSlot>>,
        step: impl Fn(&[Target]) -> Failures,
    ) -> Result<(), Error> {
        let failures = step(targets);
        let is_needed = |slot: &Arc<DeviceSlot>| needed.is_some_and(|needed| Arc::ptr_eq(needed, slot));
        if let Some((_, failure)) = failures.iter().find(|(slot, _)| is_needed(slot)) {
            // Other devices may name the replacement's target by now, and the device that it
            // replaces is still complete.
            return self.stop_if_failed(Err(failure.clone().into()));
        }
        self.go_on_without(failures)?;
        targets.retain(|target| is_target(&target.slot));
        if targets.is_empty() {
            return self.stop_if_failed(Err(WriteRefusal::NoDevice.into()));
        }
        Ok(())
    }

    /// Returns the device that is being brought up to date, which is flushed and gets no
    /// superblocks.
    fn returning_slot(&self) -> Option<Arc<DeviceSlot>> {
        let replacement = self.replacement()?;
        replacement.returning()?;
        Some(Arc::clone(replacement.target())).filter(|slot| is_target(slot))
    }

    /// Writes superblocks to a device that was brought up to date: copies, flush, primary, flush. A
    /// flush before the superblock writes makes the earlier writes to the device durable. If the
    /// flush or a superblock write fails, the device is left out.
    pub(crate) fn write_superblocks_of_returned(
        &self,
        slot: &Arc<DeviceSlot>,
        superblock: &Superblock,
        without_log: &Superblock,
        item: &DeviceItem,
    ) -> Result<(), Error> {
        self.require_writing()?;
        let primary = requests_for(slot, superblock, item, 1).map_err(WriteRefusal::Superblock)?;
        let mut copies =
            requests_for(slot, without_log, item, usize::MAX).map_err(WriteRefusal::Superblock)?;
        let copies = copies.split_off(copies.len().min(1));
        let targets = [Target {
            slot: Arc::clone(slot),
            first: copies,
            then: primary,
            last: Vec::new(),
        }];
        let end = |failures: Failures| -> Result<(), Error> {
            if failures.is_empty() {
                return Ok(());
            }
            self.go_on_without(failures)?;
            Err(WriteRefusal::NoTarget.into())
        };
        end(flush_targets(&targets))?;
        end(write_to(&targets, |target| &target.first))?;
        end(flush_targets(&targets))?;
        end(write_to(&targets, |target| &target.then))?;
        end(flush_targets(&targets))
    }

    /// Writes superblocks to a device that joins the volume: copies, flush, primary, flush.
    pub(crate) fn write_superblocks_of_joining(
        &self,
        slot: &Arc<DeviceSlot>,
        superblock: &Superblock,
        without_log: &Superblock,
        item: &DeviceItem,
    ) -> Result<(), Error> {
        self.require_writing()?;
        let primary = requests_for(slot, superblock, item, 1).map_err(WriteRefusal::Superblock)?;
        let mut copies =
            requests_for(slot, without_log, item, usize::MAX).map_err(WriteRefusal::Superblock)?;
        let copies = copies.split_off(copies.len().min(1));
        let Some(device) = slot.device() else {
            return Ok(());
        };
        for requests in [copies, primary] {
            for pending in device.start_writes(&requests) {
                pending.wait()?;
            }
            device.flush()?;
        }
        Ok(())
    }

    /// Returns the written devices: present, of the volume itself, with no missed commit, and not
    /// left out.
    fn slots_to_write(&self) -> Result<Vec<Arc<DeviceSlot>>, Error> {
        let fsid = self.superblock().fsid;
        let mut slots = self.devices();
        slots.retain(|slot| is_target(slot) && slot.fsid() == fsid && self.is_member(slot));
        if let Some(replacement) = self.replacement()
            && replacement.returning().is_none()
        {
            slots.extend(Some(Arc::clone(replacement.target())).filter(|slot| is_target(slot)));
        }
        for slot in &slots {
            self.require_own(slot)?;
        }
        if slots.is_empty() {
            return Err(WriteRefusal::NoDevice.into());
        }
        Ok(slots)
    }
}

/// The superblock writes to one device, in at most three steps.
struct Target {
    slot: Arc<DeviceSlot>,
    /// The first step, followed by a flush: the primary, or the copies if a log is pending.
    first: Vec<WriteRequest>,
    /// The writes of the second step.
    then: Vec<WriteRequest>,
    /// The writes of the last step.
    last: Vec<WriteRequest>,
}

impl Target {
    /// Moves the writes of both steps to the next step.
    fn step_back(&mut self) {
        self.last = core::mem::take(&mut self.then);
        self.then = core::mem::take(&mut self.first);
    }

    /// Exchanges the steps of the primary and of its copies, so that the copies are written first.
    fn put_copies_first(&mut self) {
        match self.first.is_empty() {
            true => core::mem::swap(&mut self.then, &mut self.last),
            false => core::mem::swap(&mut self.first, &mut self.then),
        }
    }
}

/// Returns true if a device gets superblocks and is flushed.
fn is_target(slot: &DeviceSlot) -> bool {
    if buttress_faults::on("volume-superblocks-on-failed-device") {
        return slot.device().is_some() && slot.stale().is_none();
    }
    slot.is_written()
}

fn write_to(targets: &[Target], requests: impl Fn(&Target) -> &[WriteRequest]) -> Failures {
    let devices = targets
        .iter()
        .filter_map(|target| Some((&target.slot, target.slot.device()?, requests(target))));
    super::write_all(devices)
}

fn flush_targets(targets: &[Target]) -> Failures {
    let slots: Vec<Arc<DeviceSlot>> = targets.iter().map(|target| Arc::clone(&target.slot)).collect();
    flush_all(&slots)
}

/// Returns the writes of a device's primary and copies, in this order. The number of copies is
/// limited to those that fit the device, and to `most`.
fn requests_for(
    slot: &DeviceSlot,
    superblock: &Superblock,
    item: &DeviceItem,
    most: usize,
) -> Result<Vec<WriteRequest>, SuperblockError> {
    let size_bytes = slot.device().map_or(0, Device::size_bytes);
    let end = ByteCount::new(size_bytes).min(item.total_bytes);
    let fits = |at: &&Physical| at.exact_add(ByteCount::of(SUPERBLOCK_BYTES)).get() <= end.get();
    let request = |at: &Physical| {
        let bytes = superblock.encode_for(item, *at)?;
        // A superblock that fails its own checks is not written.
        Superblock::check(&bytes, *at)?;
        Ok(WriteRequest {
            offset_bytes: at.get(),
            bytes: Buffer::from(&bytes[..]).into_bytes(),
        })
    };
    let places = SUPERBLOCK_OFFSETS.iter().filter(fits).take(most);
    places.map(request).collect()
}

/// Flushes all devices and returns the failures. Real devices are flushed in parallel. Simulated
/// devices share one clock, so they are flushed one after another.
fn flush_all(slots: &[Arc<DeviceSlot>]) -> Failures {
    let devices: Vec<(&Arc<DeviceSlot>, &Device)> = slots
        .iter()
        .filter_map(|slot| Some((slot, slot.device()?)))
        .collect();
    let simulated = devices.iter().any(|(_, device)| device.virtual_clock().is_some());
    let mut outcomes = Vec::with_capacity(devices.len());
    match devices.split_last().filter(|_| !simulated) {
        None => outcomes.extend(devices.iter().map(|(slot, device)| (*slot, device.flush()))),
        Some(((last, last_device), _)) if buttress_faults::on("flush-of-one-device") => {
            outcomes.push((*last, last_device.flush()));
        }
        Some(((last, last_device), others)) => std::thread::scope(|scope| {
            let running: Vec<_> = others
                .iter()
                .map(|(slot, device)| {
                    let spawned = std::thread::Builder::new().spawn_scoped(scope, || device.flush());
                    (*slot, *device, spawned)
                })
                .collect();
            outcomes.push((*last, last_device.flush()));
            for (slot, device, spawned) in running {
                let flushed = match spawned {
                    Ok(thread) => thread.join().unwrap_or_else(|_| lost(device)),
                    // If no thread can be started, this thread flushes the device.
                    Err(_) => device.flush(),
                };
                outcomes.push((slot, flushed));
            }
        }),
    }
    let mut failures = Failures::new();
    for (slot, outcome) in outcomes {
        if let Err(error) = outcome {
            slot.count_error(error.operation);
            if !buttress_faults::on("volume-failed-flush-forgotten") {
                failures.push((Arc::clone(slot), error));
            }
        }
    }
    failures
}

/// A flush whose thread panicked counts as failed.
fn lost(device: &Device) -> Result<(), IoError> {
    let cause = std::io::Error::other("the flush did not return");
    let name: Arc<str> = device.name().into();
    Err(IoError::new(
        &name,
        buttress_device::Operation::Flush,
        0,
        0,
        &cause,
    ))
}
