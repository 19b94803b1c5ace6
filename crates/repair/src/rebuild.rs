//! The rebuild of the trees that account for space.
//!
//! The extent tree, the block groups and the free-space tree follow from all other trees. If they
//! are damaged, no edit can trust them, because an edit allocates by them. A rebuild ignores them:
//!
//! 1. The survey reads all trees and sorts the facts about extents, in bounded memory.
//! 2. The new trees are described, counted and packed. Their blocks go to addresses that no tree of
//!    the first state uses.
//! 3. New superblocks, in the next generation, name the new root tree.
//!
//! | module | holds |
//! |---|---|
//! | `roots` | the trees that the survey walks |
//! | `survey` | a single scan of all trees |
//! | `facts` | facts about extents, as records that can be sorted |
//! | `extents` | extents and their items, from sorted facts |
//! | `places` | block groups, and the addresses of new blocks |
//! | `free_space` | the free-space items of a block group |
//! | `description` | the items of all rebuilt trees |
//! | `blocks` | counting and packing |
//! | `publish` | the superblocks |
//!
//! # Invariants
//!
//! - No block of the first state is overwritten: neither a block that stays nor a block of a
//!   replaced tree. The superblocks are the exception.
//! - The rebuild changes no tree of files and no data, and it moves no extent.
//! - The rebuild refuses if a block of another tree is unreadable. An extent without a known user
//!   might then be in use.
//!
//! # Memory
//!
//! The sorter gets a part of the cache's budget. Beside it, a rebuild needs two bits for each sector
//! of tree blocks, the references of one extent, and the free ranges of one block group.
//!
//! # Left out
//!
//! New chunks: the rebuilt trees must fit the free space of the existing metadata chunks.

mod blocks;
mod description;
mod errors;
mod extents;
mod facts;
mod free_space;
mod places;
mod publish;
mod roots;
mod survey;

use buttress_format::{ByteCount, CompatRo, Generation, Incompat, TreeId, Uuid};
use buttress_fs::{Filesystem, Progress, Result};
use buttress_packing::SpoolFolder;
use buttress_tree::BlockPointer;
use description::Description;
use extents::Form;
use places::{FreePlaces, Group};

/// Resources of a rebuild.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    /// The memory of the sorter.
    pub(crate) memory: ByteCount,
    /// The folder of records that exceed the memory.
    pub(crate) folder: SpoolFolder,
}

/// Rebuilds the extent tree, the block groups and the free-space tree. The caller opens the volume
/// again afterwards.
///
/// # Errors
/// Fails with [`Error::Invalid`](buttress_fs::Error::Invalid), and changes nothing, if the other
/// trees do not suffice for a rebuild. Also fails if the volume refuses writing, if the metadata
/// chunks lack free space, or with an error of a device.
pub(crate) fn space(filesystem: &Filesystem, resources: &Resources, progress: &Progress) -> Result<()> {
    buttress_engine::opening::refuse(filesystem)?;
    let superblock = filesystem.superblock();
    let generation = superblock.generation.get().checked_add(1);
    let generation = generation.ok_or_else(|| errors::refused("the generation has no successor"))?;
    let generation = Generation::new(generation);
    let mut replaced = vec![TreeId::EXTENT];
    if superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        replaced.push(TreeId::FREE_SPACE);
    }
    if superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        replaced.push(TreeId::BLOCK_GROUP);
    }
    replaced.push(TreeId::ROOT);
    let roots = roots::all(filesystem, progress)?;
    let survey = survey::run(
        filesystem,
        &roots,
        &replaced,
        resources.memory,
        &resources.folder,
        progress,
    )?;
    let mut description = Description {
        filesystem,
        survey: &survey,
        groups: Group::all(filesystem.volume()),
        form: Form {
            node_bytes: superblock.node_bytes,
            generation: superblock.generation,
            is_skinny: superblock.incompat.contains(Incompat::SKINNY_METADATA),
            has_owners: superblock.incompat.contains(Incompat::SIMPLE_QUOTA),
        },
        replaced,
        generation,
        progress,
    };
    description.measure()?;
    let format = buttress_packing::BlockFormat {
        fsid: superblock.metadata_uuid,
        chunk_tree_uuid: chunk_tree_uuid(filesystem)?,
        node_bytes: superblock.node_bytes,
        checksum: superblock.checksum_type,
        generation,
    };
    let groups = description.groups.clone();
    let mut free = FreePlaces::new(
        &groups,
        &survey.reserved,
        superblock.node_bytes,
        superblock.sector_bytes,
    );
    let (guess, places) = blocks::settle(&description, &format, &mut free)?;
    let roots = blocks::write(&description, format, &guess, &places)?;
    let bytes_used = description.bytes_used(guess.blocks());
    publish::publish(filesystem, &roots, generation, bytes_used)
}

/// Returns the uuid of the chunk tree, which its root block carries.
fn chunk_tree_uuid(filesystem: &Filesystem) -> Result<Uuid> {
    let root = *filesystem.tree(TreeId::CHUNK)?.root();
    let block = filesystem.forest().read_block(&BlockPointer::root(&root))?;
    Ok(block.header().chunk_tree_uuid)
}
