//! `buttress receive` into an image file beside `btrfs receive` on a loop mount, and `send |
//! receive` in one pipe.
//!
//! The streams are those of Buttress's send and, in separate rows, of the kernel's.
//!
//! Both sides are whole processes and get the same stream from the same file, which is in the page
//! cache. Each receive starts on a new image of equal size by the same mkfs, and ends when the
//! received data is durable. For Buttress that is the end of the process, for the kernel the end of
//! `syncfs`. Our time includes opening the image; the kernel's excludes mounting it. Parents of a
//! stream are received before the clock starts. btrfs-progs must find our result clean.
//!
//! The pipe is compared with the slower of its halves alone: a send into a drained pipe, or a
//! receive from a file.

use crate::Scale;
use crate::cache::{self, Cache};
use crate::images::{self, folder};
use crate::measure::{self, Run, run};
use crate::read::{command, target};
use crate::report::Pairs;
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::newest;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The largest peak memory of a process: the cache (256 MiB) and its other needs.
const PEAK_KIB_MAX: u64 = (256 + 64) << 10;

/// The program that made a stream.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Ours,
    Kernel,
}

/// A stream that both sides receive.
struct Job {
    name: &'static str,
    what: String,
    /// The largest ratio of our time to the kernel's that meets the goal.
    goal: f64,
    /// The size of the images, in GiB.
    gib: u64,
    /// Returns the volume from which the stream was made.
    source: fn(Scale) -> Result<PathBuf>,
    sender: Sender,
    send: &'static [&'static str],
    parent: Option<&'static str>,
    snapshot: &'static str,
}

fn jobs(scale: Scale) -> Vec<Job> {
    let job = |name, what, goal| Job {
        name,
        what,
        goal,
        gib: 8,
        source: images::inline_files,
        sender: Sender::Ours,
        send: &[],
        parent: None,
        snapshot: "snap1",
    };
    let large_gib = (scale.large_bytes >> 30) + 4;
    vec![
        job(
            "full",
            format!("full stream of {} inline files", scale.inline_files),
            0.25,
        ),
        Job {
            parent: Some("snap1"),
            snapshot: "snap2",
            ..job(
                "incremental",
                "incremental stream, a quarter new, every 50th changed".to_owned(),
                0.25,
            )
        },
        Job {
            gib: large_gib,
            source: |scale| with_snapshot(images::large_file(scale, "plain", "")?),
            snapshot: "snap",
            ..job("plain", "stream of a large file, plain".to_owned(), 0.6)
        },
        Job {
            gib: large_gib,
            source: |scale| with_snapshot(images::large_file(scale, "zstd", "compress-force=zstd")?),
            send: &["--proto", "2", "--compressed-data"],
            snapshot: "snap",
            ..job("zstd", "stream of a large file, zstd as it lies".to_owned(), 0.6)
        },
        Job {
            source: |scale| with_snapshot(images::source_tree(scale)?),
            snapshot: "snap",
            ..job(
                "source",
                format!("stream of a source tree of {} files", scale.source_files),
                0.3,
            )
        },
        Job {
            sender: Sender::Kernel,
            ..job(
                "kernel-full",
                format!("the kernel's full stream of {} inline files", scale.inline_files),
                0.25,
            )
        },
        Job {
            sender: Sender::Kernel,
            parent: Some("snap1"),
            snapshot: "snap2",
            ..job(
                "kernel-incremental",
                "the kernel's incremental stream".to_owned(),
                0.35,
            )
        },
        Job {
            sender: Sender::Kernel,
            source: |scale| with_snapshot(images::compressed_source_tree(scale)?),
            send: &["--proto", "2", "--compressed-data"],
            snapshot: "snap",
            ..job(
                "kernel-source",
                format!(
                    "the kernel's stream of a source tree of {} files, zstd as stored",
                    scale.source_files
                ),
                0.6,
            )
        },
    ]
}

fn with_snapshot(image: PathBuf) -> Result<PathBuf> {
    images::add_snapshot(&image)?;
    Ok(image)
}

/// A file that is removed when this value is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _is_gone = std::fs::remove_file(&self.0);
    }
}

fn new_image(name: &str, gib: u64) -> Result<Scratch> {
    let path = folder()?.join(format!("receive-{name}.img"));
    let _was_there = std::fs::remove_file(&path);
    File::create(&path)?.set_len(gib << 30)?;
    let image = Scratch(path);
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f"])
        .arg(&image.0))?;
    Ok(image)
}

fn stream(job: &Job, name: &str, source: &Path, parent: Option<&str>, snapshot: &str) -> Result<Scratch> {
    let stream = Scratch(folder()?.join(format!("receive-{name}.stream")));
    match job.sender {
        Sender::Ours => {
            let mut made = command(&["send", "-q"])?;
            made.args(job.send);
            if let Some(parent) = parent {
                made.arg("-p").arg(target(source, &format!("/{parent}")));
            }
            made.arg("-f")
                .arg(&stream.0)
                .arg(target(source, &format!("/{snapshot}")));
            run(&mut made)?;
        }
        Sender::Kernel => {
            let mount = Mount::new(&[source.to_path_buf()], "ro")?;
            let mut made = Command::new(newest("btrfs"));
            made.args(["send", "-q"]).args(job.send);
            if let Some(parent) = parent {
                made.arg("-p").arg(mount.path().join(parent));
            }
            made.arg("-f").arg(&stream.0).arg(mount.path().join(snapshot));
            run(&mut made)?;
            mount.close()?;
        }
    }
    Ok(stream)
}

fn receive_ours(image: &Path, stream: &Path) -> Result<Command> {
    let mut ours = command(&["receive", "-q", "-f"])?;
    ours.arg(stream).arg(target(image, "/"));
    Ok(ours)
}

fn receive_theirs(top: &Path, stream: &Path) -> Command {
    let mut theirs = Command::new(newest("btrfs"));
    theirs.args(["receive", "-q", "-f"]).arg(stream).arg(top);
    theirs
}

/// Writes all dirty pages, so that neither side waits for the other's pages.
fn settle(stream: &Path) -> Result<()> {
    cache::settle(stream)?;
    Cache::Warm.prepare(stream)
}

fn ours(job: &Job, base: Option<&Path>, stream: &Path, checks: bool) -> Result<Run> {
    let image = new_image("ours", job.gib)?;
    if let Some(base) = base {
        run(&mut receive_ours(&image.0, base)?)?;
    }
    settle(stream)?;
    let done = run(&mut receive_ours(&image.0, stream)?)?;
    if checks {
        run(Command::new(newest("btrfs")).arg("check").arg(&image.0))?;
    }
    Ok(done)
}

fn theirs(job: &Job, base: Option<&Path>, stream: &Path) -> Result<Run> {
    let image = new_image("kernel", job.gib)?;
    if let Some(base) = base {
        let mount = Mount::new(std::slice::from_ref(&image.0), "")?;
        run(&mut receive_theirs(mount.path(), base))?;
        mount.close()?;
    }
    let mount = Mount::new(std::slice::from_ref(&image.0), "")?;
    settle(stream)?;
    let start = Instant::now();
    let done = run(&mut receive_theirs(mount.path(), stream))?;
    rustix::fs::syncfs(File::open(mount.path())?)?;
    let seconds = start.elapsed().as_secs_f64();
    mount.close()?;
    Ok(Run { seconds, ..done })
}

fn pairs_of(job: String, goal: f64) -> Pairs {
    Pairs {
        job,
        cache: "",
        ours: Vec::new(),
        theirs: Vec::new(),
        goal,
    }
}

fn beside_the_kernel(scale: Scale, job: &Job) -> Result<()> {
    let source = (job.source)(scale)?;
    let base = job
        .parent
        .map(|parent| stream(job, "base", &source, None, parent))
        .transpose()?;
    let base = base.as_ref().map(|base| base.0.as_path());
    let stream = stream(job, job.name, &source, job.parent, job.snapshot)?;
    let mut pairs = pairs_of(job.what.clone(), job.goal);
    for round in 0..scale.rounds {
        pairs.ours.push(ours(job, base, &stream.0, round == 0)?);
        pairs.theirs.push(theirs(job, base, &stream.0)?);
    }
    println!("{}", pairs.row());
    let peak = pairs.ours.iter().map(|run| run.peak_kib).max().unwrap_or(0);
    ensure!(
        peak <= PEAK_KIB_MAX,
        "{}: {peak} KiB of memory, {PEAK_KIB_MAX} are allowed",
        job.what
    );
    Ok(())
}

/// Runs a full send and its receive in one pipe.
fn pipe(scale: Scale, full: &Job) -> Result<()> {
    let source = images::inline_files(scale)?;
    let stream = stream(full, "pipe", &source, None, "snap1")?;
    let send = || {
        let mut send = command(&["send", "-q"])?;
        send.arg(target(&source, "/snap1"));
        Ok::<_, anyhow::Error>(send)
    };
    let mut pairs = pairs_of("send | receive, beside the slower half".to_owned(), 1.3);
    for _ in 0..scale.rounds {
        let image = new_image("pipe", 8)?;
        settle(&source)?;
        let mut sender = send()?.stdout(Stdio::piped()).spawn().context("starting send")?;
        let output = sender.stdout.take().context("the pipe")?;
        let mut receiver = command(&["receive", "-q"])?;
        receiver.arg(target(&image.0, "/"));
        let both = measure::run_from(&mut receiver, Stdio::from(output))?;
        ensure!(sender.wait()?.success(), "the sending side of the pipe failed");
        pairs.ours.push(both);
        drop(image);
        settle(&source)?;
        let sending = run(&mut send()?)?;
        let image = new_image("pipe", 8)?;
        settle(&stream.0)?;
        let receiving = run(&mut receive_ours(&image.0, &stream.0)?)?;
        pairs.theirs.push(if sending.seconds > receiving.seconds {
            sending
        } else {
            receiving
        });
    }
    println!("{}", pairs.row());
    Ok(())
}

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    const PIPE: &str = "pipe";
    let jobs = jobs(scale);
    let knows = |word: &&str| *word == PIPE || jobs.iter().any(|job| job.name == *word);
    if let Some(unknown) = wanted.iter().find(|word| !knows(word)) {
        let names: Vec<&str> = jobs.iter().map(|job| job.name).collect();
        bail!("no job {unknown}; there are {}, {PIPE}", names.join(", "));
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name);
    println!("{}", Pairs::head());
    for job in jobs.iter().filter(|job| is_wanted(job.name)) {
        beside_the_kernel(scale, job)?;
    }
    if is_wanted(PIPE)
        && let Some(full) = jobs.first()
    {
        pipe(scale, full)?;
    }
    Ok(())
}
