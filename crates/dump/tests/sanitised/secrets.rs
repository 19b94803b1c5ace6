//! The names, attributes and contents of a volume, and a search for them in a dump.

use buttress_dump::DumpItem;
use buttress_format::{
    DirItems, Expectation, FileExtent, FileExtentBody, InodeExtrefs, InodeRefs, ItemType, Key, Logical,
    RootRef, TreeBlock, TreeId,
};
use buttress_fs::Filesystem;
use buttress_volume::read::ExtentRead;
use std::collections::{BTreeSet, HashSet};

/// The length of searched parts of contents.
const WINDOW_BYTES: usize = 16;
/// Names from this length on are searched as bytes; shorter ones occur in any bytes by chance.
const SEARCHED_MIN: usize = 5;

/// Names and contents that a sanitised dump must not have.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    names: BTreeSet<Vec<u8>>,
    windows: HashSet<[u8; WINDOW_BYTES]>,
    /// Each short name with its directory.
    short: BTreeSet<(u64, Vec<u8>)>,
}

/// Returns the leaves of a dump that pass the tree checker.
fn leaves(volume: &Filesystem, items: &[DumpItem]) -> Vec<TreeBlock> {
    let format = volume.volume().block_format();
    let node_bytes = format.node_bytes as usize;
    let blocks = items.iter().skip(1).flat_map(|item| {
        let starts = (item.logical..).step_by(node_bytes);
        starts.zip(item.bytes.chunks(node_bytes))
    });
    let checked = blocks.filter_map(|(logical, bytes)| {
        let expected = Expectation::at(Logical::new(logical));
        TreeBlock::check(bytes.to_vec().into(), format, &expected).ok()
    });
    checked.filter(|block| block.level() == 0).collect()
}

/// Calls `visit` with directory, name and value of each name in an item.
fn names(key: &Key, data: &[u8], mut visit: impl FnMut(u64, &[u8], &[u8])) {
    let own = key.objectid.get();
    match key.item_type {
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            for entry in DirItems::parse(key, data).unwrap() {
                visit(own, entry.name, entry.data);
            }
        }
        ItemType::INODE_REF => {
            for name in InodeRefs::parse(key, data).unwrap() {
                visit(key.offset, name.name, &[]);
            }
        }
        ItemType::INODE_EXTREF => {
            for name in InodeExtrefs::parse(key, data).unwrap() {
                visit(name.parent.get(), name.name, &[]);
            }
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let place = RootRef::parse(key, data).unwrap();
            visit(place.directory.get(), place.name, &[]);
        }
        _ => {}
    }
}

/// Returns whether a name may stay.
fn is_public(owner: TreeId, name: &[u8]) -> bool {
    let kept = ["security.", "system.posix_acl_", "btrfs."];
    name == b".."
        || (owner == TreeId::ROOT && name == b"default")
        || kept.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Returns the data extent that an item describes.
fn extent_of(volume: &Filesystem, key: &Key, data: &[u8]) -> Option<ExtentRead> {
    if key.item_type != ItemType::EXTENT_DATA {
        return None;
    }
    let extent = FileExtent::parse(key, data, volume.sector_bytes()).unwrap();
    match extent.body {
        FileExtentBody::Regular(slice) if !slice.is_hole() => Some(ExtentRead {
            logical: slice.disk,
            length: usize::try_from(slice.disk_bytes.get()).unwrap(),
        }),
        _ => None,
    }
}

/// Returns whether an item has bytes of an extent. A damaged extent may overlap metadata.
fn overlaps(item: &DumpItem, read: ExtentRead) -> bool {
    let (start, end) = (read.logical.get(), read.logical.get() + read.length as u64);
    item.logical < end && start < item.logical + item.bytes.len() as u64
}

impl Secrets {
    /// Collects the secrets of a volume whose plain dump has these items. Contents come from the
    /// volume itself, because the plain dump lacks them.
    pub(crate) fn of(volume: &Filesystem, items: &[DumpItem]) -> Self {
        let mut secrets = Self::default();
        let mut extents = Self::default();
        for leaf in leaves(volume, items) {
            let owner = leaf.header().owner;
            let original = ExtentRead {
                logical: leaf.logical(),
                length: leaf.bytes().len(),
            };
            let original = volume.volume().read_copy(original, 1).unwrap();
            let expected = Expectation::at(leaf.logical());
            let original = original.to_vec().into();
            let original = TreeBlock::check(original, volume.volume().block_format(), &expected);
            for item in original.as_ref().unwrap_or(&leaf).items() {
                secrets.add_item(volume, owner, &item.key, item.data);
                if let Some(read) = extent_of(volume, &item.key, item.data)
                    && !items.iter().any(|item| overlaps(item, read))
                    && let Ok(bytes) = volume.volume().read_copy(read, 1)
                {
                    extents.add_content(&bytes);
                }
            }
        }
        // A damaged extent may be longer than its data. The plain dump has no data.
        for item in items {
            for window in item.bytes.windows(WINDOW_BYTES) {
                extents.windows.remove(window);
            }
        }
        secrets.windows.extend(extents.windows);
        let label = volume.superblock().label.clone();
        if label.len() >= SEARCHED_MIN {
            secrets.names.insert(label);
        }
        secrets
    }

    fn add_item(&mut self, volume: &Filesystem, owner: TreeId, key: &Key, data: &[u8]) {
        names(key, data, |directory, name, value| {
            if is_public(owner, name) {
                return;
            }
            if name.len() >= SEARCHED_MIN {
                self.names.insert(name.to_vec());
            } else {
                self.short.insert((directory, name.to_vec()));
            }
            self.add_content(value);
        });
        if key.item_type != ItemType::EXTENT_DATA {
            return;
        }
        let extent = FileExtent::parse(key, data, volume.sector_bytes()).unwrap();
        if let FileExtentBody::Inline(content) = extent.body {
            self.add_content(content);
        }
    }

    /// Adds all windows of a content. Windows of few different bytes occur in any metadata.
    fn add_content(&mut self, content: &[u8]) {
        let windows = content.windows(WINDOW_BYTES);
        let telling = windows.filter(|window| window.iter().collect::<BTreeSet<_>>().len() >= 6);
        self.windows
            .extend(telling.map(|window| window.first_chunk().copied().unwrap()));
    }

    pub(crate) fn short_names(&self) -> usize {
        self.short.len()
    }

    /// Returns the number of secrets in the bytes of a dump.
    pub(crate) fn found_in(&self, items: &[DumpItem]) -> usize {
        self.search(items).len()
    }

    fn search(&self, items: &[DumpItem]) -> Vec<Vec<u8>> {
        let lengths: BTreeSet<usize> = self.names.iter().map(Vec::len).collect();
        let mut found = Vec::new();
        for item in items {
            for length in &lengths {
                let windows = item.bytes.windows(*length);
                found.extend(
                    windows
                        .filter(|window| self.names.contains(*window))
                        .map(<[u8]>::to_vec),
                );
            }
            let windows = item.bytes.windows(WINDOW_BYTES);
            let hits = windows.filter(|window| self.windows.contains(*window));
            found.extend(hits.map(<[u8]>::to_vec));
        }
        found
    }

    /// Requires that a sanitised dump has no secret.
    pub(crate) fn require_none_in(&self, volume: &str, items: &[DumpItem]) {
        let found = self.search(items);
        assert!(
            found.is_empty(),
            "{volume}: {:?}",
            String::from_utf8_lossy(&found[0])
        );
    }

    /// Requires that no short name of the volume is a name of its directory in a sanitised dump.
    pub(crate) fn require_no_short_name(&self, volume: &Filesystem, items: &[DumpItem]) {
        for leaf in leaves(volume, items) {
            for item in leaf.items() {
                names(&item.key, item.data, |directory, name, _| {
                    let is_old = self.short.contains(&(directory, name.to_vec()));
                    assert!(!is_old, "{:?} in {directory}", String::from_utf8_lossy(name));
                });
            }
        }
    }
}
