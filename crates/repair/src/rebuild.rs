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
//! | `lengths` | doubts about the lengths of extents |
//! | `places` | block groups, and the addresses of new blocks |
//! | `free_space` | the free-space items of a block group |
//! | `devices` | the items of the device tree and the chunk tree |
//! | `stripes` | the places of chunks on devices, and the evidence for them |
//! | `checksums` | the checksum tree without surplus, from the readable items of the old one |
//! | `description` | the items of all rebuilt trees |
//! | `blocks` | counting and packing |
//! | `publish` | the superblocks |
//!
//! # Invariants
//!
//! - No block of the first state is overwritten: neither a block that stays nor a block of a
//!   replaced tree. The superblocks are the exception.
//! - The rebuild changes no tree of files and no data, and it moves no extent.
//! - The checksum tree loses only checksums of unused space, and those of unreadable leaves.
//! - The rebuild refuses if a block of another tree is unreadable. An extent without a known user
//!   might then be in use.
//! - Blocks and data of a subvolume without a root item become free only with consent.
//! - A later rebuild of the same repair, and its edits, overwrite no block of the first state.
//! - While a replacement of a device is unfinished, nothing is rebuilt: the target would miss blocks.
//!
//! # Memory
//!
//! The sorter gets a part of the cache's budget.  Beside it, a rebuild needs two bits for each
//! sector of tree blocks, and eight bytes for each block of a replaced tree. It also holds the
//! references of one extent, and the free ranges of one block group. In mixed block groups, it
//! needs a bit for each sector of data.
//!
//! # Left out
//!
//! - New chunks: the rebuilt trees must fit the free space of the existing metadata chunks.
//! - Leaves of the checksum tree below an unreadable node: the rebuild needs consent to lose them.
//! - A subvolume that no root item, no reference and no readable extent item names.

mod blocks;
mod checksums;
mod description;
mod devices;
mod errors;
mod extents;
mod facts;
mod free_space;
mod lengths;
mod places;
mod publish;
mod roots;
mod stripes;
mod survey;

use buttress_format::{BlockGroupFlags, CompatRo, DeviceItem, Generation, Incompat, Logical, TreeId, Uuid};
use buttress_fs::{Filesystem, Progress, Result};
use buttress_tree::BlockPointer;
use description::{Description, Guess};
use extents::Form;
pub(crate) use survey::Resources;

use places::{FreePlaces, Group};

/// The trees that a rebuild replaces beside those that it always replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope {
    /// The device tree, and the counts and types in the chunk tree.
    pub(crate) devices: bool,
    /// The checksum tree.
    pub(crate) checksums: bool,
    /// Whether the blocks of subvolumes without a root item may become free.
    pub(crate) gives_up_subvolumes: bool,
    /// Whether the checksums below an unreadable node may be lost.
    pub(crate) gives_up_checksums: bool,
}

/// The reason against a rebuild of the checksum tree below an unreadable node.
const HIDDEN_CHECKSUMS: &str = "leaves below an unreadable node of the checksum tree may be intact: `--yes-to tree-block-damaged` gives them up";

/// Rebuilds the extent tree, the block groups, the free-space tree and the trees of `scope`. The
/// caller opens the volume again afterwards. No new block is at an address of `held`; the rebuild
/// adds the addresses of the blocks that it replaced.
///
/// # Errors
/// Fails with [`Error::Invalid`](buttress_fs::Error::Invalid), and changes nothing, if the other
/// trees do not suffice for a rebuild. Also fails if the volume refuses writing, if the metadata
/// chunks lack free space, or with an error of a device.
pub(crate) fn run(
    filesystem: &Filesystem,
    scope: Scope,
    held: &mut Vec<u64>,
    resources: &Resources,
    progress: &Progress,
) -> Result<()> {
    buttress_engine::opening::refuse(filesystem)?;
    require_no_replacement(filesystem)?;
    let superblock = filesystem.superblock();
    let generation = superblock.generation.get().checked_add(1);
    let generation = generation.ok_or_else(|| errors::refused("the generation has no successor"))?;
    let generation = Generation::new(generation);
    let replaced = replaced(filesystem, scope);
    let roots = roots::all(filesystem, scope.gives_up_subvolumes, progress)?;
    let survey = survey::run(filesystem, &roots, &replaced, resources, progress)?;
    if scope.checksums && survey.hides_checksums && !scope.gives_up_checksums {
        return Err(errors::refused(HIDDEN_CHECKSUMS));
    }
    survey.hold(held, superblock.node_bytes, superblock.sector_bytes);
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
        small: Vec::new(),
        generation,
        progress,
    };
    if description.measure(scope.gives_up_subvolumes)? && !scope.devices {
        let scope = Scope {
            devices: true,
            ..scope
        };
        return run(filesystem, scope, held, resources, progress);
    }
    description.reserve_data()?;
    let chunk_tree_uuid = chunk_tree_uuid(filesystem)?;
    let devices = describe_devices(&mut description, scope, chunk_tree_uuid)?;
    let format = buttress_packing::BlockFormat {
        fsid: superblock.metadata_uuid,
        chunk_tree_uuid,
        node_bytes: superblock.node_bytes,
        checksum: superblock.checksum_type,
        generation,
    };
    let (guess, places) = place(&description, &format)?;
    let roots = blocks::write(&description, format, &guess, &places)?;
    let bytes_used = description.bytes_used(guess.blocks());
    publish::publish(filesystem, &roots, generation, bytes_used, &devices)?;
    held.extend_from_slice(&survey.replaced);
    Ok(())
}

/// Refuses a volume with an unfinished replacement of a device, whose target would miss the new
/// blocks.
fn require_no_replacement(filesystem: &Filesystem) -> Result<()> {
    let is_open = match buttress_engine::replacement::replacement_item(filesystem) {
        Ok(item) => item.as_ref().is_some_and(buttress_engine::replacement::is_open),
        // The state of a replacement is unknown, so its target counts.
        Err(_) => filesystem.volume().found_target().is_some(),
    };
    match is_open {
        true => Err(errors::refused(
            "a replacement of a device is unfinished: finish it, or cancel it with `buttress replace cancel`",
        )),
        false => Ok(()),
    }
}

/// Adds the items of the device tree and the chunk tree if the scope has them. Returns the items of
/// all devices.
fn describe_devices(
    description: &mut Description<'_>,
    scope: Scope,
    chunk_tree_uuid: Uuid,
) -> Result<Vec<DeviceItem>> {
    let filesystem = description.filesystem;
    if !scope.devices {
        let slots = filesystem.volume().devices().into_iter();
        return Ok(slots.filter_map(|slot| slot.item()).collect());
    }
    let devices = devices::device_items(filesystem);
    let device_tree = devices::device_tree(description, chunk_tree_uuid)?;
    let chunk_tree = devices::chunk_tree(filesystem, &devices, &description.groups)?;
    description.small = vec![(TreeId::DEVICE, device_tree), (TreeId::CHUNK, chunk_tree)];
    Ok(devices)
}

/// Finds the blocks of the rebuilt trees and their addresses.
fn place(
    description: &Description<'_>,
    format: &buttress_packing::BlockFormat,
) -> Result<(Guess, Vec<Logical>)> {
    let sector_bytes = description.filesystem.sector_bytes();
    let reserved = &description.survey.reserved;
    let free = |wanted| {
        FreePlaces::new(
            &description.groups,
            wanted,
            reserved,
            format.node_bytes,
            sector_bytes,
        )
    };
    let mut metadata = free(BlockGroupFlags::METADATA);
    let mut system = free(BlockGroupFlags::SYSTEM);
    blocks::settle(description, format, &mut metadata, &mut system)
}

/// Returns the trees that a rebuild replaces, in the order of packing.
fn replaced(filesystem: &Filesystem, scope: Scope) -> Vec<TreeId> {
    let compat_ro = filesystem.superblock().compat_ro;
    let trees = [
        (TreeId::EXTENT, true),
        (TreeId::FREE_SPACE, compat_ro.contains(CompatRo::FREE_SPACE_TREE)),
        (
            TreeId::BLOCK_GROUP,
            compat_ro.contains(CompatRo::BLOCK_GROUP_TREE),
        ),
        (TreeId::DEVICE, scope.devices),
        (TreeId::CHECKSUM, scope.checksums),
        (TreeId::ROOT, true),
        (TreeId::CHUNK, scope.devices),
    ];
    let replaced = trees.into_iter().filter(|(_, is_replaced)| *is_replaced);
    replaced.map(|(tree, _)| tree).collect()
}

/// Returns the uuid of the chunk tree, which its root block carries.
fn chunk_tree_uuid(filesystem: &Filesystem) -> Result<Uuid> {
    let root = *filesystem.tree(TreeId::CHUNK)?.root();
    let block = filesystem.forest().read_block(&BlockPointer::root(&root))?;
    Ok(block.header().chunk_tree_uuid)
}
