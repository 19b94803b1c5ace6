//! `cargo xtask suites`: other projects' suites for file systems, run on mounts.
//!
//! - `xfstests FOLDER`: a built tree of xfstests on this machine; the repository contains nothing
//!   of it. Each test runs alone, as `FSTYP=btrfs` with this program as the mount helper. `btrfs
//!   check` then checks the volume. The chore compares the results with the [recorded
//!   table](table).
//! - `programs`: Debian's programs that test or load file systems, each on a new volume that is
//!   checked afterwards ([`programs`]).

mod programs;
mod table;
mod xfstests;

use crate::run::{self, cargo, target};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

const USAGE: &str = "usage: cargo xtask suites xfstests FOLDER [--add-users] [--seconds-each N] [--write] [TEST…]\n\
     \x20      cargo xtask suites programs [--seconds-each N] [NAME…]";

/// The options of the chore.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// The chore creates the users that tests need, and removes them at the end.
    add_users: bool,
    /// The time limit of one test or program, in seconds.
    seconds_each: Option<u64>,
    /// The chore writes the recorded table again.
    write: bool,
    /// The remaining arguments.
    words: Vec<String>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--add-users" => options.add_users = true,
            "--write" => options.write = true,
            "--seconds-each" => {
                let number = words.next().and_then(|word| word.parse().ok());
                options.seconds_each = Some(number.context("--seconds-each wants a number")?);
            }
            word if word.starts_with("--") => bail!(USAGE),
            word => options.words.push(word.to_owned()),
        }
    }
    Ok(options)
}

/// Returns the built command, or the command that `BUTTRESS` names.
fn command() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BUTTRESS") {
        return Ok(path.into());
    }
    run::run(cargo()?.args(["build", "--release", "--quiet", "-p", "buttress-cli"]))?;
    Ok(target()?.join("release/buttress"))
}

pub(crate) fn run(words: &[String]) -> Result<()> {
    let Some((suite, rest)) = words.split_first() else {
        bail!(USAGE)
    };
    let options = parse(rest)?;
    match suite.as_str() {
        "xfstests" => {
            let Some((folder, tests)) = options.words.split_first() else {
                bail!(USAGE)
            };
            xfstests::run(folder.as_ref(), tests, &options, &command()?)
        }
        "programs" => {
            tools::install_missing();
            programs::run(&options.words, options.seconds_each.unwrap_or(60), &command()?)
        }
        // This call runs inside a separate mount namespace.
        "xfstests-inside" => match options.words.split_first() {
            Some((scratch, tests)) => xfstests::inside(scratch.as_ref(), tests),
            None => bail!(USAGE),
        },
        _ => bail!(USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let words = ["tree", "--seconds-each", "9", "generic/001", "--add-users"];
        let options = parse(&words.map(str::to_owned)).unwrap();
        assert!(options.add_users && !options.write);
        assert_eq!(options.seconds_each, Some(9));
        assert_eq!(options.words, ["tree", "generic/001"]);
        assert!(parse(&["--what".to_owned()]).is_err());
        assert!(parse(&["--seconds-each".to_owned()]).is_err());
    }
}
