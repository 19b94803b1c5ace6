//! The comparison of a returning device's own state with the volume's: ranges that the volume
//! freed, extents that the device missed, and whether both have one history.

use crate::pending_log::PendingLog;
use buttress_device::Device;
use buttress_format::{
    BlockFormat, ByteCount, ExtentItem, Generation, ItemType, Key, Logical, ObjectId, TreeId,
};
use buttress_fs::Progress;
use buttress_fs::error::{Corruption, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::open::OpenOptions;
use buttress_tree::{Items, ReadAhead, Tree};
use std::collections::BTreeSet;

/// The size of the node cache for the device's own state, which is read once.
const OWN_CACHE: ByteCount = ByteCount::new(8 << 20);

/// The volume's state according to one device alone, without the volume's other devices.
pub(crate) struct OwnState {
    pub filesystem: Filesystem,
    extents: Tree,
    /// The ranges that the pending log of this state uses.
    log: Vec<(u64, u64)>,
}

/// The differences between the volume's extents and those of the device's own state.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Ranges that the device's own state alone uses.
    pub gone: Vec<(u64, u64)>,
    /// The bytes of extents that are newer than the device.
    pub missed: u64,
    /// The newest tree blocks that the device's state and the volume's state should both contain.
    newest_blocks: BTreeSet<(Generation, u64)>,
    /// The newest data extents that both the device's old state and the volume's state contain.
    newest_data: BTreeSet<(Generation, u64)>,
}

/// The number of tree blocks compared by content, and of data extents compared by checksum.
const COMPARED: usize = 256;

/// Returns the volume's state as recorded by one device alone. Returns `None` if that state cannot
/// be read: then nothing of it needs to be kept.
pub(crate) fn own_state(device: &Device, progress: &Progress) -> Result<Option<OwnState>> {
    if buttress_faults::on("return-own-state-unkept") {
        return Ok(None);
    }
    let state = open_state(device, progress);
    progress.check()?;
    Ok(state)
}

/// Opens the device's own state. Also returns `None` if the job is cancelled.
fn open_state(device: &Device, progress: &Progress) -> Option<OwnState> {
    let opened = OpenOptions::new(vec![device.clone()])
        .cache(OWN_CACHE)
        .degraded(true)
        .open();
    let filesystem = opened.ok()?;
    let extents = filesystem.tree(TreeId::EXTENT).ok()?;
    let mut all = Extents::of(&extents, filesystem.volume().block_format());
    if !all.all(|extent| extent.is_ok() && !progress.is_cancelled()) {
        return None;
    }
    let node_bytes = u64::from(filesystem.volume().block_format().node_bytes);
    let log = PendingLog::read(&filesystem).ok().flatten();
    let log = log.map(|log| log.ranges(node_bytes)).unwrap_or_default();
    Some(OwnState {
        filesystem,
        extents,
        log,
    })
}

/// Iterates over the extents of an extent tree, in order.
struct Extents<'a> {
    items: Items,
    format: &'a BlockFormat,
}

/// The identity of an extent, equal in the device's old state and in the volume's current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    length: u64,
    generation: Generation,
    is_data: bool,
}

impl<'a> Extents<'a> {
    fn of(tree: &Tree, format: &'a BlockFormat) -> Self {
        Self {
            items: tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward),
            format,
        }
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = match self.items.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(error.into())),
            };
            let key = item.key();
            if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                continue;
            }
            let parsed = ExtentItem::parse(&key, item.data(), self.format);
            return Some(match parsed {
                Ok(extent) => Ok(Extent {
                    start: extent.start.get(),
                    length: extent.length.get(),
                    generation: extent.generation,
                    is_data: extent.is_data(),
                }),
                Err(error) => {
                    let tree = TreeId::EXTENT;
                    Err(Corruption::Item { tree, error }.into())
                }
            });
        }
    }
}

impl Comparison {
    /// Records an extent of the volume. Returns whether the extent is newer than the device.
    fn add(&mut self, extent: &Extent, since: Generation) -> bool {
        if extent.generation > since {
            self.missed = self.missed.saturating_add(extent.length);
            return true;
        }
        let newest = match extent.is_data {
            true => &mut self.newest_data,
            false => &mut self.newest_blocks,
        };
        newest.insert((extent.generation, extent.start));
        if newest.len() > COMPARED {
            newest.pop_first();
        }
        false
    }
}

impl Comparison {
    /// Returns whether the newest blocks and data that the device's state and the volume's state
    /// share are equal in both. If two histories allocated the same addresses, only the comparison
    /// of the newest blocks shows it.
    pub(crate) fn is_of_one_history(&self, view: &Filesystem, own: Option<&OwnState>) -> bool {
        let differs = |(generation, start): &(Generation, u64)| {
            let differing = view.volume().differing_copies(Logical::new(*start), *generation);
            differing.is_some()
        };
        let has_other_data = |own: &OwnState| {
            self.newest_data.iter().any(|(_, start)| {
                let both = first_checksum(view, *start).zip(first_checksum(&own.filesystem, *start));
                both.is_some_and(|(now, own)| now != own)
            })
        };
        !self.newest_blocks.iter().any(differs) && !own.is_some_and(has_other_data)
    }
}

/// Returns the checksum of the first sector of a data extent, if it has one.
fn first_checksum(filesystem: &Filesystem, logical: u64) -> Option<Vec<u8>> {
    let format = filesystem.volume().block_format();
    let tree = filesystem.tree(TreeId::CHECKSUM).ok()?;
    let mut cursor = tree.cursor(ReadAhead::None);
    let key = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, logical);
    cursor.seek_at_or_before(&key).ok()?;
    let item = cursor
        .current()
        .filter(|item| item.key.item_type == ItemType::EXTENT_CSUM)?;
    let sectors = logical
        .checked_sub(item.key.offset)?
        .checked_div(u64::from(format.sector_bytes))?;
    let size = format.checksum_type.size_bytes();
    let from = usize::try_from(sectors).ok()?.checked_mul(size)?;
    let checksum = item.data.get(from..from.checked_add(size)?)?;
    Some(checksum.to_vec())
}

/// Compares both extent trees. Returns `None` if the volume has an extent older than the device
/// that the device lacks.
pub(crate) fn compare(
    view: &Filesystem,
    own: Option<&OwnState>,
    since: Generation,
    progress: &Progress,
) -> Result<Option<Comparison>> {
    let tree = view.tree(TreeId::EXTENT)?;
    let mut extents = Extents::of(&tree, view.volume().block_format()).peekable();
    let mut comparison = Comparison::default();
    if let Some(own) = own {
        for extent in Extents::of(&own.extents, own.filesystem.volume().block_format()) {
            progress.check()?;
            let extent = extent?;
            let is_before = |next: &Result<Extent>| !matches!(next, Ok(next) if next.start >= extent.start);
            while let Some(before) = extents.next_if(is_before) {
                if !comparison.add(&before?, since) {
                    return Ok(None);
                }
            }
            match extents.next_if(|next| matches!(next, Ok(next) if *next == extent)) {
                Some(same) => {
                    comparison.add(&same?, since);
                }
                None => comparison.gone.push((extent.start, extent.length)),
            }
        }
        comparison.gone.extend(&own.log);
        comparison.gone.sort_unstable();
    }
    for extent in extents {
        progress.check()?;
        if !comparison.add(&extent?, since) && own.is_some() {
            return Ok(None);
        }
    }
    Ok(Some(comparison))
}
