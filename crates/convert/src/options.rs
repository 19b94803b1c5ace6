//! The inputs of a conversion, and the features that a converted volume cannot have.

use crate::error::{Error, Result};
use buttress_format::Uuid;
use buttress_mkfs::{Feature, Identity, Options as MakeOptions};
use std::path::PathBuf;

/// The inputs of a conversion.
#[derive(Clone, Debug)]
pub struct Options {
    /// The settings of the new volume. The sector size and the profiles follow from the old file
    /// system, and an empty label is replaced by its label.
    pub make: MakeOptions,
    /// The uuids and the time of the new volume, for one device.
    pub identity: Identity,
    /// The uuid of the subvolume with the saved image.
    pub saved: Uuid,
    /// The folder for data that exceeds the memory.
    pub folder: Option<PathBuf>,
    /// The parts that the new volume leaves out.
    pub without: Without,
}

/// Parts of a volume that a conversion can leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Checksums of content. Files get the flag for it, so later writes have no checksums, too.
    pub checksums: bool,
    /// Extended attributes and ACLs.
    pub attributes: bool,
    /// Content in trees. Content in an inode of the old file system is still in a tree.
    pub inline: bool,
}

impl Options {
    /// Requires settings that a converted volume can have.
    pub(crate) fn check(&self) -> Result<()> {
        let refused = |what: String, reason| Err(Error::Setting { what, reason });
        if self.make.data.is_some() || self.make.metadata.is_some() {
            return refused("a profile".to_owned(), "the profiles follow from the free space");
        }
        if let [] | [_, _, ..] = self.identity.devices.as_slice() {
            return refused("the number of devices".to_owned(), "a conversion has one device");
        }
        for (feature, is_wanted) in &self.make.features {
            let reason = match (feature, is_wanted) {
                (Feature::MixedBlockGroups, true) => "the old content needs data chunks of its own",
                (Feature::Quotas | Feature::SimpleQuotas, true) => {
                    "enable quotas after the conversion with `buttress quota enable`"
                }
                (Feature::NoHoles | Feature::ExtendedReferences, false) => {
                    "a converted volume always has the feature"
                }
                _ => continue,
            };
            let prefix = if *is_wanted { "" } else { "^" };
            return refused(format!("feature {prefix}{}", feature.name()), reason);
        }
        Ok(())
    }
}
