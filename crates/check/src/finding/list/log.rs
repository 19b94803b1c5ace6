//! The pending log.

macro_rules! log {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A block or an extent of the log that lies in no block group for it.
            LogOutsideBlockGroup = "log-outside-block-group", Loss, Log {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
                /// What it is.
                kind: &'static str,
            } "log: {kind} at {logical} ({length} bytes) is in no block group of its kind"

            /// A block or an extent of the log where something else lies.
            LogCollision = "log-collision", Unsafe, Log {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
                /// What it is.
                kind: &'static str,
                /// What is there.
                other: &'static str,
            } "log: {kind} at {logical} ({length} bytes) overlaps {other}"

            /// Data of a logged file that should have checksums and has none, neither in the log nor outside it.
            LogChecksumMissing = "log-checksum-missing", Loss, Log {
                /// The subvolume.
                subvolume: TreeId,
                /// The inode.
                inode: InodeNumber,
                /// Where in the file.
                offset: FileOffset,
                /// Where on disk.
                logical: Logical,
                /// How much has none.
                length: ByteCount,
            } "log of subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} bytes at {logical}"
        }
    };
}

pub(super) use log;
