//! States that a running kernel leaves behind: pending logs, orphans, half-deleted snapshots.

use crate::compare::{tar, without_sockets};
use anyhow::{Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory};
use buttress_oracle::tools::{buttress, progs_missing, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Copies an image after an fsync during its mount, as `copy`: the copy has a log tree. Also
/// returns the manifest of the last commit.
fn copy_with_a_log() -> Result<(tempfile::TempDir, Manifest)> {
    let specification = Specification {
        fill: Fill::Empty,
        ..Specification::default()
    };
    let (folder, images) = format(&specification)?;
    let mount = Mount::new(&images, "commit=300")?;
    std::fs::write(mount.path().join("committed"), vec![7u8; 100_000])?;
    rustix::fs::syncfs(File::open(mount.path())?)?;
    let committed = of_directory(mount.path())?;
    let file = File::create(mount.path().join("logged"))?;
    file.write_all_at(&[8; 50_000], 0)?;
    file.sync_all()?;
    run(Command::new("cp")
        .arg("--sparse=always")
        .arg(&images[0])
        .arg(folder.path().join("copy")))?;
    drop(file);
    mount.close()?;
    Ok((folder, committed))
}

/// An image copied after an fsync while it is mounted has a log tree. A reader shows the synced content, warns about
/// the log, and leaves the image as it is. With `rescue=nologreplay` it shows the last commit without a warning.
fn pending_log() -> Result<Outcome> {
    let (folder, committed) = copy_with_a_log()?;
    let copy = folder.path().join("copy");
    let changed = || std::fs::metadata(&copy).and_then(|metadata| metadata.modified());
    let before = changed()?;
    let (found, errors) = tar(&["tar"], std::slice::from_ref(&copy))?;
    ensure!(changed()? == before, "reading wrote to the image");
    ensure!(errors.contains("log"), "no warning names the log:\n{errors}");
    let (last_commit, errors) = tar(&["tar", "--rescue", "nologreplay"], std::slice::from_ref(&copy))?;
    expect_equal("the last commit", &without_sockets(&committed), &last_commit)?;
    // The test `log_tree` compares the result of the replay with the kernel's.
    let logged = found.get(&b"logged"[..]);
    ensure!(
        logged.is_some_and(|logged| logged.size == 50_000),
        "what was synced is shown as {logged:?}"
    );
    ensure!(
        !errors.contains("log"),
        "rescue=nologreplay does not silence the warning:\n{errors}"
    );
    Ok(Outcome::Passed)
}

/// Restores a metadata dump of a volume with a pending log. Linux replays the log when it mounts
/// the volume; Buttress must show the same result without writing.
fn metadata_dump_with_a_log() -> Result<Outcome> {
    let (folder, _) = copy_with_a_log()?;
    let [copy, dump, restored] = ["copy", "dump", "restored"].map(|name| folder.path().join(name));
    run(Command::new("btrfs-image").arg(&copy).arg(&dump))?;
    run(Command::new("btrfs-image").arg("-r").arg(&dump).arg(&restored))?;
    let restored = [restored];
    let names = |text: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(text).into_owned();
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    let mut target = restored[0].clone().into_os_string();
    target.push(":/");
    let ours = run(Command::new(buttress()?).arg("ls").arg(&target))?;
    let said = String::from_utf8_lossy(&ours.stderr).into_owned();
    ensure!(
        said.contains("replayed in memory"),
        "no warning names the replay:\n{said}"
    );
    let mount = Mount::new(&restored, "")?;
    let theirs = run(Command::new("ls").arg(mount.path()))?;
    mount.close()?;
    ensure!(
        names(&theirs.stdout) == ["committed", "logged"],
        "{:?}",
        names(&theirs.stdout)
    );
    ensure!(
        names(&ours.stdout) == names(&theirs.stdout),
        "{:?}",
        names(&ours.stdout)
    );
    Ok(Outcome::Passed)
}

/// Unlinks an open file: the orphan has no name, and reading continues without it.
fn orphans() -> Result<Outcome> {
    let specification = Specification {
        fill: Fill::Kinds,
        ..Specification::default()
    };
    let (folder, images) = format(&specification)?;
    let mount = Mount::new(&images, "commit=300")?;
    std::fs::write(mount.path().join("stays"), b"stays")?;
    let path = mount.path().join("orphan");
    let file = File::create(&path)?;
    file.write_all_at(&[9; 300_000], 0)?;
    std::fs::remove_file(&path)?;
    rustix::fs::syncfs(File::open(mount.path())?)?;
    let expected = of_directory(mount.path())?;
    let copy = folder.path().join("copy");
    let status = Command::new("cp")
        .args(["--sparse=always"])
        .arg(&images[0])
        .arg(&copy)
        .status()?;
    ensure!(status.success(), "copying the image");
    drop(file);
    mount.close()?;
    let (found, _) = tar(&["tar"], std::slice::from_ref(&copy))?;
    expect_equal("a volume with an orphan", &without_sockets(&expected), &found)?;
    Ok(Outcome::Passed)
}

fn case(name: &str, body: fn() -> Result<Outcome>) -> Case {
    Case::new(name, move || match progs_missing((6, 2)) {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => body(),
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        case("states::pending_log", pending_log),
        case("states::metadata_dump_with_a_log", metadata_dump_with_a_log),
        case("states::orphans", orphans),
    ]
}
