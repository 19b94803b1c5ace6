//! The kind of repair of each finding code: an edit, or the sentence why there is none.
//!
//! A test compares [`TABLE`] with [`Finding::CODES`], so a new finding needs a row here.

use buttress_check::Finding;
use buttress_format::TreeId;

/// The part of a volume that a finding is about. The order is the order of repairs: a later part
/// relies on the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Superblocks, and the numbers that they repeat.
    Superblocks,
    /// Devices, chunks and device extents.
    Geometry,
    /// Tree blocks, and the trees that a volume must have.
    Blocks,
    /// Extents, references, block groups, free space.
    Space,
    /// Inodes, names and extents of files.
    Files,
    /// Checksums of data.
    Checksums,
    /// Places of subvolumes, and uuids.
    Places,
    /// Quota groups.
    Quotas,
}

/// The kind of repair of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairKind {
    /// Edits of items by transactions.
    Edit,
    /// A commit, which writes all superblocks again from the trees.
    Superblocks,
    /// The rebuild of the extent tree, the block groups and the free-space tree.
    Rebuild,
    /// The rebuild of the device tree, beside the trees of [`RepairKind::Rebuild`].
    RebuildDevices,
    /// The rebuild of the checksum tree, beside the trees of [`RepairKind::Rebuild`].
    RebuildChecksums,
    /// No repair in this version. The text names the command that helps today, or the reason.
    NotYet(&'static str),
    /// No repair can exist. The text gives the reason.
    Never(&'static str),
}

impl RepairKind {
    /// Returns whether the repair writes whole trees again.
    #[must_use]
    pub const fn is_rebuild(self) -> bool {
        matches!(
            self,
            Self::Rebuild | Self::RebuildDevices | Self::RebuildChecksums
        )
    }

    /// Returns the sentence why this version repairs nothing; `None` if it does.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Edit
            | Self::Superblocks
            | Self::Rebuild
            | Self::RebuildDevices
            | Self::RebuildChecksums => None,
            Self::NotYet(reason) | Self::Never(reason) => Some(reason),
        }
    }
}

/// A row of the table of repairs.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The code of the finding.
    pub code: &'static str,
    /// The part that the finding is about.
    pub part: Part,
    /// The kind of repair.
    pub kind: RepairKind,
}

const fn edit(part: Part, code: &'static str) -> Row {
    let kind = RepairKind::Edit;
    Row { code, part, kind }
}

const fn superblocks(code: &'static str) -> Row {
    let kind = RepairKind::Superblocks;
    let part = Superblocks;
    Row { code, part, kind }
}

const fn rebuild(part: Part, code: &'static str) -> Row {
    let kind = RepairKind::Rebuild;
    Row { code, part, kind }
}

const fn devices(part: Part, code: &'static str) -> Row {
    let kind = RepairKind::RebuildDevices;
    Row { code, part, kind }
}

const fn later(part: Part, code: &'static str, reason: &'static str) -> Row {
    let kind = RepairKind::NotYet(reason);
    Row { code, part, kind }
}

const fn never(part: Part, code: &'static str, reason: &'static str) -> Row {
    let kind = RepairKind::Never(reason);
    Row { code, part, kind }
}

const GEOMETRY: &str = "`buttress rescue chunk-recover` writes the chunk tree again if it is lost";
const BLOCKS: &str = "this version rebuilds only the trees of extents, block groups, free space, devices and checksums; `buttress restore` copies the readable files out";
const LOG: &str =
    "`buttress rescue zero-log` deletes the log, with the changes that were synced since the last commit";
const SCRUB: &str = "`buttress scrub start -B` repairs a copy from another copy";
const CONTENT: &str = "this version does not repair the extents of files";
const SUMS: &str = "this version does not compare the checksums with all users of the data";
const OVERLAP: &str = "this version does not choose between two checksums of the same data";

use Part::{Blocks, Checksums, Files, Geometry, Places, Quotas, Space, Superblocks};

/// All finding codes with their repairs, in the order of the check.
pub const TABLE: &[Row] = &[
    later(Blocks, "log-outside-block-group", LOG),
    later(Blocks, "log-collision", LOG),
    later(Blocks, "log-checksum-missing", LOG),
    superblocks("superblock-damaged"),
    superblocks("superblock-differs"),
    later(
        Geometry,
        "device-behind",
        "`buttress device resync` brings the device up to date",
    ),
    never(
        Geometry,
        "device-missing",
        "a repair cannot return a device: give it with --device, or run `buttress replace` or `buttress device remove missing`",
    ),
    later(
        Geometry,
        "device-too-small",
        "`buttress rescue fix-device-size` sets the size if no extent is past the end",
    ),
    superblocks("device-item-differs"),
    superblocks("device-count"),
    superblocks("total-bytes"),
    later(Geometry, "system-chunk-differs", GEOMETRY),
    later(Blocks, "tree-missing", BLOCKS),
    later(Blocks, "tree-block-damaged", BLOCKS),
    later(Superblocks, "copy-damaged", SCRUB),
    edit(Places, "default-subvolume-missing"),
    edit(Places, "root-directory"),
    rebuild(Space, "block-group-missing"),
    rebuild(Geometry, "chunk-missing"),
    rebuild(Space, "block-group-flags"),
    rebuild(Space, "block-group-used"),
    superblocks("bytes-used"),
    devices(Geometry, "device-extent-missing"),
    devices(Geometry, "stripe-missing"),
    devices(Geometry, "device-extents-overlap"),
    devices(Geometry, "device-extent-past-end"),
    devices(Geometry, "device-unknown"),
    devices(Geometry, "device-bytes-used"),
    rebuild(Space, "extents-overlap"),
    rebuild(Space, "extent-outside-block-group"),
    devices(Space, "extent-kind"),
    rebuild(Space, "reference-total"),
    rebuild(Space, "reference-without-extent"),
    rebuild(Space, "extent-missing"),
    rebuild(Space, "extent-unused"),
    rebuild(Space, "reference-missing"),
    rebuild(Space, "reference-surplus"),
    rebuild(Space, "extent-length"),
    rebuild(Space, "block-differs"),
    rebuild(Space, "owner-without-block"),
    later(Blocks, "item-unexpected", BLOCKS),
    rebuild(Space, "back-reference-flags"),
    later(Blocks, "header-flags", BLOCKS),
    later(Blocks, "block-crosses-stripe", BLOCKS),
    rebuild(Space, "references-differ"),
    rebuild(Space, "free-space-info-missing"),
    rebuild(Space, "free-space-without-block-group"),
    rebuild(Space, "free-space-count"),
    rebuild(Space, "free-space-used"),
    rebuild(Space, "free-space-lost"),
    edit(Files, "inode-missing"),
    edit(Files, "link-count"),
    edit(Files, "directory-size"),
    edit(Files, "file-bytes"),
    edit(Files, "entry-missing"),
    edit(Files, "link-missing"),
    edit(Files, "entry-without-inode"),
    edit(Files, "entry-kind"),
    edit(Files, "entries-differ"),
    edit(Files, "not-a-directory"),
    edit(Files, "root-directory-missing"),
    edit(Files, "orphan-item-missing"),
    later(Files, "file-extents-overlap", CONTENT),
    edit(Files, "hole-item-missing"),
    later(Files, "content-unexpected", CONTENT),
    edit(Files, "inode-flags"),
    later(Files, "symlink-content", CONTENT),
    edit(Files, "name-twice"),
    edit(Files, "root-directory-name"),
    edit(Files, "root-inode-missing"),
    edit(Files, "file-extent-generation"),
    later(Files, "file-extent-lengths", CONTENT),
    never(
        Files,
        "files-unexplained",
        "no single item explains the difference, so no edit would be an inference",
    ),
    Row {
        code: "checksum-surplus",
        part: Checksums,
        kind: RepairKind::RebuildChecksums,
    },
    edit(Checksums, "checksum-missing"),
    later(Checksums, "checksums-overlap", OVERLAP),
    later(Checksums, "checksum-unexpected", SUMS),
    later(Checksums, "compressed-without-checksums", SUMS),
    never(
        Checksums,
        "data-damaged",
        "no copy has the data; another generation, a snapshot or a backup may have it",
    ),
    later(Checksums, "data-copy-damaged", SCRUB),
    edit(Places, "root-reference"),
    edit(Places, "subvolume-entry-missing"),
    edit(Places, "subvolume-unreachable"),
    edit(Places, "subvolume-missing"),
    edit(Places, "root-orphan-item-missing"),
    edit(Places, "uuid-missing"),
    edit(Places, "uuid-wrong"),
    edit(Quotas, "qgroup-count"),
    edit(Quotas, "qgroup-missing"),
    edit(Quotas, "qgroup-relation"),
];

/// Returns the repair of a finding code; `None` for a code that no finding has.
#[must_use]
pub fn row(code: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.code == code)
}

/// Returns the repair of a finding. The rebuild also repairs damaged blocks of the trees that it
/// replaces.
#[must_use]
pub fn of(finding: &Finding) -> RepairKind {
    let (Finding::TreeBlockDamaged { tree, .. }
    | Finding::TreeMissing { tree }
    | Finding::ItemUnexpected { tree, .. }) = finding
    else {
        return of_code(finding);
    };
    match *tree {
        TreeId::EXTENT | TreeId::FREE_SPACE | TreeId::BLOCK_GROUP => RepairKind::Rebuild,
        TreeId::DEVICE => RepairKind::RebuildDevices,
        TreeId::CHECKSUM => RepairKind::RebuildChecksums,
        // The rebuild needs the items of all other trees.
        _ => of_code(finding),
    }
}

fn of_code(finding: &Finding) -> RepairKind {
    // Clamp: a test compares the table with all codes, so the default never occurs.
    row(finding.code()).map_or(RepairKind::NotYet("the code has no repair"), |row| row.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_code_once_in_order() {
        let codes: Vec<&str> = Finding::CODES.iter().map(|(code, ..)| *code).collect();
        let mut rows: Vec<&str> = TABLE.iter().map(|row| row.code).collect();
        let mut sorted = codes.clone();
        sorted.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, sorted);
    }

    #[test]
    fn reasons_are_sentences_without_a_full_stop() {
        for row in TABLE {
            let Some(reason) = row.kind.reason() else { continue };
            assert!(
                reason.len() > 20 && !reason.ends_with('.'),
                "{}: {reason}",
                row.code
            );
        }
    }
}
