//! The steps that change the size of the volume and the profile of its metadata.

use anyhow::{Context as _, Result, ensure};
use buttress::balance::{BalanceArguments, BalanceControl, BalanceEnd, BalanceFlags, BalanceItem};
use buttress::{ByteCount, DeviceId, Profile, Progress};

use super::{Making, VOLUME_BYTES};
use crate::output::size::Units;

/// Size of the grown volume in bytes; the image file is sparse.
const GROWN_BYTES: u64 = VOLUME_BYTES << 1;

/// Free space in the shrunken volume, for experiments.
const SLACK_BYTES: u64 = 256 << 20;

impl Making {
    pub(super) fn grow(&mut self) -> Result<String> {
        let volume = self.writing()?.volume();
        volume.resize_device(DeviceId::new(1), ByteCount::new(GROWN_BYTES), &Progress::new())?;
        Ok(format!(
            "{} to {}",
            Units::default().text(VOLUME_BYTES),
            Units::default().text(GROWN_BYTES)
        ))
    }

    /// Converts metadata to a single copy, and back to two copies.
    pub(super) fn convert(&mut self) -> Result<String> {
        let volume = self.writing()?.volume();
        let mut blocks = 0_u64;
        for profile in [Profile::Single, Profile::Dup] {
            let item = BalanceItem {
                flags: BalanceFlags::METADATA | BalanceFlags::FORCE,
                data: BalanceArguments::NONE,
                metadata: BalanceArguments::NONE.with_target(profile),
                system: BalanceArguments::NONE,
            };
            let summary = volume.balance(item, None, &BalanceControl::default())?;
            ensure!(
                summary.end == BalanceEnd::Finished && summary.without_space.is_empty(),
                "the balance did not finish: {:?}",
                summary.end
            );
            // Clamp: the sum is shown only.
            blocks = blocks.saturating_add(summary.moved.tree_blocks);
        }
        Ok(format!(
            "metadata to single and back to DUP: {blocks} tree blocks moved"
        ))
    }

    pub(super) fn shrink(&mut self) -> Result<String> {
        let volume = self.writing()?.volume();
        let summary = volume.shrink(ByteCount::new(SLACK_BYTES), &Progress::new())?;
        let device = summary.devices.first().context("the volume has no device")?;
        let units = Units::default();
        Ok(format!(
            "{} to {}, of which {} are free; {} moved",
            units.text(device.before.get()),
            units.text(device.after.get()),
            units.text(SLACK_BYTES),
            units.text(summary.moved_bytes.get())
        ))
    }
}
