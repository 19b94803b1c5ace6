//! The edits of a plan, in a running transaction.
//!
//! Each edit reads the items that it changes again: an earlier edit of the same round may have
//! changed them. An edit whose evidence is gone, or contradicts itself, changes nothing. An edit that
//! finds out later that it is impossible restores the items that it changed.
//!
//! | module | edits |
//! |---|---|
//! | `checksums` | checksums of data that has none |
//! | `counts` | link counts, sizes and bytes of inodes; flags; generations and holes of extents |
//! | `settling` | the target of a name, and all records of the name |
//! | `names` | both items of a directory entry, and the record of its target |
//! | `inodes` | inodes and root directories from other items; `lost+found` |
//! | `places` | references of subvolumes |
//! | `records` | the uuid tree, the default subvolume, quota groups |

mod checksums;
mod counts;
mod inodes;
mod names;
mod places;
mod records;
mod settling;

use crate::items::Items;
use crate::steps::{Applied, Edit, Step};
use buttress_format::{InodeNumber, TreeId};
use buttress_fs::error::{Error, Result};

pub(crate) use settling::Indexes;

/// The tree places that one edit changes at most.
pub(crate) const PLACES: u64 = 48;

/// Applies the edit of a step.
pub(crate) fn apply(items: &mut Items<'_>, step: &Step, indexes: &mut Indexes) -> Result<Applied> {
    or_nothing(items, |items| edit(items, step, indexes))
}

/// Sets the counts of an inode to the sums over its items.
pub(crate) fn recount(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Applied> {
    or_nothing(items, |items| counts::recount(items, tree, inode))
}

/// Runs an edit. An edit that the format does not permit changes nothing, because an error would end
/// the whole repair.
fn or_nothing(
    items: &mut Items<'_>,
    edit: impl FnOnce(&mut Items<'_>) -> Result<Applied>,
) -> Result<Applied> {
    let reason = match edit(items) {
        Err(Error::TooMany { what } | Error::Invalid { what }) => what,
        Err(Error::HashCollision { .. }) => "too many names of the directory have the same hash",
        Err(Error::Exists { .. }) => "the directory has no free name for the inode",
        result => return result,
    };
    items.roll_back()?;
    Ok(Applied::Nothing(reason))
}

fn edit(items: &mut Items<'_>, step: &Step, indexes: &mut Indexes) -> Result<Applied> {
    match &step.edit {
        Edit::RootDirectory(tree) => inodes::set_root_directory(items, *tree),
        Edit::MakeRootDirectory(tree) => inodes::make_root_directory(items, *tree),
        Edit::NameRootDirectory(tree) => inodes::name_root_directory(items, *tree),
        Edit::MakeInode(tree, inode) => inodes::make(items, *tree, *inode),
        Edit::Directory(tree, inode) => inodes::settle_directory(items, *tree, *inode),
        Edit::SymlinkFlags(tree, inode) => counts::clear_symlink_flags(items, *tree, *inode),
        Edit::Name(tree, directory, name) => {
            settling::settle(items, *tree, *directory, name, &step.hints, indexes)
        }
        Edit::ExtentGeneration(tree, inode, offset) => {
            counts::set_extent_generation(items, *tree, *inode, *offset)
        }
        Edit::Hole(tree, inode, start, end) => counts::insert_hole(items, *tree, *inode, *start..*end),
        Edit::Checksums(start, end) => checksums::add(items, *start, *end),
        Edit::LostAndFound(tree, inode) => inodes::give_name(items, *tree, *inode),
        Edit::Recount(tree, inode) => counts::recount(items, *tree, *inode),
        Edit::Place { parent, child } => places::settle(items, *parent, *child),
        Edit::SubvolumeToLostAndFound(subvolume) => places::give_name(items, *subvolume),
        Edit::RootOrphanItem(subvolume) => places::settle_references(items, *subvolume),
        Edit::ForgetSubvolume { parent, child } => places::forget(items, *parent, *child),
        Edit::DefaultSubvolume => records::reset_default(items),
        Edit::Uuid {
            subvolume,
            uuid,
            exists,
        } => records::settle_uuid(items, *subvolume, *uuid, *exists),
        Edit::QuotaCount(group, referenced, exclusive) => {
            records::set_quota_counts(items, group, [*referenced, *exclusive])
        }
        Edit::QuotaGroup(group) => records::make_quota_group(items, group),
        Edit::QuotaRelation(group, other) => records::settle_quota_relation(items, group, other),
        // The rebuild runs before the rounds of edits.
        Edit::RebuildSpace | Edit::RebuildDevices | Edit::RebuildChecksums => {
            Ok(Applied::Nothing("a rebuild is no edit of items"))
        }
        // The edit around this call makes the commit write all superblocks.
        Edit::Superblocks => Ok(Applied::Changed),
    }
}
