//! The benchmarks' volumes, made once with the kernel and kept.

use crate::Scale;
use anyhow::{Context, Result};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the kept volumes.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = match std::env::var_os("BUTTRESS_BENCH") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from("target/bench"),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(std::fs::canonicalize(folder)?)
}

/// Returns the folder for plots in the documentation.
pub(crate) fn plots() -> Result<PathBuf> {
    let folder = PathBuf::from("docs/plots");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns the image `name` of this scale. If it does not exist, `fill` makes it on a mount with
/// `options`.
pub(crate) fn kept(
    name: &str,
    scale: Scale,
    gib: u64,
    options: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    kept_unmounted(name, scale, gib, |image| {
        let mount = Mount::new(&[image.to_path_buf()], options)?;
        fill(mount.path())?;
        mount.close()
    })
}

/// Returns the image `name` of this scale. If it does not exist, `fill` changes a new volume.
pub(crate) fn kept_unmounted(
    name: &str,
    scale: Scale,
    gib: u64,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let path = folder()?.join(format!("{name}-{}.img", scale.name));
    if path.exists() {
        return Ok(path);
    }
    eprintln!("making {}", path.display());
    let unfinished = path.with_extension("unfinished");
    File::create(&unfinished)?.set_len(gib << 30)?;
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f"])
        .arg(&unfinished))?;
    fill(&unfinished)?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Returns a source tree of `scale.source_files` files. Sizes are as in real source trees (median
/// about 4 KiB), and text compresses as source does. A directory has 12 files on average, and one
/// name in 40 is a symbolic link.
pub(crate) fn source_tree(scale: Scale) -> Result<PathBuf> {
    kept("source", scale, 8, "", |top| {
        fill_source_tree(scale, &top.join("source"))
    })
}

/// Returns the tree of [`source_tree`] on a volume that compresses with zstd.
pub(crate) fn compressed_source_tree(scale: Scale) -> Result<PathBuf> {
    kept("source-zstd", scale, 8, "compress=zstd", |top| {
        fill_source_tree(scale, &top.join("source"))
    })
}

/// Makes the files of [`source_tree`] in a new directory.
pub(crate) fn fill_source_tree(scale: Scale, top: &Path) -> Result<()> {
    let mut random = Random::new(1);
    let mut directories = vec![top.to_path_buf()];
    std::fs::create_dir(&directories[0])?;
    for number in 0..scale.source_files {
        if number % 12 == 11 {
            let parent = random.below(directories.len() as u64) as usize;
            let path = directories[parent].join(format!("module_{number}"));
            if path.components().count() < 16 {
                std::fs::create_dir(&path)?;
                directories.push(path);
            }
        }
        let nearby = random.below((directories.len() as u64).min(4));
        let recent = directories.len() as u64 - 1 - nearby;
        let path = directories[recent as usize].join(format!("file_{number}.rs"));
        if number % 40 == 39 {
            std::os::unix::fs::symlink(format!("file_{}.rs", number - 1), &path)?;
            continue;
        }
        // The sizes are a geometric mix: most files have a few KiB, a few have hundreds.
        let half = 1u64 << (8 + random.below(5) + random.below(4) + random.below(3));
        let length = half + random.below(half);
        std::fs::write(&path, random.bytes(length as usize, true))?;
    }
    Ok(())
}

/// Returns an aged volume: `scale.inline_files` small files, a thousand to a directory, then five
/// rounds of changes. A round partly overwrites one file in ten, replaces one in ten by a new file,
/// and takes a snapshot. At the end the second snapshot is deleted.
pub(crate) fn aged(scale: Scale) -> Result<PathBuf> {
    const ROUNDS: u64 = 5;
    kept("aged", scale, 12, "noatime", |top| {
        let work = top.join("work");
        run(Command::new(newest("btrfs"))
            .args(["subvolume", "create"])
            .arg(&work))?;
        let mut random = Random::new(11);
        let content = random.bytes(1 << 20, false);
        let path = |number: u64| work.join(format!("{}/file_{number}", number / 1000));
        let mut write = |number: u64| -> Result<()> {
            let length = (1 << 10) + random.below(7 << 10) as usize;
            let start = random.below((content.len() - length) as u64) as usize;
            Ok(std::fs::write(path(number), &content[start..start + length])?)
        };
        for number in 0..scale.inline_files {
            if number % 1000 == 0 {
                std::fs::create_dir(work.join((number / 1000).to_string()))?;
            }
            write(number)?;
        }
        for round in 0..ROUNDS {
            for number in (round..scale.inline_files).step_by(10) {
                let file = File::options().write(true).open(path(number))?;
                file.write_all_at(&[round as u8; 1500], number % 5 * 512)?;
            }
            for number in (round + ROUNDS..scale.inline_files).step_by(10) {
                std::fs::remove_file(path(number))?;
                write(number)?;
            }
            rustix::fs::syncfs(File::open(top)?)?;
            run(Command::new(newest("btrfs"))
                .args(["subvolume", "snapshot", "-r"])
                .arg(&work)
                .arg(top.join(format!("snap{round}"))))?;
        }
        run(Command::new(newest("btrfs"))
            .args(["subvolume", "delete", "-C"])
            .arg(top.join("snap1")))?;
        run(Command::new(newest("btrfs")).args(["subvolume", "sync"]).arg(top)).map(drop)
    })
}

/// Returns a volume with one file of `scale.large_bytes`, written on a mount with `options`.
pub(crate) fn large_file(scale: Scale, name: &str, options: &str) -> Result<PathBuf> {
    kept(name, scale, 12, options, |top| {
        let mut random = Random::new(2);
        // The content is noise with text: barely compressible as the plain file, and half the size
        // compressed.
        let mut file = File::create(top.join("large"))?;
        let mut written = 0;
        let noise = random.bytes(64 << 20, false);
        while written < scale.large_bytes {
            let mut block = random.bytes(512 << 10, true);
            let start = random.below((noise.len() - (512 << 10)) as u64) as usize;
            for (page, part) in block.chunks_mut(8192).enumerate() {
                if page % 2 == 0 {
                    let length = part.len();
                    part.copy_from_slice(&noise[start + page * 4096..][..length]);
                }
            }
            let length = (scale.large_bytes - written).min(block.len() as u64);
            file.write_all(&block[..length as usize])?;
            written += length;
        }
        Ok(file.sync_all()?)
    })
}

/// The size of the volume of [`snapshots`], in GiB, and its mount options.
const SNAPSHOTS_GIB: u64 = 16;
const SNAPSHOTS_OPTIONS: &str = "compress-force=zstd";

/// Returns a volume of `scale.extents` extents with `scale.snapshots` read-only snapshots, from
/// `snap0` on. Before each snapshot a tenth of a percent of the extents is rewritten: in files of
/// 1,000 extents, five at a time. Extents have 8 KiB with holes between them, compressed into 4
/// KiB.
pub(crate) fn snapshots(scale: Scale) -> Result<PathBuf> {
    kept("snapshots", scale, SNAPSHOTS_GIB, SNAPSHOTS_OPTIONS, |top| {
        fill_snapshots(scale, top)
    })
}

/// Makes the volume of [`snapshots`] at this path.
pub(crate) fn make_snapshots(scale: Scale, path: &Path) -> Result<()> {
    eprintln!("making {}", path.display());
    File::create(path)?.set_len(SNAPSHOTS_GIB << 30)?;
    run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(path))?;
    let mount = Mount::new(&[path.to_path_buf()], SNAPSHOTS_OPTIONS)?;
    fill_snapshots(scale, mount.path())?;
    mount.close()
}

fn fill_snapshots(scale: Scale, top: &Path) -> Result<()> {
    const EXTENTS_PER_FILE: u64 = 1000;
    const BYTES: usize = 8 << 10;
    let mut random = Random::new(3);
    let content = random.bytes(1 << 20, true);
    let work = top.join("work");
    run(Command::new(newest("btrfs"))
        .args(["subvolume", "create"])
        .arg(&work))?;
    let file_of = |number: u64| work.join(format!("file_{number}"));
    let mut write = |file: &File, extent: u64| -> Result<()> {
        let start = random.below((content.len() - BYTES) as u64) as usize;
        let offset = extent * 2 * BYTES as u64;
        Ok(file.write_all_at(&content[start..start + BYTES], offset)?)
    };
    let files = (scale.extents / EXTENTS_PER_FILE).max(1);
    for number in 0..files {
        let file = File::create(file_of(number))?;
        for extent in 0..EXTENTS_PER_FILE {
            write(&file, extent)?;
        }
    }
    let rewritten = scale.extents / 1000;
    for number in 0..scale.snapshots {
        rustix::fs::syncfs(File::open(top)?)?;
        let snapshot = top.join(format!("snap{number}"));
        run(Command::new(newest("btrfs"))
            .args(["subvolume", "snapshot", "-r"])
            .args([&work, &snapshot]))?;
        for part in 0..5 {
            let chosen = (number * 5 + part) * 37 % files;
            let file = File::options().write(true).open(file_of(chosen))?;
            for extent in 0..rewritten / 5 {
                write(&file, extent * 5 % EXTENTS_PER_FILE + number % 5)?;
            }
        }
    }
    Ok(())
}

/// Makes the read-only snapshot `snap` of the top level, if it does not exist.
pub(crate) fn add_snapshot(image: &Path) -> Result<()> {
    let mount = Mount::new(&[image.to_path_buf()], "ro")?;
    let there = mount.path().join("snap").exists();
    mount.close()?;
    if there {
        return Ok(());
    }
    let mount = Mount::new(&[image.to_path_buf()], "")?;
    snapshot(mount.path(), "snap")?;
    mount.close()
}

fn snapshot(top: &Path, name: &str) -> Result<()> {
    run(Command::new(newest("btrfs"))
        .args(["subvolume", "snapshot", "-r"])
        .arg(top)
        .arg(top.join(name)))
    .map(drop)
}

/// Returns the volume of the script from the kernel's read-ahead changes. Four interleaved jobs
/// make inline files of 2,000 bytes. A snapshot, a quarter more files, an overwrite of every 50th
/// of the first files, and a second snapshot follow. The script starts a process for each file;
/// this function makes the same calls in four threads.
pub(crate) fn inline_files(scale: Scale) -> Result<PathBuf> {
    // Volumes with another number of files than the scale's have separate names.
    let name = match scale.inline_files {
        500_000 | 1000 => "inline".to_owned(),
        files => format!("inline-{files}"),
    };
    kept(&name, scale, 8, "max_inline=2048", |top| {
        let first = scale.inline_files;
        add_files(top, 0, first)?;
        snapshot(top, "snap1")?;
        add_files(top, first, first / 4)?;
        for number in (1..first).step_by(50) {
            let file = File::options()
                .write(true)
                .open(top.join(format!("file_{number}")))?;
            file.write_all_at(&[0xcd; 20], 0)?;
        }
        snapshot(top, "snap2")
    })
}

fn add_files(top: &Path, start: u64, total: u64) -> Result<()> {
    let jobs = 4;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|job| {
                scope.spawn(move || -> Result<()> {
                    let base = start + job * (total / jobs);
                    for number in base + 1..=base + total / jobs {
                        let file = File::create(top.join(format!("file_{number}")))?;
                        file.write_all_at(&[0xab; 2000], 0)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker
                .join()
                .map_err(|_| anyhow::anyhow!("a job of add_files panicked"))??;
        }
        Ok(rustix::fs::syncfs(File::open(top)?)?)
    })
}
