//! Findings about the pending log.

macro_rules! log {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A log block or an extent of the log outside of block groups of its type.
            LogOutsideBlockGroup = "log-outside-block-group", Loss, Log {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
                /// The kind of the object: a log block or data.
                kind: &'static str,
            } "log: {kind} at {logical} ({length} bytes) is in no block group of its kind"

            /// A log block or an extent of the log at an address that another object uses.
            LogCollision = "log-collision", Unsafe, Log {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
                /// The kind of the object: a log block or data.
                kind: &'static str,
                /// The kind of the other object at this address.
                other: &'static str,
            } "log: {kind} at {logical} ({length} bytes) overlaps {other}"

            /// Data of a logged file that must have checksums and has none, neither in the log nor
            /// outside of it.
            LogChecksumMissing = "log-checksum-missing", Loss, Log {
                /// The id of the subvolume.
                subvolume: TreeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The logical address of the data.
                logical: Logical,
                /// The length of the data without checksums, in bytes.
                length: ByteCount,
            } "log of subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} bytes at {logical}"
        }
    };
}

pub(super) use log;
