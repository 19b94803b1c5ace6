//! The plot of scrubs beside the kernel's. Rows may be measured one by one, so a list keeps their
//! medians.

use crate::Scale;
use crate::images;
use crate::plot::{Group, rows};
use crate::report::Pairs;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;

const LIST: &str = "scrub-medians";

/// Adds a row to the list.
pub(super) fn note(scale: Scale, name: &str, pairs: &Pairs) -> Result<()> {
    if !scale.draws {
        return Ok(());
    }
    let path = images::folder()?.join(LIST);
    let mut file = File::options().create(true).append(true).open(path)?;
    let [ours, theirs] = pairs.seconds();
    writeln!(file, "{name}, {}\t{ours}\t{theirs}", pairs.cache)?;
    Ok(())
}

/// Draws the list: the last entry of each row.
pub(super) fn draw() -> Result<()> {
    let path = images::folder()?.join(LIST);
    let list = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut groups: Vec<Group> = Vec::new();
    for line in list.lines() {
        let mut fields = line.split('\t');
        let label = fields.next().unwrap_or_default().to_owned();
        let values = fields.map(|field| field.parse().ok()).collect();
        groups.retain(|group| group.label != label);
        groups.push(Group { label, values });
    }
    let svg = rows(
        "Scrubbing",
        "seconds",
        &["buttress scrub start -B -r", "btrfs scrub start -B -r"],
        &groups,
    );
    Ok(std::fs::write(
        images::plots()?.join("scrub-against-the-kernel.svg"),
        svg,
    )?)
}
