//! Tests of commands that change a volume: subvolumes, properties, the label, overlays; and errors
//! of two of them.

use std::path::PathBuf;

use super::support::{failure, stdout};
use super::{check, fresh, made};

#[test]
fn subvolumes_are_made_snapshotted_made_default_and_deleted() {
    let (_folder, image) = made();
    let at = |path: &str| format!("{image}:{path}");
    assert_eq!(
        stdout(&["subvolume", "create", &at("/a")]),
        format!("Create subvolume '{}'\n", at("/a"))
    );
    stdout(&["subvolume", "create", "-p", &at("/deep/er/b")]);
    let text = stdout(&["subvolume", "snapshot", "-r", &at("/a"), &at("/deep")]);
    assert!(text.starts_with("Create readonly snapshot of "), "{text}");
    let list = stdout(&["subvolume", "list", &image]);
    assert!(
        list.contains("path a\n") && list.contains("path deep/er/b\n") && list.contains("path deep/a\n"),
        "{list}"
    );
    stdout(&["subvolume", "set-default", &at("/a")]);
    assert!(stdout(&["subvolume", "get-default", &image]).contains("path a"));
    assert!(failure(&["subvolume", "delete", &at("/a")]).1.contains("default"));
    stdout(&["subvolume", "set-default", "5", &image]);
    stdout(&["subvolume", "delete", &at("/a"), &at("/deep/a")]);
    assert_eq!(stdout(&["subvolume", "list", &image]).lines().count(), 1);
    assert!(
        failure(&["subvolume", "delete", &at("/deep")])
            .1
            .contains("is not a subvolume")
    );
    assert!(
        failure(&["subvolume", "create", &at("/deep")])
            .1
            .contains("exists")
    );
    stdout(&["filesystem", "sync", &image]);
    check(&image);
}

#[test]
fn properties_and_the_label_are_set_and_shown() {
    let (_folder, image) = made();
    let at = |path: &str| format!("{image}:{path}");
    stdout(&["subvolume", "create", &at("/a")]);
    assert_eq!(stdout(&["property", "get", &at("/a")]), "ro=false\n");
    stdout(&["property", "set", "-t", "subvol", &at("/a"), "ro", "true"]);
    assert_eq!(stdout(&["property", "get", &at("/a"), "ro"]), "ro=true\n");
    stdout(&["property", "set", &at("/"), "compression", "zstd"]);
    assert_eq!(
        stdout(&["property", "get", "-t", "inode", &at("/")]),
        "compression=zstd\n"
    );
    stdout(&["property", "set", &at("/"), "compression", ""]);
    assert_eq!(stdout(&["property", "get", "-t", "inode", &at("/")]), "");
    stdout(&["filesystem", "label", &image, "other"]);
    assert_eq!(stdout(&["property", "get", &image, "label"]), "label=other\n");
    assert!(
        failure(&["property", "set", &at("/a"), "ro", "maybe"])
            .1
            .contains("true or false")
    );
    assert!(
        failure(&["property", "set", "-t", "inode", &at("/a"), "ro", "true"])
            .1
            .contains("does not belong to this type")
    );
    check(&image);
}

#[test]
fn an_overlay_keeps_changes_until_a_commit_or_discard() {
    let (folder, image) = made();
    let before = std::fs::read(&image).unwrap();
    let side = folder.path().join("side").to_str().unwrap().to_owned();
    let with = |words: &[&str]| stdout(&[words, &["--overlay", &side]].concat());
    with(&["filesystem", "label", &image, "tried"]);
    with(&["subvolume", "create", &format!("{image}:/a")]);
    assert!(
        std::fs::read(&image).unwrap() == before,
        "the image stays as it is"
    );
    assert_eq!(stdout(&["filesystem", "label", &image]), "new\n");
    assert_eq!(with(&["filesystem", "label", &image]), "tried\n");
    assert!(with(&["check", &image]).contains("no error found"));
    // The test removes the overlay file, and begins a new one.
    std::fs::remove_file(&side).unwrap();
    with(&["filesystem", "label", &image, "kept"]);
    stdout(&["overlay", "commit", &side, &image]);
    assert_eq!(stdout(&["filesystem", "label", &image]), "kept\n");
    assert!(!PathBuf::from(&side).exists());
    assert!(
        failure(&["filesystem", "label", &image, "--overlay", &side])
            .1
            .contains("overlay"),
        "no overlay is left"
    );
    check(&image);
}

#[test]
fn deletion_names_the_nested_subvolume_that_prevents_it() {
    let (_folder, image) = made();
    for path in ["a", "a/d", "a/d/inner"] {
        let target = format!("{image}:/{path}");
        let command = if path == "a/d" { "shell" } else { "subvolume" };
        if command == "shell" {
            stdout(&["shell", "-w", &image, "-c", "mkdir /a/d"]);
        } else {
            stdout(&["subvolume", "create", &target]);
        }
    }
    let (code, error) = failure(&["subvolume", "delete", &format!("{image}:/a")]);
    assert_eq!(code, 1);
    assert!(error.contains("contains subvolume 257, \"inner\""), "{error}");
    assert!(
        error.contains(&format!("help: delete {image}:/a/d/inner first")),
        "{error}"
    );
    assert_eq!(error.matches("257").count(), 1, "{error}");
}

#[test]
fn full_target_is_reported_once_and_not_as_a_failed_read() {
    let (folder, image) = fresh();
    stdout(&["mkfs", "-q", "--size", "120M", &image]);
    let source = folder.path().join("source");
    let noise: Vec<u8> = (0_u64..150 << 17)
        .flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    std::fs::write(&source, noise).unwrap();
    let (code, error) = failure(&["cp", source.to_str().unwrap(), &format!("{image}:/")]);
    assert_eq!(code, 1);
    assert!(
        error.contains("no space") && !error.contains("reading it"),
        "{error}"
    );
    assert_eq!(error.to_lowercase().matches("no space").count(), 1, "{error}");
}
