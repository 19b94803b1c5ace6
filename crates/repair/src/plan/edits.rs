//! From a finding to its edit.

use crate::kinds::{self, RepairKind};
use crate::steps::{Edit, Hints, Loss, Step};
use buttress_check::{Finding, Report};
use buttress_format::{InodeNumber, TreeId};
use std::collections::{BTreeMap, BTreeSet};

/// A planned edit of one finding.
pub(super) struct Planned {
    pub(super) edit: Edit,
    pub(super) what: String,
    pub(super) evidence: &'static str,
    pub(super) loss: Loss,
    pub(super) hints: Hints,
}

/// The fields of a superblock that lead to another state of the volume.
const STATE_FIELDS: [&str; 4] = ["generation", "root", "chunk_root", "log_root"];

const LOST_ATTRIBUTES: &str = "owner, mode and times of the inode";

/// Returns the edit for a finding that has one.
pub(super) fn of(finding: &Finding) -> Planned {
    match kinds::of(finding) {
        RepairKind::Rebuild => planned(
            Edit::RebuildSpace,
            "write the extent tree, the block groups and the free-space tree again",
            "all other trees, each block of which was read",
        ),
        RepairKind::RebuildDevices => planned(
            Edit::RebuildDevices,
            "write the device tree again, and the counts and types of the chunk tree",
            "the stripes of all chunks, and the extents in use",
        ),
        RepairKind::RebuildChecksums => planned(
            Edit::RebuildChecksums,
            "write the checksum tree again from its readable blocks, without checksums of unused space",
            "the extents in use",
        ),
        _ => edit_of(finding),
    }
}

fn edit_of(finding: &Finding) -> Planned {
    of_inode(finding)
        .or_else(|| of_directory(finding))
        .or_else(|| of_name(finding))
        .or_else(|| of_place(finding))
        .unwrap_or_else(|| of_volume(finding))
}

fn planned(edit: Edit, what: &str, evidence: &'static str) -> Planned {
    Planned {
        edit,
        what: what.to_owned(),
        evidence,
        loss: Loss::Nothing,
        hints: Hints::default(),
    }
}

impl Planned {
    fn losing(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }
}

/// Plans edits of inodes and of file extents.
fn of_inode(finding: &Finding) -> Option<Planned> {
    let found = match finding {
        Finding::LinkCount { subvolume, inode, .. }
        | Finding::DirectorySize { subvolume, inode, .. }
        | Finding::FileBytes { subvolume, inode, .. } => planned(
            Edit::Recount(subvolume.tree(), *inode),
            "set the counts of the inode to the sums over its items",
            "names, entries and extents of the inode",
        ),
        Finding::InodeFlags { subvolume, inode, .. } => planned(
            Edit::SymlinkFlags(subvolume.tree(), *inode),
            "clear the flags immutable and append-only of the symlink",
            "the format, which has no such flags for symlinks",
        ),
        Finding::FileExtentGeneration {
            subvolume,
            inode,
            offset,
            ..
        } => planned(
            Edit::ExtentGeneration(subvolume.tree(), *inode, offset.get()),
            "set the generation of the extent to the volume's",
            "the superblock",
        ),
        Finding::HoleItemMissing {
            subvolume,
            inode,
            offset,
            end,
        } => planned(
            Edit::Hole(subvolume.tree(), *inode, offset.get(), end.get()),
            "insert the item of the hole",
            "the size of the file and its other extents",
        ),
        Finding::ChecksumMissing { logical, length, .. } => planned(
            // Clamp: a check finds only ranges that end below 2^64.
            Edit::Checksums(logical.get(), logical.saturating_add(*length).get()),
            "compute the checksums of the data if an equal copy on another device confirms it, or if `--yes-to checksum-missing` is given",
            "the copies of the data",
        ),
        Finding::OrphanItemMissing { subvolume, inode } => planned(
            Edit::LostAndFound(subvolume.tree(), *inode),
            "name the inode in lost+found, or mark it for deletion if it is empty",
            "the items of the inode",
        ),
        Finding::InodeMissing { subvolume, inode } => planned(
            Edit::MakeInode(subvolume.tree(), *inode),
            "make the inode item from names, entries and extents",
            "the other items of the inode, and the directory entries that lead to it",
        )
        .losing(Loss::Attributes(LOST_ATTRIBUTES)),
        _ => return None,
    };
    Some(found)
}

/// Plans edits of directories and of root directories.
fn of_directory(finding: &Finding) -> Option<Planned> {
    let found = match finding {
        Finding::NotADirectory { subvolume, inode } => planned(
            Edit::Directory(subvolume.tree(), *inode),
            "make the inode a directory if its children name it as parent, else remove the entries",
            "the names that the children record",
        )
        .losing(Loss::Attributes("the former type of the inode")),
        Finding::RootDirectoryMissing { subvolume } => planned(
            Edit::MakeRootDirectory(subvolume.tree()),
            "make the root directory",
            "the format, which gives each subvolume inode 256",
        )
        .losing(Loss::Attributes(LOST_ATTRIBUTES)),
        Finding::RootInodeMissing { tree, .. } => planned(
            Edit::MakeRootDirectory(*tree),
            "make the root directory of the relocation tree",
            "the format",
        ),
        Finding::RootDirectoryName { subvolume, .. } => planned(
            Edit::NameRootDirectory(subvolume.tree()),
            "name the root directory `..` in itself",
            "the format",
        ),
        Finding::RootDirectory { subvolume, .. } => planned(
            Edit::RootDirectory(subvolume.tree()),
            "set the root directory of the root item to inode 256",
            "the format",
        ),
        _ => return None,
    };
    Some(found)
}

/// Plans edits of names.
fn of_name(finding: &Finding) -> Option<Planned> {
    let mut hints = Hints::default();
    let (tree, directory, name) = match finding {
        Finding::EntryMissing {
            subvolume,
            directory,
            name,
            inode,
            ..
        }
        | Finding::LinkMissing {
            subvolume,
            directory,
            name,
            inode,
        }
        | Finding::EntryWithoutInode {
            subvolume,
            directory,
            name,
            inode,
        } => {
            hints.inodes.insert(*inode);
            (subvolume.tree(), *directory, name)
        }
        Finding::EntryKind {
            subvolume,
            directory,
            name,
            ..
        }
        | Finding::EntriesDiffer {
            subvolume,
            directory,
            name,
        }
        | Finding::NameTwice {
            subvolume,
            directory,
            name,
            ..
        } => (subvolume.tree(), *directory, name),
        Finding::SubvolumeEntryMissing {
            parent,
            child,
            directory,
            name,
            ..
        } => {
            hints.subvolumes.insert(*child);
            (*parent, *directory, name)
        }
        _ => return None,
    };
    let what = format!("make all records of the name {name} in directory {directory} agree");
    let evidence = "the name that the target records, then both items of the directory";
    Some(Planned {
        hints,
        ..planned(Edit::Name(tree, directory, name.0.clone()), &what, evidence)
    })
}

/// Plans edits of places of subvolumes and of uuids.
fn of_place(finding: &Finding) -> Option<Planned> {
    let found = match finding {
        Finding::RootReference { parent, child, .. } => planned(
            Edit::Place {
                parent: *parent,
                child: *child,
            },
            "set both references of the subvolume to the place that a directory confirms, or remove the place if the subvolume is half deleted",
            "the directory entry of the subvolume, and the progress of its deletion",
        ),
        Finding::SubvolumeUnreachable { subvolume } => planned(
            Edit::SubvolumeToLostAndFound(*subvolume),
            "name the subvolume in lost+found of the top level",
            "the root item",
        ),
        Finding::RootOrphanItemMissing { subvolume } => planned(
            Edit::RootOrphanItem(*subvolume),
            "keep the subvolume if it has a place and is not half deleted, else mark it for deletion",
            "the references of the subvolume, and the flags of the root item",
        ),
        Finding::SubvolumeMissing { parent, child } => planned(
            Edit::ForgetSubvolume {
                parent: *parent,
                child: *child,
            },
            "remove the place of the missing subvolume",
            "the root tree, which has no such subvolume",
        )
        .losing(Loss::Names(1)),
        Finding::DefaultSubvolumeMissing { .. } => planned(
            Edit::DefaultSubvolume,
            "set the default subvolume to the top level",
            "the root tree",
        ),
        Finding::UuidMissing { subvolume, uuid } => planned(
            Edit::Uuid {
                subvolume: *subvolume,
                uuid: *uuid,
                exists: true,
            },
            "add the subvolume to the uuid tree",
            "the root item",
        ),
        Finding::UuidWrong { subvolume, uuid } => planned(
            Edit::Uuid {
                subvolume: *subvolume,
                uuid: *uuid,
                exists: false,
            },
            "remove the subvolume from this uuid of the uuid tree",
            "the root item",
        ),
        _ => return None,
    };
    Some(found)
}

/// Plans edits of quota groups and of superblocks.
fn of_volume(finding: &Finding) -> Planned {
    let superblocks = planned(
        Edit::Superblocks,
        "write all superblocks again",
        "the trees of the volume",
    );
    match finding {
        Finding::QgroupCount {
            group,
            referenced,
            exclusive,
            ..
        } => planned(
            Edit::QuotaCount(group.clone(), referenced.get(), exclusive.get()),
            &format!("set the counts of quota group {group}"),
            "the references of all extents",
        ),
        Finding::QgroupMissing { group } => planned(
            Edit::QuotaGroup(group.clone()),
            &format!("create quota group {group}"),
            "the root item of the subvolume",
        ),
        Finding::QgroupRelation { group, other } => planned(
            Edit::QuotaRelation(group.clone(), other.clone()),
            &format!("record the relation of {group} and {other} on both sides, or on none"),
            "the quota tree",
        ),
        Finding::SuperblockDiffers { field, .. } if STATE_FIELDS.contains(field) => {
            superblocks.losing(Loss::Other("the state that the other superblock names"))
        }
        _ => superblocks,
    }
}

/// Returns whether a report has kept all findings of a code.
pub(super) fn is_whole(report: &Report, code: &str) -> bool {
    let kept = report.findings.iter();
    let kept = kept.filter(|reported| reported.finding.code() == code).count();
    // Clamp: a code without findings counts nothing.
    let counted = report.counts.get(code).copied().unwrap_or(0);
    counted <= buttress_exact::u64_of(kept)
}

/// Sets the loss of names whose target does not exist. The name stays if its target is made again,
/// or if another inode records it. No edit makes a missing subvolume again.
pub(super) fn settle_losses(steps: &mut BTreeMap<Edit, Step>, report: &Report) {
    let mut made: BTreeSet<(TreeId, InodeNumber)> = BTreeSet::new();
    let mut missing: BTreeSet<TreeId> = BTreeSet::new();
    for reported in &report.findings {
        match &reported.finding {
            Finding::InodeMissing { subvolume, inode } => {
                made.insert((subvolume.tree(), *inode));
            }
            Finding::SubvolumeMissing { child, .. } => {
                missing.insert(*child);
            }
            _ => {}
        }
    }
    let knows_missing = is_whole(report, "subvolume-missing");
    for (edit, step) in steps {
        let Edit::Name(tree, ..) = edit else { continue };
        let leads_to_nothing = step.codes.contains("entry-without-inode");
        let is_recorded = step.codes.contains("entry-missing") || step.codes.contains("link-missing");
        let is_made = step
            .hints
            .inodes
            .iter()
            .any(|inode| made.contains(&(*tree, *inode)));
        // A report without all missing subvolumes does not say which subvolumes exist.
        let is_of_missing = match knows_missing {
            true => !step.hints.subvolumes.is_disjoint(&missing),
            false => !step.hints.subvolumes.is_empty(),
        };
        if is_of_missing || (leads_to_nothing && !is_recorded && !is_made) {
            step.loss = Loss::Names(1);
        }
    }
}
