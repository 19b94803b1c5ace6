//! Debian's programs on mounts: each runs on a new volume, which `buttress check` and `btrfs check`
//! check afterwards.

use crate::run::target;
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::field::{PROGRAMS, Program};
use buttress_oracle::tools::newest;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const VOLUME_BYTES: u64 = 16 << 30;

/// The size for programs that take one, in MiB for each second: a gibibyte in a minute.
const MIB_A_SECOND: u64 = 16;

pub(super) fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// Runs a command to its end. The error of a failed command contains its output.
fn done(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn one(program: &Program, options: &str, seconds: u64, buttress: &Path) -> Result<()> {
    let place = target()?.join("suites");
    std::fs::create_dir_all(&place)?;
    let scratch = tempfile::tempdir_in(place)?;
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at)?;
    File::create(&image)?.set_len(VOLUME_BYTES)?;
    done(Command::new(newest("mkfs.btrfs")).arg("-q").arg(&image))?;
    done(
        Command::new(buttress)
            .args(["mount", "-o", options])
            .args([&image, &at]),
    )?;
    let inside = at.join("inside");
    let ran = std::fs::create_dir(&inside)
        .map_err(anyhow::Error::new)
        .and_then(|()| done(&mut program.command(&inside, seconds, seconds * MIB_A_SECOND)));
    let ended = done(Command::new(buttress).arg("umount").arg(&at));
    if ended.is_err() {
        // The directory is a mount point, so it must not be removed.
        let _kept = scratch.keep();
    }
    ran?;
    ended?;
    done(Command::new(buttress).arg("check").arg(&image))?;
    done(Command::new(newest("btrfs")).arg("check").arg(&image))
}

pub(super) fn run(wanted: &[String], seconds: u64, buttress: &Path) -> Result<()> {
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !PROGRAMS.iter().any(|program| program.name == *word))
    {
        let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        bail!("no program {unknown}; there are {}", names.join(", "));
    }
    let mut failed = Vec::new();
    for program in PROGRAMS {
        if !wanted.is_empty() && !wanted.iter().any(|word| word == program.name) {
            continue;
        }
        if let Some(missing) = program.needs.iter().find(|needed| !is_installed(needed)) {
            println!("{}: not run, {missing} is not installed", program.name);
            continue;
        }
        for options in ["rw", "rw,compress=zstd"] {
            let begin = Instant::now();
            let ran = one(&program, options, seconds, buttress);
            let took = begin.elapsed().as_secs();
            match ran {
                Ok(()) => println!("{} ({options}): passed, {took} s", program.name),
                Err(error) => {
                    println!("{} ({options}): failed, {took} s: {error:#}", program.name);
                    failed.push(program.name);
                }
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}
