//! The free blocks by dumpe2fs, beside the used blocks of the reader.

use anyhow::{Context, Result};
use buttress_extfs::Ext;
use buttress_oracle::tools::run;
use std::path::Path;
use std::process::Command;

/// Returns the free blocks by dumpe2fs as half-open ranges in order that do not touch.
pub(crate) fn by_dumpe2fs(image: &Path) -> Result<Vec<(u64, u64)>> {
    let output = run(Command::new("dumpe2fs").arg(image))?;
    let text = String::from_utf8(output.stdout)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "))
    {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let parse = |number: &str| number.trim().parse::<u64>().with_context(|| line.to_owned());
            let (first, end) = (parse(first)?, parse(last)? + 1);
            match ranges.last_mut() {
                Some(open) if open.1 == first => open.1 = end,
                _ => ranges.push((first, end)),
            }
        }
    }
    Ok(ranges)
}

/// Returns the gaps between the used blocks of the reader.
pub(crate) fn by_us(volume: &Ext) -> Result<Vec<(u64, u64)>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    for used in volume.used_blocks() {
        let used = used?;
        if used.start.get() > at {
            ranges.push((at, used.start.get()));
        }
        at = used.end.get();
    }
    if at < volume.superblock().blocks {
        ranges.push((at, volume.superblock().blocks));
    }
    Ok(ranges)
}
