//! The tour's step that corrupts a copy and scrubs the volume. The changes of this step stay in
//! memory, and the image stays unchanged.

use anyhow::{Context as _, Result, ensure};
use buttress::scrub::{Options as ScrubOptions, Scrub};
use buttress::unstable::fs::OpenOptions;
use buttress::{Device, DeviceEngine as Engine, Progress};
use buttress_lab::crash::CrashLab;
use buttress_lab::{Fault, FaultyBackend};

use super::steps::{ROT_EVERY_BYTES, ROT_SEED, Tour, first_copies, read_everything};

impl Tour {
    pub(super) fn scrub_rotten(&mut self) -> Result<String> {
        let expected = self.contents().context("the files were not read before")?;
        let inner = self.file().context("the volume is not in a file of its own")?;
        // The device of this step keeps its writes in memory.
        let rotten = FaultyBackend::new(CrashLab::new().device(inner), ROT_SEED);
        for range in first_copies(self.filesystem()?) {
            rotten.inject(Fault::RotBits {
                range,
                every_bytes: ROT_EVERY_BYTES,
            });
        }
        let device = Device::with_backend(rotten, Engine::Inline);
        let filesystem = OpenOptions::new(vec![device.clone()]).open()?;
        let scrub = |filesystem| -> Result<_> {
            let scrub = Scrub::new(filesystem, ScrubOptions::default(), Progress::new())?;
            scrub.run()?;
            Ok(scrub.report().totals())
        };
        let first = scrub(&filesystem)?;
        ensure!(first.corrected_errors > 0, "nothing was corrected: {first:?}");
        let again = scrub(&filesystem)?;
        ensure!(again.errors() == 0, "a second scrub finds {again:?}");
        let filesystem = OpenOptions::new(vec![device]).open()?;
        let contents = read_everything(&filesystem)?;
        ensure!(
            &contents == expected,
            "what was read differs: {contents:?} instead of {expected:?}"
        );
        let faults = filesystem.volume().faults().total();
        ensure!(faults == 0, "{faults} bad blocks were left");
        Ok(format!(
            "{} errors corrected, no error left in any copy",
            first.corrected_errors
        ))
    }
}
