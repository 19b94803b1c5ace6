//! Writing the dump of a volume.
//!
//! The order is that of btrfs-image: superblock, chunk tree, all other blocks by address; then the
//! contents of chosen files.

use crate::contents::Contents;
use crate::error::Result;
use crate::reading::DumpItem;
use crate::sanitise::Sanitise;
use crate::source::{Find, Source};
use crate::writing::ClusterWriter;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_fs::{Filesystem, Location, Progress};
use std::io::Write;

/// Options of [`write()`].
#[derive(Clone, Debug)]
pub struct DumpOptions {
    /// The level of zlib, from 0 (none) to 9.
    pub level: u32,
    /// The number of threads that compress.
    pub threads: usize,
    /// Finds blocks by a walk from the roots instead of the extent tree.
    pub walk: bool,
    /// Replaces names and zeroes attributes. Without, only content is zeroed.
    pub sanitise: Option<Sanitise>,
    /// The files whose contents are in the dump, as they are.
    pub with_data: Vec<Location>,
}

impl Default for DumpOptions {
    /// Returns the options of an uncompressed dump by one thread, in which names stay.
    fn default() -> Self {
        Self {
            level: 0,
            threads: 1,
            walk: false,
            sanitise: None,
            with_data: Vec::new(),
        }
    }
}

/// The result of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// The number of tree blocks.
    pub blocks: u64,
    /// The number of blocks that are not in the dump: no copy is readable and has the block's own
    /// header. In a sanitised dump, also blocks that changed after the choice of names.
    pub unreadable: u64,
    /// The number of bytes of the dump.
    pub bytes: u64,
    /// Whether the extent tree could not be read, and a walk found the blocks.
    pub walked: bool,
    /// The number of names that a sanitised dump keeps, because no replacement fits.
    pub kept_names: u64,
    /// The number of bytes of data extents.
    pub data_bytes: u64,
    /// The number of bytes of data extents that match their checksums in no copy.
    pub damaged_data: u64,
}

/// Writes a metadata dump of a volume, in the state of its last commit and with its log.
///
/// # Errors
/// Fails with an error of the output, if `progress` is cancelled, or with
/// [`NamesKept`](crate::Error::NamesKept) if [`Sanitise::strict`] asks for it.
pub fn write(
    filesystem: &Filesystem,
    out: &mut dyn Write,
    options: &DumpOptions,
    progress: &Progress,
) -> Result<Dumped> {
    let contents = Contents::of(filesystem, &options.with_data, progress)?;
    let mut source = Source::new(filesystem, contents);
    let find = match options.walk {
        true => Find::Walk,
        false => Find::ExtentTree,
    };
    let addresses = source.addresses(filesystem, find, progress)?;
    let mut dumped = Dumped {
        walked: addresses.walked,
        ..Dumped::default()
    };
    let block_bytes = addresses.others.len().exact_mul(source.node_bytes());
    let data_bytes = ByteCount::new(source.contents().extent_bytes());
    // The survey reads all blocks twice.
    let reads = if options.sanitise.is_some() { 3 } else { 1 };
    // Clamp: extents of a damaged volume may have any length.
    progress.expect(ByteCount::of(block_bytes.exact_mul(reads)).saturating_add(data_bytes));
    if let Some(sanitise) = &options.sanitise {
        dumped.kept_names = source.survey(&addresses, sanitise, progress)?;
    }
    let mut clusters = ClusterWriter::new(out, options.level, options.threads);
    clusters.push(superblock_item(filesystem, options.sanitise.is_some())?)?;
    for part in [&addresses.chunks, &addresses.others] {
        dumped.blocks = dumped
            .blocks
            .exact_add(source.copy(part, &mut clusters, progress)?);
    }
    let blocks = addresses.all();
    let copied = source
        .contents()
        .copy(filesystem, &blocks, &mut clusters, progress)?;
    dumped.data_bytes = copied.bytes;
    dumped.damaged_data = copied.damaged;
    dumped.unreadable = source.unreadable();
    dumped.bytes = clusters.finish()?;
    Ok(dumped)
}

/// Returns the item of the superblock: the bytes of the primary on the device by which the volume was
/// opened. If that primary is not the superblock in use, the superblock is encoded again. A
/// sanitised superblock is always encoded again, without its label and without unused bytes.
pub(crate) fn superblock_item(filesystem: &Filesystem, is_sanitised: bool) -> Result<DumpItem> {
    let mut superblock = Superblock::clone(&filesystem.superblock());
    if is_sanitised {
        superblock.label.clear();
    }
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let slots = filesystem.volume().devices();
    let own = slots
        .iter()
        .find(|slot| slot.uuid() == superblock.device_item.uuid);
    let raw = own
        .and_then(|slot| slot.device())
        .and_then(|device| device.read(primary.get(), SUPERBLOCK_BYTES).ok());
    let is_current = |bytes: &[u8]| {
        Superblock::check(bytes, primary).is_ok_and(|found| found.generation == superblock.generation)
    };
    let bytes = match raw.filter(|bytes| !is_sanitised && is_current(bytes)) {
        Some(raw) => raw.to_vec(),
        None => superblock
            .encode_for(&superblock.device_item, primary)
            .map_err(buttress_volume::WriteRefusal::Superblock)
            .map_err(buttress_volume::Error::from)?,
    };
    Ok(DumpItem {
        logical: primary.get(),
        bytes,
    })
}
