//! Rename in all its forms: with or without replacing an entry, with two entries exchanged, or with
//! a whiteout left behind. A rename moves files, directories, and subvolumes, which may move
//! between subvolumes.
//!
//! The operation adds the new name before it removes the old name. If an inode's reference item is
//! full, the inode may therefore get an extended item. Counters and times change as often as in the
//! kernel.
//!
//! Source: rename(2) for meaning and errors.

use super::NewInode;
use super::create::{Plan, beside};
use super::entries::check_name;
use super::link::{Keeps, Left, keep_none};
use super::orphan::OpenInode;
use crate::WritableFilesystem;
use crate::operations::areas::Renaming;
use crate::subvolume::making::{self, root_reference_keys};
use buttress_engine::entry::{Entry, Target};
use buttress_engine::reservation::Need;
use buttress_format::{FileKind, InodeItem, RootRef, TreeId};
use buttress_fs::error::{Corruption, Error, Name, Result};
use buttress_fs::location::Location;

/// The items that a rename edits: two names, a removed inode, a whiteout.
const RENAME_ITEMS: u64 = 20;

/// The places of a rename, including a replaced inode, whose adjacent items have two ends.
const RENAME_PLACES: u64 = RENAME_ITEMS + 2;

const CHARACTER_DEVICE: u32 = 0o020_000;

/// The effect of a rename on an existing entry of the new name, and on the old name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// The moved entry replaces an entry of the new name, if that has the same kind. A replaced
    /// directory must be empty.
    #[default]
    Replace,
    /// An existing entry of the new name makes the rename fail.
    NoReplace,
    /// The two entries exchange places.
    Exchange,
    /// Replaces as [`RenameMode::Replace`] does. The old name becomes a whiteout, as overlay file
    /// systems need it: a character device 0, 0 of this owner.
    Whiteout(NewInode),
    /// Refuses as [`RenameMode::NoReplace`] does, and leaves a whiteout as [`RenameMode::Whiteout`]
    /// does.
    WhiteoutNoReplace(NewInode),
}

/// The result of a rename.
#[derive(Debug)]
pub struct Renamed {
    /// The inode that the rename moved.
    pub moved: Location,
    /// The inode that had the rename's new name before.
    pub present: Option<Location>,
    /// A hold on the replaced inode, if the replaced name was its last one and the caller keeps the
    /// inode.
    pub kept: Option<OpenInode>,
}

/// The directory and the name at one end of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End<'a> {
    directory: Location,
    name: &'a [u8],
}

impl WritableFilesystem {
    /// Renames the entry `old_name` of `old_directory` to `new_name` in `new_directory`. If both
    /// are names of the same inode, nothing changes.
    ///
    /// # Errors
    /// Fails with [`Error::NotFound`]; [`Error::Exists`] for [`RenameMode::NoReplace`];
    /// [`Error::IsADirectory`] and [`Error::NotADirectory`] if only one of both is a directory.
    /// Fails with [`Error::NotEmpty`], also for a subvolume; [`Error::CrossesSubvolumes`];
    /// [`Error::Invalid`] for a move of a directory into itself; [`Error::NotPermitted`], also for
    /// a subvolume's root. Fails with [`Error::ReadOnlySubvolume`], also for a move of a read-only
    /// subvolume to another directory; [`Error::HashCollision`]; [`Error::NoSpace`].
    pub fn rename(
        &self,
        old_directory: Location,
        old_name: &[u8],
        new_directory: Location,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_keeping(old_directory, old_name, new_directory, new_name, mode, &keep_none)
            .map(drop)
    }

    /// Renames as [`WritableFilesystem::rename`] does. If the replaced inode loses its last name
    /// and `keeps` returns true, holds that inode open. `keeps` runs under the edit lock, and may
    /// run several times.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::rename`] does.
    pub fn rename_keeping(
        &self,
        old_directory: Location,
        old_name: &[u8],
        new_directory: Location,
        new_name: &[u8],
        mode: RenameMode,
        keeps: Keeps<'_>,
    ) -> Result<Renamed> {
        check_name(old_name)?;
        check_name(new_name)?;
        let old = End {
            directory: old_directory,
            name: old_name,
        };
        let new = End {
            directory: new_directory,
            name: new_name,
        };
        let need = Need::freeing(RENAME_PLACES);
        let (left, moved, present) =
            self.operate_beside_data(need, |operation| operation.renaming().run(old, new, mode, keeps))?;
        Ok(Renamed {
            moved: moved.target.location(old_directory),
            present: present.map(|present| present.target.location(new_directory)),
            kept: self.finish_removal(left)?,
        })
    }
}

impl Renaming<'_, '_> {
    /// Returns what remains of the replaced entry, the moved entry, and the entry that had the new
    /// name.
    fn run(
        &mut self,
        old: End<'_>,
        new: End<'_>,
        mode: RenameMode,
        keeps: Keeps<'_>,
    ) -> Result<(Left, Entry, Option<Entry>)> {
        let old_parent = self.operation.require_directory(old.directory)?;
        if new.directory.placeholder().is_some() {
            self.operation.require_entry(old.directory, old.name)?;
            self.operation.require_removing(old.directory, &old_parent)?;
        }
        let new_parent = self.operation.require_directory(new.directory)?;
        let moved = self.operation.require_entry(old.directory, old.name)?;
        let present = self.operation.find_entry(new.directory, new.name)?;
        match (mode, present) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace(_), Some(_)) => {
                return Err(Error::Exists {
                    name: Name::from(new.name),
                });
            }
            (RenameMode::Exchange, None) => return Err(super::entries::not_found(new.name)),
            _ => {}
        }
        self.check_nesting(old, moved, new, present, mode)?;
        // If a subvolume has its place elsewhere, the present entry is only a placeholder.
        let is_same = present.is_some_and(|present| match moved.target {
            Target::Inode(_) => {
                present.target == moved.target && old.directory.subvolume == new.directory.subvolume
            }
            Target::Subvolume(_) => old == new,
        });
        if is_same {
            return Ok((Left::Nothing, moved, present));
        }
        let left = self.rename_entry(
            old,
            (moved, &old_parent),
            new,
            (present, &new_parent),
            (mode, keeps),
        )?;
        Ok((left, moved, present))
    }

    /// Renames an entry to a different name.
    fn rename_entry(
        &mut self,
        old: End<'_>,
        (moved, old_parent): (Entry, &InodeItem),
        new: End<'_>,
        (present, new_parent): (Option<Entry>, &InodeItem),
        (mode, keeps): (RenameMode, Keeps<'_>),
    ) -> Result<Left> {
        self.operation.require_removing(old.directory, old_parent)?;
        self.require_entry_changeable(old, moved)?;
        self.operation.require_adding(new.directory, new_parent)?;
        self.require_entry_leaves(old, moved, new)?;
        let Some(present) = present else {
            self.check_moves(old, moved, new)?;
            return self.replace(old, moved, new, None, (mode, keeps));
        };
        self.operation.require_removing(new.directory, new_parent)?;
        self.require_entry_changeable(new, present)?;
        if mode == RenameMode::Exchange {
            self.require_entry_leaves(new, present, old)?;
            self.check_moves(old, moved, new)?;
            self.check_moves(new, present, old)?;
            self.exchange(old, moved, new, present)?;
            return Ok(Left::Nothing);
        }
        check_kinds(moved, new, present)?;
        self.check_moves(old, moved, new)?;
        self.check_gives_way(new, present)?;
        self.replace(old, moved, new, Some(present), (mode, keeps))
    }

    /// Returns an error for a move of a directory below itself, and for replacing a directory above
    /// the moved entry.
    fn check_nesting(
        &mut self,
        old: End<'_>,
        moved: Entry,
        new: End<'_>,
        present: Option<Entry>,
        mode: RenameMode,
    ) -> Result<()> {
        if old.directory == new.directory {
            return Ok(());
        }
        let below = moved.target.location(old.directory);
        if moved.kind == FileKind::Directory && self.operation.lies_below(new.directory, below)? {
            return Err(Error::Invalid {
                what: "a directory cannot be moved into itself",
            });
        }
        let Some(present) = present.filter(|present| present.kind == FileKind::Directory) else {
            return Ok(());
        };
        let location = present.target.location(new.directory);
        if !self.operation.lies_below(old.directory, location)? {
            return Ok(());
        }
        Err(match mode {
            RenameMode::Exchange => Error::Invalid {
                what: "a directory cannot be exchanged with an entry below it",
            },
            _ => Error::NotEmpty { location },
        })
    }

    fn require_entry_changeable(&mut self, end: End<'_>, entry: Entry) -> Result<()> {
        if self.is_placeholder(end, entry)? {
            return Ok(());
        }
        let location = entry.target.location(end.directory);
        let item = self.operation.inode(location)?;
        self.operation.require_changeable(location, &item)
    }

    /// Returns an error if a read-only subvolume would move to another directory, because the move
    /// would change its root directory.
    fn require_entry_leaves(&mut self, end: End<'_>, entry: Entry, to: End<'_>) -> Result<()> {
        match entry.target {
            Target::Subvolume(id) if end.directory != to.directory && !self.is_placeholder(end, entry)? => {
                self.operation.require_writable(Location::root_of(id))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether an entry is only a placeholder for a subvolume that is elsewhere or deleted.
    fn is_placeholder(&mut self, end: End<'_>, entry: Entry) -> Result<bool> {
        match entry.target {
            Target::Inode(_) => Ok(false),
            Target::Subvolume(id) => {
                let index = self.operation.subvolume_index(end.directory, end.name, id)?;
                Ok(index.is_none())
            }
        }
    }

    /// Checks that the directory entry at `from` may move to the directory of `to`.
    fn check_moves(&mut self, from: End<'_>, entry: Entry, to: End<'_>) -> Result<()> {
        match entry.target {
            Target::Subvolume(_) if !self.is_placeholder(from, entry)? => Ok(()),
            _ if from.directory.subvolume != to.directory.subvolume => Err(Error::CrossesSubvolumes),
            Target::Inode(_) => Ok(()),
            // A placeholder for a missing subvolume cannot move.
            Target::Subvolume(_) => Err(Error::NotEmpty {
                location: Location::placeholder_in(from.directory),
            }),
        }
    }

    fn replace(
        &mut self,
        old: End<'_>,
        moved: Entry,
        new: End<'_>,
        present: Option<Entry>,
        (mode, keeps): (RenameMode, Keeps<'_>),
    ) -> Result<Left> {
        if present.is_none() {
            let (_, item_bytes) = self.operation.find_entry_beside(new.directory, new.name)?;
            self.operation.check_collision(new.name, item_bytes)?;
        }
        if let Target::Inode(inode) = moved.target {
            let moved = beside(old.directory, inode);
            self.operation
                .check_link_space(moved, new.directory.inode, new.name)?;
        }
        let whiteout = match mode {
            RenameMode::Whiteout(new) | RenameMode::WhiteoutNoReplace(new) => {
                let parent = self.operation.inode(old.directory)?;
                let new = NewInode { mode: 0, ..new };
                let operation = &mut *self.operation;
                Some(operation.inherited_attributes(old.directory, &parent, CHARACTER_DEVICE, &new)?)
            }
            _ => None,
        };
        self.operation.reach_new_entry(new.directory, new.name)?;
        self.reach_end(old, moved, new.directory)?;
        if let Some(present) = present {
            self.reach_end(new, present, new.directory)?;
        }
        if whiteout.is_some() {
            self.operation.reach_new_entry(old.directory, old.name)?;
            self.operation.reach_new_inode(old.directory.subvolume.tree())?;
        }
        let index = self.operation.begin().inode_items().free_index(new.directory)?;
        self.insert_name(new, old.directory, moved, index)?;
        self.touch_ends(old, moved, new)?;
        self.remove_name(old, moved)?;
        let left = match present {
            Some(present) => self.remove_replaced(new, present, keeps)?,
            None => Left::Nothing,
        };
        self.operation
            .insert_entry(new.directory, new.name, moved, index)?;
        self.operation.grow_directory(new.directory, new.name)?;
        if let Some(inherited_attributes) = whiteout {
            self.operation.make_named(
                old.directory,
                old.name,
                &inherited_attributes,
                Plan::of_type(CHARACTER_DEVICE),
            )?;
        }
        Ok(left)
    }

    /// Reaches the items that change when an entry moves from one end to another directory.
    fn reach_end(&mut self, end: End<'_>, entry: Entry, other: Location) -> Result<()> {
        match entry.target {
            Target::Inode(inode) => {
                self.operation
                    .reach_name(end.directory, end.name, beside(end.directory, inode))?;
            }
            Target::Subvolume(id) => {
                if let Some(index) = self.operation.search_index(end.directory, end.name)? {
                    self.operation.reach_entry(end.directory, end.name, index)?;
                }
                for parent in [end.directory.subvolume, other.subvolume] {
                    self.operation
                        .reach(TreeId::ROOT, &root_reference_keys(id, parent))?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the rename may replace the entry of the new name.
    fn check_gives_way(&mut self, new: End<'_>, present: Entry) -> Result<()> {
        let location = present.target.location(new.directory);
        let Target::Inode(_) = present.target else {
            return match self.is_placeholder(new, present)? {
                true => Ok(()),
                false => Err(Error::NotEmpty { location }),
            };
        };
        if present.kind != FileKind::Directory {
            return Ok(());
        }
        let item = self.operation.inode(location)?;
        self.operation.require_empty(location, &item)
    }

    fn remove_replaced(&mut self, new: End<'_>, present: Entry, keeps: Keeps<'_>) -> Result<Left> {
        let Target::Inode(inode) = present.target else {
            self.remove_name(new, present)?;
            return Ok(Left::Nothing);
        };
        let location = beside(new.directory, inode);
        self.operation.touch_inode(location)?;
        self.operation.unlink(new.directory, new.name, location, keeps)
    }

    fn exchange(&mut self, old: End<'_>, first: Entry, new: End<'_>, second: Entry) -> Result<()> {
        for (end, other, entry) in [(new, old, first), (old, new, second)] {
            if let Target::Inode(inode) = entry.target {
                self.operation.check_link_space(
                    beside(other.directory, inode),
                    end.directory.inode,
                    end.name,
                )?;
            }
        }
        for (end, other, entry) in [(old, new, first), (new, old, second)] {
            self.reach_end(end, entry, other.directory)?;
            self.operation.reach_new_entry(other.directory, other.name)?;
        }
        let first_index = self.operation.begin().inode_items().free_index(new.directory)?;
        let second_index = self.operation.begin().inode_items().free_index(old.directory)?;
        self.insert_name(new, old.directory, first, first_index)?;
        self.insert_name(old, new.directory, second, second_index)?;
        self.touch_ends(old, first, new)?;
        if let Target::Inode(inode) = second.target {
            self.operation.touch_inode(beside(new.directory, inode))?;
        }
        self.remove_name(old, first)?;
        self.remove_name(new, second)?;
        self.operation
            .insert_entry(new.directory, new.name, first, first_index)?;
        self.operation.grow_directory(new.directory, new.name)?;
        self.operation
            .insert_entry(old.directory, old.name, second, second_index)?;
        self.operation.grow_directory(old.directory, old.name)
    }

    /// Adds a name to the references of its target. A subvolume has one place in one parent, so its
    /// old root reference is replaced.
    fn insert_name(&mut self, end: End<'_>, from: Location, entry: Entry, index: u64) -> Result<()> {
        match entry.target {
            Target::Inode(inode) => {
                self.operation
                    .insert_link(beside(from, inode), end.directory.inode, end.name, index)
            }
            Target::Subvolume(id) => {
                making::remove_root_reference(self.operation.edit(), id, from.subvolume)?;
                let reference = RootRef {
                    directory: end.directory.inode,
                    sequence: index,
                    name: end.name,
                };
                making::add_root_reference(self.operation.edit(), id, end.directory.subvolume, &reference)
            }
        }
    }

    /// Removes the old name's directory entry and the inode's reference to it.
    fn remove_name(&mut self, end: End<'_>, entry: Entry) -> Result<()> {
        match entry.target {
            Target::Inode(inode) => {
                self.operation
                    .unlink_name(end.directory, end.name, beside(end.directory, inode))
            }
            Target::Subvolume(_) => {
                // The root reference of this subvolume's entry has already moved.
                let Some(index) = self.operation.search_index(end.directory, end.name)? else {
                    return Err(Corruption::DirIndexMissing {
                        directory: end.directory,
                        name: Name::from(end.name),
                    }
                    .into());
                };
                self.operation.remove_entry(end.directory, end.name, index)?;
                let tree = end.directory.subvolume.tree();
                self.operation
                    .edit()
                    .names
                    .note_subvolume(tree, end.directory.inode);
                self.operation.shrink_directory(end.directory, end.name)
            }
        }
    }

    /// Records the change in both directories and in the moved inode. A subvolume's own tree does
    /// not contain its name, so the moved subvolume's tree stays unchanged. Incremental sends of
    /// read-only subvolumes rely on unchanged trees.
    fn touch_ends(&mut self, old: End<'_>, moved: Entry, new: End<'_>) -> Result<()> {
        let now = self.operation.now();
        let touch = |item: &mut InodeItem| {
            item.sequence = item.sequence.wrapping_add(1);
            item.mtime = now;
            item.ctime = now;
        };
        self.operation.change_inode(old.directory, touch)?;
        self.operation.change_inode(new.directory, touch)?;
        match moved.target {
            Target::Inode(inode) => self.operation.touch_inode(beside(old.directory, inode)),
            Target::Subvolume(_) => Ok(()),
        }
    }
}

/// Returns an error for a directory that would replace another file type, and the reverse.
fn check_kinds(moved: Entry, new: End<'_>, present: Entry) -> Result<()> {
    let location = present.target.location(new.directory);
    match (
        moved.kind == FileKind::Directory,
        present.kind == FileKind::Directory,
    ) {
        (true, false) => Err(Error::NotADirectory {
            path: location.to_string().into(),
        }),
        (false, true) => Err(Error::IsADirectory { location }),
        _ => Ok(()),
    }
}
