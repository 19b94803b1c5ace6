//! Findings about checksums of data.

macro_rules! checksums {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// Checksums of a range that is not data.
            ChecksumSurplus = "checksum-surplus", Inconsistent, Checksums {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the range that the checksums cover, in bytes.
                length: ByteCount,
            } "checksums for {length} bytes at {logical}: no data at this address"

            /// Data of a file that must have checksums and has none.
            ChecksumMissing = "checksum-missing", Loss, Checksums {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The logical address of the data.
                logical: Logical,
                /// The length of the data without checksums, in bytes.
                length: ByteCount,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} bytes at {logical}"

            /// Data that does not match its checksums.
            DataDamaged = "data-damaged", Loss, Checksums {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the damaged data, in bytes.
                length: ByteCount,
            } "data at {logical}: {length} bytes do not match their checksums in any copy"

            /// A copy of data that does not match its checksums, while another copy matches.
            DataCopyDamaged = "data-copy-damaged", Redundancy, Checksums {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the damaged data, in bytes.
                length: ByteCount,
                /// The number of the copy, counted from 1.
                copy: u32,
                /// A description of the problem.
                reason: String,
            } "data at {logical}: {length} bytes of copy {copy} are damaged: {reason}"

            /// Checksum items that overlap.
            ChecksumsOverlap = "checksums-overlap", Inconsistent, Checksums {
                /// The logical address at which the second of the two ranges begins.
                logical: Logical,
                /// The logical address at which the first range ends.
                previous_end: Logical,
            } "checksum item at {logical} overlaps the item before it, which ends at {previous_end}"

            /// Checksums of data that must have none.
            ChecksumUnexpected = "checksum-unexpected", Inconsistent, Checksums {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The logical address of the data.
                logical: Logical,
                /// The reason why the data must have no checksums.
                reason: &'static str,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: data at {logical} has checksums, although {reason}"

            /// Compressed data without checksums in an inode whose data has none.
            CompressedWithoutChecksums = "compressed-without-checksums", Inconsistent, Checksums {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The logical address of the data.
                logical: Logical,
                /// The length of the data without checksums, in bytes.
                length: ByteCount,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: no checksums for {length} compressed bytes at {logical}"
        }
    };
}

pub(super) use checksums;
