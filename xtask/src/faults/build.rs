//! The build with fault points, and its test programs.
//!
//! Only the workspace's own crates get `--cfg buttress_faults`: this program acts as cargo's
//! workspace wrapper. Other crates are shared with ordinary builds, and cargo keeps both builds of
//! the workspace in one target folder.

use super::list::Test;
use crate::programs::{self, Programs};
use crate::run::cargo;
use crate::schedules;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

/// The variable that marks a process of this program as the compiler wrapper.
const WRAPPER: &str = "BUTTRESS_FAULTS_WRAPPER";

/// Acts as the compiler with fault points enabled, if this process was started as the wrapper.
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

/// Builds the programs of these tests, with fault points.
pub(crate) fn build<'a>(tests: impl Iterator<Item = &'a Test>) -> Result<Programs> {
    let wanted: BTreeSet<(&str, &str)> = tests.map(|test| (test.package, test.target)).collect();
    let (checked, wanted): (BTreeSet<_>, BTreeSet<_>) = wanted
        .into_iter()
        .partition(|(_, target)| *target == schedules::TARGET);
    let mut programs = Programs::new();
    if !wanted.is_empty() {
        programs.extend(build_with(cargo()?, &wanted)?);
    }
    if !checked.is_empty() {
        let mut command = cargo()?;
        schedules::with_checker(&mut command)?;
        programs.extend(build_with(command, &checked)?);
    }
    Ok(programs)
}

fn build_with(mut command: std::process::Command, wanted: &BTreeSet<(&str, &str)>) -> Result<Programs> {
    // A single command builds all programs, so that cargo joins the features once and compiles each
    // package once.
    command.args(["test", "--no-run", "--quiet", "--locked"]);
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
    let programs = programs::build(&mut command)?;
    for (package, target) in wanted {
        if !programs.contains_key(&((*package).to_owned(), (*target).to_owned())) {
            bail!("{package} has no test target {target}");
        }
    }
    Ok(programs)
}
