//! `balance start|pause|cancel|resume|status`, with the kernel as the reference: the choice of
//! block groups, the item in the root tree, and balances that one side began and the other
//! continues.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use in_folder::{buttress, done, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MIB: usize = 1 << 20;

/// A volume whose data block groups are filled to different degrees: 12 files of so many MiB are left, of 22.
fn uneven(folder: &Path, file_mib: usize) -> PathBuf {
    let image = folder.join("a.img");
    let size = format!("{}M", 60 * file_mib);
    done(
        folder,
        &["mkfs", "-q", "-m", "dup", "-d", "single", "-b", &size, "a.img"],
    );
    let mount = Mount::new(std::slice::from_ref(&image), "").unwrap();
    let file = |number: usize| mount.path().join(format!("f{number}"));
    for number in 0..22_usize {
        let content: Vec<u8> = (0..file_mib * MIB / 4)
            .flat_map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(number) as u32).to_le_bytes())
            .collect();
        fs::write(file(number), content).unwrap();
        btrfs(&["filesystem", "sync"], mount.path());
    }
    for number in [1, 5, 6, 10, 11, 12, 15, 16, 17, 18] {
        fs::remove_file(file(number)).unwrap();
    }
    mount.close().unwrap();
    image
}

fn btrfs(words: &[&str], path: &Path) {
    run(Command::new(newest("btrfs")).args(words).arg(path)).unwrap();
}

fn try_btrfs(words: &[&str], path: &Path) -> Output {
    Command::new(newest("btrfs"))
        .args(words)
        .arg(path)
        .output()
        .unwrap()
}

fn document(folder: &Path, words: &[&str], name: &str) -> Value {
    let told = buttress(folder, &[words, &["--format", "json"]].concat());
    let whole: Value =
        serde_json::from_slice(&told.stdout).unwrap_or_else(|_| panic!("{}", text(&told.stderr)));
    whole[name].clone()
}

/// The starts of all chunks of the volume.
fn chunks(folder: &Path, image: &str) -> BTreeSet<u64> {
    let dump = done(folder, &["inspect-internal", "dump-tree", "-t", "chunk", image]);
    dump.lines()
        .filter_map(|line| line.split_once("CHUNK_ITEM ")?.1.split(')').next()?.parse().ok())
        .collect()
}

fn planned(folder: &Path, words: &[&str]) -> BTreeSet<u64> {
    let words = [&["balance", "start", "--dry-run"][..], words, &["a.img"]].concat();
    let plan = document(folder, &words, "balance-start");
    let groups = plan["block_groups"].as_array().unwrap();
    groups
        .iter()
        .map(|group| group["logical"].as_u64().unwrap())
        .collect()
}

/// The filters of a paused balance, as `balance status` has them.
fn filters(folder: &Path, image: &str) -> Value {
    document(folder, &["balance", "status", image], "balance-status")["filters"].clone()
}

/// Starts a balance of Linux and pauses it as soon as it runs.
fn paused_by_linux(mount: &Path, words: &[&str]) {
    let mut started = Command::new(newest("btrfs"))
        .args(["balance", "start"])
        .args(words)
        .arg(mount)
        .spawn()
        .unwrap();
    let is_running = || text(&try_btrfs(&["balance", "status"], mount).stdout).contains("is running");
    while !is_running() {
        assert!(
            started.try_wait().unwrap().is_none(),
            "it ended before it was seen"
        );
    }
    btrfs(&["balance", "pause"], mount);
    assert!(started.wait().unwrap().success());
}

#[test]
fn dry_run_shows_what_linux_relocates() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = uneven(folder, 4);
    let before = chunks(folder, "a.img");
    let (first, last) = (*before.first().unwrap(), *before.last().unwrap());
    let middle = format!("-dvrange={}..{}", first + 1, last);
    let mut counts = BTreeSet::new();
    for words in [
        &["-dusage=0"][..],
        &["-dusage=30"],
        &["-dusage=39"],
        &["-dlimit=1"],
        &["-dlimit=2..3"],
        &["-dlimit=90..99"],
        &["-dusage=90,limit=1"],
        &["-ddevid=1,drange=60000000..130000000"],
        &[&middle],
        &["-dprofiles=dup"],
        &["-m"],
        &["-mprofiles=single|dup,stripes=2..2"],
        &["-dconvert=single,soft"],
        &["-mconvert=single,soft", "-f"],
        &["-f", "-s"],
    ] {
        let plan = planned(folder, words);
        run(Command::new("cp")
            .arg("--sparse=always")
            .arg(&image)
            .arg(folder.join("copy.img")))
        .unwrap();
        let mount = Mount::new(&[folder.join("copy.img")], "").unwrap();
        let told = run(Command::new(newest("btrfs"))
            .args(["balance", "start"])
            .args(words)
            .arg(mount.path()))
        .unwrap();
        mount.close().unwrap();
        // The place of the highest chunk may be that of a new one by now.
        let after = chunks(folder, "copy.img");
        let relocated: BTreeSet<u64> = before.difference(&after).copied().collect();
        assert!(relocated.is_subset(&plan), "{words:?}: {relocated:?} of {plan:?}");
        let expected = format!("Done, had to relocate {} out of", plan.len());
        assert!(
            text(&told.stdout).starts_with(&expected),
            "{words:?}: {}",
            text(&told.stdout)
        );
        counts.insert(plan.len());
    }
    assert!(counts.len() > 3, "the filters are told apart: {counts:?}");
}

#[test]
fn item_of_linux_is_shown_and_written_back() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = uneven(folder, 10);
    let words =
        "-dprofiles=single|dup,devid=1,drange=0..4000000000,vrange=0..100000000000,limit=1..10,stripes=1..4";
    let mount = Mount::new(std::slice::from_ref(&image), "").unwrap();
    paused_by_linux(mount.path(), &[words, "-f"]);
    mount.close().unwrap();
    let dump = || done(folder, &["inspect-internal", "dump-tree", "-t", "root", "a.img"]);
    let item = |dump: &str| {
        dump.split_once("balance status flags")
            .map(|(_, rest)| rest[..400].to_owned())
    };
    let by_linux = item(&dump()).unwrap();
    let expected =
        "profiles=single|dup,devid=1,drange=0..4000000000,vrange=0..100000000000,limit=1..10,stripes=1..4";
    assert_eq!(filters(folder, "a.img")["data"], expected);
    let status = buttress(folder, &["balance", "status", "a.img"]);
    assert_eq!(status.status.code(), Some(1));
    assert_eq!(text(&status.stdout), "Balance on 'a.img' is paused\n");
    // A commit of Buttress keeps the kernel's paused balance, and a new balance is refused.
    done(folder, &["filesystem", "label", "a.img", "kept"]);
    assert_eq!(item(&dump()).unwrap(), by_linux);
    let refused = buttress(folder, &["balance", "start", "-dusage=1", "a.img"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("a balance is in progress or paused"),
        "{}",
        text(&refused.stderr)
    );
    done(folder, &["balance", "cancel", "a.img"]);
    assert!(item(&dump()).is_none());
    assert_eq!(
        done(folder, &["balance", "status", "a.img"]),
        "No balance found on 'a.img'\n"
    );
    done(folder, &["check", "a.img"]);
}

#[test]
fn nothing_in_progress_is_reported_as_by_btrfs_progs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    for (command, why) in [
        ("pause", "Not running"),
        ("cancel", "Not in progress"),
        ("resume", "Not in progress"),
    ] {
        let told = buttress(folder, &["balance", command, "a.img"]);
        assert_eq!(told.status.code(), Some(2), "{command}");
        let expected = format!("balance {command} on 'a.img' failed: {why}");
        assert!(text(&told.stderr).contains(&expected), "{}", text(&told.stderr));
    }
    assert_eq!(
        done(folder, &["balance", "status", "a.img"]),
        "No balance found on 'a.img'\n"
    );
}

#[test]
fn balance_without_a_status_file_begins_nothing() {
    let folder = tempfile::tempdir().unwrap();
    done(folder.path(), &["mkfs", "-q", "-b", "256M", "a.img"]);
    let words = [
        "balance",
        "start",
        "--status-file",
        "no/such/folder",
        "-dusage=50",
        "a.img",
    ];
    let output = buttress(folder.path(), &words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let status = buttress(folder.path(), &["balance", "status", "a.img"]);
    assert_eq!(status.status.code(), Some(0), "{status:?}");
    assert!(text(&status.stdout).contains("No balance found"), "{status:?}");
}

#[test]
fn refusals_of_linux_are_refused_here() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-m", "dup", "-b", "200M", "a.img"]);
    let before = fs::read(folder.join("a.img")).unwrap();
    for (words, expected, code) in [
        (
            &["-dconvert=raid1"][..],
            "too few devices (found 1, expected at least 2)",
            1,
        ),
        (&["-mconvert=single"], "it reduces redundancy", 1),
        (&["-s"], "Refusing to explicitly operate on system chunks", 2),
        (
            &["-dsoft"],
            "'soft' option can be used only when converting profiles",
            2,
        ),
        (&["-dusage=101"], "invalid usage argument: 101", 2),
    ] {
        let words = [&["balance", "start"], words, &["a.img"]].concat();
        let told = buttress(folder, &words);
        assert_eq!(told.status.code(), Some(code), "{words:?}");
        assert!(text(&told.stderr).contains(expected), "{}", text(&told.stderr));
    }
    assert!(
        fs::read(folder.join("a.img")).unwrap() == before,
        "nothing was written"
    );
}

#[test]
fn system_alone_needs_force() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    let plan = planned(folder, &["-f", "-s"]);
    assert_eq!(plan.len(), 1);
    let refused = buttress(folder, &["balance", "start", "--dry-run", "-s", "a.img"]);
    assert_eq!(refused.status.code(), Some(2));
    let all = done(
        folder,
        &["balance", "start", "--dry-run", "--full-balance", "a.img"],
    );
    assert!(all.contains("would relocate 3 out of 3 chunks"), "{all}");
}

/// The profiles of the data block groups.
fn data_profiles(folder: &Path, words: &[&str]) -> BTreeSet<String> {
    let words = [&["balance", "start", "--dry-run", "-d"][..], words].concat();
    let plan = document(folder, &words, "balance-start");
    let groups = plan["block_groups"].as_array().unwrap();
    groups
        .iter()
        .map(|group| group["profile"].as_str().unwrap().to_owned())
        .collect()
}

/// Sums of all files, as the kernel reads them.
fn contents(images: &[PathBuf]) -> Vec<(PathBuf, Vec<u8>)> {
    let mount = Mount::new(images, "ro,skip_balance").unwrap();
    let mut found: Vec<_> = fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().into(), fs::read(&path).unwrap())
        })
        .collect();
    mount.close().unwrap();
    found.sort();
    found
}

fn expect_sound(folder: &Path, images: &[PathBuf], before: &[(PathBuf, Vec<u8>)]) {
    let devices: Vec<&str> = images
        .iter()
        .skip(1)
        .map(|image| image.to_str().unwrap())
        .collect();
    let mut words = vec!["check", "--check-data-csum"];
    for device in &devices {
        words.extend(["--device", device]);
    }
    words.push(images[0].to_str().unwrap());
    done(folder, &words);
    buttress_oracle::btrfs_check::btrfs_check(images).unwrap();
    assert!(contents(images) == before, "contents differ");
}

#[test]
fn balance_empties_what_the_plan_shows() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = [uneven(folder, 4)];
    let before = contents(&images);
    let chunks_before = chunks(folder, "a.img");
    for words in [&["-dusage=39"][..], &["-m"], &["-f", "-s"], &["-dlimit=1"]] {
        let plan = planned(folder, words);
        let words = [&["balance", "start"], words, &["a.img"]].concat();
        let told = done(folder, &words);
        // What moves may fill a block group of the plan before it is visited.
        let count: usize = told.split(' ').nth(4).unwrap().parse().unwrap();
        assert!((1..=plan.len()).contains(&count), "{told} of {plan:?}");
        expect_sound(folder, &images, &before);
    }
    assert!(chunks(folder, "a.img").len() < chunks_before.len());
}

#[test]
fn profiles_are_converted_on_one_device_and_on_two() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = [uneven(folder, 4)];
    let before = contents(&images);
    for target in ["dup", "single"] {
        done(
            folder,
            &["balance", "start", &format!("-dconvert={target}"), "a.img"],
        );
        let found = data_profiles(folder, &["a.img"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found.iter().all(|profile| profile.eq_ignore_ascii_case(target)));
        expect_sound(folder, &images, &before);
    }
    let pair = [folder.join("b.img"), folder.join("c.img")];
    done(
        folder,
        &[
            "mkfs", "-q", "-d", "single", "-m", "raid1", "-b", "600M", "b.img", "c.img",
        ],
    );
    fs::write(folder.join("content"), vec![7; 20 * MIB]).unwrap();
    done(folder, &["cp", "--device", "c.img", "content", "b.img:/content"]);
    let before = contents(&pair);
    done(
        folder,
        &[
            "balance",
            "start",
            "-dconvert=raid1",
            "--device",
            "c.img",
            "b.img",
        ],
    );
    let found = data_profiles(folder, &["--device", "c.img", "b.img"]);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["RAID1"]);
    expect_sound(folder, &pair, &before);
}

/// Starts a slow balance in a process of its own, and pauses it once it moved something or soon after.
fn paused_here(folder: &Path, words: &[&str]) {
    let words = [
        &["balance", "start", "--background", "--limit", "8M"],
        words,
        &["a.img"],
    ]
    .concat();
    done(folder, &words);
    let status = document(folder, &["balance", "status", "a.img"], "balance-status");
    assert_eq!(status["state"], "running", "{status}");
    assert!(status["process"].is_u64());
    let refused = buttress(folder, &["balance", "start", "-dusage=1", "a.img"]);
    assert!(
        text(&refused.stderr).contains("already running"),
        "{}",
        text(&refused.stderr)
    );
    done(folder, &["balance", "pause", "a.img"]);
    let status = document(folder, &["balance", "status", "a.img"], "balance-status");
    assert_eq!(status["state"], "paused", "{status}");
}

#[test]
fn background_balance_is_paused_and_resumed() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = [uneven(folder, 4)];
    let before = contents(&images);
    paused_here(folder, &["-dconvert=dup"]);
    expect_sound(folder, &images, &before);
    done(folder, &["balance", "resume", "a.img"]);
    assert_eq!(
        data_profiles(folder, &["a.img"]),
        BTreeSet::from(["DUP".to_owned()])
    );
    assert_eq!(
        done(folder, &["balance", "status", "a.img"]),
        "No balance found on 'a.img'\n"
    );
    expect_sound(folder, &images, &before);
    // The balance is cancelled while it runs.
    let words = [
        "balance",
        "start",
        "--background",
        "--limit",
        "8M",
        "-dconvert=single",
        "a.img",
    ];
    done(folder, &words);
    done(folder, &["balance", "cancel", "a.img"]);
    assert_eq!(
        done(folder, &["balance", "status", "a.img"]),
        "No balance found on 'a.img'\n"
    );
    expect_sound(folder, &images, &before);
}

#[test]
fn linux_resumes_what_was_paused_here() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = [uneven(folder, 4)];
    let before = contents(&images);
    paused_here(folder, &["-dconvert=dup"]);
    let mount = Mount::new(&images, "skip_balance").unwrap();
    let status = try_btrfs(&["balance", "status"], mount.path());
    assert!(
        text(&status.stdout).contains("is paused"),
        "{}",
        text(&status.stdout)
    );
    btrfs(&["balance", "resume"], mount.path());
    mount.close().unwrap();
    assert_eq!(
        data_profiles(folder, &["a.img"]),
        BTreeSet::from(["DUP".to_owned()])
    );
    expect_sound(folder, &images, &before);
}

#[test]
fn balance_paused_by_linux_is_resumed_here() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = [uneven(folder, 10)];
    let before = contents(&images);
    let mount = Mount::new(&images, "").unwrap();
    paused_by_linux(mount.path(), &["-dconvert=dup"]);
    mount.close().unwrap();
    done(folder, &["balance", "resume", "a.img"]);
    assert_eq!(
        data_profiles(folder, &["a.img"]),
        BTreeSet::from(["DUP".to_owned()])
    );
    expect_sound(folder, &images, &before);
}

/// Trees without items have a block, too: those of checksums and of subvolume uuids.
#[test]
fn balance_of_an_empty_volume_moves_trees_without_items() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "300M", "a.img"]);
    let told = done(folder, &["balance", "start", "--full-balance", "a.img"]);
    assert_eq!(told, "Done, had to relocate 3 out of 3 chunks\n");
    done(folder, &["check", "a.img"]);
}
