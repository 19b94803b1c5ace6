//! Flushes, and the superblocks that make a commit one.
//!
//! The order (design: "Nothing live is overwritten") is kept here: whoever calls [`Volume::write_superblocks`] has
//! flushed all blocks; then all primaries are written; a flush; their copies; a flush; only then it returns. A crash in
//! between leaves each device with one valid superblock at least, the old or the new one: the first flush ends before any
//! copy is touched.
//!
//! Source: on-disk format documentation, section "Superblock", for the places of the copies: those that end within the
//! device.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::write::WriteRefusal;
use buttress_device::{Buffer, Device, IoError, PendingWrite, WriteRequest};
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};
use buttress_format::{ByteCount, Physical};
use std::sync::Arc;

impl Volume {
    /// Returns once everything written before is durable on all devices that are there.
    ///
    /// # Errors
    /// When a device cannot promise that, or writing has stopped. A failed flush stops writing for good.
    pub fn flush(&self) -> Result<(), Error> {
        self.require_writing()?;
        let slots = self.slots_to_write()?;
        self.stop_if_failed(flush_all(&slots).map_err(Error::from))
    }

    /// Writes the superblock to all devices and makes it the one in use. All blocks that it leads to must be durable.
    ///
    /// `superblock` holds what all devices have in common; its `physical`, `device_item` and checksum are set for each
    /// device and place. `items` are the device items of this commit, one for each device that is there at least.
    ///
    /// # Errors
    /// [`WriteRefusal::Superblock`] for one that could not be opened again, which is not written; when a device fails, or
    /// writing has stopped. A failure stops writing for good: the commit may or may not be seen when the volume is opened
    /// again.
    pub fn write_superblocks(&self, superblock: &Superblock, items: &[DeviceItem]) -> Result<(), Error> {
        self.require_writing()?;
        let slots = self.slots_to_write()?;
        if slots.is_empty() {
            return Err(WriteRefusal::NoDevice.into());
        }
        let mut primaries = Vec::with_capacity(slots.len());
        let mut copies = Vec::with_capacity(slots.len());
        for slot in &slots {
            let item = items.iter().find(|item| item.uuid == slot.uuid());
            let item = item.ok_or_else(|| WriteRefusal::NoDeviceItem {
                device: Arc::clone(slot.name()),
            })?;
            let mut requests = requests_for(slot, superblock, item).map_err(WriteRefusal::Superblock)?;
            copies.push(requests.split_off(requests.len().min(1)));
            primaries.push(requests);
        }
        if buttress_faults::on("volume-superblock-copies-unwritten") {
            copies.iter_mut().for_each(Vec::clear);
        }
        let flush_unless = |fault| match buttress_faults::on(fault) {
            true => Ok(()),
            false => flush_all(&slots),
        };
        let written = write_all(&slots, &primaries)
            .and_then(|()| flush_unless("volume-primaries-unflushed"))
            .and_then(|()| write_all(&slots, &copies))
            .and_then(|()| flush_unless("volume-superblock-copies-unflushed"));
        self.stop_if_failed(written.map_err(Error::from))?;
        self.set_superblock(superblock.clone());
        for item in items {
            self.set_device_item(*item)?;
        }
        Ok(())
    }

    /// The devices that are written to: all that are there, belong to the volume itself and did not miss commits.
    fn slots_to_write(&self) -> Result<Vec<Arc<DeviceSlot>>, Error> {
        let fsid = self.superblock().fsid;
        let mut slots = self.devices();
        slots.retain(|slot| slot.device().is_some() && slot.stale().is_none() && slot.fsid() == fsid);
        for slot in &slots {
            self.require_own(slot)?;
        }
        Ok(slots)
    }
}

/// The primary and the copies of a device, in this order, as far as the device has room.
fn requests_for(
    slot: &DeviceSlot,
    superblock: &Superblock,
    item: &DeviceItem,
) -> Result<Vec<WriteRequest>, SuperblockError> {
    let size_bytes = slot.device().map_or(0, Device::size_bytes);
    let end = ByteCount::new(size_bytes).min(item.total_bytes);
    let fits = |at: &&Physical| at.saturating_add(ByteCount::of(SUPERBLOCK_BYTES)).get() <= end.get();
    let request = |at: &Physical| {
        let bytes = superblock.encode_for(item, *at)?;
        // What cannot be opened again is not written.
        Superblock::check(&bytes, *at)?;
        Ok(WriteRequest {
            offset_bytes: at.get(),
            bytes: Buffer::from(&bytes[..]).into_bytes(),
        })
    };
    SUPERBLOCK_OFFSETS.iter().filter(fits).map(request).collect()
}

/// Writes to all devices at once, and waits for all.
fn write_all(slots: &[Arc<DeviceSlot>], requests: &[Vec<WriteRequest>]) -> Result<(), IoError> {
    let devices = slots.iter().filter_map(|slot| slot.device());
    let started: Vec<Vec<PendingWrite>> = devices
        .zip(requests)
        .map(|(device, requests)| device.start_writes(requests))
        .collect();
    let mut outcome = Ok(());
    for pending in started.into_iter().flatten() {
        outcome = outcome.and(pending.wait());
    }
    outcome
}

/// Flushes all devices: at once, unless they are simulated, whose time is one.
fn flush_all(slots: &[Arc<DeviceSlot>]) -> Result<(), IoError> {
    let devices: Vec<&Device> = slots.iter().filter_map(|slot| slot.device()).collect();
    let simulated = devices.iter().any(|device| device.virtual_clock().is_some());
    let Some((last, others)) = devices.split_last().filter(|_| !simulated) else {
        return devices.iter().try_for_each(|device| device.flush());
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = others
            .iter()
            .map(|device| {
                let spawned = std::thread::Builder::new().spawn_scoped(scope, || device.flush());
                // Where no thread can be had, it is done here.
                spawned.map_err(|_no_thread| *device)
            })
            .collect();
        let mut outcome = last.flush();
        for flush in running {
            let flushed = match flush {
                Ok(thread) => thread.join().unwrap_or_else(|_| lost(last)),
                Err(device) => device.flush(),
            };
            outcome = outcome.and(flushed);
        }
        outcome
    })
}

/// A flush whose thread did not come back is a failed one.
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
