//! Tests of `scrub start|cancel|resume|status`: repairs, reports, the status file, pausing and
//! resuming.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_buttress");

fn buttress(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Creates a volume with two copies of data and metadata, and a file of 12 MiB.
fn volume(folder: &Path) -> PathBuf {
    let image = folder.join("volume.img");
    let name = image.to_str().unwrap();
    let made = buttress(&["mkfs", "-q", "-d", "dup", "-m", "dup", "-b", "400M", name]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let content: Vec<u8> = (0..3_u32 << 20)
        .flat_map(|number| (number * 7).to_le_bytes())
        .collect();
    let file = folder.join("content");
    fs::write(&file, content).unwrap();
    let copied = buttress(&["cp", file.to_str().unwrap(), &format!("{name}:/content")]);
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    image
}

/// Returns the offsets of the test file's bytes in both copies.
fn places(image: &Path) -> Vec<u64> {
    let bytes = fs::read(image).unwrap();
    let first = &bytes_of_content()[..4096];
    let found: Vec<u64> = bytes
        .chunks(4096)
        .zip((0..).step_by(4096))
        .filter(|(block, _)| *block == first)
        .map(|(_, at)| at)
        .collect();
    assert_eq!(found.len(), 2, "two copies of the first block");
    found
}

fn bytes_of_content() -> Vec<u8> {
    (0..1024_u32)
        .flat_map(|number| (number * 7).to_le_bytes())
        .collect()
}

fn spoil(image: &Path, at: u64) {
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&[0xa5; 4096], at).unwrap();
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_bad_copy_is_mended_told_with_its_file_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let name = image.to_str().unwrap();
    let places = places(&image);
    spoil(&image, places[1]);
    let looked = buttress(&["scrub", "start", "-B", "-r", "--format", "json", name]);
    assert_eq!(looked.status.code(), Some(0), "{}", text(&looked.stderr));
    let document = json(&looked);
    let damage = &document["scrub-start"]["damages"][0];
    assert_eq!(damage["outcome"], "correctable", "{document}");
    assert_eq!(damage["physical"], places[1]);
    assert_eq!(damage["files"][0]["path"], "/content");
    assert_eq!(document["scrub-start"]["totals"]["csum_errors"], 1);

    let mended = buttress(&["scrub", "start", "-B", name]);
    assert_eq!(mended.status.code(), Some(0), "{}", text(&mended.stderr));
    let told = text(&mended.stdout);
    for wanted in [
        "scrub done for ",
        "Status:           finished",
        "Error summary:    csum=1",
        "  Corrected:      1",
        "  Uncorrectable:  0",
        "the checksum does not match; corrected",
        "file: /content",
    ] {
        assert!(told.contains(wanted), "no {wanted:?} in {told}");
    }
    let tree = buttress(&["inspect-internal", "dump-tree", "-t", "device", name]);
    assert!(
        text(&tree.stdout).contains("corruption_errs 1 "),
        "{}",
        text(&tree.stdout)
    );

    let counted = buttress(&["device", "stats", "-c", name]);
    assert_eq!(counted.status.code(), Some(64), "{}", text(&counted.stderr));
    assert!(
        text(&counted.stdout).contains("].corruption_errs  1\n"),
        "{}",
        text(&counted.stdout)
    );
    let table = buttress(&["device", "stats", "-T", "-z", name]);
    let heads = text(&table.stdout).lines().next().unwrap().to_owned();
    assert!(
        heads.ends_with(" Flush errors Corruption errors Generation errors"),
        "{heads}"
    );
    assert_eq!(buttress(&["device", "stats", "-c", name]).status.code(), Some(0));

    let again = buttress(&["scrub", "start", "-BR", name]);
    assert!(
        text(&again.stdout).contains("\tcsum_errors: 0\n"),
        "{}",
        text(&again.stdout)
    );
    let status = buttress(&["scrub", "status", name]);
    assert!(
        text(&status.stdout).contains("no errors found"),
        "{}",
        text(&status.stdout)
    );
    let checked = buttress(&["check", "--check-data-csum", name]);
    assert!(checked.status.success(), "{}", text(&checked.stdout));
}

#[test]
fn uncorrectable_errors_give_status_3_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let name = image.to_str().unwrap();
    for place in places(&image) {
        spoil(&image, place);
    }
    let scrubbed = buttress(&["scrub", "start", "-Bd", name]);
    assert_eq!(scrubbed.status.code(), Some(3), "{}", text(&scrubbed.stderr));
    let told = text(&scrubbed.stdout);
    assert!(told.contains("  Uncorrectable:  2"), "{told}");
    assert!(told.contains("tried: copy 2 on device 1"), "{told}");
    assert!(
        text(&scrubbed.stderr).contains("2 uncorrectable errors"),
        "{}",
        text(&scrubbed.stderr)
    );
}

#[test]
fn an_overlay_takes_what_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let name = image.to_str().unwrap();
    spoil(&image, places(&image)[0]);
    let before = fs::read(&image).unwrap();
    let overlay = folder.path().join("overlay");
    let overlay = overlay.to_str().unwrap();
    let tried = buttress(&["--overlay", overlay, "scrub", "start", "-B", name]);
    assert!(text(&tried.stdout).contains("  Corrected:      1"), "{tried:?}");
    assert!(fs::read(&image).unwrap() == before);
    let checked = buttress(&["--overlay", overlay, "check", "--check-data-csum", name]);
    assert!(checked.status.success(), "{}", text(&checked.stdout));
}

/// Scrubs slowly until `stop` stops it. Returns the status record of the interrupted scrub.
fn paused(image: &Path, background: bool, stop: impl FnOnce(&str, u32)) -> Value {
    let name = image.to_str().unwrap();
    let words: &[&str] = if background { &[] } else { &["-B"] };
    let mut start = Command::new(PROGRAM);
    start
        .args(["scrub", "start", "--limit", "4M"])
        .args(words)
        .arg(name)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = start.spawn().unwrap();
    let record = || -> Option<Value> {
        let bytes = fs::read(format!("{name}.scrub-status")).ok()?;
        let record: Value = serde_json::from_slice(&bytes).ok()?;
        (record["devices"][0]["data_bytes_scrubbed"].as_u64()? > 0).then_some(record)
    };
    let process = loop {
        if let Some(record) = record() {
            break u32::try_from(record["process"][0].as_u64().unwrap()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let status = buttress(&["scrub", "status", name]);
    assert!(
        text(&status.stdout).contains("Status:           running"),
        "{status:?}"
    );
    let second = buttress(&["scrub", "start", "-B", name]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second.stderr).contains("already running"),
        "{}",
        text(&second.stderr)
    );
    stop(name, process);
    child.wait().unwrap();
    record().unwrap()
}

#[test]
fn a_scrub_that_a_signal_pauses_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let name = image.to_str().unwrap();
    let record = paused(&image, false, |_, process| {
        let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    });
    assert_eq!(record["status"], "aborted");
    let before = record["devices"][0]["data_bytes_scrubbed"].as_u64().unwrap();
    let resumed = buttress(&["scrub", "resume", "-B", "--format", "json", name]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    let document = &json(&resumed)["scrub-resume"];
    assert_eq!(document["status"], "finished");
    assert_eq!(
        document["bytes_scrubbed"], document["bytes_to_scrub"],
        "{document}"
    );
    assert!(
        before < document["bytes_to_scrub"].as_u64().unwrap(),
        "it was paused"
    );
    let nothing = buttress(&["scrub", "resume", "-B", name]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text(&nothing.stderr));
    assert!(text(&nothing.stdout).starts_with("scrub: nothing to resume for "));
}

#[test]
fn a_scrub_in_the_background_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let record = paused(&image, true, |name, _| {
        let cancelled = buttress(&["scrub", "cancel", name]);
        assert_eq!(cancelled.status.code(), Some(0), "{}", text(&cancelled.stderr));
        assert_eq!(text(&cancelled.stdout), "scrub cancelled\n");
    });
    assert_eq!(record["status"], "aborted");
    let name = image.to_str().unwrap();
    let again = buttress(&["scrub", "cancel", name]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("not running"));
    // If a scrub cannot begin in the background, the command prints the reason.
    let absent = folder.path().join("absent");
    let failed = buttress(&["scrub", "start", absent.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        text(&failed.stderr).contains("absent"),
        "{}",
        text(&failed.stderr)
    );
}

#[test]
fn a_status_file_that_is_none_is_told_and_named_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path());
    let name = image.to_str().unwrap();
    let beside = format!("{name}.scrub-status");
    fs::write(&beside, "not a record").unwrap();
    let refused = buttress(&["scrub", "start", "-B", name]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("is not a status file"),
        "{}",
        text(&refused.stderr)
    );
    let elsewhere = folder.path().join("status");
    let elsewhere = elsewhere.to_str().unwrap();
    let named = buttress(&["scrub", "start", "-B", "--status-file", elsewhere, name]);
    assert!(named.status.success(), "{}", text(&named.stderr));
    assert_eq!(fs::read_to_string(&beside).unwrap(), "not a record");
    assert!(fs::read_to_string(elsewhere).unwrap().contains("\"finished\""));
    assert!(buttress(&["scrub", "start", "-B", "-f", name]).status.success());
    assert!(fs::read_to_string(&beside).unwrap().contains("\"finished\""));
}

fn generation_of(image: &str) -> String {
    let shown = buttress(&["inspect-internal", "dump-super", image]);
    let shown = text(&shown.stdout);
    let line = shown.lines().find(|line| line.starts_with("generation"));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

/// Creates a volume of two devices, of which the second missed two sessions.
fn volume_with_a_device_that_was_away(folder: &Path) -> [String; 2] {
    let names = ["first.img", "second.img"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    let [first, second] = &names;
    let file = folder.join("content");
    fs::write(&file, bytes_of_content().repeat(200)).unwrap();
    let file = file.to_str().unwrap();
    let old = format!("{first}:/old");
    let degraded = [format!("{first}:/one"), format!("{first}:/two")];
    let steps: [&[&str]; 4] = [
        &[
            "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "300M", first, second,
        ],
        &["cp", "--device", second, file, &old],
        &["cp", "--degraded", file, &degraded[0]],
        &["cp", "--degraded", file, &degraded[1]],
    ];
    for step in steps {
        let done = buttress(step);
        assert!(done.status.success(), "{step:?}: {}", text(&done.stderr));
    }
    names
}

fn names_on(image: &str) -> String {
    let listed = buttress(&["-q", "--degraded", "ls", &format!("{image}:/")]);
    assert!(listed.status.success(), "{image}: {}", text(&listed.stderr));
    text(&listed.stdout)
}

#[test]
fn scrub_brings_device_that_missed_commits_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = &volume_with_a_device_that_was_away(folder.path());
    assert_eq!(names_on(second), "old\n");
    let scrub =
        |words: &[&str]| buttress(&[&["scrub", "start", "-B"], words, &["--device", second, first]].concat());
    // In read-only mode, the scrub counts data that a device missed; such data is no damage.
    let read = scrub(&["-r"]);
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    assert!(text(&read.stdout).contains("Missed:"), "{}", text(&read.stdout));
    assert!(
        text(&read.stdout).contains("no errors found"),
        "{}",
        text(&read.stdout)
    );
    assert_eq!(names_on(second), "old\n");
    // The status file keeps this count.
    let status = |words: &[&str]| buttress(&[words, &["scrub", "status", first]].concat());
    let shown = text(&status(&[]).stdout);
    assert!(shown.contains("Missed:"), "{shown}");
    let document: Value = serde_json::from_slice(&status(&["--format", "json"]).stdout).unwrap();
    let document = &document["scrub-status"];
    assert!(document["totals"]["missed"].as_u64().unwrap() > 0, "{document}");
    assert_eq!(document["devices"][0]["missed"], 0, "{document}");
    assert_eq!(document["devices"][1]["missed"], document["totals"]["missed"]);
    let scrubbed = scrub(&[]);
    assert_eq!(scrubbed.status.code(), Some(0), "{}", text(&scrubbed.stderr));
    assert!(
        text(&scrubbed.stderr).contains("was brought up to date"),
        "{}",
        text(&scrubbed.stderr)
    );
    let again = scrub(&[]);
    assert!(
        text(&again.stdout).contains("no errors found"),
        "{}",
        text(&again.stdout)
    );
    assert!(
        !text(&again.stderr).contains("generation"),
        "{}",
        text(&again.stderr)
    );
    for image in [first, second] {
        assert_eq!(names_on(image), "old\none\ntwo\n");
    }
    assert_eq!(generation_of(first), generation_of(second));
}

#[test]
fn a_command_that_writes_brings_a_device_up_to_date_first() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = &volume_with_a_device_that_was_away(folder.path());
    let file = folder.path().join("content");
    let target = format!("{first}:/three");
    let copied = buttress(&["cp", "--device", second, file.to_str().unwrap(), &target]);
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    assert!(
        text(&copied.stderr).contains("was brought up to date"),
        "{}",
        text(&copied.stderr)
    );
    for image in [first, second] {
        assert_eq!(names_on(image), "old\none\nthree\ntwo\n");
    }
    assert_eq!(generation_of(first), generation_of(second));
}

#[test]
fn device_resync_names_what_it_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = &volume_with_a_device_that_was_away(folder.path());
    let resync = || buttress(&["--format", "json", "device", "resync", "--device", second, first]);
    let done = resync();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    let devices = document["device-resync"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "{document}");
    assert_eq!(devices[0]["devid"], 2);
    assert!(
        devices[0]["written_bytes"].as_u64().unwrap() > 1 << 20,
        "{document}"
    );
    let again: Value = serde_json::from_slice(&resync().stdout).unwrap();
    assert_eq!(again["device-resync"], Value::Array(Vec::new()));
    assert_eq!(names_on(second), "old\none\ntwo\n");
}
