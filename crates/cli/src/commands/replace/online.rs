//! Replacements of devices of a mounted volume: its server runs them beside readers and writers.
//!
//! The client opens and locks the new device, and passes it to the server ([`Passed`]). An unmount
//! suspends the replacement. After the next mount with both devices, the same command continues it.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use buttress::scrub::{ReplaceOptions, Replaced};
use buttress::{Device, Progress};
use buttress_mount::volume::{Job, Log};
use parking_lot::{Condvar, Mutex};
use serde_json::json;

use super::NOTHING;
use super::below::{DeviceSlot, Replace, WritableFilesystem, wipe_superblocks, writer_of};
use super::print::Summary;
use super::start::{Start, find_source};
use crate::commands::mount::images::Images;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::identity::Identity;
use crate::mounted::passed::{Passed, refused_own};
use crate::opening::Mount;
use crate::writing::Writing;

/// The replacements of a volume that this process serves: one at a time.
pub struct Replacements {
    running: Mutex<Option<Progress>>,
    ended: Condvar,
    log: Log,
}

impl std::fmt::Debug for Replacements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacements").finish_non_exhaustive()
    }
}

/// A running replacement. When this value is dropped, the replacement no longer runs.
struct Runs {
    replacements: Arc<Replacements>,
    progress: Progress,
    _job: Option<Job>,
}

impl Drop for Runs {
    fn drop(&mut self) {
        *self.replacements.running.lock() = None;
        self.replacements.ended.notify_all();
    }
}

impl Replacements {
    /// Creates a set without running replacements. `log` receives failures of replacements in the
    /// background.
    pub fn new(log: Log) -> Self {
        Self {
            running: Mutex::default(),
            ended: Condvar::new(),
            log,
        }
    }

    fn begin(self: &Arc<Self>, context: &Context) -> Result<Runs> {
        let progress = Progress::new();
        let mut running = self.running.lock();
        if running.is_some() {
            return Err(anyhow!("a device is already being replaced")).context(Advice::new(
                "`buttress replace status` shows the progress; `buttress replace cancel` cancels it",
            ));
        }
        let job = context.begin_job(&progress)?;
        *running = Some(progress.clone());
        Ok(Runs {
            replacements: Arc::clone(self),
            progress,
            _job: job,
        })
    }

    /// Suspends the running replacement, and waits until it no longer runs.
    fn stop(&self) {
        let mut running = self.running.lock();
        while let Some(progress) = &*running {
            progress.cancel();
            self.ended.wait(&mut running);
        }
    }
}

impl Start {
    /// Starts or continues a replacement in the volume that this process serves.
    pub(super) fn run_on_mount(&self, context: &Context, mount: &Mount) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let writing = context.open_for_writing(&image)?;
        let filesystem = writer_of(writing.volume()).clone();
        let name = || image.display().to_string();
        let runs = mount.replacements.begin(context)?;
        let slots = filesystem.committed_view().volume().devices();
        let source = context.path_of_client(self.source.as_ref()).into_os_string();
        let is_id = self
            .source
            .to_str()
            .is_some_and(|text| text.parse::<u64>().is_ok());
        let source = find_source(if is_id { &self.source } else { &source }, &slots)?;
        match filesystem.replacements().current() {
            Some(item) if item.source != source.id() => {
                return Err(anyhow!("device {} is already being replaced", item.source)).context(
                    Advice::new("to cancel the replacement, run `buttress replace cancel` with the mount"),
                );
            }
            Some(_) => {}
            None => self
                .begin_on_mount(mount, &filesystem, &source)
                .with_context(name)?,
        }
        let options = ReplaceOptions {
            limit: self.limit(),
            ..ReplaceOptions::default()
        };
        if self.foreground {
            let ended = run(&filesystem, options, &runs, &mount.images, &source)?;
            return Summary::new(&source, &self.target, &filesystem, ended).print(context);
        }
        let id = source.id().get();
        run_in_background(filesystem, options, runs, Arc::clone(&mount.images), source)?;
        context.print_answer(
            "replace-start",
            json!({ "devid": id, "finished": false, "lost_bytes": 0, "process": std::process::id() }),
            format_args!("replacement of device {id} started"),
        )?;
        Ok(Outcome::Done)
    }

    /// Puts the passed device beside the source.
    fn begin_on_mount(
        &self,
        mount: &Mount,
        filesystem: &WritableFilesystem,
        source: &DeviceSlot,
    ) -> Result<()> {
        if mount.images.has_overlays {
            return Err(anyhow!("the volume is mounted with --overlay"))
                .context(Advice::new("unmount it, and replace the device with --overlay"));
        }
        let Passed { name, locked } = mount.received.take(self.target.as_os_str())?;
        if Identity::of_open(&locked.file).is_some_and(|identity| identity.is_on(&mount.device)) {
            return Err(refused_own(&name.path.display().to_string()));
        }
        let file = locked.file.try_clone()?;
        let device = Device::from_locked(&name.path, locked)?;
        let fsid = filesystem.committed_view().superblock().fsid;
        self.check_target(&device, source, fsid)?;
        filesystem
            .replacements()
            .start(source.id(), device, self.avoid_source)?;
        mount.images.joined(name.path, file)
    }
}

/// Runs the replacement until it ends or is suspended.
fn run(
    filesystem: &WritableFilesystem,
    options: ReplaceOptions,
    runs: &Runs,
    images: &Images,
    source: &DeviceSlot,
) -> Result<Replaced> {
    let target = filesystem.committed_view().volume().replacement();
    let target = target.map(|replacement| replacement.target().name().to_string());
    let ended = Replace::new(filesystem.clone(), options, runs.progress.clone()).run();
    match &ended {
        Ok(Replaced::Finished { .. }) => images.left(source.name().as_ref().as_ref()),
        // A suspended replacement keeps its target.
        _ if filesystem.replacements().current().is_some() => {}
        _ => target.iter().for_each(|target| images.left(target.as_ref())),
    }
    ended.map_err(super::running::advised)
}

fn run_in_background(
    filesystem: WritableFilesystem,
    options: ReplaceOptions,
    runs: Runs,
    images: Arc<Images>,
    source: Arc<DeviceSlot>,
) -> Result<()> {
    let log = Arc::clone(&runs.replacements.log);
    let id = source.id();
    let job = move || {
        let ended = run(&filesystem, options, &runs, &images, &source);
        // An unmount waits for this thread, and then wants to use the volume alone.
        drop((filesystem, source));
        match ended {
            Err(error) => log(&format!("the replacement of device {id} failed: {error:#}")),
            Ok(Replaced::Finished { lost, unwiped, .. }) => {
                log(&format!("the replacement of device {id} has finished"));
                if lost > buttress::ByteCount::ZERO {
                    log(&format!("device {id}: {lost} bytes of data have no good copy"));
                }
                if let Some(error) = unwiped {
                    log(&format!(
                        "the replaced device {id} keeps its superblocks: {error}. Do not open the volume with both devices"
                    ));
                }
            }
            Ok(Replaced::Suspended) => {}
        }
        drop(runs);
    };
    let thread = std::thread::Builder::new().name("buttress-replacing".to_owned());
    thread.spawn(job)?;
    Ok(())
}

/// Ends the replacement of a volume that this process serves; the replaced device stays.
pub(super) fn cancel(context: &Context, mount: &Mount, writing: &Writing) -> Result<Outcome> {
    mount.replacements.stop();
    let filesystem = writer_of(writing.volume());
    let Some(item) = filesystem.replacements().current() else {
        context.warn("no device is being replaced");
        if context.json() {
            context.print_json("replace-cancel", json!({ "canceled": false }))?;
        }
        return Ok(Outcome::Code(NOTHING));
    };
    let replacement = filesystem.committed_view().volume().replacement();
    filesystem.replacements().cancel()?;
    if let Some(replacement) = replacement {
        let target = replacement.target();
        if let Some(device) = target.device() {
            wipe_superblocks(device, target.uuid()).context("wiping the target's superblocks")?;
        }
        mount.images.left(target.name().as_ref().as_ref());
    }
    let id = item.source.get();
    context.print_answer(
        "replace-cancel",
        json!({ "canceled": true, "devid": id }),
        format_args!("replacement cancelled: device {id} stays"),
    )?;
    Ok(Outcome::Done)
}
