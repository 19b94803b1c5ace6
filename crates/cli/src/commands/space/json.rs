//! The account as JSON: all figures, in bytes.

use anyhow::Result;
use buttress::accounting::{Files, Occupied};
use serde_json::{Map, Value};

use super::Job;
use super::rows::{Report, Row, Sharer};
use crate::output::json::insert_name;

/// Prints the account.
pub(super) fn print(job: &Job<'_>, report: &Report) -> Result<()> {
    let mut document = Map::new();
    let rows: Vec<Value> = report.rows.iter().map(|row| of_row(row).into()).collect();
    let what = if report.is_of_subvolumes {
        "subvolumes"
    } else {
        "entries"
    };
    document.insert(what.into(), rows.into());
    document.insert("total".into(), of_row(&report.total).into());
    document.insert("pending".into(), of_occupied(&report.pending).into());
    let with_figures = |mut object: Map<String, Value>, occupied: &Occupied| {
        object.extend(of_occupied(occupied));
        Value::from(object)
    };
    if report.is_of_subvolumes {
        let groups = report.groups.iter().map(|(owners, occupied)| {
            let owners: Vec<Value> = owners.iter().map(|owner| of_sharer(owner).into()).collect();
            with_figures(Map::from_iter([("owners".to_owned(), owners.into())]), occupied)
        });
        document.insert("shared_by".into(), groups.collect());
        let smaller = of_occupied(&report.smaller_groups);
        document.insert("shared_by_others".into(), smaller.into());
    } else {
        let shared = report
            .shared
            .iter()
            .map(|(who, occupied)| with_figures(of_sharer(who), occupied));
        document.insert("shared_with".into(), shared.collect());
    }
    job.context.print_json("space", document.into())
}

fn of_sharer(who: &Sharer) -> Map<String, Value> {
    let (key, value): (&str, Value) = match who {
        Sharer::Subvolume(id) => ("subvolume", (*id).into()),
        Sharer::Beside => ("elsewhere_in_subvolume", true.into()),
        Sharer::Unlinked(id) => ("unlinked_in_subvolume", (*id).into()),
        Sharer::Tree(id) => ("tree", (*id).into()),
    };
    Map::from_iter([(key.to_owned(), value)])
}

fn of_row(row: &Row) -> Map<String, Value> {
    let mut object = Map::new();
    if let Some(id) = row.subvolume {
        object.insert("id".into(), id.into());
    }
    insert_name(&mut object, "path", &row.name);
    if row.is_deleted {
        object.insert("deleted".into(), true.into());
    }
    object.insert("files".into(), row.files.count.into());
    object.insert("logical".into(), row.files.logical().get().into());
    object.extend(of_occupied(&row.occupied));
    object.insert("exclusive".into(), of_occupied(&row.exclusive).into());
    object.insert("types".into(), of_kinds(&row.files, &row.occupied).into());
    object
}

/// Returns data and metadata on disk.
pub(super) fn of_occupied(occupied: &Occupied) -> Map<String, Value> {
    Map::from_iter([
        ("data".to_owned(), occupied.data().get().into()),
        ("metadata".to_owned(), occupied.metadata.get().into()),
    ])
}

/// Returns the figures by kind of content, for kinds that occur.
fn of_kinds(files: &Files, occupied: &Occupied) -> Map<String, Value> {
    let mut kinds = Map::new();
    for ((kind, extents), (_, references)) in occupied.extents.iter().zip(files.references.iter()) {
        let figures = [
            ("extents", extents.count),
            ("data", extents.disk.get()),
            ("uncompressed", extents.uncompressed.get()),
            ("references", references.count),
            ("referenced", references.bytes.get()),
            ("inline", references.inline_count),
            ("inline_stored", references.inline_stored.get()),
            ("inline_uncompressed", references.inline_bytes.get()),
        ];
        if figures.iter().any(|(_, number)| *number > 0) {
            let object: Map<String, Value> = figures
                .into_iter()
                .map(|(name, number)| (name.to_owned(), number.into()))
                .collect();
            kinds.insert(kind.name().to_owned(), object.into());
        }
    }
    kinds
}
