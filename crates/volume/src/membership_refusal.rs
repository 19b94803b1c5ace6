//! Reasons why a volume's devices stay as they are: a device cannot join, leave or change its size.

use buttress_format::error::ErrorKind;
use buttress_format::{ByteCount, DeviceId, Logical, Physical};

/// The reason why a change of the volume's devices is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    /// A new device, or a device after a resize, would be too small.
    #[error("{device}: too small for a device of a volume (found {size} bytes, expected at least {least})")]
    TooSmall {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The minimum size of a device.
        least: ByteCount,
    },
    /// The new device already belongs to the volume.
    #[error("{device}: already is device {id} of this volume")]
    Member {
        /// The device's name.
        device: String,
        /// The device's id.
        id: DeviceId,
    },
    /// The new device seems to hold other content.
    #[error("{device}: seems to contain {found}, which the volume would overwrite")]
    Holds {
        /// The device's name.
        device: String,
        /// The name of the content that was found.
        found: &'static str,
    },
    /// The new size exceeds the size of the device.
    #[error("{device}: the new size goes past its end (found {size} bytes, expected at least {wanted})")]
    PastEnd {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The new size.
        wanted: ByteCount,
    },
    /// The device is missing.
    #[error("device {device} is missing, so its size cannot change. Replace the device first")]
    Missing {
        /// The device's id.
        device: DeviceId,
    },
    /// The device missed commits. Its older state may still reach the part to be cut off.
    #[error("{device}: missed commits, so its size cannot change. Run `buttress device resync` first")]
    Outdated {
        /// The device's name.
        device: String,
    },
    /// No other device of the volume can be written.
    #[error(
        "device {device}: the only writable device of the volume cannot be removed. Add another device first"
    )]
    LastDevice {
        /// The device's id.
        device: DeviceId,
    },
    /// Too few devices would remain for a profile.
    #[error(
        "device {device}: block groups of profile {profile} need more devices (found {left} without it, expected at least \
         {needed}). To remove it, add another device first, or convert the profile"
    )]
    Profile {
        /// The device's id.
        device: DeviceId,
        /// The profile's name.
        profile: &'static str,
        /// The number of devices that the profile needs.
        needed: usize,
        /// The number of devices that would remain.
        left: usize,
    },
    /// Device extents occupy the part of the device to be cut off.
    #[error(
        "device {device}: {bytes} bytes of device extents are past byte {end} and were not moved (the first belongs to \
         the chunk at logical {chunk})"
    )]
    Occupied {
        /// The device's id.
        device: DeviceId,
        /// The first byte to be cut off.
        end: ByteCount,
        /// The bytes of device extents beyond the new end.
        bytes: ByteCount,
        /// The chunk of the first such device extent.
        chunk: Logical,
    },
    /// Other devices have too little unallocated space for the content of the part to be cut off.
    #[error(
        "device {device}: too little unallocated space to move {content} bytes (found {found} bytes, expected at least {wanted}). To free space, run `buttress balance start -dusage=50 -musage=50`, or add a device"
    )]
    NoPlace {
        /// The device's id.
        device: DeviceId,
        /// The bytes of content to move.
        content: ByteCount,
        /// The bytes that new chunks need.
        wanted: ByteCount,
        /// The bytes available for new chunks.
        found: ByteCount,
    },
    /// A shrink planned again and again, and each plan met an obstacle.
    #[error(
        "the volume could not be packed in {plans} attempts: {obstacle}. The volume is whole. Run the command again while nothing else uses the volume, or reach the size with `buttress filesystem resize SIZE IMAGE`"
    )]
    NotPacked {
        /// The number of plans.
        plans: usize,
        /// The obstacle of the last plan.
        obstacle: PackingObstacle,
    },
    /// A balance or another change of the volume's devices is in progress.
    #[error(
        "no {wanted} is possible: the exclusive operation '{running}' is in progress; wait until it has ended"
    )]
    Busy {
        /// The refused operation, by Linux's name.
        wanted: &'static str,
        /// The operation in progress, by Linux's name.
        running: &'static str,
    },
    /// A paused balance allows no change of the volume's devices except a new device.
    #[error(
        "no {wanted} is possible: a balance is paused; run `buttress balance resume` to continue it, or `buttress balance cancel` to end it"
    )]
    BalancePaused {
        /// The refused operation, by Linux's name.
        wanted: &'static str,
    },
}

/// The reason why a volume does not fit the plan of a shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackingObstacle {
    /// A planned chunk cannot be made at its place.
    #[error("device {device}: no chunk can be made at byte {start} (length {length} bytes)")]
    Place {
        /// The device of the chunk's first stripe.
        device: DeviceId,
        /// The planned place on the device.
        start: Physical,
        /// The length of the device extent.
        length: ByteCount,
    },
    /// The superblock's list of system chunks has no space for another chunk.
    #[error("the superblock's list of system chunks is full")]
    SystemArray,
    /// Metadata grew while content moved.
    #[error("metadata grew while content moved (found {used} bytes, expected at most {most})")]
    Metadata {
        /// The bytes of metadata in use.
        used: ByteCount,
        /// The most bytes that the plan has space for.
        most: ByteCount,
    },
}

impl MembershipRefusal {
    /// Returns the kind of the refusal.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Caller
    }
}
