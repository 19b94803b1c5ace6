//! The errors of chunks: one variant for each check.

use super::STRIPE_BYTES;
use crate::block_group::Profile;

/// The check that a chunk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkProblem {
    /// The chunk's sector size is not the volume's.
    #[error("chunk has a sector size of {chunk_bytes} bytes, expected {volume_bytes}")]
    SectorSize {
        /// The sector size in the chunk.
        chunk_bytes: u32,
        /// The sector size in the superblock.
        volume_bytes: u32,
    },
    /// The length is zero or not whole sectors.
    #[error("chunk is {length_bytes} bytes long, expected a multiple of {sector_bytes} above zero")]
    Length {
        /// The length.
        length_bytes: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The chunk has more stripe units than an index of 32 bits can number.
    #[error("chunk is {length_bytes} bytes long, expected at most {limit_bytes}")]
    TooLong {
        /// The length.
        length_bytes: u64,
        /// The smallest length that is too long.
        limit_bytes: u64,
    },
    /// The stripe length is not the one that btrfs uses.
    #[error("chunk has a stripe length of {stripe_bytes} bytes, expected {STRIPE_BYTES}")]
    StripeLength {
        /// The stripe length.
        stripe_bytes: u64,
    },
    /// The type has bits without a meaning.
    #[error("chunk type 0x{flags:x} has unknown bits")]
    FlagsUnknown {
        /// The type and profile bits.
        flags: u64,
    },
    /// More than one profile bit is set.
    #[error("chunk type 0x{flags:x} names more than one profile")]
    SeveralProfiles {
        /// The type and profile bits.
        flags: u64,
    },
    /// No type bit is set.
    #[error("chunk type is 0x{flags:x}, expected data, metadata or system")]
    TypeMissing {
        /// The type and profile bits.
        flags: u64,
    },
    /// System is mixed with another type.
    #[error("chunk type 0x{flags:x} mixes system with data or metadata")]
    SystemMixed {
        /// The type and profile bits.
        flags: u64,
    },
    /// Data and metadata share a chunk on a volume without mixed block groups.
    #[error("chunk type 0x{flags:x} mixes data and metadata, but the volume has no MIXED_GROUPS feature")]
    MixedWithoutFeature {
        /// The type and profile bits.
        flags: u64,
    },
    /// The number of stripes does not fit the profile.
    #[error("chunk of profile {profile} has {stripes} stripes, expected {least}{}", or_more(*profile))]
    StripeCount {
        /// The profile.
        profile: Profile,
        /// The number of stripes in the chunk.
        stripes: u16,
        /// The minimum number of stripes of the profile.
        least: u16,
    },
    /// The stripes of a RAID10 chunk do not form pairs.
    #[error("chunk of profile RAID10 has {sub_stripes} sub-stripes and {stripes} stripes, expected pairs")]
    SubStripes {
        /// The number of copies of each stripe.
        sub_stripes: u16,
        /// The number of stripes in the chunk.
        stripes: u16,
    },
}

fn or_more(profile: Profile) -> &'static str {
    if profile.max_stripes().is_none() {
        " or more"
    } else {
        ""
    }
}
