//! Contents that are shared instead of copied: the target's file shares the blocks of a file of
//! this system.
//!
//! For shared blocks, workers read contents as usual, to compute checksums. A piece with an address
//! is then shared instead of written. The file is opened again, its blocks are shared with the
//! places of its copies on the target, and it is compared with its entry. A change of the file in
//! between is therefore detected, and shared bytes match the computed checksums.
//!
//! Only whole sectors within the file are shared; an incomplete last sector is written. Sharing
//! needs chunks of single or DUP, because in others a file's bytes are not contiguous on a device.
//! Contents that are not in a file of this system are written, not shared.

use crate::data::DataWriter;
use crate::error::{Error, Result, shown};
use crate::layout::FileInfo;
use crate::source::{ContentReader, Contents};
use buttress_device::Device;
use buttress_format::{Logical, Physical, Profile};
use buttress_mkfs::PlannedChunk;
use std::sync::Arc;

/// Shares the blocks of sources' files with devices.
pub(crate) struct Sharing<'a> {
    contents: &'a [Arc<dyn Contents>],
    devices: &'a [Device],
    sector_bytes: u64,
    /// The last opened file, because its pieces follow each other.
    open: Option<(Arc<FileInfo>, Box<dyn ContentReader>)>,
}

/// Returns true if data of this profile can be shared.
pub(crate) const fn is_possible(profile: Profile) -> bool {
    matches!(profile, Profile::Single | Profile::Dup)
}

impl<'a> Sharing<'a> {
    pub(crate) const fn new(
        contents: &'a [Arc<dyn Contents>],
        devices: &'a [Device],
        sector_bytes: u32,
    ) -> Self {
        Self {
            contents,
            devices,
            sector_bytes: sector_bytes as u64,
            open: None,
        }
    }

    /// Shares a part of `length` bytes of a file from `at` on with the address `logical` in
    /// `chunk`. Returns the number of shared bytes, counted from `at`. The caller writes the
    /// remaining bytes.
    fn share(
        &mut self,
        file: &Arc<FileInfo>,
        at: u64,
        length: u64,
        (chunk, logical): (&PlannedChunk, Logical),
    ) -> Result<u64> {
        let inside = file.content.size.get().saturating_sub(at).min(length);
        let inside = inside.saturating_sub(inside.checked_rem(self.sector_bytes).unwrap_or(0));
        if inside == 0 {
            return Ok(0);
        }
        let is_open = self
            .open
            .as_ref()
            .is_some_and(|(open, _)| Arc::ptr_eq(open, file));
        if !is_open {
            let contents = self.contents.get(usize::from(file.source));
            let contents = contents.ok_or(Error::Defect {
                what: "a source that is not there",
            })?;
            self.open = Some((Arc::clone(file), contents.open(&file.path, &file.content)?));
        }
        let Some((_, reader)) = &mut self.open else {
            return Ok(0);
        };
        let Some(source) = reader.host_file() else {
            return Ok(0);
        };
        let into = logical.get().saturating_sub(chunk.logical.get());
        for (device, start) in &chunk.stripes {
            let device = self.devices.get(*device).ok_or(Error::Defect {
                what: "a stripe on a device that is not there",
            })?;
            let place = Physical::new(start.get().saturating_add(into));
            device
                .share_from(source, at, place.get(), inside)
                .map_err(|cause| Error::NotShared {
                    path: shown(file.path.as_bytes()),
                    cause,
                })?;
        }
        reader.finish()?;
        Ok(inside)
    }
}

impl DataWriter<'_> {
    /// Brings bytes of a file to their address: by sharing if it is enabled and possible, otherwise
    /// by writing.
    pub(crate) fn store(
        &mut self,
        file: &Arc<FileInfo>,
        at: u64,
        logical: Logical,
        bytes: &[u8],
    ) -> Result<()> {
        let chunk = self.space.chunks.last().map(|last| &last.chunk);
        let shared = match (&mut self.sharing, chunk) {
            (Some(sharing), Some(chunk)) => sharing.share(file, at, bytes.len() as u64, (chunk, logical))?,
            _ => 0,
        };
        let left = usize::try_from(shared)
            .ok()
            .and_then(|shared| bytes.get(shared..));
        let left = left.ok_or(Error::Defect {
            what: "more is shared than there is",
        })?;
        self.write(
            logical.saturating_add(buttress_format::ByteCount::new(shared)),
            left,
        )
    }
}
