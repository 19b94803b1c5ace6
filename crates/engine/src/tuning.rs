//! Changes of fields that only the superblock holds: features, flags, and the checksum type.
//!
//! A change of superblock fields is pending in [`Tuning`] until the next commit, which writes it
//! with the superblock. The running volume keeps its old features: blocks that are read later are
//! checked by the features of the opening. A caller that changes features therefore commits, closes
//! the volume, and opens it again.
//!
//! Left out: the fsid. A commit would give the superblocks of several devices different fsids and
//! different generations, so a change of the fsid writes superblocks without a commit.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfstune(8).

use buttress_format::superblock::SuperblockFlags;
use buttress_format::{ChecksumType, Generation, Incompat, Superblock};
use buttress_fs::error::{Error, Result};

/// Changes that the next commit writes with the superblock.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    incompat: Incompat,
    set: SuperblockFlags,
    cleared: SuperblockFlags,
    checksum_type: Option<ChecksumType>,
    has_no_cache: bool,
    has_no_uuid_tree: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            incompat: Incompat::empty(),
            set: SuperblockFlags::empty(),
            cleared: SuperblockFlags::empty(),
            checksum_type: None,
            has_no_cache: false,
            has_no_uuid_tree: false,
        }
    }
}

impl Tuning {
    /// Applies the changes to a superblock.
    pub(crate) fn apply(&self, superblock: &mut Superblock) {
        superblock.incompat |= self.incompat;
        superblock.flags = superblock.flags.difference(self.cleared).union(self.set);
        if let Some(checksum_type) = self.checksum_type {
            superblock.checksum_type = checksum_type;
        }
        if self.has_no_cache {
            superblock.cache_generation = Generation::MAX;
        }
        if self.has_no_uuid_tree {
            superblock.uuid_tree_generation = Generation::MIN;
        }
    }

    /// Sets feature flags of the volume.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] for a feature that needs more than its flag.
    pub fn add_features(&mut self, features: Incompat) -> Result<()> {
        let by_flag = Incompat::EXTENDED_IREF | Incompat::SKINNY_METADATA | Incompat::NO_HOLES;
        if !by_flag.contains(features) {
            return Err(Error::Invalid {
                what: "only extref, skinny-metadata and no-holes are set by a flag alone",
            });
        }
        self.incompat |= features;
        Ok(())
    }

    /// Makes the volume a seed. A volume that is a seed refuses to be opened for writing.
    pub const fn make_seed(&mut self) {
        self.set = self.set.union(SuperblockFlags::SEEDING);
    }

    /// Sets flags of an unfinished change, and clears others.
    pub(crate) const fn change_flags(&mut self, set: SuperblockFlags, cleared: SuperblockFlags) {
        self.set = self.set.difference(cleared).union(set);
        self.cleared = self.cleared.difference(set).union(cleared);
    }

    /// Changes the checksum type that the superblock names.
    pub(crate) const fn set_checksum_type(&mut self, checksum_type: ChecksumType) {
        self.checksum_type = Some(checksum_type);
    }

    /// Records that the volume has no v1 free space cache.
    pub(crate) const fn forget_cache(&mut self) {
        self.has_no_cache = true;
    }

    /// Records that the volume has no uuid tree, or that the tree is incomplete.
    pub(crate) const fn forget_uuid_tree(&mut self) {
        self.has_no_uuid_tree = true;
    }
}
