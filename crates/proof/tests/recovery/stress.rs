//! Work on repaired volumes through Linux: fsstress if the machine has it, else a random tree.
//!
//! `BUTTRESS_FSSTRESS` names the program, which xfstests contains.

use crate::runs::{End, expect_clean, limited, mounted};
use anyhow::{Result, ensure};
use buttress_oracle::content::random_tree;
use std::path::Path;
use std::process::Command;

/// The number of changes of the random tree.
const STEPS: u64 = 100;

/// The arguments of fsstress: processes and operations of each.
const FSSTRESS: [&str; 4] = ["-p", "2", "-n", "200"];

/// Checks a repaired volume, writes to it through Linux, and checks it again.
pub fn work(image: &Path, seed: u64) -> Result<()> {
    expect_clean(image)?;
    mounted(image, "", |top| write(&top.join(format!("stress-{seed}")), seed))??;
    expect_clean(image)
}

fn write(top: &Path, seed: u64) -> Result<()> {
    let Some(program) = std::env::var_os("BUTTRESS_FSSTRESS") else {
        return random_tree::plant(top, seed, STEPS);
    };
    std::fs::create_dir(top)?;
    let mut command = Command::new(program);
    command.args(FSSTRESS).args(["-s", &seed.to_string(), "-d"]);
    let end = limited(command.arg(top))?;
    ensure!(end == End::Code(0), "fsstress ended with {end:?}");
    Ok(())
}
