//! The reasons why a change of quotas is refused, and why a quota limit refuses a write.

use buttress_format::{ByteCount, QgroupId};

/// The reason why a change of quotas or of a quota group is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaRefusal {
    /// The volume has no quotas.
    #[error("quotas are not enabled; run `buttress quota enable IMAGE`")]
    NotEnabled,
    /// The quota group does not exist.
    #[error("quota group {group} does not exist; `buttress qgroup show IMAGE` lists all groups")]
    NoGroup {
        /// The requested group.
        group: QgroupId,
    },
    /// The quota group exists already.
    #[error("quota group {group} exists already")]
    Exists {
        /// The requested group.
        group: QgroupId,
    },
    /// The id belongs to a subvolume, whose group is made with the subvolume.
    #[error(
        "quota group {group} belongs to a subvolume and is made with it; give a group of level 1 or higher"
    )]
    OfSubvolume {
        /// The requested group.
        group: QgroupId,
    },
    /// The quota group has members.
    #[error("quota group {group} has members; remove them with `buttress qgroup remove`")]
    HasMembers {
        /// The requested group.
        group: QgroupId,
    },
    /// The subvolume of the quota group exists, or its space is not free yet.
    #[error(
        "quota group {group} is in use by its subvolume; delete the subvolume, and run `buttress subvolume sync IMAGE`"
    )]
    InUse {
        /// The requested group.
        group: QgroupId,
    },
    /// The parent's level is not higher than the member's.
    #[error(
        "quota group {member} cannot be a member of {parent}: the parent needs a higher level than {}",
        .member.level()
    )]
    Levels {
        /// The requested member.
        member: QgroupId,
        /// The requested parent.
        parent: QgroupId,
    },
    /// The relation exists already.
    #[error("quota group {member} is a member of {parent} already")]
    IsMember {
        /// The requested member.
        member: QgroupId,
        /// The requested parent.
        parent: QgroupId,
    },
    /// The relation does not exist.
    #[error("quota group {member} is not a member of {parent}")]
    NotMember {
        /// The requested member.
        member: QgroupId,
        /// The requested parent.
        parent: QgroupId,
    },
    /// Simple quotas have no rescan.
    #[error("simple quotas count each extent when it is made and have no rescan")]
    NoRescan,
}

/// A quota limit that refuses a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quota group {group}: the limit of {limit} {} bytes is reached (found {used} used, {wanted} more wanted); \
     delete files, or raise the limit with `buttress qgroup limit SIZE {group} IMAGE`",
    if *.exclusive { "exclusive" } else { "referenced" }
)]
pub struct QuotaExceeded {
    /// The quota group with the limit.
    pub group: QgroupId,
    /// Whether the limit is on exclusive bytes; otherwise it is on referenced bytes.
    pub exclusive: bool,
    /// The limit.
    pub limit: ByteCount,
    /// The bytes that the group uses, dirty data included.
    pub used: ByteCount,
    /// The bytes that the write needs in addition.
    pub wanted: ByteCount,
}
