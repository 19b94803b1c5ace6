//! `cargo xtask docs`: pages generated from the code.

use crate::run::{cargo, root};
use anyhow::{Result, bail};
use std::fs;

/// Writes `docs/commands.md` and the table in `docs/btrfs-progs-compatibility.md`.
pub(crate) fn run() -> Result<()> {
    let output = cargo()?
        .args(["run", "--quiet", "-p", "buttress-cli", "--", "reference"])
        .output()?;
    if !output.status.success() {
        bail!("buttress reference: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(root()?.join("docs/commands.md"), output.stdout)?;
    compatibility()
}

/// The markers around the table of btrfs-progs' commands.
const BEGIN: &str = "<!-- the table: cargo xtask docs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Writes the table in `docs/btrfs-progs-compatibility.md`.
fn compatibility() -> Result<()> {
    let output = cargo()?
        .args([
            "run",
            "--quiet",
            "-p",
            "buttress-cli",
            "--",
            "reference",
            "--btrfs-progs",
        ])
        .output()?;
    if !output.status.success() {
        bail!("buttress reference: {}", String::from_utf8_lossy(&output.stderr));
    }
    let path = root()?.join("docs/btrfs-progs-compatibility.md");
    let page = fs::read_to_string(&path)?;
    let parts = page.split_once(BEGIN).and_then(|(head, rest)| {
        let (_, tail) = rest.split_once(END)?;
        Some((head, tail))
    });
    let Some((head, tail)) = parts else {
        bail!("{} has no marks for its table", path.display());
    };
    let table = String::from_utf8(output.stdout)?;
    fs::write(path, format!("{head}{}{table}{}{tail}", BEGIN, END))?;
    Ok(())
}
