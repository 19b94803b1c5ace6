//! States that a running kernel leaves behind: unlinked files, half-dropped subvolumes; and
//! interrupted commands.

use crate::counting;
use crate::volumes::{open, open_for_writing};
use anyhow::{Context, Result, ensure};
use buttress::accounting::{Options, Share};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::fs::{Error, Filesystem};
use buttress::{Progress, SubvolumeId};
use buttress_oracle::history::subvolume;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{buttress, kernel_missing, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A mounted empty volume.
struct Running {
    folder: tempfile::TempDir,
    images: Vec<PathBuf>,
    mount: Mount,
}

impl Running {
    fn new() -> Result<Self> {
        let specification = Specification {
            fill: Fill::Empty,
            node_kib: 4,
            ..Specification::default()
        };
        let (folder, images) = format(&specification)?;
        let mount = Mount::new(&images, "commit=300")?;
        Ok(Self {
            folder,
            images,
            mount,
        })
    }

    /// Commits, and opens a copy of the volume.
    fn copy(&self) -> Result<Filesystem> {
        rustix::fs::syncfs(File::open(self.mount.path())?)?;
        let copy = self.folder.path().join("copy");
        let image = self.images.first().context("an image")?;
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy))?;
        open(&[copy])
    }
}

/// Deletes an open file: it is reported separately, even if a snapshot still has a name for it.
fn unlinked() -> Result<()> {
    let running = Running::new()?;
    let top = running.mount.path();
    let work = top.join("work");
    subvolume(&["create"], &[&work])?;
    let kept = File::create(work.join("kept"))?;
    kept.write_all_at(&[1; 400_000], 0)?;
    let lost = File::create(work.join("lost"))?;
    lost.write_all_at(&[2; 300_000], 0)?;
    rustix::fs::syncfs(File::open(top)?)?;
    subvolume(&["snapshot", "-r"], &[&work, &top.join("snapshot")])?;
    std::fs::remove_file(work.join("kept"))?;
    let newer = File::create(work.join("newer"))?;
    newer.write_all_at(&[3; 200_000], 0)?;
    rustix::fs::syncfs(File::open(top)?)?;
    std::fs::remove_file(work.join("newer"))?;
    let filesystem = running.copy()?;
    let accounting = counting::compare(
        &filesystem,
        buttress_oracle::seeds::seed("space::states", "BUTTRESS_SEED", 1),
    )?;
    let scope = accounting.scope(|owner| owner.share == Share::Unlinked);
    let all = accounting.occupied_by(&scope).data().get();
    let exclusive = accounting.exclusive_to(&scope).data().get();
    // The two sizes are 98 and 49 sectors of 4 KiB.
    ensure!(
        (all, exclusive) == (98 * 4096 + 49 * 4096, 49 * 4096),
        "files without a name take up {all}, {exclusive} alone"
    );
    drop((kept, lost, newer));
    running.mount.close()
}

/// Interrupts Buttress while it drops a subvolume: everything that remains of the subvolume is
/// counted, as in block groups.
fn half_dropped() -> Result<()> {
    /// Number of extents, more than are dropped at once.
    const EXTENTS: u64 = 70_000;
    let running = Running::new()?;
    let top = running.mount.path();
    let big = top.join("big");
    subvolume(&["create"], &[&big])?;
    let file = File::create(big.join("file"))?;
    for number in 0..EXTENTS {
        file.write_all_at(&[1; 4096], number * 8192)?;
    }
    file.sync_all()?;
    run(Command::new("cp")
        .arg("--reflink=always")
        .arg(big.join("file"))
        .arg(top.join("shared")))?;
    // Each extent that is rewritten belongs to only one of these subvolumes.
    for number in (0..EXTENTS).step_by(9) {
        file.write_all_at(&[2; 4096], number * 8192)?;
    }
    drop(file);
    let Running {
        folder,
        images,
        mount,
    } = running;
    mount.close()?;
    stop_dropping(&images)?;
    let filesystem = open(&images)?;
    let all = filesystem.subvolumes()?;
    let half = all.iter().find(|info| info.is_half_dropped());
    let half = half.context("nothing is half dropped")?.id;
    let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
    ensure!(accounting.failure_count() == 0, "{:?}", accounting.failures());
    counting::expect_totals(&filesystem, &accounting)?;
    let pending = accounting.pending();
    let left = accounting.exclusive_to(&accounting.subvolumes(&[half]));
    ensure!(
        pending == left && left.metadata.get() > 0,
        "{left:?} is left, {pending:?} is to come back"
    );
    ensure!(
        left.data().get() < EXTENTS.div_ceil(9) * 4096,
        "all of {half} is left"
    );
    drop(folder);
    Ok(())
}

/// Makes Buttress begin to drop the first subvolume.
fn stop_dropping(images: &[PathBuf]) -> Result<()> {
    const DROPS: u32 = 100;
    let filesystem = open_for_writing(images)?;
    let first = SubvolumeId::new(256);
    filesystem.subvolumes().delete(first)?;
    let progress = Progress::new();
    progress.cancel();
    // In this test, each attempt drops about one block.
    for _ in 0..DROPS {
        let result = filesystem.subvolumes().drop_deleted(&progress);
        ensure!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    }
    filesystem.commit()?;
    Ok(())
}

fn cancelled() -> Result<()> {
    let running = Running::new()?;
    for number in 0..50 {
        std::fs::write(running.mount.path().join(format!("file-{number}")), vec![7; 9000])?;
    }
    let filesystem = running.copy()?;
    let progress = Progress::new();
    progress.cancel();
    let result = filesystem.account_space(&Options::default(), &progress);
    ensure!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    running.mount.close()
}

/// Sends signals during commands: a stopped command prints nothing that looks complete, and leaves
/// no file.
fn stopped_by_signals() -> Result<()> {
    /// Number of attempts to stop each command before the test fails.
    const TIMES: u32 = 60;
    let running = Running::new()?;
    let top = running.mount.path().to_owned();
    let work = top.join("work");
    subvolume(&["create"], &[&work])?;
    let file = File::create(work.join("file"))?;
    for number in 0..30_000 {
        file.write_all_at(&[1; 4096], number * 8192)?;
    }
    drop(file);
    for number in 0..20 {
        let snapshot = top.join(format!("snapshot-{number}"));
        subvolume(&["snapshot", "-r"], &[&work, &snapshot])?;
    }
    let Running {
        folder,
        images,
        mount,
    } = running;
    mount.close()?;
    let image = images.first().context("an image")?;
    for words in [
        &["space"][..],
        &["space", "--export", "ncdu"],
        &["space", "--if-deleted", "/work"],
        &["compression"],
        &["filesystem", "du", "-s"],
    ] {
        let began = Instant::now();
        let whole = run(Command::new(buttress()?).arg("-q").args(words).arg(image))?;
        ensure!(!whole.stdout.is_empty(), "{words:?} prints nothing");
        let took = began.elapsed();
        let mut stopped = 0;
        for time in 0..TIMES {
            let scratch = tempfile::tempdir()?;
            let child = Command::new(buttress()?)
                .arg("-q")
                .args(words)
                .arg(image)
                .env("TMPDIR", scratch.path())
                .current_dir(scratch.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            std::thread::sleep(took * (time % 9 + 1) / 10);
            let signal = if time % 2 == 0 { Signal::INT } else { Signal::TERM };
            rustix::process::kill_process(Pid::from_child(&child), signal)?;
            let output = child.wait_with_output()?;
            let left = std::fs::read_dir(scratch.path())?.count();
            ensure!(left == 0, "{words:?} leaves {left} files behind");
            if output.status.success() {
                continue;
            }
            let text = String::from_utf8_lossy(&output.stdout);
            // If the signal came after the whole output, it only affects the end of the process.
            if output.stdout == whole.stdout {
                continue;
            }
            ensure!(
                !text.contains("together") && !text.contains("TOTAL"),
                "{words:?} was stopped and prints {text}"
            );
            stopped += 1;
            if stopped == 3 {
                break;
            }
        }
        ensure!(stopped > 0, "{words:?} was never stopped");
    }
    drop(folder);
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn() -> Result<()>| {
        Case::new(format!("states::{name}"), move || {
            if let Some(reason) = kernel_missing() {
                return Ok(Outcome::Skipped(reason));
            }
            body()?;
            Ok(Outcome::Passed)
        })
    };
    vec![
        case("unlinked", unlinked),
        case("half_dropped", half_dropped),
        case("cancelled", cancelled),
        case("stopped_by_signals", stopped_by_signals),
    ]
}
