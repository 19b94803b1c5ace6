//! The space that a deletion of subvolumes would free: for each alone, and for all together.
//!
//! Data that only these subvolumes share is freed only when all are deleted. The space in the last
//! line can therefore exceed the sum of the other lines.

use std::io::Write;

use anyhow::Result;
use buttress::SubvolumeInfo;
use buttress::accounting::{Occupied, Options};
use serde_json::{Map, Value, json};

use super::Job;
use super::json::of_occupied;
use crate::output::json::insert_name;
use crate::output::size::Units;

/// Space that a deletion would free.
pub(super) struct Answer {
    each: Vec<(u64, Vec<u8>, Occupied)>,
    together: Occupied,
    pending: Occupied,
}

/// Computes the space that a deletion of the wanted subvolumes would free.
pub(super) fn answer(job: &Job<'_>, wanted: &[&SubvolumeInfo]) -> Result<Answer> {
    for info in wanted {
        let is_wanted = |other: &SubvolumeInfo| wanted.iter().any(|wanted| wanted.id == other.id);
        let mut inside = job.subvolumes.iter().filter(|other| {
            let is_inside = other.place.as_ref().is_some_and(|place| place.parent == info.id);
            is_inside && !other.is_deleted() && !is_wanted(other)
        });
        if let Some(nested) = inside.next() {
            let path = String::from_utf8_lossy(&job.path_of(info)).into_owned();
            let inner = String::from_utf8_lossy(&job.path_of(nested)).into_owned();
            job.context.warn(format!(
                "{path} contains {inner}, which must be deleted first: give both to count both"
            ));
        }
    }
    let accounting = job.account(&Options::default())?;
    let freed = |ids: &[_]| accounting.freed_by(&accounting.subvolumes(ids));
    let all: Vec<_> = wanted.iter().map(|info| info.id).collect();
    Ok(Answer {
        each: wanted
            .iter()
            .map(|info| (info.id.get(), job.path_of(info), freed(&[info.id])))
            .collect(),
        together: freed(&all),
        pending: accounting.pending(),
    })
}

/// Prints the space that a deletion would free.
pub(super) fn print(job: &Job<'_>, answer: &Answer, units: Units) -> Result<()> {
    if job.context.json() {
        return print_json(job, answer);
    }
    let mut out = job.context.stdout();
    writeln!(out, "{:>12}  {:>12}  If deleted", "Data", "Metadata")?;
    let mut line = |occupied: &Occupied, name: &[u8]| -> Result<()> {
        let (data, metadata) = (occupied.data().get(), occupied.metadata.get());
        let (data, metadata) = (units.text(data), units.text(metadata));
        write!(out, "{data:>12}  {metadata:>12}  ")?;
        out.write_all(&job.context.printable(name))?;
        writeln!(out)?;
        Ok(())
    };
    for (_, path, occupied) in &answer.each {
        line(occupied, path)?;
    }
    if answer.each.len() > 1 {
        line(&answer.together, b"together")?;
    }
    if answer.pending != Occupied::default() {
        line(&answer.pending, b"<deleted already, still to be dropped>")?;
    }
    out.flush()?;
    Ok(())
}

fn print_json(job: &Job<'_>, answer: &Answer) -> Result<()> {
    let each: Vec<Value> = answer
        .each
        .iter()
        .map(|(id, path, occupied)| {
            let mut object = Map::from_iter([("id".to_owned(), Value::from(*id))]);
            insert_name(&mut object, "path", path);
            object.extend(of_occupied(occupied));
            object.into()
        })
        .collect();
    let document = json!({
        "if_deleted": {
            "each": each,
            "together": of_occupied(&answer.together),
        },
        "pending": of_occupied(&answer.pending),
    });
    job.context.print_json("space", document)
}
