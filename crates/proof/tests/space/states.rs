//! What a running kernel leaves behind: files without a name, subvolumes that are half dropped; and jobs that are
//! stopped.

use crate::counting;
use crate::volumes::open;
use anyhow::{Context, Result, ensure};
use buttress::fs::Error;
use buttress::fs::space::accounting::{Options, Share};
use buttress::{Filesystem, Progress};
use buttress_oracle::history::subvolume;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{kernel_missing, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// A volume that is mounted and empty.
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

    /// The volume as its last commit left it, which this makes.
    fn copy(&self) -> Result<Filesystem> {
        rustix::fs::syncfs(File::open(self.mount.path())?)?;
        self.copy_as_it_is()
    }

    fn copy_as_it_is(&self) -> Result<Filesystem> {
        let copy = self.folder.path().join("copy");
        let image = self.images.first().context("an image")?;
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy))?;
        open(&[copy])
    }
}

/// A file that was deleted while it is open is told apart, also where a snapshot still has a name for it.
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
    let accounting = counting::compare(&filesystem, 1)?;
    let scope = accounting.scope(|owner| owner.share == Share::Unlinked);
    let all = accounting.occupied_by(&scope).data().get();
    let exclusive = accounting.exclusive_to(&scope).data().get();
    // 98 and 49 sectors of 4 KiB.
    ensure!(
        (all, exclusive) == (98 * 4096 + 49 * 4096, 49 * 4096),
        "files without a name take up {all}, {exclusive} alone"
    );
    drop((kept, lost, newer));
    running.mount.close()
}

/// The image is copied again and again while the kernel drops a subvolume that a snapshot shares a part of. Whatever
/// is left of it, block groups have counted.
fn half_dropped() -> Result<()> {
    let running = Running::new()?;
    let top = running.mount.path();
    let big = top.join("big");
    subvolume(&["create"], &[&big])?;
    for number in 0..8_000 {
        std::fs::write(big.join(format!("file-{number}")), vec![1; 2500])?;
    }
    subvolume(&["snapshot", "-r"], &[&big, &top.join("kept")])?;
    for number in (0..8_000).step_by(7) {
        std::fs::write(big.join(format!("file-{number}")), vec![2; 2600])?;
    }
    rustix::fs::syncfs(File::open(top)?)?;
    subvolume(&["delete", "--commit-after"], &[&big])?;
    let mut seen = false;
    for _ in 0..6 {
        let filesystem = running.copy_as_it_is()?;
        // A copy that was made in the middle of a commit may be older than its own blocks.
        let progress = Progress::new();
        if let Ok(accounting) = filesystem.account_space(&Options::default(), &progress)
            && accounting.failure_count() == 0
        {
            counting::expect_totals(&filesystem, &accounting)?;
            seen |= filesystem.subvolumes()?.iter().any(|info| info.is_half_dropped());
        }
        rustix::fs::syncfs(File::open(top)?)?;
    }
    println!(
        "a half dropped subvolume was {}seen",
        if seen { "" } else { "not " }
    );
    running.mount.close()
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
    ]
}
