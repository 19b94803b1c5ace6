//! `cargo xtask docs`: pages that are made from the code.

use crate::run::{cargo, root};
use anyhow::{Result, bail};
use std::fs;

/// Writes `docs/commands.md`.
pub(crate) fn run() -> Result<()> {
    let output = cargo()?
        .args(["run", "--quiet", "-p", "buttress-cli", "--", "reference"])
        .output()?;
    if !output.status.success() {
        bail!("buttress reference: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(root()?.join("docs/commands.md"), output.stdout)?;
    Ok(())
}
