//! `rescue fix-data-checksum`: sectors that no copy matches, with the copy that counts.

use crate::support::in_folder;

use in_folder::{buttress, done, text};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const ONE: &str = "one.img";
const SECTOR: u64 = 4096;

fn on_both<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &["--device", "two.img", ONE]].concat()
}

/// Makes a volume with one file on two mirrors. Returns the address of the file, and its place on
/// each device.
fn made(folder: &Path) -> (u64, [u64; 2]) {
    done(
        folder,
        &[
            "mkfs", "-q", "--size", "256M", "-d", "raid1", "-m", "raid1", ONE, "two.img",
        ],
    );
    let shell = on_both(&["shell", "-w", "-c", "pwrite -q -S 0x41 0 64K /letter"]);
    done(folder, &shell);
    let tree = done(folder, &on_both(&["inspect-internal", "dump-tree", "-t", "csum"]));
    let (_, at) = tree.split_once("EXTENT_CSUM EXTENT_CSUM ").unwrap();
    let at: String = at.chars().take_while(char::is_ascii_digit).collect();
    let mapped = done(folder, &on_both(&["inspect-internal", "map-logical", "-l", &at]));
    let mut places = [0; 2];
    for line in mapped.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let physical = words.iter().position(|word| *word == "physical").unwrap();
        let device = usize::from(line.ends_with("two.img"));
        places[device] = words[physical + 1].parse().unwrap();
    }
    (at.parse().unwrap(), places)
}

fn damage(folder: &Path, device: &str, at: u64, byte: u8) {
    let file = File::options().write(true).open(folder.join(device)).unwrap();
    file.write_all_at(&[byte; 16], at).unwrap();
}

fn answered(folder: &Path, words: &[&str], answers: &str) -> String {
    let mut command = Command::new(in_folder::PROGRAM);
    command.current_dir(folder).args(words).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    text(&child.wait_with_output().unwrap().stdout)
}

#[test]
fn owner_chooses_the_copy_that_counts() {
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = own.path();
    let (at, [one, two]) = made(folder);
    let command = ["rescue", "fix-data-checksum"];
    assert_eq!(
        done(folder, &on_both(&command)),
        "No data checksum mismatch found\n"
    );
    // Both copies of the first two sectors, and one copy of the third.
    for sector in [0, SECTOR] {
        damage(folder, ONE, one + sector, b'1');
        damage(folder, "two.img", two + sector, b'2');
    }
    damage(folder, ONE, one + 2 * SECTOR, b'1');
    let listed = buttress(folder, &on_both(&command));
    assert_eq!(listed.status.code(), Some(1), "{}", text(&listed.stderr));
    let line = |at: u64| format!("logical={at} corrupted mirrors=1,2 affected files:\n  /letter\n");
    let lines = line(at) + &line(at + SECTOR);
    let expected = lines.clone() + "2 sectors do not match; no checksum was changed\n";
    assert_eq!(text(&listed.stdout), expected);
    assert!(text(&listed.stderr).contains("1 sectors have a copy that matches"));
    assert_eq!(
        text(&buttress(folder, &on_both(&["rescue", "fix-data-checksum", "-r"])).stdout),
        expected
    );
    // The second copy for the first sector; no answer for the other one.
    let asked = answered(folder, &on_both(&["rescue", "fix-data-checksum", "-i"]), "2\n\n");
    assert_eq!(
        asked,
        lines + "2 sectors do not match; 1 checksums were changed\n"
    );
    let accepted = done(
        folder,
        &on_both(&["rescue", "fix-data-checksum", "--mirror", "4"]),
    );
    assert_eq!(
        accepted,
        line(at + SECTOR) + "1 sectors do not match; 1 checksums were changed\n"
    );
    done(folder, &on_both(&["scrub", "start", "-B"]));
    done(folder, &on_both(&["check", "--check-data-csum"]));
    done(
        folder,
        &["cp", "--device", "two.img", "one.img:/letter", "letter"],
    );
    let mut wanted = vec![b'A'; 64 << 10];
    for sector in [0, 4096] {
        wanted[sector..sector + 16].fill(b'2');
    }
    assert!(fs::read(folder.join("letter")).unwrap() == wanted);
}

#[test]
fn modes_of_the_command_exclude_each_other() {
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for words in [["-r", "-i"], ["-i", "-m1"], ["-r", "-m1"], ["-m", "0"]] {
        let mut all = vec!["rescue", "fix-data-checksum"];
        all.extend(words);
        all.push(ONE);
        assert_eq!(buttress(own.path(), &all).status.code(), Some(2), "{words:?}");
    }
}
