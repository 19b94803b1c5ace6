//! Findings about chunks, block groups, extents and references.

macro_rules! extents {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A chunk without a block group.
            BlockGroupMissing = "block-group-missing", Unsafe, Extents {
                /// The logical address of the chunk.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "chunk {logical} ({length} bytes) has no block group"

            /// A block group without a chunk.
            ChunkMissing = "chunk-missing", Loss, Extents {
                /// The logical address of the block group.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "block group {logical} ({length} bytes) has no chunk"

            /// A block group and its chunk have different types or profiles.
            BlockGroupFlagsDiffer = "block-group-flags", Unsafe, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The type and profile of the block group.
                group: String,
                /// The type and profile of the chunk.
                chunk: String,
            } "block group {logical}: flags differ from its chunk (found {group}, expected {chunk})"

            /// The used bytes of a block group differ from the sum of its extents.
            BlockGroupUsed = "block-group-used", Unsafe, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The recorded value.
                stored: ByteCount,
                /// The sum that the check counted over the block group's extents.
                counted: ByteCount,
            } "block group {logical}: wrong used bytes (found {stored}, expected {counted})"

            /// The used bytes in the superblock differ from the sum of all extents.
            BytesUsed = "bytes-used", Inconsistent, Extents {
                /// The recorded value.
                stored: ByteCount,
                /// The sum that the check counted over all extents.
                counted: ByteCount,
            } "superblock: wrong used bytes (found {stored}, expected {counted})"

            /// A stripe of a chunk without a device extent.
            DeviceExtentMissing = "device-extent-missing", Unsafe, Extents {
                /// The logical address of the chunk.
                chunk: Logical,
                /// The id of the device.
                device: DeviceId,
                /// The offset of the stripe on the device.
                physical: Physical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "chunk {chunk}: no device extent for its stripe on device {device} at {physical} ({length} bytes)"

            /// A device extent without a stripe of a chunk.
            StripeMissing = "stripe-missing", Inconsistent, Extents {
                /// The id of the device.
                device: DeviceId,
                /// The offset of the device extent.
                physical: Physical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
                /// The logical address of the chunk that the device extent names.
                chunk: Logical,
            } "device {device}: the extent at {physical} ({length} bytes) names chunk {chunk}, which has no such stripe"

            /// Two device extents overlap.
            DeviceExtentsOverlap = "device-extents-overlap", Loss, Extents {
                /// The id of the device.
                device: DeviceId,
                /// The offset at which the second device extent begins.
                physical: Physical,
                /// The offset at which the first device extent ends.
                previous_end: Physical,
            } "device {device}: the extent at {physical} overlaps the extent before it, which ends at {previous_end}"

            /// A device extent that ends past the device.
            DeviceExtentPastEnd = "device-extent-past-end", Loss, Extents {
                /// The id of the device.
                device: DeviceId,
                /// The offset at which the device extent ends.
                end: Physical,
                /// The size of the device, in bytes.
                size: ByteCount,
            } "device {device}: an extent ends past the device (found {end}, expected at most {size})"

            /// A device extent on a device that the volume does not have.
            DeviceUnknown = "device-unknown", Loss, Extents {
                /// The id of the device.
                device: DeviceId,
            } "device {device}: it has extents, but no device item"

            /// The used bytes of a device item differ from the sum of its device extents.
            DeviceBytesUsed = "device-bytes-used", Inconsistent, Extents {
                /// The id of the device.
                device: DeviceId,
                /// The value in the device item.
                stored: ByteCount,
                /// The sum that the check counted over the device's extents.
                counted: ByteCount,
            } "device {device}: wrong used bytes in its item (found {stored}, expected {counted})"

            /// Two extents overlap.
            ExtentsOverlap = "extents-overlap", Loss, Extents {
                /// The logical address at which the second range begins.
                logical: Logical,
                /// The logical address at which the first range ends.
                previous_end: Logical,
            } "extent {logical} overlaps the extent before it, which ends at {previous_end}"

            /// An extent that is not completely in one block group.
            ExtentOutsideBlockGroup = "extent-outside-block-group", Loss, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "extent {logical} ({length} bytes) is not contained in a block group"

            /// An extent in a block group of another type.
            ExtentKind = "extent-kind", Inconsistent, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The extent's content: data or a tree block.
                kind: &'static str,
                /// The type of the block group.
                group: String,
            } "extent {logical} contains {kind}, but its block group is {group}"

            /// An extent whose number of references differs from the sum of its recorded
            /// references.
            ReferenceTotal = "reference-total", Unsafe, Extents {
                /// The logical address of the extent.
                logical: Logical,
                /// The recorded number of references.
                stored: u64,
                /// The sum that the check counted over the extent's references.
                counted: u64,
            } "extent {logical}: wrong reference count (found {stored}, expected {counted})"

            /// A recorded reference to an extent without an extent item.
            ReferenceWithoutExtent = "reference-without-extent", Inconsistent, Extents {
                /// The key of the reference item.
                key: Key,
            } "reference {key}: no extent item at its address"

            /// A range in use by a file or tree, without an extent item.
            ExtentMissing = "extent-missing", Unsafe, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
                /// An example of the references to the extent.
                user: Reference,
            } "extent {logical} ({length} bytes): used by {user}, but it has no extent item"

            /// An extent without any reference to it.
            ExtentUnused = "extent-unused", Inconsistent, Extents {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "extent {logical} ({length} bytes) is not used"

            /// A reference that is recorded less often than it exists, or not at all.
            ReferenceMissing = "reference-missing", Unsafe, Extents {
                /// The logical address of the extent.
                logical: Logical,
                /// The reference whose count in the extent tree differs from the counted one.
                user: Reference,
                /// The count of the reference in the extent tree.
                recorded: u64,
                /// How often the reference exists in trees.
                found: u64,
            } "extent {logical}: missing references from {user} (found {recorded} recorded, expected {found})"

            /// A reference that is recorded more often than it exists.
            ReferenceSurplus = "reference-surplus", Inconsistent, Extents {
                /// The logical address of the extent.
                logical: Logical,
                /// The reference whose recorded count differs from the counted one.
                user: Reference,
                /// How often the extent tree records the reference.
                recorded: u64,
                /// How often the reference exists in trees.
                found: u64,
            } "extent {logical}: too many references from {user} (found {recorded} recorded, expected {found})"

            /// A file extent item whose extent length differs from the extent item.
            ExtentLength = "extent-length", Unsafe, Extents {
                /// The logical address of the extent.
                logical: Logical,
                /// The length of the extent or tree block, in bytes.
                length: ByteCount,
                /// The length in a file extent item.
                found: ByteCount,
            } "extent {logical}: wrong length in a file extent item (found {found}, expected {length})"

            /// An extent item of a tree block whose level or generation differs from the block.
            BlockDiffers = "block-differs", Inconsistent, Extents {
                /// The logical address of the tree block.
                logical: Logical,
                /// The name of the differing field.
                field: &'static str,
                /// The value in the extent item.
                recorded: u64,
                /// The value that the tree block records.
                found: u64,
            } "block {logical}: wrong {field} in its extent item (found {recorded}, expected {found})"

            /// A tree block with keyed references to its children in the name of a tree that does
            /// not hold the block.
            OwnerWithoutBlock = "owner-without-block", Unsafe, Extents {
                /// The logical address of the tree block.
                logical: Logical,
                /// The level of the tree block.
                level: u8,
                /// The id of the tree.
                owner: TreeId,
                /// A description of the problem.
                problem: &'static str,
            } "block {logical} (level {level}) records its children for tree {owner}, which {problem}"

            /// More references differ than the check compares one by one.
            ReferencesDiffer = "references-differ", Unsafe, Extents {
                /// The number of further address ranges in which references differ.
                stretches: u64,
            } "references differ in {stretches} more address ranges, which were not examined"

            /// An item whose type does not belong in its tree.
            ItemUnexpected = "item-unexpected", Inconsistent, Extents {
                /// The id of the tree.
                tree: TreeId,
                /// The logical address of the leaf.
                logical: Logical,
                /// The key of the item.
                key: Key,
            } "tree {tree}: leaf {logical} contains the item {key}, which does not belong in this tree"

            /// A tree block with keyed references to its children that must be full back
            /// references, or the reverse.
            BackReferenceFlags = "back-reference-flags", Unsafe, Extents {
                /// The logical address of the tree block.
                logical: Logical,
                /// The level of the tree block.
                level: u8,
                /// The tree for which the block was made.
                owner: TreeId,
                /// A description of the problem.
                problem: &'static str,
            } "block {logical} (level {level}) of tree {owner}: {problem}"

            /// A tree block header with unknown flags, or with flags that its tree cannot have.
            HeaderFlags = "header-flags", Inconsistent, Extents {
                /// The id of the tree.
                tree: TreeId,
                /// The logical address of the tree block.
                logical: Logical,
                /// The level of the tree block.
                level: u8,
                /// The flags in the block's header.
                flags: u64,
                /// The back reference revision in the block's header.
                revision: u8,
                /// A description of the problem.
                problem: &'static str,
            } "block {logical} (level {level}) of tree {tree}: {problem} (flags {flags:#x}, revision {revision})"

            /// A tree block that crosses a stripe boundary.
            BlockCrossesStripe = "block-crosses-stripe", Inconsistent, Extents {
                /// The logical address of the tree block.
                logical: Logical,
                /// The length of the extent or tree block, in bytes.
                length: ByteCount,
            } "block {logical} ({length} bytes) crosses a stripe boundary"
        }
    };
}

pub(super) use extents;
