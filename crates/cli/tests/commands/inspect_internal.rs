//! Tests of `inspect-internal` on the tour's volume: text and JSON agree, damage is reported, and
//! nothing else fails. The proofs compare the text with that of btrfs-progs, if this program and
//! the kernel are available.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use support::{buttress, failure, image, inside, stdout};

fn json(words: &[&str]) -> Value {
    let mut words = words.to_vec();
    words.extend(["--format", "json"]);
    serde_json::from_str(&stdout(&words)).unwrap()
}

fn image_name() -> &'static str {
    image().to_str().unwrap()
}

#[test]
fn a_dump_holds_the_same_blocks_and_items_as_text_and_as_json() {
    let text = stdout(&["inspect-internal", "dump-tree", image_name()]);
    let document = json(&["inspect-internal", "dump-tree", image_name()]);
    assert_eq!(document["__header"]["version"], "1");
    let elements = document["dump-tree"].as_array().unwrap();
    let of_kind = |kind: &str| elements.iter().filter(|element| element["kind"] == kind).count();
    let leaf_lines = text
        .lines()
        .filter(|line| line.starts_with("leaf ") && line.contains(" items "))
        .count();
    let node_lines = text
        .lines()
        .filter(|line| line.starts_with("node ") && line.contains(" items "))
        .count();
    assert_eq!((of_kind("leaf"), of_kind("node")), (leaf_lines, node_lines));
    assert!(leaf_lines > 8);
    let items: usize = elements
        .iter()
        .filter_map(|element| Some(element["items"].as_array()?.len()))
        .sum();
    assert_eq!(
        items,
        text.lines().filter(|line| line.starts_with("\titem ")).count()
    );
    assert_eq!(of_kind("totals"), 1);
}

#[test]
fn both_orders_print_the_same_blocks() {
    let sorted = |order: &str| {
        let text = stdout(&["inspect-internal", "dump-tree", order, image_name()]);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted("--bfs"), sorted("--dfs"));
}

#[test]
fn statistics_count_the_blocks_that_a_dump_prints() {
    for tree in [2, 5, 7] {
        let id = tree.to_string();
        let dump = json(&["inspect-internal", "dump-tree", "-t", &id, image_name()]);
        let blocks = dump["dump-tree"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|element| element["kind"] == "leaf" || element["kind"] == "node")
            .count();
        let statistics = json(&["inspect-internal", "tree-stats", "-t", &id, image_name()]);
        assert_eq!(statistics["tree-stats"][0]["blocks"], blocks, "tree {tree}");
    }
}

#[test]
fn a_file_is_found_by_its_inode_and_by_its_addresses() {
    let dump = json(&["inspect-internal", "dump-tree", image_name()]);
    let (tree, extent) = dump["dump-tree"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|element| Some((element["tree"].as_u64()?, element["items"].as_array()?)))
        .flat_map(|(tree, items)| items.iter().map(move |item| (tree, item)))
        .find(|(_, item)| item["type_name"] == "regular" && item["disk_byte"] != 0)
        .unwrap();
    let inode = extent["key"]["objectid"].as_u64().unwrap().to_string();
    let address = extent["disk_byte"].as_u64().unwrap().to_string();
    let subvolume = tree.to_string();
    let top = inside("/");
    let paths = stdout(&[
        "--subvolid",
        &subvolume,
        "inspect-internal",
        "inode-resolve",
        &inode,
        &top,
    ]);
    let first = paths.lines().next().unwrap();
    let found = stdout(&[
        "inspect-internal",
        "logical-resolve",
        "-o",
        &address,
        image_name(),
    ]);
    assert!(
        found.lines().any(|line| line == first),
        "{first} not in:\n{found}"
    );
    let references = stdout(&[
        "inspect-internal",
        "logical-resolve",
        "-P",
        "-o",
        &address,
        image_name(),
    ]);
    let (start, end) = (format!("inode {inode} offset "), format!(" root {subvolume}"));
    assert!(
        references
            .lines()
            .any(|line| line.starts_with(&start) && line.ends_with(&end))
    );
    let file = inside(first);
    assert_eq!(
        stdout(&["inspect-internal", "rootid", &file]),
        format!("{subvolume}\n")
    );
}

#[test]
fn chunks_and_superblocks_as_json() {
    let chunks = json(&["inspect-internal", "list-chunks", image_name()]);
    let chunks = chunks["list-chunks"].as_array().unwrap();
    assert!(chunks.iter().any(|chunk| chunk["type"] == "System"));
    let superblock = json(&["inspect-internal", "dump-super", "-f", image_name()]);
    let superblock = &superblock["dump-super"][0];
    assert_eq!(superblock["magic"], "_BHRfS_M");
    assert_eq!(superblock["csum_match"], true);
    assert_eq!(superblock["backup_roots"].as_array().unwrap().len(), 4);
}

#[test]
fn missing_objects_are_errors() {
    let image = image_name();
    for (words, said) in [
        (
            &["inspect-internal", "dump-tree", "-t", "9999", image][..],
            "no tree 9999",
        ),
        (
            &["inspect-internal", "dump-tree", "-b", "12345", image],
            "multiple of the sector size",
        ),
        (
            &["inspect-internal", "dump-super", "-s", "2", image],
            "too short for a superblock at",
        ),
        (
            &["inspect-internal", "logical-resolve", "1", image],
            "logical address 1",
        ),
        (
            &["inspect-internal", "inode-resolve", "999999999", image],
            "no such inode",
        ),
        (&["inspect-internal", "tree-stats", "-t", "9999", image], "9999"),
    ] {
        let (code, stderr) = failure(words);
        assert_eq!(code, 1, "{words:?}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
    assert_eq!(
        failure(&["inspect-internal", "dump-tree", "-t", "bogus", image]).0,
        2
    );
}

#[test]
fn a_damaged_leaf_is_named_and_the_rest_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    fs::copy(image(), &copy).unwrap();
    let copy_name = copy.to_str().unwrap();
    let dump = json(&["inspect-internal", "dump-tree", "-r", copy_name]);
    let roots = dump["dump-tree"].as_array().unwrap();
    let uuid_root = roots.iter().find(|root| root["tree"] == 9).unwrap()["block"]
        .as_u64()
        .unwrap();
    // Each copy of the block has its address at byte 48.
    let file = fs::File::options().read(true).write(true).open(&copy).unwrap();
    let mut head = [0; 56];
    for place in (0..file.metadata().unwrap().len() - 4096).step_by(4096) {
        file.read_exact_at(&mut head, place).unwrap();
        if head[48..] == uuid_root.to_le_bytes() {
            file.write_all_at(b"damage", place + 2000).unwrap();
        }
    }
    let output = buttress(&["inspect-internal", "dump-tree", copy_name]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(&uuid_root.to_string()) && stderr.contains("checksum"),
        "{stderr}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("uuid tree key"));
    assert!(text.contains("\nfs tree key (FS_TREE ROOT_ITEM 0) \n") && text.contains("\ntotal bytes "));
    // If the damaged block is addressed directly, the command prints it, with the error.
    let address = uuid_root.to_string();
    let output = buttress(&["inspect-internal", "dump-tree", "-b", &address, copy_name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("leaf {address} ")));
}
