//! Extents and seeks compared with the kernel's: a script with merged extents of different
//! sharedness, random volumes, and signals during the output.
//!
//! `BUTTRESS_SOAK_SEED` and `BUTTRESS_FIEMAP_VOLUMES` set the first seed and the number of volumes
//! (`cargo xtask soak --fiemap` sets them).

use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::missing;
use buttress_oracle::seeds::budget;
use buttress_oracle::tools::{buttress, kernel_missing, newest, run};
use buttress_oracle::volumes::scratch;
use buttress_proof::fiemap::{Compared, compare, of_kernel, of_writer};
use buttress_proof::harness::{self, Case, Outcome};
use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of changes of one volume.
const STEPS: u64 = 240;
/// Number of volumes in one case.
const VOLUMES_A_CASE: u64 = 5;

/// Lock that serialises the cases: a process that one thread starts inherits, until its `exec`, the
/// images that another thread holds open and locked.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(run(command)?.stdout)?)
}

/// Creates two adjacent extents of 256 KiB, of which one is cloned into another file.
fn script(cloned_first: bool) -> Result<Outcome> {
    let _turn = turn();
    if let Some(reason) = kernel_missing().or_else(|| missing("filefrag")) {
        return Ok(Outcome::Skipped(reason));
    }
    let folder = scratch()?;
    let image = folder.path().join("image");
    File::create(&image)?.set_len(512 << 20)?;
    run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(&image))?;
    let clone = if cloned_first {
        "reflink /foo 0 0 256K /bar"
    } else {
        "reflink /foo 256K 0 256K /bar"
    };
    let lines = [
        "pwrite -q -S 0xab 0 256K /foo",
        "fsync /foo",
        "pwrite -q -S 0xcd 256K 256K /foo",
        "fsync /foo",
        clone,
        "fiemap -v /foo",
    ];
    let mut command = Command::new(buttress()?);
    command.args(["shell", "-w"]).arg(&image);
    for line in lines {
        command.args(["-c", line]);
    }
    let session = text(&mut command)?;
    let extents: Vec<&str> = session.lines().filter(|line| line.contains("..")).collect();
    let shared: Vec<bool> = extents.iter().map(|line| line.contains("shared")).collect();
    ensure!(shared == [cloned_first, !cloned_first], "{session}");
    let place = format!("{}:/foo", image.display());
    let closed = text(Command::new(buttress()?).args(["fiemap", "-v", &place]))?;
    ensure!(
        extents
            == closed
                .lines()
                .filter(|line| line.contains(".."))
                .collect::<Vec<_>>(),
        "in the session: {session}\nthen: {closed}"
    );
    compare_text(&image, "foo", &place)?;
    Ok(Outcome::Passed)
}

/// Compares the text of the command with that of filefrag, with and without `-v`.
fn compare_text(image: &Path, path: &str, place: &str) -> Result<()> {
    let mount = Mount::new(&[image.to_path_buf()], "ro,noatime")?;
    let mounted = mount.path().join(path);
    for options in [&[][..], &["-v"][..]] {
        let ours = text(Command::new(buttress()?).arg("fiemap").args(options).arg(place))?;
        let theirs = text(Command::new("filefrag").args(options).arg(&mounted))?;
        let theirs = theirs.replace(&mounted.display().to_string(), place);
        ensure!(ours == theirs, "ours:\n{ours}\nfilefrag's:\n{theirs}");
    }
    mount.close()
}

/// Compares the files of random volumes, and one file of each volume also in the text of filefrag.
fn random(first_seed: u64, volumes: u64, by_kernel: bool) -> Result<Outcome> {
    let _turn = turn();
    if let Some(reason) = kernel_missing().or_else(|| missing("filefrag")) {
        return Ok(Outcome::Skipped(reason));
    }
    let mut all = Compared::default();
    for seed in first_seed..first_seed + volumes {
        let folder = scratch()?;
        let one = || -> Result<Compared> {
            let image = if by_kernel {
                of_kernel::make(folder.path(), seed, STEPS)?
            } else {
                of_writer::make(folder.path(), seed, STEPS)?
            };
            let found = compare(&image)?;
            if found.kernel_differs == 0 && seed.is_multiple_of(5) {
                let mount = Mount::new(std::slice::from_ref(&image), "ro,noatime")?;
                let mut names: Vec<String> = std::fs::read_dir(mount.path())?
                    .flat_map(|entry| std::fs::read_dir(entry?.path()))
                    .flatten()
                    .filter_map(|entry| {
                        let path = entry.ok()?.path();
                        Some(path.strip_prefix(mount.path()).ok()?.to_str()?.to_owned())
                    })
                    .collect();
                names.sort();
                mount.close()?;
                for name in names.iter().step_by(7) {
                    compare_text(&image, name, &format!("{}:/{name}", image.display()))?;
                }
            }
            Ok(found)
        };
        all += one().with_context(|| {
            format!(
                "seed {seed}, made by {}",
                if by_kernel { "the kernel" } else { "Buttress" }
            )
        })?;
    }
    ensure!(all.shared > 0 && all.shared < all.extents, "{all:?}");
    println!("seeds [{first_seed}, {}): {all:?}", first_seed + volumes);
    Ok(Outcome::Passed)
}

/// Sends a signal during a long list, once to the command and once in a session.
fn cancelled() -> Result<Outcome> {
    let _turn = turn();
    let folder = scratch()?;
    let image = of_writer::make_long_file(folder.path(), "file", 20_000)?;
    let place = format!("{}:/file", image.display());
    let session = ["shell", &image.display().to_string(), "-c"].map(str::to_owned);
    let word = |word: &str| [&session[..], &[word.to_owned()]].concat();
    let all = [
        ["fiemap", "-v", &place].map(str::to_owned).to_vec(),
        word("fiemap -v /file"),
        word("seek -a -r 0 /file"),
    ];
    let before = std::fs::metadata(&image)?.modified()?;
    for words in all {
        for signal in [Signal::INT, Signal::TERM] {
            cancel_half_way(&words, signal).with_context(|| format!("{words:?}, {signal:?}"))?;
        }
    }
    let names: Vec<_> = std::fs::read_dir(folder.path())?.collect::<std::io::Result<_>>()?;
    ensure!(names.len() == 1, "left behind: {names:?}");
    ensure!(
        std::fs::metadata(&image)?.modified()? == before,
        "the image was written"
    );
    Ok(Outcome::Passed)
}

fn cancel_half_way(words: &[String], signal: Signal) -> Result<()> {
    let whole = run(Command::new(buttress()?).args(words))?.stdout;
    let mut child = Command::new(buttress()?)
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut output = child.stdout.take().context("its output")?;
    let mut arrived = vec![0; 10];
    output.read_exact(&mut arrived)?;
    // Wait until the pipe is full, so that the command waits for its reader and cannot have ended.
    buttress_oracle::signals::deliver(&child, signal)?;
    output.read_to_end(&mut arrived)?;
    let ended = child.wait_with_output()?;
    let error = String::from_utf8(ended.stderr)?;
    ensure!(
        ended.status.code() == Some(1) && error.contains("cancelled"),
        "{}: {error}",
        ended.status
    );
    ensure!(
        arrived.len() < whole.len() / 2 && whole.starts_with(&arrived),
        "{} of {} bytes arrived",
        arrived.len(),
        whole.len()
    );
    Ok(())
}

fn main() -> std::process::ExitCode {
    let mut cases = vec![
        Case::new("script::the_second_extent_is_cloned", || script(false)),
        Case::new("script::the_first_extent_is_cloned", || script(true)),
        Case::new("cancelled::by_a_signal", cancelled),
    ];
    let (first, volumes) = (
        buttress_oracle::seeds::seed("fiemap", "BUTTRESS_SOAK_SEED", 1),
        budget("BUTTRESS_FIEMAP_VOLUMES", 20, 40),
    );
    // Each side creates half of the volumes.
    for start in (0..volumes.div_ceil(2)).step_by(VOLUMES_A_CASE as usize) {
        let count = VOLUMES_A_CASE.min(volumes.div_ceil(2) - start);
        for by_kernel in [true, false] {
            let maker = if by_kernel { "kernel" } else { "writer" };
            let seed = first + start;
            cases.push(Case::new(format!("random::{maker}_{seed}"), move || {
                random(seed, count, by_kernel)
            }));
        }
    }
    harness::run(cases)
}
