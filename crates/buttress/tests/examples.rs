//! Runs the examples as a user would, one after another on one volume, and compares their output
//! with results of the library.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use buttress::{ByteCount, CheckOptions, Progress, SnapshotMode, Volume};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the program of an example, which `cargo test` builds beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let program = folder.join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is missing: `cargo test -p buttress` builds it",
        program.display()
    );
    program
}

fn output(name: &str, words: &[&Path]) -> Output {
    Command::new(example(name)).args(words).output().unwrap()
}

fn run(name: &str, words: &[&Path]) -> String {
    let output = output(name, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a directory of the host from which examples make volumes.
fn sources(folder: &Path) -> PathBuf {
    let source = folder.join("source");
    std::fs::create_dir_all(source.join("sub/deeper")).unwrap();
    std::fs::write(source.join("sub/text"), "some text\n").unwrap();
    std::fs::write(source.join("sub/deeper/large"), vec![7; 300_000]).unwrap();
    std::fs::write(source.join("copy"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("sub/text", source.join("link")).unwrap();
    source
}

#[test]
fn pack_writes_equal_bytes_that_other_examples_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = sources(folder.path());
    let images = [folder.path().join("one.img"), folder.path().join("two.img")];
    for image in &images {
        run("pack", &[&source, image]);
    }
    // The images are sparse files of 1 GiB, so the test compares them with `cmp`.
    let same = Command::new("cmp").args(&images).status().unwrap();
    assert!(same.success(), "two volumes made from the same directory differ");
    let image = images[0].as_path();

    let listing = run("list", &[image, Path::new("sub")]);
    assert!(listing.contains("           10 text"), "{listing}");
    assert_eq!(run("cat", &[image, Path::new("link")]), "some text\n");
    assert!(run("check", &[image]).contains("no error found"));
    assert!(run("space", &[image]).contains("Metadata, DUP: total="));

    let hashes = run("hashes", &[image]);
    let expected = Command::new("sha256sum")
        .args(["copy", "sub/deeper/large", "sub/text"])
        .current_dir(&source)
        .output()
        .unwrap();
    let mut expected: Vec<_> = std::str::from_utf8(&expected.stdout).unwrap().lines().collect();
    expected.sort_unstable();
    assert_eq!(hashes.lines().collect::<Vec<_>>(), expected);

    let archive = output("tar", &[image, Path::new("sub")]).stdout;
    let mut archive = tar::Archive::new(archive.as_slice());
    let names: Vec<_> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().into_owned())
        .collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn volumes_are_changed_backed_up_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let volume = Volume::create()
        .in_file(&image, ByteCount::new(512 << 20))
        .unwrap();
    let home = volume.root().create_subvolume("home").unwrap();
    for name in ["a", "b", "c"] {
        home.write(name, vec![3; 200_000]).unwrap();
    }
    volume.sync().unwrap();
    drop((home, volume));
    let path = Path::new;

    let [one, two] = ["one.stream", "two.stream"].map(|name| folder.path().join(name));
    let backup = [&*image, path("home"), path("monday"), &*one];
    assert!(run("backup", &backup).starts_with("monday: "));
    {
        let volume = Volume::open_writable(&image).unwrap();
        volume.root().write("home/b", "changed").unwrap();
        volume.sync().unwrap();
    }
    assert_eq!(run("changed", &[&image, path("monday"), path("home")]), "b\n");
    let backup = [&*image, path("home"), path("tuesday"), &*two, path("monday")];
    run("backup", &backup);
    let sizes = [&one, &two].map(|stream| std::fs::metadata(stream).unwrap().len());
    assert!(sizes[0] > 600_000 && sizes[1] < 1_000, "{sizes:?}");
    assert!(!folder.path().join("two.stream.partial").exists());

    assert_eq!(run("records", &[&image, path("visits")]), "visits: 1\n");
    assert_eq!(run("records", &[&image, path("other")]), "other: 1\n");
    assert_eq!(run("records", &[&image, path("visits")]), "visits: 2\n");

    // Snapshots already share their extents; of the three files, only "a" and "c" do not.
    {
        let volume = Volume::open_writable(&image).unwrap();
        volume.root().write("apart", vec![3; 200_000]).unwrap();
        let root = volume.root();
        for name in ["monday", "tuesday"] {
            root.delete_subvolume(name).unwrap();
        }
        volume.drop_deleted_subvolumes(&Progress::new()).unwrap();
        volume.sync().unwrap();
    }
    let used = || {
        Volume::open(&image).unwrap().space().unwrap().groups[0]
            .used
            .get()
    };
    let before = used();
    assert_eq!(run("dedupe", &[&image]), "400000 bytes are shared\n");
    assert!(used() < before, "{} then {}", before, used());
    let report = Volume::open(&image).unwrap();
    let report = report.check(&CheckOptions::default(), &Progress::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn an_example_that_fails_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.img");
    let failed = output("list", &[&missing]);
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stderr).contains("missing.img"));
    let image = folder.path().join("new.img");
    let volume = Volume::create()
        .in_file(&image, ByteCount::new(256 << 20))
        .unwrap();
    let root = volume.root();
    root.create_snapshot(&root, "all", SnapshotMode::ReadOnly)
        .unwrap();
    volume.sync().unwrap();
    drop((root, volume));
    let failed = output("cat", &[&image, Path::new("all/nothing")]);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("all/nothing"));
}
