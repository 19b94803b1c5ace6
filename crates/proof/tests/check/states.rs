//! States that a running kernel leaves behind: a log, orphans, a subvolume that is being deleted.
//! The check reports all of these states as notes, not as damage.

use crate::{case, expect_clean};
use anyhow::{Result, ensure};
use buttress::check::Note;
use buttress_oracle::history::subvolume;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::run;
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::Case;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted volume with content.
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
        let running = Self {
            folder,
            images,
            mount,
        };
        std::fs::write(running.top().join("committed"), vec![7u8; 100_000])?;
        running.commit()?;
        Ok(running)
    }

    fn top(&self) -> &Path {
        self.mount.path()
    }

    fn commit(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.top())?)?)
    }

    /// Copies the image of the mounted volume in its current state.
    fn copy(&self) -> Result<Vec<PathBuf>> {
        let copy = self.folder.path().join("copy");
        run(Command::new("cp")
            .arg("--sparse=always")
            .arg(&self.images[0])
            .arg(&copy))?;
        Ok(vec![copy])
    }
}

fn pending_log() -> Result<()> {
    let running = Running::new()?;
    let file = File::create(running.top().join("logged"))?;
    file.write_all_at(&[8; 50_000], 0)?;
    file.sync_all()?;
    let report = expect_clean(&running.copy()?)?;
    drop(file);
    ensure!(
        report
            .notes
            .iter()
            .any(|note| matches!(note, Note::PendingLog { .. })),
        "{:?}",
        report.notes
    );
    running.mount.close()
}

fn orphans() -> Result<()> {
    let running = Running::new()?;
    let path = running.top().join("orphan");
    let file = File::create(&path)?;
    file.write_all_at(&[9; 300_000], 0)?;
    std::fs::remove_file(&path)?;
    running.commit()?;
    let report = expect_clean(&running.copy()?)?;
    drop(file);
    ensure!(
        report
            .notes
            .iter()
            .any(|note| matches!(note, Note::Orphans { count: 1, .. })),
        "{:?}",
        report.notes
    );
    running.mount.close()
}

/// Copies the image repeatedly while the kernel drops a subvolume that shares extents with a
/// snapshot.
fn half_deleted() -> Result<()> {
    let running = Running::new()?;
    let big = running.top().join("big");
    subvolume(&["create"], &[&big])?;
    for number in 0..40_000 {
        std::fs::write(big.join(format!("file-{number}")), vec![1; 600])?;
    }
    subvolume(&["snapshot", "-r"], &[&big, &running.top().join("kept")])?;
    for number in (0..40_000).step_by(7) {
        std::fs::write(big.join(format!("file-{number}")), vec![2; 700])?;
    }
    running.commit()?;
    subvolume(&["delete", "--commit-after"], &[&big])?;
    let mut seen = false;
    for _ in 0..8 {
        let report = expect_clean(&running.copy()?)?;
        seen |= report
            .notes
            .iter()
            .any(|note| matches!(note, Note::BeingDeleted { .. }));
        running.commit()?;
    }
    println!(
        "a subvolume that is being deleted was {}seen",
        if seen { "" } else { "not " }
    );
    running.mount.close()
}

pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn() -> Result<()>| case(name.to_owned(), (6, 2), body);
    vec![
        case("states::pending_log", pending_log),
        case("states::orphans", orphans),
        case("states::half_deleted", half_deleted),
    ]
}
