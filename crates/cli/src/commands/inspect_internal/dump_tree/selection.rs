//! Selection of the trees that a dump prints, with their order and headings.
//!
//! By default, the dump prints the root tree, the chunk tree, and the tree of log trees if it
//! exists. Then follow every tree with a root item, in the root tree's order, the log trees, and
//! the totals of the volume. The options `-e`, `-d`, `-u` and `-t` omit parts of this output.

use anyhow::{Result, anyhow};
use buttress::unstable::format::superblock::Incompat;
use buttress::unstable::format::{ItemType, Key, RootItem};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::tree::{RootPointer, Tree};
use buttress::{Logical, ReadAhead, TreeId};

use super::super::tree_names;
use super::{Dump, DumpTree};

/// Selection of trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection {
    choice: Choice,
    roots_only: bool,
    backups: bool,
    /// With `-e`, headings end without a space, and trees are printed even with `-r`.
    extents: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    All,
    /// Only the device tree.
    Device,
    /// Print the root, chunk and device trees.
    DeviceInformation,
    ExtentsAndDevice,
    Uuid,
    Tree(TreeId),
}

impl Selection {
    /// Returns the selection of the command line.
    pub(super) fn new(command: &DumpTree) -> Self {
        let choice = match (command.tree, command.uuid, command.device, command.extents) {
            (_, true, _, _) => Choice::Uuid,
            (_, false, true, true) => Choice::Device,
            (_, false, true, false) => Choice::DeviceInformation,
            (_, false, false, true) => Choice::ExtentsAndDevice,
            (Some(tree), false, false, false) => Choice::Tree(tree.0),
            (None, false, false, false) => Choice::All,
        };
        Self {
            choice,
            roots_only: command.roots || command.backups,
            backups: command.backups,
            extents: command.extents,
        }
    }

    /// Prints the selected trees.
    pub(super) fn print(self, dump: &mut Dump<'_>) -> Result<()> {
        let filesystem = dump.filesystem;
        match self.choice {
            Choice::Tree(id @ (TreeId::ROOT | TreeId::CHUNK | TreeId::TREE_LOG | TreeId::BLOCK_GROUP)) => {
                return whole_tree(dump, id);
            }
            Choice::All | Choice::DeviceInformation => self.trees_of_the_superblock(dump)?,
            _ => {}
        }
        let mut found = self.trees_with_root_items(dump, filesystem.root_tree())?;
        if let Some(log) = log_root_tree(filesystem) {
            found |= self.trees_with_root_items(dump, &log)?;
        }
        if let Choice::Tree(id) = self.choice
            && !found
        {
            dump.context.lost(&anyhow!("the volume has no tree {id}"));
        }
        if matches!(self.choice, Choice::All | Choice::Tree(_)) {
            if self.backups {
                backup_roots(dump)?;
            }
            dump.output.totals(&filesystem.superblock())?;
        }
        Ok(())
    }

    /// Prints the trees that the superblock points to.
    fn trees_of_the_superblock(self, dump: &mut Dump<'_>) -> Result<()> {
        let filesystem = dump.filesystem;
        let mut trees = vec![filesystem.root_tree().clone(), filesystem.tree(TreeId::CHUNK)?];
        trees.extend(log_root_tree(filesystem));
        for tree in trees {
            let heading = superblock_heading(tree.root().tree);
            if self.roots_only {
                dump.output.root(heading, None, place(tree.root()))?;
            } else {
                dump.tree(&tree, heading, None)?;
            }
        }
        Ok(())
    }

    /// Prints the selected trees with root items in `roots`. Returns whether any of these trees was
    /// printed.
    fn trees_with_root_items(self, dump: &mut Dump<'_>, roots: &Tree) -> Result<bool> {
        let sector_bytes = dump.filesystem.sector_bytes();
        let mut found = false;
        for item in roots.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    // If the root tree itself was printed, its walk has already reported this
                    // error.
                    dump.context.lost(&error.into());
                    break;
                }
            };
            let key = item.key();
            let id = TreeId::new(key.objectid.get());
            if key.item_type != ItemType::ROOT_ITEM || !self.wants(id) {
                continue;
            }
            found = true;
            match RootItem::parse(&key, item.data(), sector_bytes) {
                Ok(root) => self.tree_with_root_item(dump, &key, id, &root)?,
                Err(error) => dump.context.lost(&error.into()),
            }
        }
        Ok(found)
    }

    fn tree_with_root_item(self, dump: &mut Dump<'_>, key: &Key, id: TreeId, item: &RootItem) -> Result<()> {
        let root = RootPointer {
            tree: id,
            logical: item.logical,
            generation: item.generation,
            level: item.level,
        };
        let heading = format!("{} tree", tree_names::heading(id));
        if self.roots_only && !self.extents {
            return dump.output.root(&heading, Some(key), place(&root));
        }
        let tree = dump.filesystem.forest().tree(root);
        dump.tree(&tree, &heading, Some(key))
    }

    fn wants(self, id: TreeId) -> bool {
        match self.choice {
            Choice::All => true,
            Choice::Device | Choice::DeviceInformation => id == TreeId::DEVICE,
            Choice::ExtentsAndDevice => id == TreeId::EXTENT || id == TreeId::DEVICE,
            Choice::Uuid => id == TreeId::UUID,
            Choice::Tree(chosen) => id == chosen,
        }
    }
}

/// Prints a single selected tree that has no root item, or is printed as if it had none.
fn whole_tree(dump: &mut Dump<'_>, id: TreeId) -> Result<()> {
    let tree = match id {
        TreeId::TREE_LOG => {
            log_root_tree(dump.filesystem).ok_or_else(|| anyhow!("the volume has no pending log tree"))?
        }
        _ => dump.filesystem.tree(id)?,
    };
    dump.tree(&tree, superblock_heading(id), None)
}

fn superblock_heading(id: TreeId) -> &'static str {
    match id {
        TreeId::ROOT => "root tree",
        TreeId::CHUNK => "chunk tree",
        TreeId::BLOCK_GROUP => "block group tree",
        _ => "log root tree",
    }
}

/// Returns the tree of the log trees' roots, if a log is pending.
fn log_root_tree(filesystem: &Filesystem) -> Option<Tree> {
    let pending = filesystem.superblock().log_root != Logical::MIN;
    pending.then(|| filesystem.tree(TreeId::TREE_LOG).ok()).flatten()
}

fn place(root: &RootPointer) -> (TreeId, u64, u8) {
    (root.tree, root.logical.get(), root.level)
}

fn backup_roots(dump: &mut Dump<'_>) -> Result<()> {
    let superblock = dump.filesystem.superblock();
    let extent_heading = if superblock.incompat.contains(Incompat::EXTENT_TREE_V2) {
        "block group root"
    } else {
        "extent root"
    };
    for (slot, backup) in superblock.backup_roots.iter().enumerate() {
        dump.output.backup(slot, backup, extent_heading)?;
    }
    Ok(())
}
