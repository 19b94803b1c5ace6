//! Test programs: the chore builds all at once, then runs each with its environment.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A test program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The working directory that the tests expect: their package's folder.
    pub(crate) folder: PathBuf,
}

/// Test programs by package and target; `lib` and `bin` are programs of unit tests.
pub(crate) type Programs = BTreeMap<(String, String), Program>;

/// Runs a `cargo test --no-run` and returns the programs that it built.
pub(crate) fn build(command: &mut Command) -> Result<Programs> {
    command
        .args(["--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("starting cargo")?;
    let output = child.stdout.take().context("cargo's output")?;
    let mut programs = Programs::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program_of(&line?));
    }
    if !child.wait()?.success() {
        bail!("the tests do not build");
    }
    Ok(programs)
}

/// Returns the test program that a line of cargo's output names, if any.
fn program_of(line: &str) -> Option<((String, String), Program)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    if message.pointer("/profile/test")?.as_bool() != Some(true) {
        return None;
    }
    let target = message.get("target")?;
    let kind = target.pointer("/kind/0")?.as_str()?;
    let name = match kind {
        "test" => target.get("name")?.as_str()?,
        "bin" => "bin",
        _ => "lib",
    };
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    let folder = manifest.parent()?.to_path_buf();
    let package = package_in(folder.file_name()?.to_str()?);
    Some(((package, name.to_owned()), Program { path, folder }))
}

/// Returns the package in a folder of the workspace.
fn package_in(folder: &str) -> String {
    match folder {
        "buttress" | "xtask" => folder.to_owned(),
        folder => format!("buttress-{folder}"),
    }
}
