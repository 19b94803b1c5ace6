//! Tests of `mkfs --inode-flags` on files with several names.

use super::fresh;
use crate::support::stdout;
use std::fs;

#[test]
fn each_name_of_a_hard_link_takes_inode_flags() {
    for name in ["first", "second", "third"] {
        let (folder, image) = fresh();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("first"), vec![7; 20_000]).unwrap();
        fs::hard_link(tree.join("first"), tree.join("second")).unwrap();
        fs::hard_link(tree.join("first"), tree.join("third")).unwrap();
        let flags = format!("nodatacow:{name}");
        let tree = tree.to_str().unwrap();
        stdout(&["mkfs", "-q", "-r", tree, "--inode-flags", &flags, &image]);
        let items = stdout(&["inspect-internal", "dump-tree", "-t", "5", &image]);
        assert!(items.contains("NODATACOW"), "{name}: {items}");
        stdout(&["check", &image]);
    }
}
