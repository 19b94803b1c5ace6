//! Streams that Buttress receives into an unmounted image, compared with the kernel's result of the
//! same streams.
//!
//! Each chain is received by Buttress alone, or by Buttress and the kernel alternately, each
//! continuing after the other. After the receive, the kernel mounts the image and shows the result,
//! and both checks must find nothing.

use super::compare::{intersection, same_but_for_times_of_directories, same_content, same_sharing, union};
use super::tree::{BLOCK_BYTES, Tree, add_places, of_snapshot};
use anyhow::{Context, Result, ensure};
use buttress::unstable::check;
use buttress::unstable::check::check;
use buttress::unstable::fs::OpenOptions;
use buttress::{Device, DeviceOptions, Location, SubvolumeId};
use buttress_fs::Progress;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::history::History;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::shown;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_stream::receive::{Options, Summary, receive};
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Receivers of a chain's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// Buttress receives all streams of the history.
    Buttress,
    /// Buttress receives the first stream, the kernel the second, and so on.
    InTurns,
    /// The kernel receives the first stream, Buttress the second, and so on.
    InTurnsAfterTheKernel,
}

impl Receivers {
    /// Returns the receivers of the case with this number.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        match number % 4 {
            1 => Self::InTurns,
            3 => Self::InTurnsAfterTheKernel,
            _ => Self::Buttress,
        }
    }

    const fn is_kernel(self, number: usize) -> bool {
        match self {
            Self::Buttress => false,
            Self::InTurns => !number.is_multiple_of(2),
            Self::InTurnsAfterTheKernel => number.is_multiple_of(2),
        }
    }
}

/// An image to receive into.
#[derive(Debug)]
pub struct Target {
    images: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Target {
    /// Creates an empty volume. Every second volume has small blocks, so that trees are deep.
    pub fn new(number: u64) -> Result<Self> {
        let (folder, images) = format(&Specification {
            metadata: "single",
            device_mib: 2048,
            node_kib: if number.is_multiple_of(2) { 16 } else { 4 },
            fill: Fill::Empty,
            ..Specification::default()
        })?;
        Ok(Self {
            images,
            _folder: folder,
        })
    }

    fn image(&self) -> Result<&Path> {
        Ok(self.images.first().context("an image")?)
    }

    /// Makes Buttress receive a stream.
    pub fn receive(&self, stream: &Path) -> Result<Summary> {
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let device = Device::open(self.image()?, &options)?;
        let filesystem = OpenOptions::new(vec![device]).open()?;
        let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        let input = File::open(stream)?;
        let received = receive(&filesystem, top, input, &Options::default(), &mut |_| {});
        if received.is_err() {
            filesystem.abandon();
        }
        Ok(received?)
    }

    /// Makes the kernel receive a stream.
    pub fn receive_by_kernel(&self, stream: &Path) -> Result<()> {
        let mount = Mount::new(&self.images, "noatime")?;
        run(Command::new(newest("btrfs"))
            .args(["receive", "-q", "-f"])
            .arg(stream)
            .arg(mount.path()))?;
        mount.close()
    }

    /// Returns the kernel's view of a snapshot.
    pub fn tree(&self, snapshot: &str) -> Result<Tree> {
        let mount = Mount::new(&self.images, "ro,noatime")?;
        let tree = of_snapshot(&mount.path().join(snapshot))?;
        mount.close()?;
        Ok(tree)
    }

    /// Returns the kernel's view of the snapshots of a history.
    fn trees(&self, history: &History) -> Result<Vec<Option<Tree>>> {
        let mount = Mount::new(&self.images, "ro,noatime")?;
        let filesystem = super::tree::open(self.image()?)?;
        let mut trees: Vec<Option<Tree>> = vec![None; history.steps.len()];
        for transfer in &history.transfers {
            let snapshot = format!("s{}", transfer.snapshot);
            let mut tree = of_snapshot(&mount.path().join(&snapshot))?;
            add_places(&mut tree, &filesystem, mount.path(), Path::new(&snapshot))
                .with_context(|| format!("extents of received {snapshot}"))?;
            *trees
                .get_mut(transfer.snapshot)
                .context("a snapshot of the history")? = Some(tree);
        }
        drop(filesystem);
        mount.close()?;
        Ok(trees)
    }

    /// Asserts that both checks find nothing.
    pub fn expect_clean(&self) -> Result<()> {
        btrfs_check(&self.images).context("btrfs check")?;
        let options = check::Options {
            data_checksums: true,
            ..check::Options::default()
        };
        let report = check(&super::tree::open(self.image()?)?, &options, &Progress::new())?;
        ensure!(
            report.findings.is_empty(),
            "buttress check: {:?}",
            report.findings
        );
        Ok(())
    }
}

/// References for the result of streams.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Sent snapshots.
    pub sources: &'a [Tree],
    /// Kernel's result of the same streams, if available.
    pub kernel: Option<&'a [Option<Tree>]>,
    /// True if the compared streams preserve the times of directories.
    pub has_times_of_directories: bool,
}

/// Receives the streams of a history and compares.
pub fn compare(
    number: u64,
    receivers: Receivers,
    history: &History,
    streams: &[PathBuf],
    expected: Expected<'_>,
) -> Result<()> {
    let target = Target::new(number)?;
    for (place, stream) in streams.iter().enumerate() {
        let shown = stream.file_name().unwrap_or_default().to_string_lossy();
        if receivers.is_kernel(place) {
            target
                .receive_by_kernel(stream)
                .with_context(|| format!("the kernel receiving {shown}, {receivers:?}"))?;
        } else {
            target
                .receive(stream)
                .with_context(|| format!("Buttress receiving {shown}, {receivers:?}"))?;
        }
    }
    let trees = target.trees(history)?;
    for (place, (source, tree)) in expected.sources.iter().zip(&trees).enumerate() {
        let Some(tree) = tree else { continue };
        let what = format!("s{place}, received by {receivers:?}");
        let kernel = expected.kernel.and_then(|trees| trees.get(place)?.as_ref());
        match kernel {
            Some(kernel) => {
                same_but_for_times_of_directories(&what, kernel, tree)
                    .context("than the kernel makes of it")?;
                no_more_data(&what, source, kernel, tree)?;
            }
            None if expected.has_times_of_directories => same_content(&what, source, tree)?,
            None => same_but_for_times_of_directories(&what, source, tree)?,
        }
    }
    if let Some(kernel) = expected.kernel {
        same_sharing(
            "received by Buttress",
            &without_ends(kernel),
            &without_ends(&trees),
        )?;
    }
    target.expect_clean()
}

/// Asserts that the received files have data only where the snapshot or the kernel's result has
/// data. The received data may be less: a hole punched up to the end of a file includes the last
/// sector, in which the kernel writes zeros.
fn no_more_data(what: &str, source: &Tree, kernel: &Tree, received: &Tree) -> Result<()> {
    for (path, found) in &received.data {
        let empty = Vec::new();
        let of = |tree: &'_ Tree| tree.data.get(path).unwrap_or(&empty).clone();
        let allowed = union(&of(source), &of(kernel));
        ensure!(
            intersection(&allowed, found) == *found,
            "{what}: {} has data in {found:?}; the snapshot and the kernel's in {allowed:?}",
            shown(path)
        );
    }
    Ok(())
}

/// Returns the trees without the last sectors of files. If a file was truncated inside a sector,
/// this sector is rewritten with zeros after the end, but the kernel leaves it shared until the
/// file grows.
fn without_ends(trees: &[Option<Tree>]) -> Vec<Option<Tree>> {
    let mut trees = trees.to_vec();
    for tree in trees.iter_mut().flatten() {
        for (path, places) in &mut tree.places {
            let size = tree.manifest.get(path).map_or(0, |entry| entry.size);
            if size % BLOCK_BYTES != 0 {
                places.remove(&(size / BLOCK_BYTES * BLOCK_BYTES));
            }
        }
    }
    trees
}
