//! Changes of fields that only the superblock holds: features, the fsid, and the seed flag.
//!
//! A change waits in [`Tuning`] until the next commit, which writes it with the superblock. The
//! running volume keeps its old features: blocks that are read later are checked by the features of
//! the opening. A caller that changes features therefore commits, closes the volume, and opens it
//! again.
//!
//! Invariant: tree blocks never change with the fsid. They carry the metadata uuid, which stays.
//!
//! Left out: a new fsid for volumes of several devices. A crash between the superblock writes of
//! two devices would leave different fsids, which neither Linux nor this version opens together.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfstune(8).

use buttress_format::superblock::SuperblockFlags;
use buttress_format::{Incompat, Superblock, Uuid};
use buttress_fs::error::{Error, Result};

/// Changes that the next commit writes with the superblock.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    incompat: Incompat,
    fsid: Option<Uuid>,
    becomes_seed: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            incompat: Incompat::empty(),
            fsid: None,
            becomes_seed: false,
        }
    }
}

impl Tuning {
    /// Applies the changes to a superblock.
    pub(crate) fn apply(&self, superblock: &mut Superblock) {
        superblock.incompat |= self.incompat;
        if let Some(fsid) = self.fsid {
            superblock.fsid = fsid;
            let differs = fsid != superblock.metadata_uuid;
            superblock.incompat.set(Incompat::METADATA_UUID, differs);
        }
        if self.becomes_seed {
            superblock.flags |= SuperblockFlags::SEEDING;
        }
    }

    /// Sets feature flags.
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

    /// Changes the fsid of a volume with so many devices.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a nil fsid, and for several devices.
    pub fn change_fsid(&mut self, fsid: Uuid, devices: usize) -> Result<()> {
        if fsid.is_nil() {
            return Err(Error::Invalid {
                what: "the fsid of a volume must not be nil",
            });
        }
        if devices != 1 {
            return Err(Error::Invalid {
                what: "the fsid of a volume on several devices cannot be changed yet; use `btrfstune -m`",
            });
        }
        self.fsid = Some(fsid);
        Ok(())
    }

    /// Makes the volume a seed. A volume that is a seed refuses to be opened for writing.
    pub const fn make_seed(&mut self) {
        self.becomes_seed = true;
    }
}
