//! The build with fault points, and the test programs in it.
//!
//! `--cfg buttress_faults` is given to the workspace's own crates only, by this very program as cargo's workspace wrapper:
//! other crates are those of every build, and cargo keeps both builds of the workspace side by side under one target folder.

use super::list::Test;
use crate::run::cargo;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Set where this program stands in for the compiler.
const WRAPPER: &str = "BUTTRESS_FAULTS_WRAPPER";

/// Acts as the compiler with the fault points switched in, if that is what it was started for.
pub(crate) fn as_compiler() -> Option<ExitCode> {
    std::env::var_os(WRAPPER)?;
    let mut words = std::env::args_os().skip(1);
    let compiler = words.next()?;
    let status = Command::new(compiler)
        .args(words)
        .args(["--cfg", "buttress_faults"])
        .status();
    let is_done = status.is_ok_and(|status| status.success());
    Some(if is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A test program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The folder that tests expect to run in: that of their package.
    pub(crate) folder: PathBuf,
}

/// Test programs by package and target; `lib` is that of unit tests.
pub(crate) type Programs = BTreeMap<(String, String), Program>;

/// Builds the programs of these tests, with fault points.
pub(crate) fn build<'a>(tests: impl Iterator<Item = &'a Test>) -> Result<Programs> {
    let wanted: BTreeSet<(&str, &str)> = tests.map(|test| (test.package, test.target)).collect();
    // All at once: what one package asks of another is then the same for all, and each is compiled once.
    let mut command = cargo()?;
    command.args(["test", "--no-run", "--quiet", "--locked"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    for package in wanted
        .iter()
        .map(|(package, _)| *package)
        .collect::<BTreeSet<_>>()
    {
        command.args(["-p", package]);
    }
    for target in wanted.iter().map(|(_, target)| *target).collect::<BTreeSet<_>>() {
        match target {
            "lib" => command.arg("--lib"),
            target => command.args(["--test", target]),
        };
    }
    command
        .env("RUSTC_WORKSPACE_WRAPPER", std::env::current_exe()?)
        .env(WRAPPER, "1");
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let output = child.stdout.take().context("cargo's output")?;
    let mut programs = Programs::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program_of(&line?));
    }
    if !child.wait()?.success() {
        bail!("the tests do not build");
    }
    for (package, target) in wanted {
        if !programs.contains_key(&(package.to_owned(), target.to_owned())) {
            bail!("{package} has no test target {target}");
        }
    }
    Ok(programs)
}

/// The test program that a line of cargo's tells of, if it is one.
fn program_of(line: &str) -> Option<((String, String), Program)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    if message.pointer("/profile/test")?.as_bool() != Some(true) {
        return None;
    }
    let target = message.get("target")?;
    let kind = target.pointer("/kind/0")?.as_str()?;
    let name = if kind == "test" {
        target.get("name")?.as_str()?
    } else {
        "lib"
    };
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    let folder = manifest.parent()?.to_path_buf();
    let package = format!("buttress-{}", folder.file_name()?.to_str()?);
    Some(((package, name.to_owned()), Program { path, folder }))
}
