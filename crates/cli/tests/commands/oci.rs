//! Tests of `buttress mkfs --oci`: the volume of a layout that umoci packed equals the tree that
//! umoci unpacks.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{failure, stdout};

/// An OCI layout with an image of several layers, and the folders of its tools.
struct Layout {
    folder: tempfile::TempDir,
}

impl Layout {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let layout = Self { folder };
        layout.umoci(&["init", "--layout", "layout"]);
        layout.umoci(&["new", "--image", "layout:one"]);
        layout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn umoci(&self, words: &[&str]) {
        let output = Command::new("umoci")
            .args(words)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Unpacks all layers so far into a directory.
    fn unpack(&self) -> PathBuf {
        let _ = fs::remove_dir_all(self.path("bundle"));
        self.umoci(&["unpack", "--image", "layout:one", "bundle"]);
        self.path("bundle/rootfs")
    }

    /// Adds a layer with the changes that `change` makes.
    fn layer(&self, change: impl FnOnce(&Path)) {
        let root = self.unpack();
        change(&root);
        self.umoci(&["repack", "--image", "layout:one", "bundle"]);
    }

    /// Returns the bytes of the volume that mkfs creates with these arguments.
    fn volume(&self, words: &[&str], image: &str) -> Vec<u8> {
        let image = self.path(image);
        let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args([
                "mkfs",
                "-q",
                "-U",
                "12345678-1234-1234-1234-123456789abc",
                "--shrink",
            ])
            .args(words)
            .arg(&image)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("DETERMINISTIC_SEED", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::read(image).unwrap()
    }

    fn layout(&self) -> String {
        format!("{}:one", self.path("layout").display())
    }
}

fn three_layers() -> Layout {
    let layout = Layout::new();
    layout.layer(|root| {
        for directory in ["etc", "usr/bin", "old/deep", "kept"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for name in ["etc/a", "etc/gone", "old/1", "old/deep/2", "kept/file"] {
            fs::write(root.join(name), name).unwrap();
        }
        fs::write(root.join("usr/bin/tool"), vec![b't'; 300_000]).unwrap();
        fs::set_permissions(root.join("usr/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/same")).unwrap();
        symlink("tool", root.join("usr/bin/link")).unwrap();
        chown(root.join("etc/a"), Some(1000), Some(1001)).unwrap();
    });
    layout.layer(|root| {
        // The layer removes a name and a directory, and replaces an entry.
        fs::remove_file(root.join("etc/gone")).unwrap();
        fs::remove_dir_all(root.join("old")).unwrap();
        fs::create_dir(root.join("old")).unwrap();
        fs::write(root.join("old/new"), "new").unwrap();
    });
    layout.layer(|root| {
        // A file replaces a directory, and a directory replaces a file.
        fs::remove_dir_all(root.join("kept")).unwrap();
        fs::write(root.join("kept"), "now a file").unwrap();
        fs::remove_file(root.join("etc/a")).unwrap();
        fs::create_dir(root.join("etc/a")).unwrap();
        fs::write(root.join("etc/a/b"), "b").unwrap();
    });
    layout
}

#[test]
fn layers_make_the_volume_that_their_unpacked_tree_makes() {
    if skips(any_missing(&["umoci", "root"])) {
        return;
    }
    let layout = three_layers();
    let from_layers = layout.volume(&["--oci", &layout.layout()], "layers.img");
    let root = layout.unpack();
    let from_tree = layout.volume(&["--rootdir", root.to_str().unwrap()], "tree.img");
    if from_layers != from_tree {
        let plan = |image: &str| stdout(&["manifest", layout.path(image).to_str().unwrap()]);
        assert_eq!(plan("layers.img"), plan("tree.img"));
        panic!("the plans are the same, the bytes are not");
    }
    let text = stdout(&[
        "check",
        "--check-data-csum",
        layout.path("layers.img").to_str().unwrap(),
    ]);
    assert!(text.contains("no error found"), "{text}");
}

#[test]
fn each_layer_s_state_is_kept_where_that_is_asked_for() {
    if skips(any_missing(&["umoci", "root"])) {
        return;
    }
    let layout = three_layers();
    layout.volume(
        &["--oci", &layout.layout(), "--layer-snapshots", "layers"],
        "volume.img",
    );
    let image = layout.path("volume.img");
    let image = image.to_str().unwrap();
    let cat = |path: &str| stdout(&["cat", &format!("{image}:{path}")]);
    assert_eq!(cat("/layers/1/etc/gone"), "etc/gone");
    assert_eq!(cat("/layers/1/old/deep/2"), "old/deep/2");
    assert_eq!(cat("/layers/2/old/new"), "new");
    assert_eq!(cat("/layers/2/kept/file"), "kept/file");
    assert_eq!(cat("/layers/3/kept"), "now a file");
    assert_eq!(cat("/etc/a/b"), "b");
    for gone in ["/layers/2/etc/gone", "/layers/2/old/1", "/layers/3/old/deep"] {
        let (code, error) = failure(&["cat", &format!("{image}:{gone}")]);
        assert!(code == 1 && error.contains("no such file"), "{gone}: {error}");
    }
    // Content shared by layers is stored once.
    let extent = |path: &str| {
        let map = stdout(&["fiemap", "-v", &format!("{image}:{path}")]);
        let line = map
            .lines()
            .find(|line| line.contains("shared"))
            .map(str::to_owned);
        line.unwrap_or_else(|| panic!("{path} shares nothing: {map}"))
    };
    for layer in 1..=3 {
        assert_eq!(
            extent(&format!("/layers/{layer}/usr/bin/tool")),
            extent("/usr/bin/same")
        );
    }
    let text = stdout(&["check", "--check-data-csum", image]);
    assert!(text.contains("no error found"), "{text}");
}
