//! Checks of what a run left: the whole volume, and the change that the run was to make.
//!
//! Our check inspects the result of both sides. On tiny volumes, `btrfs check` reads the data of
//! both as well.

use crate::Scale;
use anyhow::{Context, Result, bail, ensure};
use buttress::ByteCount;
use buttress::unstable::format::BlockGroupFlags;
use buttress::unstable::fs::OpenOptions;
use buttress_device::Device;
use buttress_oracle::tools::{buttress, newest, run};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The change that a job is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No chunk stays at its logical address.
    AllChunksAreNew,
    /// All chunks have two copies on two devices.
    AllIsRaid1,
    /// Chunks of metadata have one copy.
    MetadataIsSingle,
    /// The volume has one device less.
    DeviceIsGone,
    /// The volume is smaller.
    DeviceIsSmaller,
    /// The layout stays.
    Nothing,
}

/// The chunks and devices of a volume.
#[derive(Debug)]
pub(super) struct Layout {
    /// The flags of each chunk, by its start.
    chunks: BTreeMap<u64, BlockGroupFlags>,
    devices: u64,
    bytes: ByteCount,
}

/// The verified result of a run.
pub(super) struct Verified {
    layout: Layout,
    /// The quota groups with their counts, if the volume has quotas.
    quotas: Vec<String>,
}

impl Layout {
    /// Reads the layout of a volume. Images that do not belong to the volume are left out.
    pub(super) fn of(images: &[PathBuf]) -> Result<Self> {
        let open = |image: &PathBuf| Device::open(image, &buttress_device::OpenOptions::default());
        let devices = images.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let filesystem = OpenOptions::new(devices).open()?;
        let superblock = filesystem.superblock();
        let chunks = filesystem.volume().chunk_map();
        let chunks = chunks.chunks().iter();
        Ok(Self {
            chunks: chunks.map(|chunk| (chunk.start().get(), chunk.flags())).collect(),
            devices: superblock.num_devices,
            bytes: superblock.total_bytes,
        })
    }

    /// Checks that the change led from `before` to this layout.
    fn require(&self, change: Change, before: &Self) -> Result<()> {
        let all = |is_right: &dyn Fn(&BlockGroupFlags) -> bool| self.chunks.values().all(is_right);
        let is_done = match change {
            Change::AllChunksAreNew => self.chunks.keys().all(|start| !before.chunks.contains_key(start)),
            Change::AllIsRaid1 => all(&|flags| flags.contains(BlockGroupFlags::RAID1)),
            Change::MetadataIsSingle => {
                all(&|flags| flags.contains(BlockGroupFlags::DATA) || !flags.contains(BlockGroupFlags::DUP))
            }
            Change::DeviceIsGone => self.devices + 1 == before.devices,
            Change::DeviceIsSmaller => self.bytes < before.bytes,
            Change::Nothing => self.chunks == before.chunks && self.devices == before.devices,
        };
        ensure!(
            is_done,
            "the run did not do {change:?}: {before:?} became {self:?}"
        );
        Ok(())
    }
}

/// Checks the volume that a run left.
pub(super) fn verified(
    change: Change,
    before: &Layout,
    images: &[PathBuf],
    scale: Scale,
) -> Result<Verified> {
    // A removed device no longer belongs to the volume.
    let images = match change {
        Change::DeviceIsGone => images.get(..images.len() - 1).context("a volume has a device")?,
        _ => images,
    };
    let layout = Layout::of(images)?;
    layout.require(change, before)?;
    let (first, others) = images.split_first().context("a volume has a device")?;
    let mut check = Command::new(buttress()?);
    check.args(["-q", "check"]);
    for image in others {
        check.arg("--device").arg(image);
    }
    run(check.arg(first))?;
    if scale.name == crate::TINY.name && images.len() == 1 {
        run(Command::new(newest("btrfs"))
            .args(["check", "--force", "--check-data-csum"])
            .arg(first))?;
    }
    let quotas = match change {
        Change::Nothing => quotas(first)?,
        _ => Vec::new(),
    };
    Ok(Verified { layout, quotas })
}

/// Returns the quota groups with their counts.
fn quotas(image: &PathBuf) -> Result<Vec<String>> {
    let mut command = Command::new(buttress()?);
    let shown = run(command.args(["-q", "qgroup", "show", "--raw"]).arg(image))?;
    let lines = String::from_utf8_lossy(&shown.stdout)
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    ensure!(lines.len() > 2, "the volume has no quota groups: {lines:?}");
    Ok(lines)
}

/// Checks that both sides came to the same result, as far as the job decides it.
pub(super) fn compare(change: Change, results: &[Verified]) -> Result<()> {
    let [ours, theirs] = results else {
        bail!("a pair has two results");
    };
    if change == Change::Nothing {
        ensure!(
            ours.quotas == theirs.quotas,
            "counts differ: {:?} {:?}",
            ours.quotas,
            theirs.quotas
        );
    }
    Ok(())
}

/// Returns the sizes of both sides after a shrink, in MiB.
pub(super) fn sizes(change: Change, results: &[Verified]) -> Option<[u64; 2]> {
    match (change, results) {
        (Change::DeviceIsSmaller, [ours, theirs]) => {
            Some([ours, theirs].map(|side| side.layout.bytes.get() >> 20))
        }
        _ => None,
    }
}
