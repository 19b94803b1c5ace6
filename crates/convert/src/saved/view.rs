//! The bytes of a saved image as a device that cannot be written.

use buttress_device::{Backend, Device};
use buttress_exact::{Exact as _, u64_of};
use std::io;
use std::sync::Arc;

/// A range of the image, and its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) physical: u64,
}

/// A saved image: ranges of a device, and zeros between them.
#[derive(Debug)]
pub(super) struct ImageView {
    device: Arc<dyn Backend>,
    /// Ranges in order that do not overlap.
    mapped: Vec<Mapped>,
}

impl ImageView {
    /// Makes a device of the image.
    pub(super) fn device(device: &Device, mapped: Vec<Mapped>, size_bytes: u64) -> Device {
        let view = Self {
            device: Arc::clone(device.backend()),
            mapped,
        };
        Device::reading_at("the saved image", size_bytes, move |at, bytes: &mut [u8]| {
            view.fill(at, bytes)
        })
    }

    fn fill(&self, mut at: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(0);
        while !bytes.is_empty() {
            let index = self
                .mapped
                .partition_point(|range| range.offset.exact_add(range.length) <= at);
            let Some(range) = self.mapped.get(index) else {
                return Ok(());
            };
            let left = u64_of(bytes.len());
            let hole = range.offset.checked_sub(at).filter(|hole| *hole > 0);
            let length = match hole {
                Some(hole) => hole.min(left),
                None => range.offset.exact_add(range.length).exact_sub(at).min(left),
            };
            let (now, later) = bytes.split_at_mut(length.narrow());
            if hole.is_none() {
                let physical = range.physical.exact_add(at.exact_sub(range.offset));
                self.device.read_vectored_at(physical, &mut [now])?;
            }
            at = at.exact_add(length);
            bytes = later;
        }
        Ok(())
    }
}
