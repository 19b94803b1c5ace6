//! Runs both programs on the same images and compares their output.

use anyhow::{Context, Result, ensure};
use buttress_oracle::tools;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Output of one program.
struct Printed {
    stdout: Vec<u8>,
    stderr: String,
    success: bool,
}

fn run(program: &Path, words: &[&str], images: &[PathBuf]) -> Result<Printed> {
    let output = Command::new(program)
        .arg("inspect-internal")
        .args(words)
        .args(images)
        // For the comparison, both programs print local times.
        .env("TZ", "Europe/Berlin")
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    Ok(Printed {
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        success: output.status.success(),
    })
}

/// Returns the comparable lines; the compatibility document explains each excluded difference.
fn comparable<'a>(words: &[&str], stdout: &'a [u8]) -> Vec<&'a [u8]> {
    let hidden = words.contains(&"--hide-names");
    stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| {
            let names_the_program = line.starts_with(b"btrfs-progs v") || line.starts_with(b"buttress v");
            let is_time = line.starts_with(b"\tTotal read time:");
            let is_subvolume_name =
                line.starts_with(b"\t\troot ref key") || line.starts_with(b"\t\troot backref key");
            // The output of the reference program contains the start time twice.
            let is_stop_time = line.starts_with(b"\t\tstop time ");
            let left_out = names_the_program || is_time || is_stop_time || (hidden && is_subvolume_name);
            !left_out
        })
        .collect()
}

/// Asserts that both programs print the same output, and that Buttress succeeds.
pub fn equal(words: &[&str], images: &[PathBuf]) -> Result<()> {
    let ours = compare(words, images)?;
    ensure!(
        ours.success,
        "buttress {words:?} failed and said:\n{}",
        ours.stderr
    );
    Ok(())
}

/// Asserts that both programs print the same on standard output, whether Buttress succeeds or not.
pub fn equal_output(words: &[&str], images: &[PathBuf]) -> Result<()> {
    compare(words, images).map(drop)
}

/// Asserts that Buttress's output contains this text, so that the case covers its subject.
pub fn shows(words: &[&str], images: &[PathBuf], text: &str) -> Result<()> {
    let ours = run(&tools::buttress()?, words, images)?;
    ensure!(
        String::from_utf8_lossy(&ours.stdout).contains(text),
        "{words:?} shows no {text:?}"
    );
    Ok(())
}

/// Asserts that both programs print the same on standard output, and that Buttress reports an error
/// on standard error.
pub fn equal_but_wrong(words: &[&str], images: &[PathBuf]) -> Result<String> {
    let ours = compare(words, images)?;
    ensure!(
        !ours.success,
        "buttress {words:?} was content with a damaged volume"
    );
    Ok(ours.stderr)
}

fn compare(words: &[&str], images: &[PathBuf]) -> Result<Printed> {
    let reference = run(&tools::newest("btrfs"), words, images)?;
    let ours = run(&tools::buttress()?, words, images)?;
    let (expected, found) = (
        comparable(words, &reference.stdout),
        comparable(words, &ours.stdout),
    );
    let first = expected
        .iter()
        .zip(&found)
        .position(|(expected, found)| expected != found);
    let Some(place) =
        first.or_else(|| (expected.len() != found.len()).then(|| expected.len().min(found.len())))
    else {
        return Ok(ours);
    };
    let show = |lines: &[&[u8]]| {
        let begin = place.saturating_sub(6);
        let shown: Vec<String> = lines
            .iter()
            .enumerate()
            .skip(begin)
            .take(12)
            .map(|(number, line)| {
                format!(
                    "{}{}",
                    if number == place { ">" } else { " " },
                    String::from_utf8_lossy(line)
                )
            })
            .collect();
        shown.join("\n")
    };
    anyhow::bail!(
        "{words:?}: line {} differs\nbtrfs-progs ({} lines):\n{}\nbuttress ({} lines):\n{}\nbuttress said:\n{}",
        place.saturating_add(1),
        expected.len(),
        show(&expected),
        found.len(),
        show(&found),
        ours.stderr,
    )
}

/// Compares all commands that work on an image without a mount.
pub fn everything(images: &[PathBuf]) -> Result<()> {
    for words in [
        &["dump-super"][..],
        &["dump-super", "-f"],
        &["dump-super", "-a", "-f", "-F"],
    ] {
        equal(words, images)?;
    }
    equal(&["dump-super", "-s", "1"], images)?;
    for words in [
        &[][..],
        &["--dfs"],
        &["-e"],
        &["-d"],
        &["-u"],
        &["-r"],
        &["-R"],
        &["-t", "5"],
        &["-t", "root"],
        &["-t", "chunk"],
        &["-t", "csum", "--csum-items", "--csum-headers"],
        &["--hide-names", "--csum-headers"],
    ] {
        equal(&[&["dump-tree", "--noscan"], words].concat(), images)?;
    }
    Ok(())
}

/// Returns the ids of all subvolumes except the top level. (With the first space cache, these ids
/// need not begin at 256, because the cache's inodes use ids, too.)
pub fn subvolumes(image: &Path) -> Result<Vec<u64>> {
    let printed = run(&tools::newest("btrfs"), &["dump-tree", "-r"], &[image.to_owned()])?;
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    let ids = text
        .lines()
        .filter_map(|line| line.strip_prefix("file tree key (")?.split(' ').next());
    Ok(ids.filter_map(|id| id.parse().ok()).collect())
}

/// Compares tree statistics; the reference accepts only one device.
pub fn tree_statistics(image: &Path, trees: &[u64]) -> Result<()> {
    let images = [image.to_owned()];
    equal(&["tree-stats"], &images)?;
    equal(&["tree-stats", "-b"], &images)?;
    for tree in trees {
        equal(&["tree-stats", "-b", "-t", &tree.to_string()], &images)?;
    }
    Ok(())
}

/// Compares chunk lists; the reference needs the mounted volume.
pub fn chunks(mounted: &Path, images: &[PathBuf], words: &[&str]) -> Result<()> {
    let reference = run(
        &tools::newest("btrfs"),
        &[&["list-chunks"], words].concat(),
        &[mounted.to_owned()],
    )?;
    let mut arguments = vec!["list-chunks"];
    arguments.extend(words);
    let (image, others) = images.split_first().context("an image")?;
    let devices: Vec<&str> = others.iter().filter_map(|image| image.to_str()).collect();
    for device in &devices {
        arguments.extend(["--device", device]);
    }
    let ours = run(&tools::buttress()?, &arguments, std::slice::from_ref(image))?;
    ensure!(
        reference.stdout == ours.stdout,
        "list-chunks {words:?}\nbtrfs-progs:\n{}\nbuttress:\n{}\n{}",
        String::from_utf8_lossy(&reference.stdout),
        String::from_utf8_lossy(&ours.stdout),
        ours.stderr
    );
    Ok(())
}
