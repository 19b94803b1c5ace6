//! Names of trees: on the command line, and in the headings of a dump.

use std::str::FromStr;

use buttress::TreeId;

/// Tree names on the command line; a name comes before its own prefixes. Case does not matter.
const NAMES: &[(&str, TreeId)] = &[
    ("ROOT", TreeId::ROOT),
    ("EXTENT", TreeId::EXTENT),
    ("CHUNK", TreeId::CHUNK),
    ("DEVICE", TreeId::DEVICE),
    ("DEV", TreeId::DEVICE),
    ("FS", TreeId::FS),
    ("CSUM", TreeId::CHECKSUM),
    ("CHECKSUM", TreeId::CHECKSUM),
    ("QUOTA", TreeId::QUOTA),
    ("UUID", TreeId::UUID),
    ("FREE_SPACE", TreeId::FREE_SPACE),
    ("TREE_LOG_FIXUP", TreeId::TREE_LOG_FIXUP),
    ("TREE_LOG", TreeId::TREE_LOG),
    ("TREE_RELOC", TreeId::TREE_RELOCATION),
    ("DATA_RELOC", TreeId::DATA_RELOCATION),
    ("BLOCK_GROUP", TreeId::BLOCK_GROUP),
    ("RAID_STRIPE", TreeId::RAID_STRIPE),
];

/// Optional suffixes of a name.
const SUFFIXES: [&str; 4] = ["", "_TREE", "_OBJECTID", "_TREE_OBJECTID"];

/// A tree on the command line: a number, or a name that btrfs-progs accepts (`csum`, `block-group`,
/// `FS_TREE`, `BTRFS_FS_TREE_OBJECTID`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeName(pub(super) TreeId);

impl FromStr for TreeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse() {
                Ok(number) if number > 0 => Ok(Self(TreeId::new(number))),
                _ => Err(format!("{text:?} is not the id of a tree")),
            };
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("BTRFS_").unwrap_or(&upper);
        NAMES
            .iter()
            .find(|(known, _)| matches_name(name, known))
            .map(|(_, tree)| Self(*tree))
            .ok_or_else(|| {
                let names: Vec<String> = NAMES
                    .iter()
                    .map(|(name, _)| name.to_ascii_lowercase().replace('_', "-"))
                    .collect();
                format!(
                    "unknown tree {text:?} (expected a number or one of {})",
                    names.join(", ")
                )
            })
    }
}

/// Returns whether `text` is the name, with its words joined by `_` or `-`, and one of the
/// suffixes.
fn matches_name(text: &str, name: &str) -> bool {
    let Some((head, suffix)) = text.split_at_checked(name.len()) else {
        return false;
    };
    (head == name || head == name.replace('_', "-")) && SUFFIXES.contains(&suffix)
}

/// Returns the word before `tree` in the heading of a tree's dump.
pub(super) fn heading(tree: TreeId) -> &'static str {
    match tree {
        TreeId::ROOT => "root",
        TreeId::EXTENT => "extent",
        TreeId::CHUNK => "chunk",
        TreeId::DEVICE => "device",
        TreeId::FS => "fs",
        TreeId::ROOT_DIRECTORY => "directory",
        TreeId::CHECKSUM => "checksum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::RAID_STRIPE => "raid stripe",
        TreeId::TREE_LOG => "log",
        TreeId::TREE_LOG_FIXUP => "log fixup",
        TreeId::TREE_RELOCATION => "reloc",
        TreeId::DATA_RELOCATION => "data reloc",
        _ => match tree.get() {
            ORPHAN => "orphan",
            EXTENT_CHECKSUM => "extent checksum",
            MULTIPLE => "multiple",
            _ => "file",
        },
    }
}

/// Object ids that no valid tree has, but a damaged root tree may have: -5, -10, -255.
const ORPHAN: u64 = u64::MAX - 4;
const EXTENT_CHECKSUM: u64 = u64::MAX - 9;
const MULTIPLE: u64 = u64::MAX - 254;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_btrfs_progs_takes_them() {
        let good = [
            ("fs", 5),
            ("FS_TREE", 5),
            ("fs_objectid", 5),
            ("BTRFS_FS_TREE_OBJECTID", 5),
            ("btrfs_fs", 5),
            ("005", 5),
            ("256", 256),
            ("dev", 4),
            ("device", 4),
            ("dev_tree", 4),
            ("csum", 7),
            ("checksum", 7),
            ("free-space", 10),
            ("free_space_tree", 10),
            ("block-group", 11),
            ("raid_stripe", 12),
            ("tree-log", u64::MAX - 5),
            ("tree_log_fixup", u64::MAX - 6),
            ("tree-reloc", u64::MAX - 7),
            ("data_reloc_tree", u64::MAX - 8),
            ("18446744073709551610", u64::MAX - 5),
        ];
        for (text, id) in good {
            assert_eq!(text.parse(), Ok(TreeName(TreeId::new(id))), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "0x5",
            "5x",
            "fs-tree",
            "fs_",
            "log",
            "extent_csum",
            "bogus",
            "BTRFS_",
            "é",
        ] {
            assert!(text.parse::<TreeName>().is_err(), "{text}");
        }
    }
}
