//! The order of a commit's system calls: blocks and content, `fdatasync`, superblocks, `fdatasync`,
//! their copies, `fdatasync`, each on all devices before the next begins.
//!
//! The test starts itself again under strace, as a program that makes a few commits and prints a
//! line after each. The test judges the system calls in strace's output: the calls that reach the
//! kernel, not the calls of a backend. For writes through a ring, strace shows only their
//! submission, not their target: the test then judges only the order.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::{Identity, Options};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Device, DeviceEngine as Engine, DeviceOptions, Environment, FileOffset, Location, NewInode, Profile,
    SubvolumeId, SystemEnvironment, mkfs,
};
use buttress_oracle::needs::{Missing, missing};
use buttress_oracle::volumes::scratch;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::open_images;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Environment variable with the images of the traced program, one per line; the next one is its
/// engine.
const IMAGES: &str = "BUTTRESS_TRACED_IMAGES";
const ENGINE: &str = "BUTTRESS_TRACED_ENGINE";

/// Superblock offsets on devices of this size: the primary, and the only copy that fits.
const PRIMARY: u64 = 64 << 10;
const COPY: u64 = 64 << 20;
const DEVICE_BYTES: u64 = 300 << 20;

/// Lines that the traced program prints after each commit, and if its engine is unavailable.
const COMMITTED: &str = "committed";
const REFUSED: &str = "refused";

const COMMITS: usize = 4;

/// Runs the traced program, if this process was started as that program.
pub fn run_traced() -> Option<ExitCode> {
    let images = std::env::var(IMAGES).ok()?;
    let images: Vec<PathBuf> = images.lines().map(PathBuf::from).collect();
    let engine = match std::env::var(ENGINE).as_deref() {
        Ok("io_uring") => Engine::IoUring,
        _ => Engine::Threads,
    };
    Some(match traced(&images, engine) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    })
}

fn say(what: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(format!("{what}\n").as_bytes())?;
    Ok(out.flush()?)
}

fn traced(images: &[PathBuf], engine: Engine) -> Result<()> {
    let options = DeviceOptions {
        write: true,
        engine,
        ..DeviceOptions::default()
    };
    let devices = images.iter().map(|image| Device::open(image, &options));
    let devices: Vec<Device> = devices.collect::<Result<_, _>>()?;
    if devices.iter().any(|device| device.engine() != engine) {
        return say(REFUSED);
    }
    let filesystem = OpenOptions::new(devices).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    filesystem.commit()?;
    say(COMMITTED)?;
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    for number in 0..COMMITS {
        // Large writes bypass the page cache, small ones use it.
        for (name, bytes) in [("small", 20_000), ("large", 1 << 20)] {
            let name = format!("{name}-{number}");
            let file = filesystem.create(root, name.as_bytes(), &NewInode::of_root(0o644))?;
            filesystem.write_at(file, FileOffset::new(0), &vec![b'x'; bytes])?;
        }
        filesystem.commit()?;
        say(COMMITTED)?;
    }
    Ok(())
}

/// A relevant system call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Write(u64),
    Sync,
    /// A submission of requests to an io_uring ring.
    Submit,
    /// A line that the program printed.
    Said(String),
}

/// A call with its begin and end: the numbers of the lines in the trace.
#[derive(Clone, Debug)]
struct Call {
    what: What,
    device: String,
    start: usize,
    end: usize,
}

/// Returns the path between angle brackets after a file descriptor.
fn device_of(arguments: &str) -> Option<String> {
    let (_, rest) = arguments.split_once('<')?;
    Some(rest.split_once('>')?.0.to_owned())
}

fn parse_call(name: &str, arguments: &str) -> Option<(What, String)> {
    let device = device_of(arguments)?;
    let mut from_behind = arguments.rsplit(", ");
    let what = match name {
        "pwrite64" | "pwritev" => What::Write(from_behind.next()?.parse().ok()?),
        "pwritev2" => What::Write(from_behind.nth(1)?.parse().ok()?),
        "fdatasync" | "fsync" => What::Sync,
        "io_uring_enter" => {
            let count = arguments.split(", ").nth(1)?;
            (count != "0").then_some(What::Submit)?
        }
        "write" => {
            let said = [COMMITTED, REFUSED];
            What::Said((*said.iter().find(|said| arguments.contains(**said))?).to_owned())
        }
        _ => return None,
    };
    Some((what, device))
}

/// Parses the calls of a trace, in the order of their begins.
fn parse(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    // The unfinished call of each thread.
    let mut open: Vec<(&str, usize)> = Vec::new();
    for (number, line) in trace.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let rest = rest.trim_start();
        if rest.starts_with("<...") {
            if let Some(place) = open.iter().position(|(of, _)| *of == thread) {
                let (_, call) = open.swap_remove(place);
                if let Some(call) = calls.get_mut(call) {
                    call.end = number;
                }
            }
            continue;
        }
        let Some((name, rest)) = rest.split_once('(') else {
            continue;
        };
        let unfinished = rest.strip_suffix(" <unfinished ...>");
        let arguments = unfinished.or_else(|| Some(rest.rsplit_once(") = ")?.0.trim_end_matches([' ', ')'])));
        let Some((what, device)) = arguments.and_then(|arguments| parse_call(name, arguments)) else {
            continue;
        };
        if unfinished.is_some() {
            open.push((thread, calls.len()));
        }
        calls.push(Call {
            what,
            device,
            start: number,
            end: number,
        });
    }
    calls
}

/// The calls of one phase of a commit, on all devices.
struct Phase<'a>(Vec<&'a Call>);

impl<'a> Phase<'a> {
    fn of(calls: &'a [Call], is_in: impl Fn(u64) -> bool) -> Self {
        let writes = calls.iter().filter(|call| match call.what {
            What::Write(at) => is_in(at),
            _ => false,
        });
        Self(writes.collect())
    }

    fn begins(&self) -> usize {
        self.0.iter().map(|call| call.start).min().unwrap_or(usize::MAX)
    }

    fn ends_on(&self, device: &str) -> Option<usize> {
        let on = self.0.iter().filter(|call| call.device == device);
        on.map(|call| call.end).max()
    }
}

/// Returns whether a device was synced between two moments.
fn synced(calls: &[Call], device: &str, from: usize, to: usize) -> bool {
    calls
        .iter()
        .any(|call| call.what == What::Sync && call.device == device && call.start > from && call.end < to)
}

/// Judges one commit by calls that show the offsets of writes.
fn judge_writes(calls: &[Call], images: &[PathBuf]) -> Result<()> {
    let blocks = Phase::of(calls, |at| at != PRIMARY && at != COPY);
    let primaries = Phase::of(calls, |at| at == PRIMARY);
    let copies = Phase::of(calls, |at| at == COPY);
    for image in images {
        let device = image.to_string_lossy();
        let end = |phase: &Phase<'_>, what| {
            let end = phase.ends_on(&device);
            end.with_context(|| format!("{device}: no {what} written"))
        };
        ensure!(
            synced(calls, &device, end(&blocks, "blocks are")?, primaries.begins()),
            "{device}: no fdatasync between the blocks and the first superblock"
        );
        ensure!(
            synced(calls, &device, end(&primaries, "superblock is")?, copies.begins()),
            "{device}: no fdatasync between its superblock and the first copy of one"
        );
        ensure!(
            synced(
                calls,
                &device,
                end(&copies, "copy of the superblock is")?,
                usize::MAX
            ),
            "{device}: no fdatasync after the copy of its superblock"
        );
    }
    Ok(())
}

/// Judges one commit with writes through a ring: three submissions, each followed by a sync.
fn judge_ring(calls: &[Call]) -> Result<()> {
    let mut kinds: Vec<&str> = calls
        .iter()
        .filter_map(|call| match call.what {
            What::Sync => Some("fdatasync"),
            What::Submit | What::Write(_) => Some("write"),
            What::Said(_) => None,
        })
        .collect();
    kinds.dedup();
    let wanted = ["write", "fdatasync"].repeat(3);
    ensure!(kinds == wanted, "{kinds:?} instead of {wanted:?}");
    Ok(())
}

fn make(folder: &Path, count: usize) -> Result<Vec<PathBuf>> {
    let images: Vec<PathBuf> = (0..count)
        .map(|number| folder.join(format!("device-{number}")))
        .collect();
    for image in &images {
        File::create(image)?.set_len(DEVICE_BYTES)?;
    }
    let profile = (count > 1).then_some(Profile::Raid1);
    let options = Options {
        data: profile,
        metadata: profile,
        ..Options::default()
    };
    let environment = SystemEnvironment;
    let identity = Identity {
        fsid: environment.new_uuid(),
        chunk_tree: environment.new_uuid(),
        top_level: environment.new_uuid(),
        devices: images.iter().map(|_| environment.new_uuid()).collect(),
        time: environment.now(),
    };
    mkfs::make(&open_images(&images, true)?, &options, &identity)?;
    Ok(images)
}

fn order(engine: &str, count: usize) -> Result<Outcome> {
    if let Some(missing) = missing("strace") {
        return Ok(Outcome::Skipped(missing));
    }
    let folder = scratch()?;
    let folder_path = folder.path().canonicalize()?;
    let images = make(&folder_path, count)?;
    let trace_at = folder_path.join("trace");
    let paths: Vec<String> = images.iter().map(|image| image.display().to_string()).collect();
    let calls = "write,pwrite64,pwritev,pwritev2,fsync,fdatasync,io_uring_enter";
    let run = Command::new("strace")
        .args(["-f", "-y", "-e", &format!("trace={calls}"), "-o"])
        .arg(&trace_at)
        .arg(std::env::current_exe()?)
        .env(IMAGES, paths.join("\n"))
        .env(ENGINE, engine)
        .output()?;
    let errors = String::from_utf8_lossy(&run.stderr);
    if errors.contains("PTRACE") {
        return Ok(Outcome::Skipped(Missing::new(
            "strace",
            format!("strace may not trace here: {errors}"),
        )));
    }
    ensure!(run.status.success(), "below strace: {errors}");
    let trace = fs::read_to_string(&trace_at)?;
    let calls = parse(&trace);
    let said = |call: &Call, what: &str| matches!(&call.what, What::Said(said) if said == what);
    if calls.iter().any(|call| said(call, REFUSED)) {
        return Ok(Outcome::Skipped(Missing::new(
            "io-uring",
            "io_uring is refused here",
        )));
    }
    let commits: Vec<&[Call]> = calls.split(|call| said(call, COMMITTED)).collect();
    let commits = commits
        .get(1..commits.len().saturating_sub(1))
        .unwrap_or_default();
    ensure!(
        commits.len() == COMMITS,
        "{} commits were seen:\n{trace}",
        commits.len()
    );
    for (number, calls) in commits.iter().enumerate() {
        let judged = match engine {
            "io_uring" => judge_ring(calls),
            _ => judge_writes(calls, &images),
        };
        judged.with_context(|| format!("commit {number}: {calls:#?}"))?;
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("order::by_threads", || order("threads", 1)),
        Case::new("order::by_threads_on_two_devices", || order("threads", 2)),
        Case::new("order::by_io_uring", || order("io_uring", 1)),
    ]
}
