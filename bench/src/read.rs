//! Files read out of volumes, against the kernel's mount of the same image.
//!
//! Both sides write the same bytes into a drained pipe, or the same files into a directory in
//! memory. Cold: caches are dropped before each run (on the kernel's side after mounting). Warm:
//! the image is in the page cache, and the mount is fresh. Our side's time includes opening the
//! volume; the kernel's excludes mounting it.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{Run, run};
use crate::report::Pairs;
use anyhow::{Result, bail, ensure};
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest};
use std::path::{Path, PathBuf};
use std::process::Command;

type Job = fn(Scale) -> Result<()>;

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let all: [(&str, Job); 5] = [
        ("tar", tar),
        ("cp", copy),
        ("large", large),
        ("ls", list),
        ("tree-stats", tree_stats),
    ];
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !all.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are tar, cp, large, ls, tree-stats");
    }
    println!("{}", Pairs::head());
    for (name, job) in all {
        if wanted.is_empty() || wanted.contains(&name) {
            job(scale)?;
        }
    }
    Ok(())
}

/// Returns the command of our side of a pair. The other side's command gets the directory of the
/// kernel's mount.
pub(crate) type Ours<'a> = &'a dyn Fn() -> Result<Command>;
pub(crate) type Theirs<'a> = &'a dyn Fn(&Path) -> Command;

/// Runs both sides in pairs, cold and warm, prints a row for each, and returns the bytes that both wrote.
pub(crate) fn pairs(
    scale: Scale,
    job: &str,
    image: &Path,
    goals: [f64; 2],
    ours: Ours<'_>,
    theirs: Theirs<'_>,
) -> Result<(u64, u64)> {
    let mut written = (0, 0);
    for pairs in measured(scale, job, image, goals, ours, theirs)? {
        let last = |runs: &[Run]| runs.last().map_or(0, |run| run.output_bytes);
        written = (last(&pairs.ours), last(&pairs.theirs));
    }
    Ok(written)
}

/// Runs the pairs, cold and warm, and prints a row after each.
pub(crate) fn measured(
    scale: Scale,
    job: &str,
    image: &Path,
    goals: [f64; 2],
    ours: Ours<'_>,
    theirs: Theirs<'_>,
) -> Result<Vec<Pairs>> {
    let mut all = Vec::new();
    for (cache, goal) in Cache::BOTH.into_iter().zip(goals) {
        let mut pairs = Pairs {
            job: job.to_owned(),
            cache: cache.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal,
        };
        for _ in 0..scale.rounds {
            cache.prepare(image)?;
            pairs.ours.push(run(&mut ours()?)?);
            pairs.theirs.push(mounted(image, cache, theirs)?);
        }
        println!("{}", pairs.row());
        all.push(pairs);
    }
    Ok(all)
}

fn mounted(image: &Path, cache: Cache, theirs: Theirs<'_>) -> Result<Run> {
    if cache == Cache::Warm {
        cache.prepare(image)?;
    }
    let mount = Mount::new(&[image.to_path_buf()], "ro")?;
    if cache == Cache::Cold {
        cache.prepare(image)?;
    }
    let done = run(&mut theirs(mount.path()))?;
    mount.close()?;
    Ok(done)
}

/// Returns the argument `IMAGE:PATH`.
pub(crate) fn target(image: &Path, path: &str) -> std::ffi::OsString {
    let mut target = image.as_os_str().to_owned();
    target.push(":");
    target.push(path);
    target
}

/// Returns a `buttress` command.
pub(crate) fn command(words: &[&str]) -> Result<Command> {
    let mut command = Command::new(buttress()?);
    command.args(words);
    Ok(command)
}

fn tar(scale: Scale) -> Result<()> {
    let image = images::source_tree(scale)?;
    let ours = || {
        let mut command = command(&["tar"])?;
        command.arg(target(&image, "/source"));
        Ok(command)
    };
    let theirs = |top: &Path| {
        let mut command = Command::new("tar");
        command
            .args(["--format=posix", "--xattrs", "--sparse", "-cf", "-", "-C"])
            .arg(top.join("source"))
            .arg(".");
        command
    };
    pairs(scale, "tar of a source tree", &image, [0.5, 0.5], &ours, &theirs).map(drop)
}

fn copy(scale: Scale) -> Result<()> {
    let image = images::source_tree(scale)?;
    let folder = buttress_oracle::volumes::scratch()?;
    let out: PathBuf = folder.path().join("out");
    let clear = || match std::fs::remove_dir_all(&out) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let ours = || {
        clear()?;
        let mut command = command(&["cp", "-r"])?;
        command.arg(target(&image, "/source")).arg(&out);
        Ok(command)
    };
    let theirs = |top: &Path| {
        // The command has not started yet, so neither side's time includes this removal.
        if let Err(error) = clear() {
            eprintln!("clearing {}: {error}", out.display());
        }
        let mut command = Command::new("cp");
        command.arg("-r").arg(top.join("source")).arg(&out);
        command
    };
    pairs(
        scale,
        "cp -r of a source tree",
        &image,
        [0.6, 0.6],
        &ours,
        &theirs,
    )
    .map(drop)
}

fn large(scale: Scale) -> Result<()> {
    for (name, options, goal) in [("plain", "", 1.1), ("zstd", "compress-force=zstd", 0.7)] {
        let image = images::large_file(scale, name, options)?;
        let ours = || {
            let mut command = command(&["cat"])?;
            command.arg(target(&image, "/large"));
            Ok(command)
        };
        let theirs = |top: &Path| {
            let mut command = Command::new("cat");
            command.arg(top.join("large"));
            command
        };
        let job = format!("cat of a large file, {name}");
        let written = pairs(scale, &job, &image, [goal, goal], &ours, &theirs)?;
        ensure!(
            written == (scale.large_bytes, scale.large_bytes),
            "{job}: {written:?} bytes came out"
        );
    }
    Ok(())
}

fn list(scale: Scale) -> Result<()> {
    let image = images::source_tree(scale)?;
    let ours = || {
        let mut command = command(&["ls", "-l", "-R"])?;
        command.arg(target(&image, "/source"));
        Ok(command)
    };
    let theirs = |top: &Path| {
        let mut command = Command::new("ls");
        command.args(["-l", "-n", "-R"]).arg(top.join("source"));
        command
    };
    pairs(
        scale,
        "ls -lR of a source tree",
        &image,
        [0.5, 0.5],
        &ours,
        &theirs,
    )
    .map(drop)
}

/// Compares with btrfs-progs, which reads the block device of the attached image.
fn tree_stats(scale: Scale) -> Result<()> {
    let image = images::inline_files(scale)?;
    for cache in Cache::BOTH {
        let mut pairs = Pairs {
            job: "tree-stats -t 5".to_owned(),
            cache: cache.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal: 0.3,
        };
        for _ in 0..scale.rounds {
            cache.prepare(&image)?;
            pairs.ours.push(run(
                command(&["inspect-internal", "tree-stats", "-t", "5"])?.arg(&image)
            )?);
            let device = LoopDevice::attach(&image)?;
            cache.prepare(&image)?;
            let mut theirs = Command::new(newest("btrfs"));
            pairs.theirs.push(run(theirs
                .args(["inspect-internal", "tree-stats", "-t", "5"])
                .arg(device.path()))?);
        }
        println!("{}", pairs.row());
    }
    let shown = command(&["inspect-internal", "tree-stats", "-t", "5"])?
        .arg(&image)
        .output()?;
    println!("\n{}", String::from_utf8_lossy(&shown.stdout));
    Ok(())
}
