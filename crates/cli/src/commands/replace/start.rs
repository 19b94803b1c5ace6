//! `buttress replace start SOURCE TARGET IMAGE`: starts or resumes the replacement of a device.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::scrub::ReplaceOptions;
use buttress::{ByteCount, Device, DeviceId, DeviceOptions, Uuid};
use clap::Args;
use serde_json::json;

use super::below::{DeviceSlot, TARGET_ID, filesystem_of, signatures, superblocks, writer_of};
use super::print::Summary;
use super::record::{ENDING, Record};
use super::running::Running;
use crate::background::{self, status_file};
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::{Uses, parse_size};
use crate::identity::Identity;
use crate::manual::{Example, example};
use crate::mounted::passed::Passed;
use crate::mounted::places;
use crate::signals::Cancelling;
use crate::status_files::{self, Record as _};
use crate::table::{MountView, Subcommand};
use crate::target::Target;
use crate::writing::Writing;

/// Replace a device of a volume
///
/// The command verifies the content of the old device and copies it to the new device. Damaged
/// content, or all content of a missing device, comes from other copies or from parity. After an
/// interruption, the same command continues the replacement. The kernel also continues the
/// replacement when it mounts the volume with both devices. When the replacement ends, the volume
/// no longer uses the old device. The old device's superblocks are wiped last, after the volume was
/// opened through the new device. If metadata has no good copy, the replacement ends early and the
/// old device stays. Data without a good copy is listed with its files, and reads of it fail as
/// before.
#[derive(Args, Debug)]
pub(super) struct Start {
    /// Stay in the foreground
    #[arg(short = 'B')]
    pub(super) foreground: bool,
    /// Overwrite the target even if it seems to contain data
    #[arg(short = 'f')]
    force: bool,
    /// Read the source only if no other device has the content
    #[arg(short = 'r')]
    pub(super) avoid_source: bool,
    /// For compatibility: nothing is discarded
    #[arg(short = 'K', long, hide = true)]
    nodiscard: bool,
    /// Limit reads of each device to this many bytes per second; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Keep the status in this file while the job runs, not in IMAGE.replace-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// This is the process in the background
    #[arg(long, hide = true)]
    in_background: bool,
    /// Device to replace: its image or block device, or its id. For a missing device, give its id
    /// and --degraded
    #[arg(value_name = "SOURCE")]
    pub(super) source: OsString,
    /// New image or device, at least as large as the source
    #[arg(value_name = "TARGET")]
    pub(super) target: PathBuf,
    /// An image or device of the volume, or a path on a mount
    #[arg(value_name = "IMAGE")]
    pub(super) image: OsString,
}

impl Subcommand for Start {
    const NAME: &'static str = "start";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress replace start -B old.img new.img --device old.img first.img",
            "Replaces old.img with new.img in a volume of two devices",
        ),
        example(
            "buttress replace start -B --degraded 2 new.img first.img",
            "Replaces the missing device 2",
        ),
        example(
            "buttress replace start /dev/sdb /dev/sdc /mnt",
            "Replaces a device of a mounted volume",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if let Some(mount) = context.mount() {
            return self.run_on_mount(context, &mount);
        }
        let image = Target::parse(&self.image).image;
        self.pass(context, &image)?;
        let status = match status_file(&image, self.status_file.as_deref(), ENDING) {
            Ok(path) => Some(path),
            Err(_) if self.foreground => None,
            Err(error) => return Err(error),
        };
        if let Some(record) = Record::load_running(status.as_deref())
            && !self.in_background
        {
            return Err(already_running(&image, &record));
        }
        match &status {
            Some(status) if !self.foreground && !self.in_background => go_to_background(context, status),
            _ => self.run_here(context, &image, status.as_deref()),
        }
    }
}

impl Start {
    /// Starts or resumes the replacement in this process.
    fn run_here(&self, context: &Context, image: &Path, status: Option<&Path>) -> Result<Outcome> {
        let image = image.to_owned();
        let paths: Vec<PathBuf> = core::iter::once(&image)
            .chain(&context.globals().devices)
            .cloned()
            .collect();
        refuse_own(&self.target, &paths)?;
        let fsid = context.open_device_alone(&image).and_then(|device| {
            let found = superblocks::choose(&device).with_context(|| image.display().to_string())?;
            Ok(found.superblock.fsid)
        })?;
        let goes_on = is_target_of(context, &self.target, fsid)?;
        let options = DeviceOptions {
            write: true,
            direct_when_cold: true,
            direct_when_cold_to_write: true,
            ..context.device_options()
        };
        // The target of a started replacement is part of the volume and is opened with it.
        let mut images = vec![image.clone()];
        images.extend(goes_on.then(|| self.target.clone()));
        let opened = context.open_images_with(&images, &options)?;
        let slots = filesystem_of(opened.volume()).volume().devices();
        let source = find_source(&self.source, &slots)?;
        let target = match goes_on {
            true => None,
            false => Some(self.open_target(context, &options, &source, fsid)?),
        };
        let name = || image.display().to_string();
        let writing = Writing::new(opened, buttress::Volume::options()).with_context(name)?;
        let filesystem = writer_of(writing.volume()).clone();
        let devices = paths.iter().chain([&self.target]);
        let devices = devices.map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        // A status file tells others about this process. Signals are handled for as long as it exists.
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let running = Running {
            progress,
            context,
            writing: &writing,
            status,
            in_background: self.in_background,
            device: source.id(),
            devices: devices.collect(),
        };
        match (filesystem.replacements().current(), target) {
            (Some(item), _) if item.source != source.id() => {
                return Err(anyhow!("device {} is already being replaced", item.source)).context(
                    Advice::new("to cancel the replacement, run `buttress replace cancel IMAGE`"),
                );
            }
            (Some(_), _) => {}
            (None, Some(target)) => {
                // A status file that cannot be written must leave no replacement behind.
                running.announce()?;
                let replacements = filesystem.replacements();
                let started = replacements.start(source.id(), target, self.avoid_source);
                if let Err(error) = started {
                    running.forget()?;
                    return Err(error).with_context(name);
                }
            }
            (None, None) => {
                return Err(anyhow!(
                    "{} belongs to a replacement that has ended",
                    self.target.display()
                ))
                .context(Advice::new("wipe its superblocks first: `wipefs -a`"));
            }
        }
        let options = ReplaceOptions {
            limit: self.limit(),
            ..ReplaceOptions::default()
        };
        let ended = running.run(options);
        let keeps_status = ended.is_err() && self.in_background;
        let summary = ended.map(|ended| Summary::new(&source, &self.target, &filesystem, ended));
        // Other processes take the missing status file as the end, so the devices are unlocked before it.
        drop(running);
        drop((filesystem, source, slots, writing));
        if !keeps_status {
            status.map_or(Ok(()), status_files::remove)?;
        }
        // A signal ends a process that waits for the reader of its output.
        drop(cancelling);
        summary?.print(context)
    }

    /// Opens the target, and checks its suitability.
    fn open_target(
        &self,
        context: &Context,
        options: &DeviceOptions,
        source: &DeviceSlot,
        fsid: Uuid,
    ) -> Result<Device> {
        let device = context.open_device(&self.target, options)?;
        self.check_target(&device, source, fsid)?;
        Ok(device)
    }

    /// Refuses a target that is too small, belongs to the volume, or seems to contain data.
    pub(super) fn check_target(&self, device: &Device, source: &DeviceSlot, fsid: Uuid) -> Result<()> {
        let target = self.target.display();
        let needed = source.expected_bytes().unwrap_or(ByteCount::ZERO);
        if device.size_bytes() < needed.get() {
            return Err(anyhow!(
                "{target} is too small (found {} bytes, expected at least {needed} for device {})",
                device.size_bytes(),
                source.id()
            ));
        }
        if superblocks::choose(device).is_ok_and(|found| found.superblock.fsid == fsid) {
            return Err(anyhow!("{target} already is a device of the volume")).context(Advice::new(
                "if the volume no longer uses it, wipe its superblocks first: `wipefs -a`",
            ));
        }
        match signatures::find(device)? {
            Some(found) if !self.force => Err(anyhow!("{target} seems to contain {found}"))
                .context(Advice::new("to overwrite it, give -f")),
            _ => Ok(()),
        }
    }

    /// The most bytes per second of each device.
    pub(super) fn limit(&self) -> Option<ByteCount> {
        self.limit.filter(|limit| *limit > 0).map(ByteCount::new)
    }

    /// If the volume is mounted, opens the target for its server, and hands the command on. The server
    /// has the target of a started replacement open already.
    fn pass(&self, context: &Context, image: &Path) -> Result<()> {
        let Some(below) = places::find(image) else {
            return Ok(());
        };
        let passed = Passed::open_unless_in_use(self.target.as_os_str(), &below, context.sources())?;
        passed.into_iter().for_each(|passed| context.pass(passed));
        context.hand_on(image)
    }
}

fn already_running(image: &Path, record: &Record) -> anyhow::Error {
    let (process, _) = record.process;
    anyhow!(
        "{}: device {} is already being replaced (process {process})",
        image.display(),
        record.device
    )
    .context(Advice::new(
        "`buttress replace status IMAGE` shows the progress; `buttress replace cancel IMAGE` cancels it",
    ))
}

/// Starts a background process for the replacement, and waits until it has begun.
fn go_to_background(context: &Context, status: &Path) -> Result<Outcome> {
    let (process, record) = background::start(|process| {
        let record = Record::load(status).ok().flatten();
        record.filter(|record| record.process.0 == process)
    })?;
    let id = record.map(|record| record.device);
    if context.json() {
        let document = json!({ "devid": id, "finished": id.is_none(), "lost_bytes": 0, "process": process });
        context.print_json("replace-start", document)?;
    } else if !context.globals().quiet {
        let mut out = context.stdout();
        match id {
            Some(id) => writeln!(out, "replacement of device {id} started (pid={process})")?,
            // The finished process has removed its status file.
            None => writeln!(out, "replacement finished (pid={process})")?,
        }
        out.flush()?;
    }
    Ok(Outcome::Done)
}

/// Refuses a target that is one of the volume's devices.
fn refuse_own(target: &Path, images: &[PathBuf]) -> Result<()> {
    let Some(identity) = Identity::of_path(target) else {
        return Ok(());
    };
    let own = |image: &&PathBuf| Identity::of_path(image).is_some_and(|other| other.overlaps(&identity));
    match images.iter().find(own) {
        None => Ok(()),
        Some(image) => Err(anyhow!(
            "{} is {}, a device of the volume, and cannot replace another device",
            target.display(),
            image.display()
        )),
    }
}

/// Returns whether a device is the target of a started replacement in this volume.
fn is_target_of(context: &Context, target: &Path, fsid: Uuid) -> Result<bool> {
    let device = Device::open(target, &context.device_options())?;
    let found = superblocks::choose(&device).ok();
    Ok(found.is_some_and(|found| {
        found.superblock.fsid == fsid && found.superblock.device_item.device == TARGET_ID
    }))
}

/// Finds the device to replace, by its id or by its path.
pub(super) fn find_source(
    source: &OsString,
    slots: &[std::sync::Arc<DeviceSlot>],
) -> Result<std::sync::Arc<DeviceSlot>> {
    let shown = source.display();
    let id = source
        .to_str()
        .and_then(|text| text.parse().ok())
        .map(DeviceId::new);
    let identity = Identity::of_path(Path::new(source));
    let is_it = |slot: &&std::sync::Arc<DeviceSlot>| match id {
        Some(id) => slot.id() == id,
        None => identity.as_ref().is_some_and(|identity| {
            let own = Identity::of_path(Path::new(&**slot.name()));
            slot.device().is_some() && own.is_some_and(|own| own.overlaps(identity))
        }),
    };
    let found = slots.iter().find(is_it).cloned();
    found
        .ok_or_else(|| anyhow!("the volume has no device {shown}"))
        .context(Advice::new(
            "`buttress filesystem show IMAGE` lists its devices; give further devices with --device",
        ))
}
