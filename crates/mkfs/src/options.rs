//! The options of a new volume, and the checks of their combinations.
//!
//! Defaults are those of btrfs-progs 6.19: nodes of 16 KiB, crc32c, metadata in two copies (DUP on
//! one device, RAID1 on several), data single, and the features extref, skinny-metadata, no-holes,
//! free-space-tree and block-group-tree.
//!
//! Source: mkfs.btrfs(8), sections "Options", "Filesystem features" and "Profiles".

use super::Error;
use buttress_format::{ByteCount, ChecksumType, CompatRo, Incompat, Profile};

/// A feature that the user can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Data and metadata share block groups.
    MixedBlockGroups,
    /// A file may have more hard links in one directory than fit one item.
    ExtendedReferences,
    /// RAID5 and RAID6. RAID profiles of this kind also set the feature.
    Raid56,
    /// Tree blocks have short extent items.
    SkinnyMetadata,
    /// Holes of files have no items.
    NoHoles,
    /// A tree stores the free space.
    FreeSpaceTree,
    /// RAID1C3 and RAID1C4. RAID profiles of this kind also set the feature.
    Raid1C34,
    /// Block group items have a tree of their own.
    BlockGroupTree,
    /// Quotas that count an extent for every subvolume that references it.
    Quotas,
    /// Quotas that count an extent for the subvolume that created it.
    SimpleQuotas,
}

/// The quotas of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quotas {
    /// Quotas of [`Feature::Quotas`].
    Full,
    /// Quotas of [`Feature::SimpleQuotas`].
    Simple,
}

impl Feature {
    /// All features, in the order of mkfs.btrfs's list.
    pub const ALL: [Self; 10] = [
        Self::MixedBlockGroups,
        Self::Quotas,
        Self::ExtendedReferences,
        Self::Raid56,
        Self::SkinnyMetadata,
        Self::NoHoles,
        Self::FreeSpaceTree,
        Self::Raid1C34,
        Self::BlockGroupTree,
        Self::SimpleQuotas,
    ];

    /// Returns the name of the feature in mkfs.btrfs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MixedBlockGroups => "mixed-bg",
            Self::ExtendedReferences => "extref",
            Self::Raid56 => "raid56",
            Self::SkinnyMetadata => "skinny-metadata",
            Self::NoHoles => "no-holes",
            Self::FreeSpaceTree => "free-space-tree",
            Self::Raid1C34 => "raid1c34",
            Self::BlockGroupTree => "block-group-tree",
            Self::Quotas => "quota",
            Self::SimpleQuotas => "squota",
        }
    }

    /// Returns the feature of this name; `fst` and `bgt` abbreviate two of them.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = match name {
            "fst" => "free-space-tree",
            "bgt" => "block-group-tree",
            name => name,
        };
        Self::ALL.into_iter().find(|feature| feature.name() == name)
    }

    /// Returns true if a volume has the feature by default.
    #[must_use]
    pub const fn is_default(self) -> bool {
        match self {
            Self::ExtendedReferences
            | Self::SkinnyMetadata
            | Self::NoHoles
            | Self::FreeSpaceTree
            | Self::BlockGroupTree => true,
            Self::MixedBlockGroups | Self::Raid56 | Self::Raid1C34 | Self::Quotas | Self::SimpleQuotas => {
                false
            }
        }
    }
}

/// The options of a new volume. For an option that is `None`, the default of mkfs.btrfs applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The label, at most 255 bytes.
    pub label: Vec<u8>,
    /// Size of tree blocks in bytes; 16,384 by default, the sector size with mixed block groups.
    pub node_bytes: Option<u32>,
    /// Unit of data in bytes; 4096 by default.
    pub sector_bytes: Option<u32>,
    /// The algorithm of all checksums; crc32c by default.
    pub checksum: Option<ChecksumType>,
    /// The profile of data.
    pub data: Option<Profile>,
    /// The profile of metadata.
    pub metadata: Option<Profile>,
    /// Features to set (`true`) or to clear. The last entry for each feature applies.
    pub features: Vec<(Feature, bool)>,
    /// The number of bytes to use of each device, instead of the whole device.
    pub device_bytes: Option<ByteCount>,
    /// Skips the discard of the devices' contents.
    pub keep_contents: bool,
    /// User, group and optional permissions of the root directory of an empty volume; by default
    /// root's, 0755.
    pub root_owner: Option<(u32, u32, Option<u32>)>,
}

/// The parts of a new volume that old volumes do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// True if the uuid tree is missing.
    pub uuid_tree: bool,
    /// True if the counters of device errors are missing.
    pub device_statistics: bool,
    /// True if the uuids and times of root items are missing.
    pub root_item_extensions: bool,
}

/// The checked and completed options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The label.
    pub label: Vec<u8>,
    /// Size of tree blocks.
    pub node_bytes: u32,
    /// The sector size in bytes, the unit of data.
    pub sector_bytes: u32,
    /// The algorithm of all checksums.
    pub checksum: ChecksumType,
    /// The profile of data.
    pub data: Profile,
    /// The profile of metadata.
    pub metadata: Profile,
    /// Data and metadata share block groups.
    pub mixed: bool,
    /// Features that readers must support.
    pub incompat: Incompat,
    /// Features that writers must support.
    pub compat_ro: CompatRo,
    /// The quotas. A caller that makes only empty volumes refuses them, because their numbers come
    /// with the content.
    pub quotas: Option<Quotas>,
    /// The number of bytes to use of each device, instead of all.
    pub device_bytes: Option<ByteCount>,
    /// True if the devices' contents are discarded first.
    pub discard: bool,
    /// User, group and permissions of the root directory.
    pub root_owner: Option<(u32, u32, Option<u32>)>,
    /// The features that the new volume lacks, which only tests set.
    pub(super) missing: Missing,
}

impl Settings {
    /// Checks and completes options for a number of devices.
    ///
    /// # Errors
    /// Fails if mkfs options contradict each other.
    pub fn new(options: &Options, devices: usize) -> Result<Self, Error> {
        if devices == 0 {
            return Err(Error::NoDevice);
        }
        let has = |feature| options.has(feature);
        let mixed = has(Feature::MixedBlockGroups);
        let (data, metadata) = profiles(options, devices, mixed)?;
        let (node_bytes, sector_bytes) = sizes(options, mixed)?;
        check_label(&options.label)?;
        let compat_ro = compat_ro(options)?;
        let mut incompat = Incompat::MIXED_BACKREF;
        let uses = |profiles: &[Profile]| profiles.contains(&data) || profiles.contains(&metadata);
        let flags = [
            (Incompat::MIXED_GROUPS, mixed),
            // The feature marks nodes larger than 4 KiB, once the only size.
            (Incompat::BIG_METADATA, node_bytes > 4096),
            (Incompat::EXTENDED_IREF, has(Feature::ExtendedReferences)),
            (
                Incompat::RAID56,
                has(Feature::Raid56) || uses(&[Profile::Raid5, Profile::Raid6]),
            ),
            (Incompat::SKINNY_METADATA, has(Feature::SkinnyMetadata)),
            (Incompat::NO_HOLES, has(Feature::NoHoles)),
            (
                Incompat::RAID1C34,
                has(Feature::Raid1C34) || uses(&[Profile::Raid1C3, Profile::Raid1C4]),
            ),
        ];
        for (flag, wanted) in flags {
            incompat.set(flag, wanted);
        }
        let quotas = match (has(Feature::Quotas), has(Feature::SimpleQuotas)) {
            (true, true) => return Err(Error::BothQuotas),
            (true, false) => Some(Quotas::Full),
            (false, true) => Some(Quotas::Simple),
            (false, false) => None,
        };
        incompat.set(Incompat::SIMPLE_QUOTA, quotas == Some(Quotas::Simple));
        Ok(Self {
            label: options.label.clone(),
            node_bytes,
            sector_bytes,
            checksum: options.checksum.unwrap_or(ChecksumType::Crc32c),
            data,
            metadata,
            mixed,
            incompat,
            compat_ro,
            quotas,
            device_bytes: options.device_bytes,
            discard: !options.keep_contents,
            root_owner: options.root_owner,
            missing: Missing::default(),
        })
    }
}

impl Options {
    /// Returns true if the volume has a feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        let said = self.features.iter().rev().find(|(named, _)| *named == feature);
        said.map_or_else(
            || {
                // The block-group-tree feature is off by default if the user clears a feature that
                // it needs.
                let rests = [Feature::NoHoles, Feature::FreeSpaceTree];
                feature.is_default()
                    && (feature != Feature::BlockGroupTree || rests.iter().all(|needed| self.has(*needed)))
            },
            |(_, wanted)| *wanted,
        )
    }
}

fn profiles(options: &Options, devices: usize, mixed: bool) -> Result<(Profile, Profile), Error> {
    let default_metadata = match (mixed, devices) {
        (true, _) => Profile::Single,
        (false, 1) => Profile::Dup,
        (false, _) => Profile::Raid1,
    };
    let data = options.data.unwrap_or(Profile::Single);
    let metadata = options.metadata.unwrap_or(default_metadata);
    if mixed && data != metadata {
        return Err(Error::MixedProfiles { data, metadata });
    }
    for profile in [data, metadata] {
        if devices < usize::from(profile.min_devices()) {
            return Err(Error::TooFewDevices {
                profile,
                needed: profile.min_devices(),
                given: devices,
            });
        }
    }
    Ok((data, metadata))
}

/// Returns node size and sector size.
fn sizes(options: &Options, mixed: bool) -> Result<(u32, u32), Error> {
    const LARGEST: u32 = 65536;
    let sector_bytes = options.sector_bytes.unwrap_or(4096);
    if !sector_bytes.is_power_of_two() || !(4096..=LARGEST).contains(&sector_bytes) {
        return Err(Error::SectorSize { bytes: sector_bytes });
    }
    let default_node_bytes = if mixed {
        sector_bytes
    } else {
        sector_bytes.max(16384)
    };
    let node_bytes = options.node_bytes.unwrap_or(default_node_bytes);
    if !node_bytes.is_power_of_two() || !(sector_bytes..=LARGEST).contains(&node_bytes) {
        return Err(Error::NodeSize {
            bytes: node_bytes,
            sector_bytes,
        });
    }
    if mixed && node_bytes != sector_bytes {
        return Err(Error::MixedNodeSize {
            bytes: node_bytes,
            sector_bytes,
        });
    }
    Ok((node_bytes, sector_bytes))
}

fn check_label(label: &[u8]) -> Result<(), Error> {
    if label.len() > 255 || label.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r')) {
        return Err(Error::Label { bytes: label.len() });
    }
    Ok(())
}

fn compat_ro(options: &Options) -> Result<CompatRo, Error> {
    let mut compat_ro = CompatRo::empty();
    if options.has(Feature::FreeSpaceTree) {
        compat_ro |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
    }
    if options.has(Feature::BlockGroupTree) {
        if !(options.has(Feature::FreeSpaceTree) && options.has(Feature::NoHoles)) {
            return Err(Error::FeatureNeeds {
                feature: Feature::BlockGroupTree.name(),
                needed: "free-space-tree and no-holes",
            });
        }
        compat_ro |= CompatRo::BLOCK_GROUP_TREE;
    }
    Ok(compat_ro)
}
