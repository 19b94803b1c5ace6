//! Jobs on small files, large files, and a database.

use super::sides::Side;
use super::{Times, is_installed, program};
use crate::Scale;
use anyhow::{Context, Result, anyhow, ensure};
use buttress_oracle::content::Random;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;
const CHUNK: usize = 1 << 20;
const JOBS: u64 = 4;
const MANY: u64 = 16;

/// The goals: at least 0.9 of the kernel's throughput, and 1.5 times the kernel's with compression.
const SEQUENTIAL: Option<f64> = Some(1.0 / 0.9);
const COMPRESSED: Option<f64> = Some(1.0 / 1.5);

pub(super) fn create(scale: Scale, side: &mut Side, times: &mut Times) -> Result<()> {
    let directory = side.path().to_owned();
    times.take("4 processes create inline files", None, || {
        let each = scale.inline_files / JOBS;
        let start = |job: u64| {
            let words = [(job * each).to_string(), each.to_string()];
            Command::new(std::env::current_exe()?)
                .args(["mount-part", "create"])
                .arg(&directory)
                .args(words)
                .spawn()
        };
        let started: Vec<_> = (0..JOBS).map(start).collect();
        for child in started {
            let status = child?.wait()?;
            ensure!(
                status.success(),
                "a process that creates files ended with {status}"
            );
        }
        Ok(())
    })
}

/// Makes the files of one process.
pub(super) fn create_some(directory: &Path, first: u64, count: u64) -> Result<()> {
    for number in first..first + count {
        File::create(directory.join(format!("file_{number}")))?.write_all(&[0xab; 2000])?;
    }
    Ok(())
}

/// Returns content that is half noise, half text.
fn content() -> Vec<u8> {
    let mut random = Random::new(3);
    (0..CHUNK / 8192 * 8)
        .flat_map(|_| [random.bytes(BLOCK, false), random.bytes(BLOCK, true)].concat())
        .collect()
}

fn write_in_order(path: &Path, bytes: u64) -> Result<()> {
    let content = content();
    write_content(path, bytes, &content)
}

fn write_content(path: &Path, bytes: u64, content: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    for number in 0..bytes / CHUNK as u64 {
        let parts = (content.len() / CHUNK).max(1) as u64;
        let at = (number % parts) as usize * CHUNK;
        file.write_all(&content[at..at + CHUNK])?;
    }
    Ok(file.sync_all()?)
}

fn read_in_order(path: &Path) -> Result<()> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; CHUNK]);
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

pub(super) fn large(scale: Scale, side: &mut Side, times: &mut Times) -> Result<()> {
    let content = content();
    let rows = [
        ("", "large file written", "large file read, cold", SEQUENTIAL),
        (
            "compress=zstd",
            "large file written, zstd",
            "large file read, zstd, cold",
            COMPRESSED,
        ),
    ];
    for (options, write, read, goal) in rows {
        side.cold(options)?;
        let path = side.path().join("large");
        times.take(write, goal, || write_content(&path, scale.large_bytes, &content))?;
        side.cold(options)?;
        let path = side.path().join("large");
        times.take(read, SEQUENTIAL, || read_in_order(&path))?;
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Calls from several threads at once, each with an aligned buffer.
fn at_once(
    threads: u64,
    calls: u64,
    bytes: u64,
    call: &(dyn Fn(&mut [u8], u64) -> std::io::Result<()> + Sync),
) -> Result<()> {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<()> {
                    let mut random = Random::new(thread);
                    let mut buffer = vec![0x5a; BLOCK * 2];
                    let start = buffer.as_ptr().align_offset(BLOCK);
                    let aligned = buffer
                        .get_mut(start..start + BLOCK)
                        .context("an aligned buffer")?;
                    for _ in 0..calls / threads {
                        call(aligned, random.below(bytes / BLOCK as u64) * BLOCK as u64)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in started {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    })
}

pub(super) fn random(scale: Scale, side: &mut Side, times: &mut Times) -> Result<()> {
    let bytes = scale.large_bytes / 8;
    let calls = (scale.inline_files / 25).max(MANY);
    write_in_order(&side.path().join("random"), bytes)?;
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    for (threads, name) in [
        (1, "4 KiB read anywhere, direct, cold"),
        (MANY, "the same by 16 threads"),
    ] {
        side.cold("")?;
        let path = side.path().join("random");
        let file = File::options().read(true).custom_flags(direct).open(path)?;
        times.take(name, None, || {
            at_once(threads, calls, bytes, &|buffer, at| {
                file.read_exact_at(buffer, at)
            })
        })?;
    }
    side.cold("")?;
    let path = side.path().join("random");
    for (threads, flags, name) in [
        (1, 0, "4 KiB written anywhere, then synced"),
        (MANY, 0, "by 16 threads"),
        (1, direct, "direct"),
        (MANY, direct, "direct, by 16 threads"),
    ] {
        let file = File::options().write(true).custom_flags(flags).open(&path)?;
        times.take(name, None, || {
            at_once(threads, calls, bytes, &|buffer, at| file.write_all_at(buffer, at))?;
            Ok(file.sync_all()?)
        })?;
    }
    Ok(())
}

pub(super) fn sqlite(scale: Scale, side: &mut Side, times: &mut Times) -> Result<()> {
    if !is_installed("sqlite3") {
        println!("    sqlite3 is not installed: no row of it");
        return Ok(());
    }
    let transactions = (scale.inline_files / 500).max(10);
    for (name, mode) in [
        ("sqlite transactions", "delete"),
        ("sqlite transactions, write-ahead log", "wal"),
    ] {
        let path = side.path().join(format!("{mode}.db"));
        let mut script = format!(
            "pragma journal_mode={mode}; pragma synchronous=full; create table t (a integer primary key, b text);\n"
        );
        for number in 0..transactions {
            script.push_str(&format!(
                "insert into t values ({number}, '{}');\n",
                "text ".repeat(40)
            ));
        }
        times.take(name, Some(1.0), || {
            let mut child = Command::new("sqlite3")
                .arg(&path)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()?;
            let mut input = child.stdin.take().context("its input")?;
            input.write_all(script.as_bytes())?;
            drop(input);
            ensure!(child.wait()?.success(), "sqlite3 failed");
            Ok(())
        })?;
        program(
            Command::new("sqlite3").arg(&path).arg("pragma integrity_check"),
            &[0],
        )?;
    }
    Ok(())
}
