//! The superblocks that name the rebuilt trees.
//!
//! All blocks are durable before the first superblock is written. A crash leaves the volume in the
//! first state or in the rebuilt state, because no block of the first state was overwritten.

use super::description::NewRoot;
use buttress_exact::Defect;
use buttress_format::superblock::{BackupRoot, BackupTree};
use buttress_format::{ByteCount, CompatRo, DeviceItem, Generation, Superblock, TreeId};
use buttress_fs::{Filesystem, Result};

/// Makes the written blocks durable and writes the superblocks of all devices.
pub(super) fn publish(
    filesystem: &Filesystem,
    roots: &[NewRoot],
    generation: Generation,
    bytes_used: ByteCount,
    devices: &[DeviceItem],
) -> Result<()> {
    let volume = filesystem.volume();
    let superblock = next_superblock(filesystem, roots, generation, bytes_used)?;
    if !buttress_faults::on("repair-rebuild-unflushed") {
        volume.flush()?;
    }
    Ok(volume.write_superblocks(&superblock, devices)?)
}

fn next_superblock(
    filesystem: &Filesystem,
    roots: &[NewRoot],
    generation: Generation,
    bytes_used: ByteCount,
) -> Result<Superblock> {
    let last = filesystem.superblock();
    let find = |tree| roots.iter().find(|root| root.tree == tree);
    let root = find(TreeId::ROOT).ok_or_else(|| Defect::new("a rebuild without a root tree"))?;
    let backup = |tree| {
        if let Some(root) = find(tree) {
            return BackupTree {
                logical: root.logical,
                generation,
                level: root.level,
            };
        }
        // Clamp: a backup names 0 for a tree that does not exist.
        let pointer = filesystem.tree(tree).ok().map(|tree| *tree.root());
        BackupTree {
            logical: pointer.map_or(buttress_format::Logical::MIN, |root| root.logical),
            generation: pointer.map_or(Generation::MIN, |root| root.generation),
            level: pointer.map_or(0, |root| root.level),
        }
    };
    let entry = BackupRoot {
        tree_root: backup(TreeId::ROOT),
        chunk_root: backup(TreeId::CHUNK),
        extent_root: backup(TreeId::EXTENT),
        fs_root: backup(TreeId::FS),
        dev_root: backup(TreeId::DEVICE),
        csum_root: backup(TreeId::CHECKSUM),
        total_bytes: last.total_bytes,
        bytes_used,
        num_devices: last.num_devices,
    };
    let mut backup_roots = last.backup_roots;
    // The oldest backup makes space.
    if let Some(oldest) = backup_roots
        .iter_mut()
        .min_by_key(|backup| backup.tree_root.generation)
    {
        *oldest = entry;
    }
    let mut compat_ro = last.compat_ro;
    compat_ro.set(
        CompatRo::FREE_SPACE_TREE_VALID,
        find(TreeId::FREE_SPACE).is_some(),
    );
    let chunk_root = find(TreeId::CHUNK);
    let uuid_tree_is_complete = last.uuid_tree_generation == last.generation;
    Ok(Superblock {
        generation,
        root: root.logical,
        root_level: root.level,
        chunk_root: chunk_root.map_or(last.chunk_root, |root| root.logical),
        chunk_root_level: chunk_root.map_or(last.chunk_root_level, |root| root.level),
        chunk_root_generation: chunk_root.map_or(last.chunk_root_generation, |_| generation),
        bytes_used,
        compat_ro,
        backup_roots,
        uuid_tree_generation: match uuid_tree_is_complete {
            true => generation,
            false => last.uuid_tree_generation,
        },
        ..(*last).clone()
    })
}
