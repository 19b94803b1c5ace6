//! The reasons why a balance cannot start, resume or end.

use buttress_format::Profile;

/// The reason why a balance cannot start, resume or end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceRefusal {
    /// A balance is in progress or paused.
    #[error(
        "a balance is in progress or paused; run `buttress balance resume` to continue it, or `buttress balance cancel` to end it"
    )]
    InProgress,
    /// No balance is in progress or paused.
    #[error("no balance is in progress")]
    NotInProgress,
    /// Another thread or process runs the balance.
    #[error("the balance is already running")]
    Running,
    /// The volume's devices are being changed.
    #[error(
        "no balance is possible: the exclusive operation '{running}' is in progress; wait until it has ended"
    )]
    Excluded {
        /// The operation, by Linux's name.
        running: &'static str,
    },
    /// A device is being replaced.
    #[error(
        "no balance is run while a device is being replaced; finish that with `buttress replace start`, or end it with `buttress replace cancel`"
    )]
    Replacing,
    /// Balance filters of data and metadata must be equal, because both share block groups.
    #[error(
        "balance: data and metadata share block groups on this volume, so -d and -m must both be given with the same filters"
    )]
    MixedFilters,
    /// The target is not a valid profile.
    #[error("balance: convert of {kind}: no profile (found the bits 0x{target:x})")]
    TargetInvalid {
        /// The type of block groups.
        kind: &'static str,
        /// The profile bits of the balance's target.
        target: u64,
    },
    /// The volume has too few devices for the target.
    #[error(
        "balance: convert of {kind} to {profile}: too few devices (found {found}, expected at least {expected})"
    )]
    TooFewDevices {
        /// The type of the block groups.
        kind: &'static str,
        /// The target profile.
        profile: Profile,
        /// The number of devices that the target profile needs.
        expected: usize,
        /// The number of devices that the volume has.
        found: usize,
    },
    /// The target profile of the conversion keeps no second copy.
    #[error(
        "balance: convert of {kind} to a profile without a second copy: it reduces redundancy; to accept that, give --force"
    )]
    ReducesRedundancy {
        /// The type of block groups.
        kind: &'static str,
    },
}
