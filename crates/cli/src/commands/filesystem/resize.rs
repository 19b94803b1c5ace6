//! `buttress filesystem resize [DEVID:][+-]SIZE|max IMAGE`: gives a device of a volume another size.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result, anyhow};
use buttress::{ByteCount, DeviceId, DeviceInfo};
use clap::Args;
use serde_json::json;

use super::shrink::advised;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::{MountView, Subcommand};

/// Change the size of a device of a volume
///
/// To grow, the command first enlarges the image file. To shrink, it first moves content past the
/// new end to other places, and truncates the image file last. If an unmounted volume has no such
/// place, the command packs all content, as `filesystem shrink` does. Enlarge a block device before
/// the command, and shrink it afterwards.
#[derive(Args, Debug)]
pub struct Resize {
    /// For compatibility: the command has exclusive use of the volume
    #[arg(long, hide = true)]
    enqueue: bool,
    /// For compatibility: the command needs no mount
    #[arg(long, hide = true)]
    offline: bool,
    /// New size, a change with + or -, or `max` for the whole image or device. DEVID: before the
    /// size selects the device
    #[arg(value_name = "[DEVID:][+-]SIZE|max", allow_hyphen_values = true, value_parser = Change::parse)]
    change: Change,
    /// An image or device of the volume, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// A change of a device's size, as the command line gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    device: Option<DeviceId>,
    size: NewSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewSize {
    Exactly(u64),
    More(u64),
    Less(u64),
    Max,
    /// End a resize that is in progress.
    Cancel,
}

impl Change {
    fn parse(text: &str) -> Result<Self, String> {
        let (device, rest) = match text.split_once(':') {
            None => (None, text),
            Some((id, rest)) => {
                let id = id.parse().map_err(|_| format!("{id:?} is not a device id"))?;
                (Some(DeviceId::new(id)), rest)
            }
        };
        let size = match (rest, rest.split_at_checked(1)) {
            ("max", _) => NewSize::Max,
            ("cancel", _) => NewSize::Cancel,
            (_, Some(("+", more))) => NewSize::More(parse_size(more)?),
            (_, Some(("-", less))) => NewSize::Less(parse_size(less)?),
            _ => NewSize::Exactly(parse_size(rest)?),
        };
        Ok(Self { device, size })
    }
}

impl NewSize {
    /// The size in bytes of a device of `now` bytes, whose image or block device has `all`.
    fn of(self, now: u64, all: u64) -> Result<u64> {
        match self {
            Self::Exactly(size) => Ok(size),
            Self::More(more) => now.checked_add(more).with_context(|| {
                format!("the new size is too large (found {now} + {more} bytes, expected at most 16 EiB)")
            }),
            Self::Less(less) => now
                .checked_sub(less)
                .with_context(|| format!("the new size is negative (found {now} - {less} bytes)")),
            Self::Max | Self::Cancel => Ok(all),
        }
    }
}

impl Subcommand for Resize {
    const NAME: &'static str = "resize";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem resize 2G backup.img",
            "Sets the size of the volume to 2 GiB",
        ),
        example(
            "buttress filesystem resize -500M backup.img",
            "Shrinks the volume by 500 MiB",
        ),
        example(
            "buttress filesystem resize 2:max --device /dev/sdb /dev/sda",
            "Lets the volume use all of its second device",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let name = || image.display().to_string();
        if self.change.size == NewSize::Cancel {
            return Err(anyhow!(
                "{}: no resize is in progress; to stop a running resize, press Ctrl-C",
                name()
            ));
        }
        let writing = context.open_for_writing(&image)?;
        let volume = writing.volume();
        let before = volume.devices();
        let device = device(&before, self.change.device).with_context(name)?;
        let now = device.size.map_or(0, ByteCount::get);
        let all = device.device_size.map_or(now, ByteCount::get);
        let size = self.change.size.of(now, all).with_context(name)?;
        let progress = context.progress();
        let _job = context.begin_job(&progress)?;
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "resize", progress.clone());
        let size_bytes = ByteCount::new(size);
        // Beside the readers and writers of a mount, the volume cannot be packed.
        let is_mounted = context.place().is_some_and(|place| place.mount.is_some());
        let ended = match is_mounted {
            true => volume.resize_device(device.id, size_bytes, &progress),
            false => volume.pack_into_size(device.id, size_bytes, &progress),
        };
        watch.end_as(ended.is_ok());
        drop(cancelling);
        let devices = volume.devices();
        ended.with_context(name).map_err(|error| {
            let id = device.id;
            let command = format!("buttress filesystem resize {id}:{size} {}", image.display());
            match size < now {
                true => advised(error, &command, &before, &devices),
                false => error,
            }
        })?;
        let after = devices.iter().find(|other| other.id == device.id);
        let after = after.and_then(|device| device.size).map_or(size, ByteCount::get);
        print(context, &device, now, after)?;
        Ok(Outcome::Done)
    }
}

/// The device to resize: the one with this id. Without an id, returns the only device, or device 1.
fn device(devices: &[DeviceInfo], id: Option<DeviceId>) -> Result<DeviceInfo> {
    let mut listed = devices.iter().filter(|device| device.size.is_some());
    let count = listed.clone().count();
    let is_it = |device: &&DeviceInfo| match id {
        Some(id) => device.id == id,
        None => count == 1 || device.id.get() == 1,
    };
    let found = listed.find(is_it).cloned();
    let wanted = id.map_or(1, DeviceId::get);
    let found = found.ok_or_else(|| anyhow!("the volume has no device {wanted}"));
    found.context(Advice::new(
        "`buttress filesystem show IMAGE` lists its devices; select one with DEVID:SIZE",
    ))
}

fn print(context: &Context, device: &DeviceInfo, before: u64, after: u64) -> Result<()> {
    if context.json() {
        let document = json!({
            "devid": device.id.get(),
            "device": device.path,
            "old_size": before,
            "new_size": after,
        });
        return context.print_json("filesystem-resize", document);
    }
    if context.globals().quiet {
        return Ok(());
    }
    let mut out = context.stdout();
    let text = |bytes| Units::default().text(bytes);
    writeln!(
        out,
        "Resize device id {} ({}) from {} to {}",
        device.id.get(),
        terminal::shown(&device.name),
        text(before),
        text(after)
    )?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_has_a_device_a_sign_and_a_size() {
        let parse =
            |text: &str| Change::parse(text).map(|change| (change.device.map(DeviceId::get), change.size));
        assert_eq!(parse("2G"), Ok((None, NewSize::Exactly(2 << 30))));
        assert_eq!(parse("+1m"), Ok((None, NewSize::More(1 << 20))));
        assert_eq!(parse("3:-512k"), Ok((Some(3), NewSize::Less(512 << 10))));
        assert_eq!(parse("2:max"), Ok((Some(2), NewSize::Max)));
        assert_eq!(parse("cancel"), Ok((None, NewSize::Cancel)));
        for wrong in ["", "+", "x", "1:", ":1G", "-1:5", "--5", "99999999999E"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn size_change_past_the_limits_is_refused() {
        assert_eq!(NewSize::More(5).of(10, 0).ok(), Some(15));
        assert_eq!(NewSize::Less(5).of(10, 0).ok(), Some(5));
        assert!(NewSize::More(1).of(u64::MAX, 0).is_err());
        assert!(NewSize::Less(11).of(10, 0).is_err());
    }
}
