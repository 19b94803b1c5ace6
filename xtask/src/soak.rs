//! `cargo xtask soak`: deep random runs against the kernel, with a seed and a time.

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask soak [--seed N] [--seconds N] [--histories N | --seeds N,N…]";

/// What is run, and from where on.
struct Options {
    seed: u64,
    seconds: u64,
    /// Only histories that are sent, at most this many.
    histories: Option<u64>,
    /// Only the histories of these seeds.
    seeds: Option<String>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options {
        seed: 1,
        seconds: 600,
        histories: None,
        seeds: None,
    };
    for pair in words.chunks(2) {
        let [word, value] = pair else { bail!(USAGE) };
        let number = || {
            value
                .parse::<u64>()
                .with_context(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--seconds" => options.seconds = number()?,
            "--histories" => options.histories = Some(number()?),
            "--seeds" => options.seeds = Some(value.clone()),
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

/// Seeds count up from `--seed` until the seconds are over: once for random volumes, and once for random histories
/// that are sent. With `--histories` or `--seeds` only histories, so many (within the seconds) or these.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let options = parse(words)?;
    tools::install_missing();
    run::run(cargo()?.args(["build", "--release", "--quiet", "-p", "buttress-cli"]))?;
    let mut command = cargo()?;
    command.args(["test", "--release", "-p", "buttress-proof", "--test", "send"]);
    if options.histories.is_none() && options.seeds.is_none() {
        command.args(["--test", "kernel"]);
    }
    command.args(["--no-fail-fast", "--", "soak"]);
    command
        .env("BUTTRESS_SOAK_SEED", options.seed.to_string())
        .env("BUTTRESS_SOAK_SECONDS", options.seconds.to_string());
    if let Some(histories) = options.histories {
        command.env("BUTTRESS_SOAK_HISTORIES", histories.to_string());
    }
    if let Some(seeds) = &options.seeds {
        command.env("BUTTRESS_SOAK_SEEDS", seeds);
    }
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)
}
