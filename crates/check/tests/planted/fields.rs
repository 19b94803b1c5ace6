//! Tests of the fields of findings: numbers, names, affected files.

use crate::{check_it, text};
use buttress_check::Finding;
use buttress_format::{FileKind, InodeItem, ItemType, TreeId};
use buttress_hostile::editor::{Editor, add};
use buttress_hostile::plants::{self, named};

const NBYTES: usize = 24;
const NLINK: usize = 40;

/// Returns the findings of a damaged volume.
fn found(plant: &str) -> Vec<Finding> {
    let plant = named(plant);
    let report = check_it(&plant.make(), plant.reads_data);
    let findings = report.findings.into_iter();
    findings.map(|reported| reported.finding).collect()
}

/// Returns the files that the first finding affects.
fn affected(plant: &str) -> Vec<Vec<u8>> {
    let plant = named(plant);
    let report = check_it(&plant.make(), plant.reads_data);
    report.findings[0].affected.clone()
}

/// Changes all files of the top-level directory.
pub(crate) fn plant_many(editor: &mut Editor) {
    for (key, data) in editor.items(TreeId::FS) {
        if key.item_type == ItemType::INODE_ITEM
            && InodeItem::parse(&key, &data).is_ok_and(|inode| inode.kind() == FileKind::Regular)
        {
            editor.data(TreeId::FS, &key, |data| add(data, NLINK, 1));
            editor.data(TreeId::FS, &key, |data| add(data, NBYTES, 4096));
        }
    }
}

#[test]
fn findings_have_recorded_and_expected_counts() {
    let links = found("link-count");
    assert!(
        matches!(&links[..], [Finding::LinkCount { stored, counted, .. }] if u64::from(*stored) == counted + 1),
        "{links:?}"
    );
    let references = found("reference-surplus");
    assert!(
        matches!(&references[..], [Finding::ReferenceSurplus { recorded, found, .. }] if *recorded == *found + 1),
        "{references:?}"
    );
    let superblock = found("superblock-differs");
    assert!(
        matches!(
            &superblock[..],
            [Finding::SuperblockDiffers {
                field: "bytes_used",
                ..
            }]
        ),
        "{superblock:?}"
    );
}

#[test]
fn finding_names_missing_form_of_name() {
    for (plant, expected) in [
        ("entry-missing-index", "DIR_INDEX"),
        ("entry-missing-item", "DIR_ITEM"),
    ] {
        let found = found(plant);
        assert!(
            matches!(&found[..], [Finding::EntryMissing { missing, .. }] if *missing == expected),
            "{found:?}"
        );
    }
}

#[test]
fn missing_owner_differs_from_owner_without_block() {
    let there = found("owner-without-block");
    let is = |found: &[Finding], expected: &str| matches!(found, [Finding::OwnerWithoutBlock { level: 0, problem, .. }] if *problem == expected);
    assert!(is(&there, "does not hold it"), "{there:?}");
    assert_eq!(affected("owner-without-block"), [b"/".to_vec()]);
    let mut editor = plants::seed("kinds");
    let [Finding::OwnerWithoutBlock { logical, .. }] = &there[..] else {
        return;
    };
    let tree = editor.open().tree(TreeId::FS).unwrap();
    let mut leaves = tree.leaves(.., buttress_tree::ReadAhead::None);
    let first = loop {
        let leaf = leaves.next().unwrap().unwrap();
        if leaf.block.logical() == *logical {
            break leaf.block.key(0).unwrap();
        }
    };
    editor.owner(TreeId::FS, &first, TreeId::new(9999));
    let report = check_it(&editor, false);
    let findings: Vec<_> = report.findings.iter().map(|one| one.finding.clone()).collect();
    assert!(is(&findings, "does not exist"), "{}", text(&report));
}

#[test]
fn what_is_damaged_is_told_with_its_place_and_its_files() {
    let data = found("data-damaged");
    assert!(
        matches!(&data[..], [Finding::DataDamaged { length, .. }] if length.get() == 4096),
        "{data:?}"
    );
    assert!(!affected("data-damaged").is_empty());
    let root = plants::seed("quota-xxhash").open().tree(TreeId::FS).unwrap();
    let root = root.root().logical;
    let copy = found("copy-damaged");
    assert!(
        matches!(&copy[..], [Finding::CopyDamaged { logical, .. }] if *logical == root),
        "{copy:?}"
    );
}
