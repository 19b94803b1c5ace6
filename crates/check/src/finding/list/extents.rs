//! Chunks, block groups, extents and references.

macro_rules! extents {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A chunk without a block group.
            BlockGroupMissing = "block-group-missing", Unsafe, Extents {
                /// Where the chunk begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "chunk {logical} ({length} bytes) has no block group"

            /// A block group without a chunk.
            ChunkMissing = "chunk-missing", Loss, Extents {
                /// Where the block group begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "block group {logical} ({length} bytes) has no chunk"

            /// A block group and its chunk are of different kinds.
            BlockGroupFlagsDiffer = "block-group-flags", Unsafe, Extents {
                /// Where they begin.
                logical: Logical,
                /// The block group's.
                group: String,
                /// The chunk's.
                chunk: String,
            } "block group {logical}: flags differ from its chunk (found {group}, expected {chunk})"

            /// A block group counts its extents wrongly.
            BlockGroupUsed = "block-group-used", Unsafe, Extents {
                /// Where it begins.
                logical: Logical,
                /// What it says.
                stored: ByteCount,
                /// The sum of its extents.
                counted: ByteCount,
            } "block group {logical}: wrong used bytes (found {stored}, expected {counted})"

            /// The superblock counts extents wrongly.
            BytesUsed = "bytes-used", Inconsistent, Extents {
                /// What it says.
                stored: ByteCount,
                /// The sum of all extents.
                counted: ByteCount,
            } "superblock: wrong used bytes (found {stored}, expected {counted})"

            /// A stripe of a chunk without the device extent that holds its place.
            DeviceExtentMissing = "device-extent-missing", Unsafe, Extents {
                /// The chunk.
                chunk: Logical,
                /// The device.
                device: DeviceId,
                /// Where the stripe begins on it.
                physical: Physical,
                /// How long it is.
                length: ByteCount,
            } "chunk {chunk}: no device extent for its stripe on device {device} at {physical} ({length} bytes)"

            /// A device extent without the stripe of a chunk.
            StripeMissing = "stripe-missing", Inconsistent, Extents {
                /// The device.
                device: DeviceId,
                /// Where the extent begins on it.
                physical: Physical,
                /// How long it is.
                length: ByteCount,
                /// The chunk that it says it belongs to.
                chunk: Logical,
            } "device {device}: the extent at {physical} ({length} bytes) names chunk {chunk}, which has no such stripe"

            /// Two device extents overlap.
            DeviceExtentsOverlap = "device-extents-overlap", Loss, Extents {
                /// The device.
                device: DeviceId,
                /// Where the second one begins.
                physical: Physical,
                /// Where the first one ends.
                previous_end: Physical,
            } "device {device}: the extent at {physical} overlaps the extent before it, which ends at {previous_end}"

            /// A device extent that ends past the device.
            DeviceExtentPastEnd = "device-extent-past-end", Loss, Extents {
                /// The device.
                device: DeviceId,
                /// Where the extent ends.
                end: Physical,
                /// How large the device is.
                size: ByteCount,
            } "device {device}: an extent ends past the device (found {end}, expected at most {size})"

            /// A device extent on a device that the volume does not have.
            DeviceUnknown = "device-unknown", Loss, Extents {
                /// The device.
                device: DeviceId,
            } "device {device}: it has extents, but no device item"

            /// A device item counts its extents wrongly.
            DeviceBytesUsed = "device-bytes-used", Inconsistent, Extents {
                /// The device.
                device: DeviceId,
                /// What its item says.
                stored: ByteCount,
                /// The sum of its extents.
                counted: ByteCount,
            } "device {device}: wrong used bytes in its item (found {stored}, expected {counted})"

            /// Two extents overlap.
            ExtentsOverlap = "extents-overlap", Loss, Extents {
                /// Where the second one begins.
                logical: Logical,
                /// Where the first one ends.
                previous_end: Logical,
            } "extent {logical} overlaps the extent before it, which ends at {previous_end}"

            /// An extent that does not lie in one block group.
            ExtentOutsideBlockGroup = "extent-outside-block-group", Loss, Extents {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "extent {logical} ({length} bytes) is not contained in a block group"

            /// An extent in a block group of another kind.
            ExtentKind = "extent-kind", Inconsistent, Extents {
                /// Where it begins.
                logical: Logical,
                /// What it holds.
                kind: &'static str,
                /// What its block group is for.
                group: String,
            } "extent {logical} contains {kind}, but its block group is {group}"

            /// An extent whose number of references is not the sum of those that are recorded.
            ReferenceTotal = "reference-total", Unsafe, Extents {
                /// The extent.
                logical: Logical,
                /// The number that it says.
                stored: u64,
                /// The sum of its references.
                counted: u64,
            } "extent {logical}: wrong reference count (found {stored}, expected {counted})"

            /// A recorded reference to an extent that there is no item of.
            ReferenceWithoutExtent = "reference-without-extent", Inconsistent, Extents {
                /// The reference's key.
                key: Key,
            } "reference {key}: no extent item at its address"

            /// Something is used that no extent says so.
            ExtentMissing = "extent-missing", Unsafe, Extents {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
                /// One of its users.
                user: Reference,
            } "extent {logical} ({length} bytes): used by {user}, but it has no extent item"

            /// An extent that nothing uses.
            ExtentUnused = "extent-unused", Inconsistent, Extents {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "extent {logical} ({length} bytes) is not used"

            /// A reference that is not recorded, or less often than it is there.
            ReferenceMissing = "reference-missing", Unsafe, Extents {
                /// The extent.
                logical: Logical,
                /// The reference.
                user: Reference,
                /// How often it is recorded.
                recorded: u64,
                /// How often it is there.
                found: u64,
            } "extent {logical}: missing references from {user} (found {recorded} recorded, expected {found})"

            /// A reference that is recorded more often than it is there.
            ReferenceSurplus = "reference-surplus", Inconsistent, Extents {
                /// The extent.
                logical: Logical,
                /// The reference.
                user: Reference,
                /// How often it is recorded.
                recorded: u64,
                /// How often it is there.
                found: u64,
            } "extent {logical}: too many references from {user} (found {recorded} recorded, expected {found})"

            /// A file's extent that is not as long as the one on disk.
            ExtentLength = "extent-length", Unsafe, Extents {
                /// The extent.
                logical: Logical,
                /// Its length.
                length: ByteCount,
                /// The length that a file extent item says.
                found: ByteCount,
            } "extent {logical}: wrong length in a file extent item (found {found}, expected {length})"

            /// An extent item of a tree block that says another level or generation than the block.
            BlockDiffers = "block-differs", Inconsistent, Extents {
                /// The block.
                logical: Logical,
                /// The field.
                field: &'static str,
                /// What the extent item says.
                recorded: u64,
                /// What the block says.
                found: u64,
            } "block {logical}: wrong {field} in its extent item (found {recorded}, expected {found})"

            /// A tree block that counts what is below it for a tree that does not hold the block.
            OwnerWithoutBlock = "owner-without-block", Unsafe, Extents {
                /// The block.
                logical: Logical,
                /// Its level.
                level: u8,
                /// The tree.
                owner: TreeId,
                /// In which way.
                problem: &'static str,
            } "block {logical} (level {level}) records its children for tree {owner}, which {problem}"

            /// More references differ than were looked into.
            ReferencesDiffer = "references-differ", Unsafe, Extents {
                /// In how many stretches of addresses.
                stretches: u64,
            } "references differ in {stretches} more address ranges, which were not examined"

            /// An item of a type that its tree does not hold.
            ItemUnexpected = "item-unexpected", Inconsistent, Extents {
                /// The tree.
                tree: TreeId,
                /// The leaf.
                logical: Logical,
                /// The item's key.
                key: Key,
            } "tree {tree}: leaf {logical} contains the item {key}, which does not belong in this tree"

            /// Tree blocks whose children are recorded by name although they must be by address, or the other way round.
            BackReferenceFlags = "back-reference-flags", Unsafe, Extents {
                /// The block.
                logical: Logical,
                /// Its level.
                level: u8,
                /// The tree that it was made for.
                owner: TreeId,
                /// In which way.
                problem: &'static str,
            } "block {logical} (level {level}) of tree {owner}: {problem}"

            /// A header whose flags have no meaning, or do not fit its tree.
            HeaderFlags = "header-flags", Inconsistent, Extents {
                /// The tree.
                tree: TreeId,
                /// The block.
                logical: Logical,
                /// Its level.
                level: u8,
                /// The flags.
                flags: u64,
                /// The revision of its back references.
                revision: u8,
                /// In which way.
                problem: &'static str,
            } "block {logical} (level {level}) of tree {tree}: {problem} (flags {flags:#x}, revision {revision})"

            /// A tree block that lies in two stripes.
            BlockCrossesStripe = "block-crosses-stripe", Inconsistent, Extents {
                /// The block.
                logical: Logical,
                /// Its length.
                length: ByteCount,
            } "block {logical} ({length} bytes) crosses a stripe boundary"
        }
    };
}

pub(super) use extents;
