//! `buttress replace cancel IMAGE`: cancels a running or interrupted replacement.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::DeviceOptions;
use buttress::Volume;
use clap::Args;
use serde_json::json;

use super::below::{filesystem_of, replacement_item, wipe_superblocks, writer_of};
use super::record::{ENDING, Record};
use super::{CANCEL_EXIT_CODES, NOTHING, online};
use crate::background::{self, status_file};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::identity::Identity;
use crate::manual::{Example, ExitCode, example};
use crate::status_files::{self, Record as _};
use crate::table::{MountView, Subcommand};
use crate::writing::Writing;

/// Cancel a running or interrupted replacement, and keep the old device
///
/// The command first stops a running replacement, and uses the devices of this job. When a
/// replacement is cancelled, the target may be missing. If the target is present, the command wipes
/// its superblocks.
#[derive(Args, Debug)]
pub(super) struct Cancel {
    /// The status file of a running replacement, if it is not IMAGE.replace-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// An image or device of the volume, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Cancel {
    const NAME: &'static str = "cancel";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress replace cancel --device old.img --device new.img first.img",
        "Cancels the replacement of old.img with new.img",
    )];
    const EXIT_CODES: &'static [ExitCode] = CANCEL_EXIT_CODES;

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        if let Some(mount) = context.mount() {
            let writing = context.open_for_writing(&image)?;
            return online::cancel(context, &mount, &writing);
        }
        context.hand_on(&image)?;
        let options = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        let mut images = vec![image.clone()];
        let path = status_file(&image, self.status_file.as_deref(), ENDING).ok();
        if let Some(record) = Record::load_running(path.as_deref()) {
            background::stop(record.process)?;
            let given = [images.clone(), context.globals().devices.clone()].concat();
            images.extend(
                record
                    .devices
                    .into_iter()
                    .filter(|device| !is_among(device, &given)),
            );
        }
        let opened = context.open_images_with(&images, &options)?;
        let before = replacement_item(&filesystem_of(opened.volume()))?;
        let target = filesystem_of(opened.volume()).volume().found_target();
        let writing = Writing::new(opened, Volume::options().gives_up_replacement(true))
            .with_context(|| image.display().to_string())?;
        let is_open = writer_of(writing.volume()).replacements().current().is_some();
        if !is_open {
            context.warn(format_args!("{}: no device is being replaced", image.display()));
            if context.json() {
                context.print_json("replace-cancel", json!({ "canceled": false }))?;
            }
            return Ok(Outcome::Code(NOTHING));
        }
        writer_of(writing.volume()).replacements().cancel()?;
        if let Some(target) = target {
            wipe_superblocks(&target.device, target.uuid).context("wiping the target's superblocks")?;
        }
        path.as_deref().map_or(Ok(()), status_files::remove)?;
        let id = before.map(|item| item.source.get());
        context.print_answer(
            "replace-cancel",
            json!({ "canceled": true, "devid": id }),
            format_args!("replacement cancelled: device {} stays", id.unwrap_or(0)),
        )?;
        Ok(Outcome::Done)
    }
}

fn is_among(device: &Path, given: &[PathBuf]) -> bool {
    let Some(own) = Identity::of_path(device) else {
        // The device is missing.
        return true;
    };
    let is_it = |other: &PathBuf| Identity::of_path(other).is_some_and(|other| other.overlaps(&own));
    given.iter().any(is_it)
}
