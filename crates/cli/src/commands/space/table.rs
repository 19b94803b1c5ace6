//! The account as a table.

use std::io::Write;

use anyhow::Result;
use buttress::accounting::{ContentKind, Occupied};

use super::Job;
use super::rows::{Report, Row, Sharer};
use crate::output::size::Units;

/// Largest number of listed owners of shared space.
const SHARERS_MAX: usize = 20;

/// Prints the account.
pub(super) fn print(job: &Job<'_>, report: &Report, units: Units) -> Result<()> {
    let mut lines: Vec<Vec<String>> = Vec::new();
    lines.push(headings(report));
    for row in report.rows.iter().chain([&report.total]) {
        lines.push(cells(report, row, units));
    }
    let widths = widths(&lines);
    let mut out = job.context.stdout();
    let names = report.rows.iter().chain([&report.total]);
    let names = names.map(|row| job.context.printable(&row.name));
    let heading: std::borrow::Cow<'_, [u8]> = b"Path".into();
    for (cells, name) in lines.iter().zip([heading].into_iter().chain(names)) {
        for (cell, width) in cells.iter().zip(&widths) {
            write!(out, "{cell:>width$}  ")?;
        }
        out.write_all(&name)?;
        writeln!(out)?;
    }
    if report.pending != Occupied::default() {
        let (data, metadata) = (report.pending.data().get(), report.pending.metadata.get());
        writeln!(
            out,
            "\nDeleted, still to be dropped: {} of data, {} of metadata",
            units.text(data),
            units.text(metadata)
        )?;
    }
    print_sharers(job, report, units, &mut out)?;
    out.flush()?;
    Ok(())
}

fn print_sharers(job: &Job<'_>, report: &Report, units: Units, out: &mut dyn Write) -> Result<()> {
    if report.shared.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nShares data with:")?;
    let mut shared: Vec<_> = report.shared.iter().collect();
    shared.sort_by_key(|(_, occupied)| std::cmp::Reverse(occupied.data()));
    let texts: Vec<String> = shared
        .iter()
        .take(SHARERS_MAX)
        .map(|(_, occupied)| units.text(occupied.data().get()))
        .collect();
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    for ((who, _), text) in shared.iter().zip(&texts) {
        write!(out, "{text:>width$}  ")?;
        out.write_all(&job.context.printable(&name_of(job, who)))?;
        writeln!(out)?;
    }
    let more = shared.len().saturating_sub(texts.len());
    if more > 0 {
        writeln!(out, "and with {more} more")?;
    }
    Ok(())
}

fn name_of(job: &Job<'_>, who: &Sharer) -> Vec<u8> {
    let path = |id: &u64| {
        let info = job.subvolumes.iter().find(|info| info.id.get() == *id);
        info.map_or_else(
            || format!("<subvolume {id}>").into_bytes(),
            |info| job.path_of(info),
        )
    };
    match who {
        Sharer::Subvolume(id) => path(id),
        Sharer::Beside => b"<elsewhere in the same subvolume>".to_vec(),
        Sharer::Unlinked(id) => [b"<files without a name in> ", path(id).as_slice()].concat(),
        Sharer::Tree(id) => format!("<tree {id}>").into_bytes(),
    }
}

fn headings(report: &Report) -> Vec<String> {
    let words: &[&str] = if report.is_of_subvolumes {
        &[
            "ID",
            "Logical",
            "On disk",
            "Exclusive",
            "Metadata",
            "Exclusive",
            "Ratio",
            "Compression",
        ]
    } else {
        &["Files", "Logical", "On disk", "Exclusive", "Ratio", "Compression"]
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn cells(report: &Report, row: &Row, units: Units) -> Vec<String> {
    let logical = units.text(row.files.logical().get());
    let data = |occupied: &Occupied| units.text(occupied.data().get());
    let metadata = |occupied: &Occupied| units.text(occupied.metadata.get());
    let mut cells = vec![logical, data(&row.occupied), data(&row.exclusive)];
    if report.is_of_subvolumes {
        let id = row.subvolume.map_or_else(|| "-".to_owned(), |id| id.to_string());
        cells.insert(0, id);
        cells.extend([metadata(&row.occupied), metadata(&row.exclusive)]);
    } else {
        cells.insert(0, row.files.count.to_string());
    }
    cells.push(ratio(row));
    cells.push(algorithms(row));
    cells
}

/// Returns the ratio of the on-disk size to the uncompressed size, in percent.
fn ratio(row: &Row) -> String {
    let sum = row.occupied.sum();
    let percent = sum
        .disk
        .get()
        .saturating_mul(100)
        .checked_div(sum.uncompressed.get());
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"))
}

/// Returns the compression algorithms of the extents.
fn algorithms(row: &Row) -> String {
    let kinds = row.occupied.extents.iter().filter(|(kind, extents)| {
        !matches!(kind, ContentKind::Plain | ContentKind::Preallocated) && extents.count > 0
    });
    let names: Vec<&str> = kinds.map(|(kind, _)| kind.name()).collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(",")
    }
}

fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    (0..columns).map(width).collect()
}
