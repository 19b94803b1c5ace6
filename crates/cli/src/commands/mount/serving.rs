//! Opens a volume, mounts it, and serves it until it is unmounted or a signal arrives.
//!
//! Order at the end: the kernel ends the mount and sends its pending requests; open handles are
//! closed; the last commit is made; the image is closed; the registry's lock, for which `buttress
//! umount` waits, is released.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use buttress::unstable::scrub::Healer;
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::{filesystem_of, writer_of};
use buttress::{
    AutoReclaim, AutoReclaiming, DeviceEngine, DeviceOptions, Environment, Location, Reclaimed, Timestamp,
    Uncommitted, Uuid, Volume,
};
use buttress_mount::fuse::{MountOptions, Session};
use buttress_mount::volume::{Access, Jobs, KernelSync, Log, MountedVolume, Showing, coarse_now};
use parking_lot::Mutex;
use rustix::fs::StatVfsMountFlags;
use serde_json::Value;

use super::answering::{self, RunningCommands, Served};
use super::background;
use super::closing_in;
use super::ending::Ending;
use super::images::Images;
use super::leaving::{Leaving, OpenEntry};
use super::options::MountWishes;
use super::registry::{Entry, Known, Root};
use super::shown_options::ShownOptions;
use super::watch::{Watch, Watched};
use crate::commands::balance::online::Balances;
use crate::commands::replace::online::Replacements;
use crate::commands::scrub::online::Scrubs;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::mounted::places::{self, Mounted};
use crate::output::size::Units;
use crate::output::time::Clock;
use crate::resyncs::Resyncs;
use crate::writing::environment;

/// The environment of any writer, with the requested commit interval.
#[derive(Debug)]
struct WithInterval {
    environment: Arc<dyn Environment>,
    interval: Duration,
    /// Times are those of the kernel's last clock tick, as for files in its write-back cache.
    is_coarse: bool,
}

impl Environment for WithInterval {
    fn now(&self) -> Timestamp {
        let now = self.environment.now();
        match self.is_coarse {
            true => now.min(coarse_now()),
            false => now,
        }
    }

    fn new_uuid(&self) -> Uuid {
        self.environment.new_uuid()
    }

    fn commit_interval(&self) -> Option<Duration> {
        Some(self.interval)
    }

    fn latest(&self) -> Option<Timestamp> {
        self.environment.latest()
    }

    fn lost(&self, lost: &Uncommitted) {
        self.environment.lost(lost);
    }
}

/// The destination of messages.
enum Messages {
    File(Mutex<File>),
    System(UnixDatagram),
    Terminal,
}

impl Messages {
    fn open(context: &Context, file: Option<&Path>, in_background: bool) -> Result<Self> {
        if let Some(path) = file {
            context.sources().refuse_path(path)?;
            let file = OpenOptions::new().append(true).create(true).open(path);
            let file = file.with_context(|| format!("opening {}", path.display()))?;
            return Ok(Self::File(Mutex::new(file)));
        }
        if !in_background {
            return Ok(Self::Terminal);
        }
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.connect("/dev/log")?;
            Ok(socket)
        });
        Ok(socket.map_or(Self::Terminal, Self::System))
    }

    fn log(self, image: PathBuf) -> Log {
        Arc::new(move |text| {
            let text = crate::output::terminal::shown(format!("{}: {text}", image.display()));
            // A failure to write to the log cannot be reported elsewhere.
            let _ = match &self {
                Self::File(file) => writeln!(file.lock(), "{text}"),
                // Messages to syslog have the priority of a daemon's warning.
                Self::System(socket) => socket
                    .send(format!("<28>buttress[{}]: {text}", std::process::id()).as_bytes())
                    .map(drop),
                Self::Terminal => {
                    crate::output::terminal::line(&text);
                    Ok(())
                }
            };
        })
    }
}

/// Opens a block device exclusively for a mount by root with write access.
fn claim(context: &Context, image: &Path, wishes: &MountWishes) -> Result<Option<File>> {
    let is_block_device = std::fs::metadata(image).is_ok_and(|found| found.file_type().is_block_device());
    let is_wanted = wishes.write && is_block_device && context.device_options().overlay.is_none();
    if !is_wanted || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(image);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(anyhow!(
            "{} is mounted or in use by another program",
            image.display()
        ))
        .context(Advice::new("unmount it, or mount it read-only")),
        opened => Ok(Some(
            opened.with_context(|| format!("opening {}", image.display()))?,
        )),
    }
}

/// Returns whether a device, or the filesystem that contains an image, is read-only.
fn is_write_protected(image: &Path) -> bool {
    let Ok(found) = std::fs::metadata(image) else {
        return false;
    };
    if found.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        let told = std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"));
        return told.is_ok_and(|told| told.trim_ascii() == b"1");
    }
    rustix::fs::statvfs(image).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// If the source is write-protected, returns the mount options without write access. The warning
/// about write protection has the wording of mount(8).
fn writable_wishes(context: &Context, image: &Path, directory: &Path, wishes: &MountWishes) -> MountWishes {
    let mut wishes = wishes.clone();
    let writes_to_image = wishes.write && context.device_options().overlay.is_none();
    if writes_to_image && is_write_protected(image) {
        crate::output::terminal::line(&format!(
            "{}: WARNING: source write-protected, mounted read-only",
            directory.display()
        ));
        wishes.write = false;
    }
    wishes
}

/// Returns the record of the root of a mount for other processes.
fn shown_root(
    context: &Context,
    root: Location,
    wishes: &MountWishes,
    device: String,
    images: Value,
) -> Root {
    let asked = context.globals().subvolume.as_deref();
    Root {
        device,
        images,
        shown: format!("{}:{}", root.subvolume, root.inode),
        subvolume: asked.map(|path| path.to_string_lossy().into_owned()),
        options: wishes
            .options
            .as_ref()
            .and_then(|options| options.to_str())
            .map(str::to_owned),
    }
}

fn open(
    context: &Context,
    image: &Path,
    wishes: &MountWishes,
    is_claimed: bool,
) -> Result<(Access, Location)> {
    let options = DeviceOptions {
        write: wishes.write,
        claimed: is_claimed.then(|| image.to_owned()),
        ..context.device_options()
    };
    let opened = context.open_volume_with(image, &options)?;
    let volume = opened.volume();
    let globals = context.globals();
    let root = match (&globals.subvolume, globals.subvolume_id) {
        // Without options, mount the default subvolume, as the kernel does.
        (None, None) => volume.default_subvolume()?.location(),
        _ => opened.location(),
    };
    if !wishes.write {
        return Ok((Access::Reading(filesystem_of(volume)), root));
    }
    let info = volume.info();
    let options = Volume::options()
        .environment(Arc::new(WithInterval {
            environment: environment(&format!("{} {}", info.fsid, info.generation))?,
            interval: wishes.commit_interval,
            is_coarse: wishes.writeback_cache,
        }))
        .data(wishes.data)
        .discard(wishes.discard)
        .heal(false);
    let writable = volume
        .clone()
        .into_writable(options)
        .with_context(|| format!("opening {} for writing", image.display()))?;
    Ok((Access::Writing(writer_of(&writable).clone()), root))
}

/// Returns the options for the kernel.
fn mount_options(image: &Path, wishes: &MountWishes) -> MountOptions {
    let is_root = rustix::process::geteuid().is_root();
    MountOptions {
        source: image.as_os_str().to_owned(),
        read_only: !wishes.write,
        allow_other: wishes.allow_other,
        suid: wishes.suid.unwrap_or(is_root) && is_root,
        dev: wishes.dev.unwrap_or(is_root) && is_root,
        no_exec: wishes.no_exec,
        accesses: wishes.accesses,
        writeback_cache: wishes.writeback_cache,
    }
}

/// Returns the device number of the new mount.
fn device_of(image: &Path, directory: &Path) -> Result<String> {
    let mounts = places::all();
    let is_it = |mount: &&Mounted| mount.directory == directory && mount.is_ours && mount.source == image;
    let mount = mounts.iter().rev().find(is_it);
    let mount = mount.with_context(|| {
        format!(
            "mounting on {}: the system's table of mounts does not show it",
            directory.display()
        )
    })?;
    Ok(mount.device.clone())
}

/// Returns the volume as the mount shows it.
fn mounted_volume(access: Access, root: Location, wishes: &MountWishes, log: &Log) -> Arc<MountedVolume> {
    let showing = Showing {
        uid: wishes.uid,
        gid: wishes.gid,
        accesses: wishes.accesses,
    };
    Arc::new(MountedVolume::new(access, root, showing, Arc::clone(log)))
}

/// Serves a volume until it is unmounted.
pub(super) fn serve(
    context: &Context,
    image: &Path,
    directory: &Path,
    wishes: &MountWishes,
    log: Option<&Path>,
    in_background: bool,
) -> Result<Outcome> {
    let shown = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    Known::wait_for_those_that_end(&shown)?;
    let wishes = &writable_wishes(context, image, directory, wishes);
    let claim = claim(context, image, wishes)?;
    let (access, root) = open(context, image, wishes, claim.is_some())?;
    let image = shown;
    let writer = writer_behind(&access);
    let healer = writer.as_ref().and_then(Healer::start_where_redundant);
    let log = Messages::open(context, log, in_background)?.log(image.clone());
    let reclaiming = start_reclaim(writer.as_ref(), wishes, &log)?;
    let volume = mounted_volume(access.clone(), root, wishes, &log);
    let options = mount_options(&image, wishes);
    let mounted = Session::mount(Arc::clone(&volume) as _, directory, &options, claim);
    let on_directory = || format!("mounting on {}", directory.display());
    let session = mounted
        .with_context(on_directory)
        .map_err(|error| error.context(advice(wishes)))?;
    volume.is_mounted_on(directory).with_context(on_directory)?;
    // Create the entry only now, because another mount of the same image waits for servers without
    // a mount.
    let device = device_of(&image, directory)?;
    let images = Arc::new(Images::open(context, &image, directory)?);
    let root_of_mount = shown_root(context, root, wishes, device.clone(), images.record());
    let entry = Entry::make(&image, directory, wishes.write, &root_of_mount)?;
    let entry: OpenEntry = Arc::new(Mutex::new(Some(entry)));
    let resyncs = Arc::new(Resyncs::new(Arc::clone(&log)));
    let scrubs = Arc::new(Scrubs::new(Arc::clone(&log), Arc::clone(&resyncs)));
    let balances = Arc::new(Balances::new(Arc::clone(&log)));
    let commands = Arc::new(RunningCommands::default());
    let served = Served {
        commands: Arc::clone(&commands),
        balances: Arc::clone(&balances),
        replacements: Arc::new(Replacements::new(Arc::clone(&log))),
        scrubs: Arc::clone(&scrubs),
        resyncs: Arc::clone(&resyncs),
        images: Arc::clone(&images),
        jobs: Arc::clone(volume.jobs()),
        access,
        root,
        image: image.clone(),
        device: device.clone(),
        volume: Arc::downgrade(&volume),
        notifier: session.notifier()?,
        shown_options: ShownOptions::follow(device.clone(), &volume)?,
    };
    answering::start(answering::listen()?, served)?;
    Images::guard(&images, &volume, &log);
    let watch = Arc::new(Mutex::new(Some(Watch::start(&Watched::new(&image, device))?)));
    use_watch(&volume, &watch);
    let jobs = Arc::clone(volume.jobs());
    let stop = stop_of_writers(
        Arc::clone(&resyncs),
        balances,
        scrubs,
        healer,
        reclaiming,
        jobs,
        commands,
    );
    volume.ends_after(Arc::new(stop));
    let (ended, end) = crossbeam_channel::bounded::<()>(0);
    let leaving = Leaving {
        volume: Arc::downgrade(&volume),
        watch: Arc::clone(&watch),
        notifier: session.notifier()?,
        images: Arc::clone(&images),
        entry: Arc::clone(&entry),
        log: Arc::clone(&log),
    };
    leaving.on_signals(end)?;
    // This block consumes the writer, so that nothing here keeps the volume open.
    if let Some(writer) = writer {
        resyncs.start(&writer);
    }
    if in_background {
        background::say_ready()?;
    }
    // The clock reads system files, which cannot be opened later.
    let _zone = Clock::system();
    close_in(context, &session, &log);
    let served = session.serve();
    drop(ended);
    let ending = Ending {
        volume,
        images,
        entry,
        watch,
        log,
        in_background,
    };
    ending.finish(served)
}

/// Connects the volume to the services of the watching process.
fn use_watch(volume: &MountedVolume, watch: &Arc<Mutex<Option<Watch>>>) {
    let peeking = Arc::clone(watch);
    volume.peeks_by(Arc::new(move |process, address| {
        peeking.lock().as_mut()?.kind_at(process, address)
    }));
    let Some(process) = watch.lock().as_ref().map(Watch::process) else {
        return;
    };
    let syncing = Arc::clone(watch);
    let call = Arc::new(move || {
        if let Some(watch) = syncing.lock().as_mut() {
            watch.sync();
        }
    });
    volume.syncs_kernel_by(KernelSync { process, call });
}

/// Returns the writer of a volume that is open for changes.
fn writer_behind(access: &Access) -> Option<WritableFilesystem> {
    match access {
        Access::Writing(writer) => Some(writer.clone()),
        Access::Reading(_) => None,
    }
}

/// Starts the automatic reclaim, if the user asked for it. Its outcomes are in the log.
fn start_reclaim(
    writer: Option<&WritableFilesystem>,
    wishes: &MountWishes,
    log: &Log,
) -> Result<Option<AutoReclaiming>> {
    let (Some(writer), Some(percent)) = (writer, wishes.auto_reclaim) else {
        return Ok(None);
    };
    let options = AutoReclaim {
        percent,
        ..AutoReclaim::default()
    };
    let told = Arc::clone(log);
    let reclaiming = writer.start_auto_reclaim(options, move |done| told(&describe_reclaim(done)))?;
    log(&format!(
        "auto-reclaim: block groups of data that fall below {percent} % are moved together"
    ));
    Ok(Some(reclaiming))
}

fn describe_reclaim(done: &Reclaimed) -> String {
    let units = Units::default();
    let of = format!(
        "auto-reclaim: block group {} ({} of {} in use)",
        done.group,
        units.text(done.used.get()),
        units.text(done.length.get())
    );
    match &done.failure {
        Some(failure) => format!("{of} stays: {failure}"),
        None if done.is_left => format!("{of} is empty, and is removed once readers of its old content end"),
        None => format!("{of} was removed"),
    }
}

/// Stops long changes, resynchronisations, balances, scrubs, the reclaim and the healer, which write to the
/// volume, and closes the gate of commands. Returns whether no command runs. After the last commit,
/// which counts repairs of these jobs, nothing is written.
fn stop_of_writers(
    resyncs: Arc<Resyncs>,
    balances: Arc<Balances>,
    scrubs: Arc<Scrubs>,
    healer: Option<Healer>,
    reclaiming: Option<AutoReclaiming>,
    jobs: Arc<Jobs>,
    commands: Arc<RunningCommands>,
) -> impl Fn() -> bool + Send + Sync {
    let healer = Mutex::new(healer);
    let reclaiming = Mutex::new(reclaiming);
    move || {
        jobs.end();
        drop(reclaiming.lock().take());
        // Ending the resynchronisation precedes the scrub, because a scrub may wait for it.
        resyncs.end();
        balances.end();
        scrubs.end();
        drop(healer.lock().take());
        commands.close()
    }
}

/// Restricts the server's system calls, as far as the system allows it.
fn close_in(context: &Context, session: &Session, log: &Log) {
    let has_rings = session.has_rings() || context.device_options().engine == DeviceEngine::IoUring;
    if let Err(error) = closing_in::close_in(has_rings) {
        log(&format!(
            "the server is not confined, because the system does not allow it: {error:#}"
        ));
    }
}

fn advice(wishes: &MountWishes) -> Advice {
    Advice::new(if wishes.allow_other {
        "allow_other needs the line user_allow_other in /etc/fuse.conf, unless root mounts"
    } else {
        "a mount needs /dev/fuse and, for users other than root, fusermount3 (package fuse3)"
    })
}
