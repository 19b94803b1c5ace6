//! A source tree: unpacked, listed, searched, copied, removed.

use super::sides::{Kind, Side};
use super::{Times, is_installed, program};
use crate::Scale;
use crate::images::{fill_source_tree, folder};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The goal for cold walks of trees: the largest ratio to the kernel's time.
const COLD: Option<f64> = Some(0.7);

/// Returns the archive of the tree, made once and kept.
fn archive(scale: Scale) -> Result<PathBuf> {
    let path = folder()?.join(format!("source-{}.tar", scale.source_files));
    if !path.exists() {
        let place = tempfile::tempdir_in(folder()?)?;
        fill_source_tree(scale, &place.path().join("source"))?;
        let unfinished = path.with_extension("unfinished");
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&unfinished).arg("-C").arg(place.path());
        program(tar.arg("source"), &[0])?;
        std::fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

fn find(top: &Path) -> Result<()> {
    program(Command::new("find").arg(top).arg("-ls"), &[0])
}

fn grep(top: &Path) -> Result<()> {
    // The word that grep searches does not occur, so grep reads all files.
    program(
        Command::new("grep").args(["-r", "not in any of them"]).arg(top),
        &[1],
    )
}

/// The git repository of the tree, beside the tree, made once and kept. Each side has its own
/// index.
struct Repository {
    folder: PathBuf,
    index: PathBuf,
    top: PathBuf,
}

impl Repository {
    fn of(scale: Scale, side: &Side) -> Result<Self> {
        let folder = folder()?.join(format!("source-{}.git", scale.source_files));
        let repository = Self {
            index: folder.join(format!("index-{}", side.kind.name())),
            top: side.path().join("source"),
            folder,
        };
        let commits = repository.folder.join("refs/heads/main");
        if !commits.exists() {
            repository.git(&["init", "-q", "-b", "main"])?;
            repository.git(&["add", "-A"])?;
            let names = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
            repository.git(&[&names[..], &["commit", "-q", "-m", "tree"]].concat())?;
        } else if repository.index.exists() {
            std::fs::remove_file(&repository.index)?;
        }
        // Another side's index refers to that side's inodes.
        repository.git(&["read-tree", "HEAD"])?;
        repository.status()?;
        Ok(repository)
    }

    fn git(&self, words: &[&str]) -> Result<()> {
        let mut git = Command::new("git");
        git.env("GIT_DIR", &self.folder)
            .env("GIT_WORK_TREE", &self.top)
            .env("GIT_INDEX_FILE", &self.index)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(&self.top)
            // Without this setting git packs in the background, and keeps the mount busy.
            .args(["-c", "maintenance.auto=false", "-c", "gc.auto=0"])
            .args(words);
        program(&mut git, &[0])
    }

    fn status(&self) -> Result<()> {
        self.git(&["status", "--porcelain"])
    }
}

pub(super) fn run(scale: Scale, side: &mut Side, times: &mut Times) -> Result<()> {
    let archive = archive(scale)?;
    // Reading the archive puts it into the page cache.
    std::io::copy(&mut std::fs::File::open(&archive)?, &mut std::io::sink())?;
    let begin = Instant::now();
    times.take("untar", None, || {
        program(
            Command::new("tar")
                .arg("-xf")
                .arg(&archive)
                .arg("-C")
                .arg(side.path()),
            &[0],
        )
    })?;
    if side.kind != Kind::Memory {
        side.close()?;
        times.put("untar and unmount", None, begin.elapsed().as_secs_f64());
    }
    side.cold("")?;
    let top = side.path().join("source");
    times.take("find -ls, cold", COLD, || find(&top))?;
    times.take("find -ls, warm", None, || find(&top))?;
    side.cold("")?;
    let top = side.path().join("source");
    times.take("grep -r, cold", COLD, || grep(&top))?;
    times.take("grep -r, warm", None, || grep(&top))?;
    if is_installed("git") {
        let repository = Repository::of(scale, side)?;
        times.take("git status, warm", None, || repository.status())?;
        side.cold("")?;
        let repository = Repository {
            top: side.path().join("source"),
            ..repository
        };
        times.take("git status, cold", COLD, || repository.status())?;
    } else {
        println!("    git is not installed: no rows of git status");
    }
    let (top, copy) = (side.path().join("source"), side.path().join("copy"));
    times.take("cp -a", None, || {
        program(Command::new("cp").arg("-a").arg(&top).arg(&copy), &[0])
    })?;
    times.take("rm -r", None, || {
        program(Command::new("rm").arg("-r").arg(&top), &[0])
    })
}
