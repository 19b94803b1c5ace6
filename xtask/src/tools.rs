//! Tools for comparisons with the kernel: the chore installs missing tools if it can, and names the
//! rest.
//!
//! As root, apt-get installs Debian's packages. If the distribution's btrfs-progs is too old, the
//! chore unpacks a newer version below the target folder, from the backports suite of the machine's
//! own mirror. The installed version of btrfs-progs stays unchanged.

use crate::run::{run, target};
use anyhow::{Context, Result};
use buttress_oracle::needs::PROGRAMS;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The reference version of the comparisons.
const NEWER: &str = buttress_oracle::tools::REFERENCE_VERSION;

fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Installs missing tools, or prints the packages to install.
pub(crate) fn install_missing() {
    install_missing_but(&[]);
}

/// As [`install_missing`], except for programs that count as missing.
pub(crate) fn install_missing_but(without: &[String]) {
    let is_wanted = |program: &str| !without.iter().any(|name| name == program);
    let missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(program, _)| is_wanted(program) && !in_path(program))
        .collect();
    if missing.is_empty() {
        return;
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if is_root() && in_path("apt-get") {
        println!("installing {}", packages.join(" "));
        let quiet = |command: &mut Command| {
            run(command
                .env("DEBIAN_FRONTEND", "noninteractive")
                .stdout(Stdio::null())
                .stderr(Stdio::null()))
        };
        let installed = quiet(Command::new("apt-get").args(["-q", "update"])).and_then(|()| {
            quiet(
                Command::new("apt-get")
                    .args(["-q", "install", "-y"])
                    .args(&packages),
            )
        });
        if let Err(error) = installed {
            println!("could not install them: {error:#}");
        }
    }
    for (program, package) in missing {
        if !in_path(program) {
            println!("{program} is missing (package {package}): what needs it cannot be run");
        }
    }
}

/// Returns a folder with a newer btrfs-progs: the folder that `BUTTRESS_PROGS` names, or an
/// unpacked one. If no newer version is available, the function prints this and returns `None`.
pub(crate) fn newer_progs() -> Result<Option<PathBuf>> {
    if let Some(programs) = unpacked_progs()? {
        return Ok(Some(programs));
    }
    let folder = unpacked_folder()?;
    let programs = folder.join("programs");
    match unpack(&folder, &programs) {
        Ok(()) => Ok(Some(programs)),
        Err(error) => {
            println!(
                "no btrfs-progs {NEWER} could be laid beside the installed one ({error:#}): \
                 what needs it cannot be run"
            );
            Ok(None)
        }
    }
}

/// Returns the same folder as [`newer_progs`], but unpacks nothing.
pub(crate) fn unpacked_progs() -> Result<Option<PathBuf>> {
    if let Some(folder) = std::env::var_os("BUTTRESS_PROGS") {
        return Ok(Some(PathBuf::from(folder)));
    }
    let programs = unpacked_folder()?.join("programs");
    Ok(programs.join("mkfs.btrfs").is_file().then_some(programs))
}

fn unpacked_folder() -> Result<PathBuf> {
    Ok(target()?.join("tools").join(format!("btrfs-progs-{NEWER}")))
}

fn unpack(folder: &Path, programs: &Path) -> Result<()> {
    let (mirror, suite) = debian().context("this is not Debian with a known mirror")?;
    std::fs::create_dir_all(folder.join("lists/partial"))?;
    std::fs::create_dir_all(folder.join("archives/partial"))?;
    let sources = folder.join("sources.list");
    std::fs::write(&sources, format!("deb {mirror} {suite}-backports main\n"))?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.args([
            "-q",
            "-o",
            "Dir::Etc::sourceparts=-",
            "-o",
            "APT::Sandbox::User=root",
        ]);
        for (key, place) in [
            ("Dir::Etc::sourcelist", sources.clone()),
            ("Dir::State::lists", folder.join("lists")),
            ("Dir::Cache::archives", folder.join("archives")),
        ] {
            command.arg("-o").arg(format!("{key}={}", place.display()));
        }
        command
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["download", "btrfs-progs"]))?;
    let package = std::fs::read_dir(folder)?
        .filter_map(std::result::Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.starts_with(&format!("btrfs-progs_{NEWER}")) && name.ends_with(".deb")
            })
        })
        .with_context(|| format!("the backports suite has no version {NEWER}"))?;
    let unpacked = folder.join("unpacked");
    run(Command::new("dpkg").arg("-x").arg(package).arg(&unpacked))?;
    std::fs::create_dir_all(programs)?;
    for part in ["bin", "sbin", "usr/bin", "usr/sbin"] {
        let Ok(entries) = std::fs::read_dir(unpacked.join(part)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            std::fs::copy(entry.path(), programs.join(entry.file_name()))?;
        }
    }
    run(Command::new(programs.join("mkfs.btrfs"))
        .arg("--version")
        .stdout(Stdio::null()))
}

/// Returns the mirror from which this machine installs, and its suite.
fn debian() -> Option<(String, String)> {
    let release = std::fs::read_to_string("/etc/os-release").ok()?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?
        .to_owned();
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(
            entries
                .filter_map(std::result::Result::ok)
                .map(|entry| entry.path()),
        );
    }
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // A source has one of two forms: a line that contains the suite, or key-value lines with
        // address and suites apart.
        for paragraph in text.split("\n\n") {
            let words: Vec<&str> = paragraph
                .lines()
                .filter(|line| !line.starts_with('#'))
                .flat_map(str::split_whitespace)
                .collect();
            if !words.contains(&suite.as_str()) {
                continue;
            }
            if let Some(address) = words
                .iter()
                .find(|word| word.contains("://") && word.ends_with("debian"))
            {
                return Some(((*address).to_owned(), suite));
            }
        }
    }
    None
}
