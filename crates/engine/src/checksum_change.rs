//! A change of the type of the data's checksums, in commits that a later run continues.
//!
//! The states of the checksum tree are those of btrfstune, so either program finishes what the
//! other began. The items of the new type have an object id of their own while items of the old
//! type exist:
//!
//! | state | old items | new items | superblock |
//! |---|---|---|---|
//! | making | all | from the lowest address up to some address | `CHANGING_DATA_CSUM` |
//! | removing | from the lowest address up to some address | all | `CHANGING_DATA_CSUM` |
//! | renaming | none | all; from some address up, with the object id of checksums | `CHANGING_DATA_CSUM` |
//! | blocks | none | all, with the object id of checksums | `CHANGING_META_CSUM` |
//!
//! An item of the root tree names the new type. The caller rewrites all tree blocks in the last
//! state, and then ends the change.
//!
//! Invariants:
//! - A new checksum is made only of a sector whose old checksum matches. A sector without an intact
//!   copy ends the change, and [`ChecksumChange::undo`] restores the volume.
//! - The commit that renames the last item also changes the flags, so a state is never ambiguous.
//!   btrfstune changes the flags later. If its run was cut between the two, the content of the first
//!   sector shows the type of its checksum. If this sector is damaged, the item in the root tree
//!   decides: the item has data only if this program made it.

mod summing;

use crate::areas::ChecksumChange;
use crate::checksums::checksum_key;
use crate::need::Need;
use crate::running::Running;
use crate::running_parts::ChecksumTree;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{ChecksumType, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::Progress;
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::ReadAhead;
use summing::Run;

/// The edits between two commits while new checksums are made.
const EDITS_OF_COMMIT: u64 = 16;

/// The items that one edit removes or renames.
const ITEMS_AT_ONCE: usize = 128;

/// The places of an edit beside those of its items.
const OTHER_PLACES: u64 = 8;

/// The key of the item that names the new type of checksums.
fn change_key(to: ChecksumType) -> Key {
    let object = ObjectId::CHECKSUM_CHANGE;
    Key::new(object, ItemType::TEMPORARY_ITEM, u64::from(to.to_raw()))
}

/// The data of the item that names the new type. btrfstune makes the item without data.
const OWN_MARK: &[u8] = &[1];

fn new_key(logical: u64) -> Key {
    Key::new(ObjectId::CHECKSUM_CHANGE, ItemType::EXTENT_CSUM, logical)
}

/// Returns the type to which the checksums of a volume are being changed.
///
/// # Errors
/// Fails if the root tree cannot be read.
pub fn unfinished_checksum_type(filesystem: &Filesystem) -> Result<Option<ChecksumType>> {
    for checksum_type in ChecksumType::ALL {
        if filesystem.root_tree().get(&change_key(checksum_type))?.is_some() {
            return Ok(Some(checksum_type));
        }
    }
    Ok(None)
}

/// The item keys of one state of the checksum tree, and the addresses that the items cover.
#[derive(Clone, Debug, Default)]
struct Covered {
    first: Option<u64>,
    end: u64,
}

/// The next step of a change of the data's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Make new checksums from an address on.
    Make(u64),
    Remove,
    Rename,
}

impl ChecksumChange<'_> {
    /// Begins a change of the checksums, and commits. From this commit on, neither the kernel nor
    /// other commands use the volume until the change has ended.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if a balance or a replacement is unfinished. Also fails with an
    /// error of the commit.
    pub fn begin(&self, to: ChecksumType) -> Result<()> {
        let what = match () {
            () if self.engine.balances().current().is_some() => {
                "a balance is unfinished (end it with `buttress balance cancel`)"
            }
            () if self.engine.replacements().current().is_some() => "a replacement of a device is unfinished",
            () => {
                self.engine.edit_alone(Need::places(OTHER_PLACES), |running| {
                    let set = SuperblockFlags::CHANGING_DATA_CSUM;
                    running.core.tuning.change_flags(set, SuperblockFlags::empty());
                    running.put(TreeId::ROOT, &change_key(to), OWN_MARK)
                })?;
                return self.engine.commit().map(drop);
            }
        };
        Err(Error::Invalid { what })
    }

    fn old_type(&self) -> ChecksumType {
        self.engine.forest().block_format().checksum_type
    }

    /// Replaces all checksums of data, and commits. The tree blocks keep theirs. The caller has
    /// opened a volume whose change of the checksums to this type has begun.
    ///
    /// # Errors
    /// Fails with [`Error::DataDamaged`] if a sector has no intact copy, with [`Error::NoSpace`],
    /// or with [`Error::Cancelled`]. After these errors the caller may undo the change, unless the
    /// old checksums are gone. Also fails with an error of a device or tree.
    pub fn change_data(&self, to: ChecksumType, progress: &Progress) -> Result<()> {
        let mut step = self.next_step(to)?;
        if let Some(Step::Make(from)) = step {
            self.make_new_checksums(from, to, progress)?;
            step = Some(Step::Remove);
        }
        if step == Some(Step::Remove) {
            self.remove_items(ObjectId::EXTENT_CHECKSUM, progress)?;
        }
        self.rename_new_checksums(progress)?;
        self.engine.commit().map(drop)
    }

    /// Returns whether the volume still has all old checksums of data, so that the change can be
    /// undone.
    ///
    /// # Errors
    /// Fails if the checksum tree cannot be read.
    pub fn can_undo(&self, to: ChecksumType) -> Result<bool> {
        Ok(matches!(self.next_step(to)?, Some(Step::Make(_))))
    }

    /// Removes the new checksums of a change that has all old ones, and ends the change. Commits.
    ///
    /// # Errors
    /// Fails with an error of a commit.
    pub fn undo(&self, to: ChecksumType) -> Result<()> {
        if !self.can_undo(to)? {
            return Err(Defect::new("a change of the checksums is undone without the old checksums").into());
        }
        self.remove_items(ObjectId::CHECKSUM_CHANGE, &Progress::new())?;
        self.end_with(to, |_| ())
    }

    /// Ends a change of the checksums: from this commit on, the superblock names the new type. All
    /// tree blocks must have checksums of the new type.
    ///
    /// # Errors
    /// Fails with an error of the commit.
    pub fn end(&self, to: ChecksumType) -> Result<()> {
        self.end_with(to, |running| running.core.tuning.set_checksum_type(to))
    }

    fn end_with(&self, to: ChecksumType, change: impl FnOnce(&mut Running)) -> Result<()> {
        self.engine.edit_alone(Need::freeing(OTHER_PLACES), |running| {
            let cleared = SuperblockFlags::CHANGING_CHECKSUMS;
            running
                .core
                .tuning
                .change_flags(SuperblockFlags::empty(), cleared);
            change(running);
            running.remove(TreeId::ROOT, &change_key(to)).map(drop)
        })?;
        self.engine.commit().map(drop)
    }

    /// Returns the step with which a begun change continues; `None` if all new items have their
    /// last object id.
    fn next_step(&self, to: ChecksumType) -> Result<Option<Step>> {
        let view = self.engine.view();
        let from = self.old_type();
        let old = covered(&view, ObjectId::EXTENT_CHECKSUM, from)?;
        let new = covered(&view, ObjectId::CHECKSUM_CHANGE, to)?;
        let item = view.root_tree().get(&change_key(to))?;
        let is_own = item.is_some_and(|item| item.data() == OWN_MARK);
        Ok(match (old.first, new.first) {
            (None, None) => None,
            (None, Some(_)) => Some(Step::Rename),
            (Some(first), None) => match self.type_of_first(&view, first, [from, to]) {
                Ok(found) if found == from => Some(Step::Make(0)),
                Ok(_) => None,
                Err(_) if is_own => Some(Step::Make(0)),
                Err(error) => return Err(error),
            },
            (Some(first), Some(_)) if new.end <= first => Some(Step::Rename),
            (Some(_), Some(_)) if new.end > old.end => Some(Step::Remove),
            (Some(_), Some(_)) => Some(Step::Make(new.end)),
        })
    }

    /// Returns the type of the checksum of a sector, which must match its content.
    fn type_of_first(
        &self,
        view: &Filesystem,
        logical: u64,
        types: [ChecksumType; 2],
    ) -> Result<ChecksumType> {
        let found = view.tree(TreeId::CHECKSUM)?.get(&checksum_key(logical))?;
        let stored = found.as_ref().map_or(&[][..], |item| item.data());
        for checksum_type in types {
            let Some(sum) = stored.get(..checksum_type.size_bytes()) else {
                continue;
            };
            let run = Run {
                logical: Logical::new(logical),
                bytes: u64::from(self.engine.forest().block_format().sector_bytes),
                stored: sum.to_vec(),
            };
            let summed = self.read_and_sum(&[run], checksum_type, checksum_type)?;
            if summed.iter().all(|(_, lost)| lost.is_none()) {
                return Ok(checksum_type);
            }
        }
        Err(self.damaged(view, Logical::new(logical), None))
    }

    /// Makes the new checksums of all data from an address on.
    fn make_new_checksums(&self, from: u64, to: ChecksumType, progress: &Progress) -> Result<()> {
        let mut at = Some(from);
        let mut edits = 0_u64;
        while let Some(start) = at {
            progress.check()?;
            let (sums, next) = self.new_checksums_from(start, to, progress)?;
            let need = Need::places(u64_of(sums.len()).exact_add(OTHER_PLACES));
            self.engine.edit_alone(need, |running| {
                sums.iter().try_for_each(|(logical, packed)| {
                    running.put(TreeId::CHECKSUM, &new_key(*logical), packed)
                })
            })?;
            edits = edits.exact_add(1);
            if edits.is_multiple_of(EDITS_OF_COMMIT) {
                self.engine.commit()?;
            }
            at = next;
        }
        self.engine.commit().map(drop)
    }

    /// Removes all checksum items with an object id, from the highest address down.
    fn remove_items(&self, object: ObjectId, progress: &Progress) -> Result<()> {
        loop {
            progress.check()?;
            let need = Need::freeing(u64_of(ITEMS_AT_ONCE).exact_add(OTHER_PLACES));
            let removed = self.engine.edit_alone(need, |running| {
                let items = running.checksum_tree().last_items(object)?;
                for (key, _) in &items {
                    running.remove(TreeId::CHECKSUM, key)?;
                }
                Ok(items.len())
            })?;
            self.engine.commit()?;
            if removed < ITEMS_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Gives all new items the object id of checksums, from the highest address down. The last edit
    /// also marks that the tree blocks are next.
    fn rename_new_checksums(&self, progress: &Progress) -> Result<()> {
        loop {
            progress.check()?;
            let places = u64_of(ITEMS_AT_ONCE).exact_mul(2).exact_add(OTHER_PLACES);
            let is_last = self.engine.edit_alone(Need::places(places), |running| {
                let items = running.checksum_tree().last_items(ObjectId::CHECKSUM_CHANGE)?;
                for (key, data) in &items {
                    running.remove(TreeId::CHECKSUM, key)?;
                    running.insert(TreeId::CHECKSUM, &checksum_key(key.offset), data)?;
                }
                let is_last = !running.checksum_tree().has_items(ObjectId::CHECKSUM_CHANGE)?;
                if is_last {
                    let (set, cleared) = (
                        SuperblockFlags::CHANGING_META_CSUM,
                        SuperblockFlags::CHANGING_DATA_CSUM,
                    );
                    running.core.tuning.change_flags(set, cleared);
                }
                Ok(is_last)
            })?;
            self.engine.commit()?;
            if is_last {
                return Ok(());
            }
        }
    }
}

impl ChecksumTree<'_> {
    /// Returns whether the checksum tree has items with an object id.
    fn has_items(&mut self, object: ObjectId) -> Result<bool> {
        let last = Key::new(object, ItemType::EXTENT_CSUM, u64::MAX);
        let found = self.running.at_or_before(TreeId::CHECKSUM, &last)?;
        Ok(found.is_some_and(|item| {
            let key = item.key();
            key.objectid == object && key.item_type == ItemType::EXTENT_CSUM
        }))
    }

    /// Returns the last checksum items with an object id, the highest address first.
    fn last_items(&mut self, object: ObjectId) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut items = Vec::new();
        let mut below = Some(Key::new(object, ItemType::EXTENT_CSUM, u64::MAX));
        while let Some(key) = below.filter(|_| items.len() < ITEMS_AT_ONCE) {
            let Some(found) = self.running.at_or_before(TreeId::CHECKSUM, &key)? else {
                break;
            };
            let key = found.key();
            if key.objectid != object || key.item_type != ItemType::EXTENT_CSUM {
                break;
            }
            items.push((key, found.data().to_vec()));
            below = key
                .offset
                .checked_sub(1)
                .map(|offset| Key::new(object, ItemType::EXTENT_CSUM, offset));
        }
        Ok(items)
    }
}

/// Returns the addresses that the checksum items with an object id cover.
fn covered(view: &Filesystem, object: ObjectId, checksum_type: ChecksumType) -> Result<Covered> {
    let tree = view.tree(TreeId::CHECKSUM)?;
    let key = |offset| Key::new(object, ItemType::EXTENT_CSUM, offset);
    let mut cursor = tree.cursor(ReadAhead::None);
    cursor.seek(&key(0))?;
    let Some(first) = cursor.key().filter(|found| found.objectid == object) else {
        return Ok(Covered::default());
    };
    let last = buttress_tree::EditableTree::open(&tree).at_or_before(&key(u64::MAX))?;
    let Some(last) = last else {
        return Err(Defect::new("a checksum tree has a first item and no last item").into());
    };
    let sectors = last.data().len().quotient(checksum_type.size_bytes());
    let bytes = u64_of(sectors).exact_mul(u64::from(view.sector_bytes()));
    Ok(Covered {
        first: Some(first.offset),
        // Clamp: the offset comes from disk; no sector begins at the last address.
        end: last.key().offset.saturating_add(bytes),
    })
}
