//! Checksums of data.

macro_rules! checksums {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// Checksums of what is no data.
            ChecksumSurplus = "checksum-surplus", Inconsistent, Checksums {
                /// Where they begin.
                logical: Logical,
                /// How much they cover.
                length: ByteCount,
            } "checksums for {length} bytes at {logical}: no data at this address"

            /// Data of a file that should have checksums and has none.
            ChecksumMissing = "checksum-missing", Loss, Checksums {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// Where in the file.
                offset: FileOffset,
                /// Where on disk.
                logical: Logical,
                /// How much has none.
                length: ByteCount,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} bytes at {logical}"

            /// Data that does not match its checksums.
            DataDamaged = "data-damaged", Loss, Checksums {
                /// Where it begins.
                logical: Logical,
                /// How much.
                length: ByteCount,
            } "data at {logical}: {length} bytes do not match their checksums in any copy"

            /// A copy of data that does not match its checksums while another does.
            DataCopyDamaged = "data-copy-damaged", Redundancy, Checksums {
                /// Where it begins.
                logical: Logical,
                /// How much.
                length: ByteCount,
                /// Which copy, counted from 1.
                copy: u32,
                /// In which way.
                reason: String,
            } "data at {logical}: {length} bytes of copy {copy} are damaged: {reason}"

            /// Checksum items that overlap.
            ChecksumsOverlap = "checksums-overlap", Inconsistent, Checksums {
                /// Where the second one begins.
                logical: Logical,
                /// Where the first one ends.
                previous_end: Logical,
            } "checksum item at {logical} overlaps the item before it, which ends at {previous_end}"

            /// Checksums of what should have none.
            ChecksumUnexpected = "checksum-unexpected", Inconsistent, Checksums {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// Where in the file.
                offset: FileOffset,
                /// Where on disk.
                logical: Logical,
                /// Why there should be none.
                reason: &'static str,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: data at {logical} has checksums, although {reason}"

            /// Compressed data without checksums in an inode whose data has none.
            CompressedWithoutChecksums = "compressed-without-checksums", Inconsistent, Checksums {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// Where in the file.
                offset: FileOffset,
                /// Where on disk.
                logical: Logical,
                /// How much has none.
                length: ByteCount,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} compressed bytes at {logical}"
        }
    };
}

pub(super) use checksums;
