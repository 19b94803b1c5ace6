//! Dumps without the names and contents of a volume, in which all hashes and orders stay valid.
//!
//! | part | becomes |
//! |---|---|
//! | names of files and subvolumes, also in the log | other names of the same length |
//! | names of extended attributes | other names; `user.`, `trusted.` and names of a policy stay |
//! | values of extended attributes | zeros, except access control lists and properties of btrfs |
//! | inline content, symlink targets, verity, unknown items, the label, unused bytes | zeros |
//!
//! Invariants:
//! - A name keeps its length, so all offsets and directory sizes stay.
//! - A name of at least five bytes keeps its hash, and so all keys ([`long_names`]).
//! - A shorter name changes its keys only within its leaf, in all versions of the tree
//!   ([`short_names`]).
//! - Equal names get equal replacements, so links, snapshots and logs agree.
//!
//! Left out: what numbers tell. A hash of a name of five or six bytes has less than two printable
//! preimages on average, so the name can be computed. Hashes of longer names and checksums of data
//! stay, too, so a guess can be tested.
//! Sizes, times, ids, uuids and the shape of the trees stay, too.

mod algebra;
mod alphabet;
mod blocks;
mod items;
mod keyed;
mod long_names;
mod short_names;

use crate::block;
use buttress_exact::Exact as _;
use buttress_format::{BlockFormat, ItemType, Key, TreeId};
use buttress_fs::Progress;
use core::fmt;
use keyed::Keyed;
use short_names::{Replacements, ShortNames};
use std::collections::BTreeSet;

/// How a dump is sanitised.
#[derive(Clone, Copy)]
pub struct Sanitise {
    /// Random bytes that select the replacements. With them, guesses of whole names can be tested.
    pub secret: [u8; 32],
    /// Whether to refuse a volume that has a name without a replacement.
    pub strict: bool,
}

impl fmt::Debug for Sanitise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sanitise")
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}

/// The first two passes: the first gathers names whose replacements depend on other names, and the
/// second gathers these other names.
#[derive(Debug)]
pub(crate) struct Survey {
    keyed: Keyed,
    short: ShortNames,
    /// The long names without a replacement.
    kept: BTreeSet<Vec<u8>>,
}

/// The replacements of all names.
#[derive(Debug)]
pub(crate) struct Names {
    keyed: Keyed,
    replacements: Replacements,
    kept: u64,
}

/// Returns the length of the part of a name that stays.
fn prefix_bytes(key: &Key, name: &[u8]) -> usize {
    if key.item_type != ItemType::XATTR_ITEM {
        return 0;
    }
    let prefix = items::attribute_rule(name).prefix_bytes;
    let rest = name.len().saturating_sub(prefix); // Clamp: a prefix is a part of its name.
    match rest {
        0 => prefix,
        // The rest is too short to keep the hash, and the whole name is not.
        1..long_names::LENGTH_MIN => 0,
        _ => prefix,
    }
}

impl Survey {
    pub(crate) fn new(options: &Sanitise) -> Self {
        Self {
            keyed: Keyed::new(&options.secret),
            short: ShortNames::default(),
            kept: BTreeSet::new(),
        }
    }

    /// Notes the names of a block, in the first pass.
    pub(crate) fn note_names(&mut self, bytes: &[u8]) {
        if block::level(bytes) != Some(0) {
            return;
        }
        let owner = block::owner(bytes);
        for item in block::items(bytes) {
            // Clamp: items and their names are inside the block, by the functions that found them.
            let data = bytes.get(item.range).unwrap_or_default();
            let Some(names) = items::names(&item.key, data) else {
                continue;
            };
            for place in &names.places {
                // Clamp: as above.
                let name = data.get(place.name.clone()).unwrap_or_default();
                if !items::is_public(owner, &item.key, name) {
                    let is_alone = names.places.len() == 1;
                    self.note_name(&item.key, place.directory, name, is_alone);
                }
            }
        }
    }

    /// Notes the keys of a block, in the second pass.
    pub(crate) fn note_keys(&mut self, bytes: &[u8]) {
        if block::level(bytes) != Some(0) {
            for pointer in block::pointers(bytes) {
                self.short.note_key(&pointer.key, true);
            }
            return;
        }
        for (slot, item) in block::items(bytes).enumerate() {
            if !self.short.note_key(&item.key, slot == 0) {
                continue;
            }
            // Clamp: items are inside the block, by the function that found them.
            let data = bytes.get(item.range).unwrap_or_default();
            // Clamp: items without names have no long names.
            for place in items::names(&item.key, data).unwrap_or_default().places {
                if place.name.len() > short_names::LENGTH_MAX {
                    self.short.note_long_name(&item.key, place.directory);
                }
            }
        }
    }

    fn note_name(&mut self, key: &Key, directory: u64, name: &[u8], is_alone: bool) {
        // Clamp: a prefix is a part of its name.
        let changed = name.get(prefix_bytes(key, name)..).unwrap_or_default();
        match changed.len() {
            0 => {}
            1..=short_names::LENGTH_MAX if key.item_type == ItemType::XATTR_ITEM => {
                self.kept.insert(name.to_vec());
            }
            1..=short_names::LENGTH_MAX => self.short.note_name(key, directory, name, is_alone),
            // Longer names always have a replacement.
            long_names::LENGTH_MIN if long_names::replaced(&self.keyed, changed).is_none() => {
                self.kept.insert(name.to_vec());
            }
            _ => {}
        }
    }

    /// Chooses the replacements.
    ///
    /// # Errors
    /// Fails if `progress` is cancelled.
    pub(crate) fn finish(self, progress: &Progress) -> buttress_fs::Result<Names> {
        let replacements = self.short.solve(&self.keyed, progress)?;
        Ok(Names {
            kept: replacements.kept.exact_add(self.kept.len() as u64),
            keyed: self.keyed,
            replacements,
        })
    }
}

impl Names {
    /// Returns the number of names that stay, because no replacement keeps the order of keys.
    pub(crate) const fn kept(&self) -> u64 {
        self.kept
    }

    /// Sanitises the bytes of a tree block. `keeps` says whether the inline content of an inode
    /// stays.
    pub(crate) fn block(&self, bytes: &mut [u8], format: &BlockFormat, keeps: &dyn Fn(u64) -> bool) {
        self.sanitise_block(bytes, format, keeps);
    }

    /// Returns the replacement of a name in an item, or `None` if the name stays.
    fn replaced(&self, owner: Option<TreeId>, key: &Key, directory: u64, name: &[u8]) -> Option<Vec<u8>> {
        if items::is_public(owner, key, name) {
            return None;
        }
        if name.len() <= short_names::LENGTH_MAX {
            let is_attribute = key.item_type == ItemType::XATTR_ITEM;
            let new = self.replacements.name(directory, name)?;
            return (!is_attribute).then(|| new.to_vec());
        }
        let (prefix, changed) = name.split_at_checked(prefix_bytes(key, name))?;
        if changed.is_empty() {
            return None;
        }
        Some([prefix, &long_names::replaced(&self.keyed, changed)?].concat())
    }

    fn keeps_value(&self, key: &Key, name: &[u8]) -> bool {
        key.item_type == ItemType::XATTR_ITEM && items::attribute_rule(name).keeps_value
    }
}
