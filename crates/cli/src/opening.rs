//! From arguments to devices and volumes.
//!
//! The image of a target and the images of `--device` are opened with the global flags. What opening says
//! aloud goes to stderr at once; what was read around on the way (a bad copy passed over) when the command
//! ends, see [`crate::context::Context::report_at_end`].

use std::path::Path;

use anyhow::{Context as _, Result};
use buttress_device::{Device, Engine as DeviceEngine, Offset as DeviceOffset, OpenOptions as DeviceOptions};

use crate::context::Context;
use crate::exit::Advice;
use crate::globals::{Engine, Offset};

impl Context {
    /// Opens an image or device, and those of `--device`, for reading.
    pub fn open_devices(&self, image: &Path) -> Result<Vec<Device>> {
        let globals = self.globals();
        let options = DeviceOptions {
            direct: globals.direct,
            engine: match globals.engine {
                Some(Engine::IoUring) => DeviceEngine::IoUring,
                Some(Engine::Threads) | None => DeviceEngine::Threads,
            },
            partition: match globals.offset {
                Some(Offset::Bytes(bytes)) => DeviceOffset::Bytes(bytes),
                Some(Offset::Partition(number)) => DeviceOffset::Partition(number),
                None => DeviceOffset::Whole,
            },
            ..DeviceOptions::default()
        };
        let others = globals.devices.iter().map(std::path::PathBuf::as_path);
        std::iter::once(image)
            .chain(others)
            .map(|path| self.open_device(path, &options))
            .collect()
    }

    fn open_device(&self, path: &Path, options: &DeviceOptions) -> Result<Device> {
        if path.is_dir() {
            return Err(anyhow::anyhow!("{} is a directory", path.display())).context(Advice::new(
                "give the image file or the block device itself; a mount point is not needed",
            ));
        }
        let device = Device::open(path, options)?;
        for notice in device.notices() {
            self.warn(notice);
        }
        Ok(device)
    }
}
