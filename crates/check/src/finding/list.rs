//! The findings, in a module for each step.
//!
//! Each module of the list is a macro that appends its findings to the previous ones and calls the
//! next macro. The last macro, [`findings`], makes the enum.

mod checksums;
mod extents;
mod files;
mod free_space;
mod log;
mod places;
mod quotas;
mod roots;

use super::{Field, Grade, Level, Reference, Subject, Value, findings};
use crate::report::Step;
use buttress_format::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Key, Logical, Physical, SubvolumeId, TreeId,
};
use buttress_fs::Name;
use checksums::checksums;
use core::fmt;
use extents::extents;
use files::files;
use free_space::free_space;
use log::log;
use places::places;
use quotas::quotas;
use roots::roots;
use uuid::Uuid;

log! { [roots extents free_space files checksums places quotas findings] }

impl Finding {
    /// Returns the subject of the finding.
    #[must_use]
    pub const fn subject(&self) -> Subject {
        match self {
            Self::TreeBlockDamaged { logical, .. }
            | Self::CopyDamaged { logical, .. }
            | Self::ExtentsOverlap { logical, .. }
            | Self::ExtentOutsideBlockGroup { logical, .. }
            | Self::ExtentKind { logical, .. }
            | Self::ReferenceTotal { logical, .. }
            | Self::ReferenceSurplus { logical, .. }
            | Self::ExtentLength { logical, .. }
            | Self::BlockDiffers { logical, .. }
            | Self::OwnerWithoutBlock { logical, .. }
            | Self::ItemUnexpected { logical, .. }
            | Self::BackReferenceFlags { logical, .. }
            | Self::HeaderFlags { logical, .. }
            | Self::BlockCrossesStripe { logical, .. }
            | Self::DataDamaged { logical, .. }
            | Self::DataCopyDamaged { logical, .. } => Subject::Address(*logical),
            Self::ExtentMissing { user, logical, .. } | Self::ReferenceMissing { user, logical, .. } => {
                match user {
                    Reference::Data { tree, inode, .. } => match tree.as_subvolume() {
                        Some(subvolume) => Subject::Inode(subvolume, *inode),
                        None => Subject::Tree(*tree),
                    },
                    Reference::TreeBlock { tree } => Subject::Tree(*tree),
                    Reference::SharedBlock { .. } | Reference::SharedData { .. } => {
                        Subject::Address(*logical)
                    }
                }
            }
            Self::InodeMissing { subvolume, inode }
            | Self::LinkCount { subvolume, inode, .. }
            | Self::DirectorySize { subvolume, inode, .. }
            | Self::FileBytes { subvolume, inode, .. }
            | Self::EntryMissing { subvolume, inode, .. }
            | Self::LinkMissing { subvolume, inode, .. }
            | Self::NotADirectory { subvolume, inode }
            | Self::OrphanItemMissing { subvolume, inode }
            | Self::FileExtentsOverlap { subvolume, inode, .. }
            | Self::HoleItemMissing { subvolume, inode, .. }
            | Self::ContentUnexpected { subvolume, inode }
            | Self::InodeFlags { subvolume, inode, .. }
            | Self::SymlinkContent { subvolume, inode }
            | Self::FileExtentGeneration { subvolume, inode, .. }
            | Self::FileExtentLengths { subvolume, inode, .. }
            | Self::ChecksumUnexpected { subvolume, inode, .. }
            | Self::CompressedWithoutChecksums { subvolume, inode, .. }
            | Self::ChecksumMissing { subvolume, inode, .. } => Subject::Inode(*subvolume, *inode),
            Self::EntryWithoutInode {
                subvolume, directory, ..
            }
            | Self::EntryKind {
                subvolume, directory, ..
            }
            | Self::EntriesDiffer {
                subvolume, directory, ..
            }
            | Self::NameTwice {
                subvolume, directory, ..
            } => Subject::Inode(*subvolume, *directory),
            Self::RootDirectory { subvolume, .. }
            | Self::RootDirectoryName { subvolume, .. }
            | Self::RootDirectoryMissing { subvolume }
            | Self::FilesUnexplained { subvolume } => Subject::Tree(subvolume.tree()),
            Self::TreeMissing { tree } => Subject::Tree(*tree),
            Self::LogChecksumMissing { subvolume, inode, .. } => match subvolume.as_subvolume() {
                Some(subvolume) => Subject::Inode(subvolume, *inode),
                None => Subject::Tree(*subvolume),
            },
            Self::RootReference { child, .. }
            | Self::SubvolumeEntryMissing { child, .. }
            | Self::SubvolumeMissing { child, .. } => Subject::Tree(*child),
            Self::SubvolumeUnreachable { subvolume }
            | Self::RootOrphanItemMissing { subvolume }
            | Self::UuidMissing { subvolume, .. }
            | Self::UuidWrong { subvolume, .. } => Subject::Tree(*subvolume),
            _ => Subject::Volume,
        }
    }
}
