//! `cargo xtask soak`: deep random runs against the kernel, with a seed and a time.

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, bail};

/// `[--seed N] [--seconds N]`: seeds count up from `N` until the time is over; once for random volumes, and
/// once for random histories that are sent.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (mut seed, mut seconds) = (1u64, 600u64);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = || -> Result<u64> {
            words
                .clone()
                .next()
                .context("a number")?
                .parse()
                .context("a number")
        };
        match word.as_str() {
            "--seed" => seed = number()?,
            "--seconds" => seconds = number()?,
            _ => bail!("usage: cargo xtask soak [--seed N] [--seconds N]"),
        }
        words.next();
    }
    tools::install_missing();
    run::run(cargo()?.args(["build", "--release", "--quiet", "-p", "buttress-cli"]))?;
    let mut command = cargo()?;
    command.args([
        "test",
        "--release",
        "-p",
        "buttress-proof",
        "--test",
        "kernel",
        "--test",
        "send",
        "--no-fail-fast",
        "--",
        "soak",
    ]);
    command
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_SOAK_SECONDS", seconds.to_string());
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)
}
