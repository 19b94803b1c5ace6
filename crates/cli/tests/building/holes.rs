//! Tests that image sizes follow the stored data, not the apparent sizes of files.

use super::{done, mkfs, noise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const STORED_BYTES: usize = 70_000;

/// Creates a file of 64 GiB that is a hole except for some noise, and a file of this noise alone.
/// Also archives both directories of the test.
fn fill(folder: &Path) {
    let bytes = noise(1, STORED_BYTES);
    for name in ["holes", "plain"] {
        std::fs::create_dir(folder.join(name)).unwrap();
        let file = File::create(folder.join(name).join("file")).unwrap();
        let at = if name == "holes" { 1 << 35 } else { 0 };
        file.write_all_at(&bytes, at).unwrap();
        if name == "holes" {
            file.set_len(1 << 36).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.args(["--sparse", "--format=pax", "-C"])
            .arg(folder.join(name));
        done(tar.arg("-cf").arg(folder.join(format!("{name}.tar"))).arg("."));
    }
}

#[test]
fn a_hole_makes_no_image_larger() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let size_of = |words: &[&str], source: &str| {
        let image = folder.path().join("image");
        let path = folder.path().join(source);
        done(mkfs().args(words).arg(path).arg(&image));
        let bytes = image.metadata().unwrap().len();
        std::fs::remove_file(&image).unwrap();
        bytes
    };
    for (option, suffix) in [("--rootdir", ""), ("--tar", ".tar")] {
        let [holes, plain] = ["holes", "plain"].map(|name| size_of(&[option], &format!("{name}{suffix}")));
        assert_eq!(holes, plain, "{option}");
        size_of(&["-b", "64M", option], &format!("holes{suffix}"));
    }
    // The contents of this plan are in an image, so the size counts them by their stored size.
    let [holes, plain] = ["holes", "plain"].map(|name| {
        let base = folder.path().join(format!("{name}.img"));
        done(mkfs().arg("--rootdir").arg(folder.path().join(name)).arg(&base));
        let mut plan = Command::new(env!("CARGO_BIN_EXE_buttress"));
        let path = folder.path().join(format!("{name}.toml"));
        done(plan.arg("manifest").arg("-f").arg(&path).arg(&base));
        let unsized_plan: String = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with("size = "))
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(&path, unsized_plan).unwrap();
        size_of(&["--shrink", "--manifest"], &format!("{name}.toml"))
    });
    assert_eq!(holes, plain, "--manifest");
}
