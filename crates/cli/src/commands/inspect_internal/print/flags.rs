//! Bit sets under the names that btrfs-progs prints.

/// Kinds and profiles of chunks. Bits without a name are not printed.
const BLOCK_GROUP_KINDS: [(u64, &str); 3] = [(1 << 0, "DATA"), (1 << 2, "METADATA"), (1 << 1, "SYSTEM")];
const BLOCK_GROUP_PROFILES: [(u64, &str); 8] = [
    (1 << 3, "RAID0"),
    (1 << 4, "RAID1"),
    (1 << 5, "DUP"),
    (1 << 6, "RAID10"),
    (1 << 7, "RAID5"),
    (1 << 8, "RAID6"),
    (1 << 9, "RAID1C3"),
    (1 << 10, "RAID1C4"),
];

/// Formats block group flags as `DATA|RAID1`: the kinds, then the profile. If several profile bits
/// are set, only the lowest profile is named.
pub(crate) fn block_group(flags: u64) -> String {
    let mut text = join(flags, &BLOCK_GROUP_KINDS);
    let profile = BLOCK_GROUP_PROFILES.iter().find(|(bit, _)| flags & bit != 0);
    text.push('|');
    text.push_str(profile.map_or("single", |(_, name)| name));
    text
}

/// Joins the names of the set bits with `|`.
fn join(flags: u64, names: &[(u64, &str)]) -> String {
    let mut text = String::new();
    for (bit, name) in names {
        if flags & bit != 0 {
            append(&mut text, name);
        }
    }
    text
}

fn append(text: &mut String, name: &str) {
    if !text.is_empty() {
        text.push('|');
    }
    text.push_str(name);
}

/// Formats the flags of a tree block's header, without unknown bits.
pub(crate) fn header(flags: u64) -> String {
    join(flags, &[(1 << 0, "WRITTEN"), (1 << 1, "RELOC")])
}

/// Formats the flags of an extent item.
pub(crate) fn extent(flags: u64) -> String {
    join(
        flags,
        &[(1 << 0, "DATA"), (1 << 1, "TREE_BLOCK"), (1 << 8, "FULL_BACKREF")],
    )
}

/// Formats the flags of a root item.
pub(crate) fn root(flags: u64) -> &'static str {
    if flags & 1 != 0 { "RDONLY" } else { "none" }
}

const INODE_FLAGS: [(u64, &str); 13] = [
    (1 << 0, "NODATASUM"),
    (1 << 1, "NODATACOW"),
    (1 << 2, "READONLY"),
    (1 << 3, "NOCOMPRESS"),
    (1 << 4, "PREALLOC"),
    (1 << 5, "SYNC"),
    (1 << 6, "IMMUTABLE"),
    (1 << 7, "APPEND"),
    (1 << 8, "NODUMP"),
    (1 << 9, "NOATIME"),
    (1 << 10, "DIRSYNC"),
    (1 << 11, "COMPRESS"),
    (1 << 31, "ROOT_ITEM_INIT"),
];

/// Formats the flags of an inode item: `none` without any, unknown bits as a number.
pub(crate) fn inode(flags: u64) -> String {
    let mut text = join(flags, &INODE_FLAGS);
    let unknown = flags & !INODE_FLAGS.iter().fold(0, |known, (bit, _)| known | bit);
    if unknown != 0 {
        append(&mut text, &format!("UNKNOWN: {unknown:#x}"));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

/// Formats the flags of the quota status.
pub(crate) fn quota_status(flags: u64) -> String {
    const NAMES: [(u64, &str); 3] = [
        (1 << 3, "SIMPLE_MODE"),
        (1 << 1, "SCANNING"),
        (1 << 2, "INCONSISTENT"),
    ];
    let mut text = if flags & 1 != 0 {
        "ON".to_owned()
    } else {
        "OFF".to_owned()
    };
    let rest = join(flags, &NAMES);
    if !rest.is_empty() {
        append(&mut text, &rest);
    }
    let unknown = flags & !15;
    if unknown != 0 {
        append(&mut text, &format!("UNKNOWN({unknown:#x})"));
    }
    text
}

/// Names of the superblock's flags.
pub(crate) const SUPERBLOCK_FLAGS: &[(u64, &str)] = &[
    (1 << 0, "WRITTEN"),
    (1 << 1, "RELOC"),
    (1 << 35, "CHANGING_FSID"),
    (1 << 36, "CHANGING_FSID_V2"),
    (1 << 32, "SEEDING"),
    (1 << 33, "METADUMP"),
    (1 << 34, "METADUMP_V2"),
    (1 << 38, "CHANGING_BG_TREE"),
    (1 << 39, "CHANGING_DATA_CSUM"),
    (1 << 40, "CHANGING_META_CSUM"),
];

/// Names of the read-only compatible features.
pub(crate) const COMPAT_RO_FEATURES: &[(u64, &str)] = &[
    (1 << 0, "FREE_SPACE_TREE"),
    (1 << 1, "FREE_SPACE_TREE_VALID"),
    (1 << 2, "VERITY"),
    (1 << 3, "BLOCK_GROUP_TREE"),
];

/// Names of the incompatible features.
pub(crate) const INCOMPAT_FEATURES: &[(u64, &str)] = &[
    (1 << 0, "MIXED_BACKREF"),
    (1 << 1, "DEFAULT_SUBVOL"),
    (1 << 2, "MIXED_GROUPS"),
    (1 << 3, "COMPRESS_LZO"),
    (1 << 4, "COMPRESS_ZSTD"),
    (1 << 5, "BIG_METADATA"),
    (1 << 6, "EXTENDED_IREF"),
    (1 << 7, "RAID56"),
    (1 << 8, "SKINNY_METADATA"),
    (1 << 9, "NO_HOLES"),
    (1 << 10, "METADATA_UUID"),
    (1 << 11, "RAID1C34"),
    (1 << 12, "ZONED"),
    (1 << 13, "EXTENT_TREE_V2"),
    (1 << 14, "RAID_STRIPE_TREE"),
    (1 << 16, "SIMPLE_QUOTA"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_by_name() {
        assert_eq!(block_group(0), "|single");
        assert_eq!(block_group(1), "DATA|single");
        assert_eq!(block_group(5), "DATA|METADATA|single");
        assert_eq!(block_group(7), "DATA|METADATA|SYSTEM|single");
        assert_eq!(block_group(1 | 2 | 64), "DATA|SYSTEM|RAID10");
        assert_eq!(block_group(1 | 8 | 16 | 1 << 48), "DATA|RAID0");
        assert_eq!(inode(0), "none");
        assert_eq!(inode(0x80), "APPEND");
        assert_eq!(inode(1 << 20), "UNKNOWN: 0x100000");
        assert_eq!(inode(3 | 1 << 20), "NODATASUM|NODATACOW|UNKNOWN: 0x100000");
        assert_eq!(quota_status(0), "OFF");
        assert_eq!(quota_status(0xb), "ON|SIMPLE_MODE|SCANNING");
        assert_eq!(
            quota_status(u64::MAX),
            "ON|SIMPLE_MODE|SCANNING|INCONSISTENT|UNKNOWN(0xfffffffffffffff0)"
        );
        assert_eq!(extent(0x102), "TREE_BLOCK|FULL_BACKREF");
        assert_eq!(header(0x21), "WRITTEN");
    }
}
