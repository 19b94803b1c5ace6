//! `cargo xtask schedules`: the live layer under the model checker `shuttle`, which chooses the
//! next thread at each lock.
//!
//! The build has `--cfg buttress_shuttle`, with which `buttress-locks` gives the checker's locks to
//! all layers. The target folder of this build is separate: an ordinary build contains nothing of
//! the checker. The scenes are in `crates/proof/tests/schedules`.

use crate::run::{self, cargo};
use anyhow::{Context, Result, bail};
use std::process::Command;

const USAGE: &str = "usage: cargo xtask schedules [--seed N] [--schedules N] [SCENE]";

/// The package of the scenes.
pub(crate) const PACKAGE: &str = "buttress-proof";
/// The test target of the scenes.
pub(crate) const TARGET: &str = "schedules";

/// Sets the flags of a build with the checker.
pub(crate) fn with_checker(command: &mut Command) -> Result<&mut Command> {
    Ok(command
        .env("RUSTFLAGS", "--cfg buttress_shuttle")
        .env("CARGO_TARGET_DIR", run::target()?.join("schedules")))
}

/// Runs the given number of schedules of each scene from a seed, or by default the schedules of the
/// ordinary suite.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (mut seed, mut schedules, mut scene) = (None, None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().context(USAGE)?;
            value
                .parse::<u64>()
                .with_context(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--seed" => seed = Some(number()?),
            "--schedules" => schedules = Some(number()?),
            word if word.starts_with('-') => bail!(USAGE),
            word => scene = Some(word),
        }
    }
    let mut command = cargo()?;
    command.args(["test", "--locked", "-p", PACKAGE, "--test", TARGET, "--"]);
    command.args(scene);
    for (name, value) in [
        ("BUTTRESS_SCHEDULES_SEED", seed),
        ("BUTTRESS_SCHEDULES", schedules),
    ] {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    }
    run::run(with_checker(&mut command)?)
}
