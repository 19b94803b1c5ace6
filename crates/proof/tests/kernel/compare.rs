//! Runs `buttress` on a volume and compares the output with the kernel's view.

use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::{Device, DeviceOptions, Location, SubvolumeId};
use buttress_oracle::manifest::{Manifest, expect_equal};
use buttress_oracle::tools;
use buttress_proof::{library, pax};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Builds a `buttress` command on the volume on `images`, without the arguments after the target.
pub fn command(words: &[&str], images: &[PathBuf]) -> Result<Command> {
    let mut command = Command::new(tools::buttress()?);
    command.args(words);
    for device in images.iter().skip(1) {
        command.arg("--device").arg(device);
    }
    Ok(command)
}

/// Returns the manifest of `buttress tar`'s output, and its standard error.
pub fn tar(words: &[&str], images: &[PathBuf]) -> Result<(Manifest, String)> {
    let mut command = command(words, images)?;
    let mut target = images.first().context("an image")?.clone().into_os_string();
    target.push(":/");
    let mut child = command
        .arg(target)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let errors = child.stderr.take().context("standard error")?;
    let errors = std::thread::spawn(move || std::io::read_to_string(errors));
    let read = pax::manifest(std::io::BufReader::with_capacity(
        1 << 20,
        child.stdout.take().context("output")?,
    ));
    let status = child.wait()?;
    let errors = errors
        .join()
        .map_err(|_| anyhow::anyhow!("reading standard error"))??;
    let manifest = read.with_context(|| format!("buttress tar ended with {status} and said:\n{errors}"))?;
    ensure!(
        status.success(),
        "buttress tar ended with {status} and said:\n{errors}"
    );
    Ok((manifest, errors))
}

/// Asserts that the library's manifest equals the kernel's, with everything that stat(2) shows.
/// Access times are the recorded ones, because the kernel's mount was read-only.
pub fn library_equals(images: &[PathBuf], expected: &Manifest) -> Result<()> {
    let devices = images
        .iter()
        .map(|image| Device::open(image, &DeviceOptions::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let filesystem = OpenOptions::new(devices).open()?;
    let found = library::manifest(&filesystem, Location::root_of(SubvolumeId::TOP_LEVEL))?;
    ensure!(
        filesystem.volume().faults().is_empty(),
        "faults: {:?}",
        filesystem.volume().faults()
    );
    expect_equal("the library", expected, &found)
}

/// Returns the kernel's manifest in the form of a tar stream: without sockets, and with adapted
/// names of linked files.
pub fn without_sockets(manifest: &Manifest) -> Manifest {
    manifest
        .iter()
        .filter(|(_, entry)| entry.mode & 0o170_000 != 0o140_000)
        .map(|(p, e)| (p.clone(), e.clone()))
        .collect()
}

/// Compares `buttress tar` with the kernel's manifest, and returns its standard error.
pub fn tar_equals(words: &[&str], images: &[PathBuf], expected: &Manifest) -> Result<String> {
    tar_equals_but(words, images, expected, b"\0")
}

/// Compares like [`tar_equals`], but also ignores one path that `expected` lacks.
pub fn tar_equals_but(
    words: &[&str],
    images: &[PathBuf],
    expected: &Manifest,
    left_out: &[u8],
) -> Result<String> {
    let (mut found, errors) = tar(words, images)?;
    found.remove(left_out);
    expect_equal("buttress tar", &without_sockets(expected), &found)?;
    if found.len() < 50 && expected.len() >= 50 {
        bail!("only {} members", found.len());
    }
    Ok(errors)
}
