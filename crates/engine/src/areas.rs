//! The areas of the engine's calls: a borrowed handle for each job that is not a part of every
//! edit.
//!
//! A handle holds a reference to the [`Engine`] and no state. The module of a job adds the job's
//! calls to its handle, so [`Engine`] keeps the calls that all jobs need: edits, commits and views.

use crate::engine::Engine;

/// The balance of a volume: starts, resumes, runs and ends it.
///
/// Invariants:
/// - At most one balance exists. It excludes a replacement and changes of the devices.
/// - The balance item is durable before the first block group moves, and is removed by a commit.
#[derive(Clone, Copy, Debug)]
pub struct Balances<'e> {
    pub(crate) engine: &'e Engine,
}

/// Relocations: moves extents and tree blocks to new addresses, and removes emptied block groups.
///
/// Invariants:
/// - At most one relocation runs at a time.
/// - A relocation that ends early leaves a sound volume: moved extents stay moved.
#[derive(Clone, Copy, Debug)]
pub struct Relocations<'e> {
    pub(crate) engine: &'e Engine,
}

/// The change of the data's checksum type, in steps that each end with a commit.
///
/// Invariants:
/// - Between two steps, the checksum tree has a complete set of checksums of one type.
/// - A change that stopped can continue; before the old checksums are removed, it can be undone.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumChange<'e> {
    pub(crate) engine: &'e Engine,
}

/// Changes of the volume's features: makes and removes the trees of features, and changes the fsid
/// of devices.
///
/// Invariant: the last commit of a conversion makes the new form valid, so a crash leaves the old
/// or the new form.
#[derive(Clone, Copy, Debug)]
pub struct Conversions<'e> {
    pub(crate) engine: &'e Engine,
}

/// The devices of a volume: adds, removes, resizes and returns devices.
///
/// Invariants:
/// - At most one call at a time changes the devices (`begin_change`).
/// - The device item, the superblocks and the allocator agree after each call.
#[derive(Clone, Copy, Debug)]
pub struct MemberDevices<'e> {
    pub(crate) engine: &'e Engine,
}

/// Repairs: edits of single items, without the meaning of an operation.
///
/// Invariant: see [`item_edits`](crate::item_edits).
#[derive(Clone, Copy, Debug)]
pub struct ItemEdits<'e> {
    pub(crate) engine: &'e Engine,
}

/// The replacement of a device: starts, records and ends it.
///
/// Invariants:
/// - At most one replacement exists. It excludes a balance and changes of the devices.
/// - From the start to the end, each write to the source also goes to the target.
#[derive(Clone, Copy, Debug)]
pub struct Replacements<'e> {
    pub(crate) engine: &'e Engine,
}

/// The packing of a volume into the fewest bytes of its devices.
///
/// Invariant: a device is cut only past its last allocated byte, after the commit that empties the
/// bytes past the cut.
#[derive(Clone, Copy, Debug)]
pub struct Shrinking<'e> {
    pub(crate) engine: &'e Engine,
}

/// The discards of unused space: of free space in block groups, and of unallocated space.
///
/// Invariants:
/// - The allocator hands out no byte of a range while its discard is in progress.
/// - Space that the last durable superblock or a reader needs is never discarded.
#[derive(Clone, Copy, Debug)]
pub struct Trims<'e> {
    pub(crate) engine: &'e Engine,
}

impl Engine {
    /// Returns the calls that start, resume, run and end the balance.
    pub const fn balances(&self) -> Balances<'_> {
        Balances { engine: self }
    }

    /// Returns the calls that move content to new addresses.
    pub const fn relocations(&self) -> Relocations<'_> {
        Relocations { engine: self }
    }

    /// Returns the calls that change the type of the checksums of data.
    pub const fn checksum_change(&self) -> ChecksumChange<'_> {
        ChecksumChange { engine: self }
    }

    /// Returns the calls that make and remove the trees of features.
    pub const fn conversions(&self) -> Conversions<'_> {
        Conversions { engine: self }
    }

    /// Returns the calls that add, remove, resize and return devices.
    pub const fn devices(&self) -> MemberDevices<'_> {
        MemberDevices { engine: self }
    }

    /// Returns the calls that start, record and end the replacement of a device.
    pub const fn replacements(&self) -> Replacements<'_> {
        Replacements { engine: self }
    }

    /// Returns the calls that pack the volume and cut its devices.
    pub const fn shrinking(&self) -> Shrinking<'_> {
        Shrinking { engine: self }
    }

    /// Returns the calls that discard unused space.
    pub const fn trims(&self) -> Trims<'_> {
        Trims { engine: self }
    }
}
