//! The table of `usage -T`: a column for each type and profile, a line for each device.

use std::io::Write;

use anyhow::Result;
use buttress::Space;

use super::super::profile_name;
use super::{device_name, groups_in_order};
use crate::output::size::Units;

/// A cell, with its alignment in the column.
enum Cell {
    Left(String),
    Right(String),
    Rule,
}

impl Cell {
    fn left(text: impl Into<String>) -> Self {
        Self::Left(text.into())
    }

    fn text(&self) -> &str {
        match self {
            Self::Left(text) | Self::Right(text) => text,
            Self::Rule => "",
        }
    }
}

pub(super) fn write(out: &mut impl Write, space: &Space, units: Units) -> Result<()> {
    let rows = rows(space, units);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text().chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| match cell {
                Cell::Left(text) => format!("{text:<width$}"),
                Cell::Right(text) => format!("{text:>width$}"),
                Cell::Rule => "-".repeat(*width),
            })
            .collect();
        writeln!(out, "{}", cells.join(" "))?;
    }
    Ok(())
}

fn rows(space: &Space, units: Units) -> Vec<Vec<Cell>> {
    let groups = groups_in_order(space);
    let right = |bytes: u64| Cell::Right(units.text(bytes));
    let dash = |bytes: u64| Cell::Right(units.text_or_dash(bytes));
    let blank = || Cell::left("");
    let mut kinds = vec![blank(), blank()];
    let mut heads = vec![Cell::left("Id"), Cell::left("Path")];
    let mut total = vec![blank(), Cell::left("Total")];
    let mut used = vec![blank(), Cell::left("Used")];
    for group in &groups {
        kinds.push(Cell::left(group.flags.type_name()));
        heads.push(Cell::left(profile_name(group.flags)));
        total.push(right(group.total.get()));
        used.push(right(group.used.get()));
    }
    let sum = |value: fn(&buttress::DeviceSpace) -> u64| {
        right(
            space
                .devices
                .iter()
                .fold(0u64, |sum, device| sum.saturating_add(value(device))),
        )
    };
    for name in ["Unallocated", "Total", "Slack"] {
        kinds.push(blank());
        heads.push(Cell::left(name));
        used.push(blank());
    }
    total.push(sum(|device| device.unallocated().get()));
    total.push(sum(|device| device.size.get()));
    total.push(sum(|device| device.slack().get()));
    let rule = || heads.iter().map(|_| Cell::Rule).collect::<Vec<_>>();
    let (above, below) = (rule(), rule());
    let mut rows = vec![kinds, heads, above];
    for device in &space.devices {
        let mut row = vec![
            Cell::Right(device.id.to_string()),
            Cell::left(device_name(device)),
        ];
        for group in &groups {
            let bytes = device.allocated.iter().find(|(flags, _)| *flags == group.flags);
            row.push(dash(bytes.map_or(0, |(_, bytes)| bytes.get())));
        }
        row.push(dash(device.unallocated().get()));
        row.push(dash(device.size.get()));
        row.push(dash(device.slack().get()));
        rows.push(row);
    }
    rows.extend([below, total, used]);
    rows
}
