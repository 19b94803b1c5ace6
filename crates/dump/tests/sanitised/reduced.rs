//! Reduced dumps of damaged volumes: each shows its finding, restored to memory, and is small.
//!
//! The table `reduced.txt` has the blocks and bytes for each plant. The suite reduces a few plants, and
//! the variable `BUTTRESS_SOAK` all of them. The variable `BUTTRESS_WRITE_DOCS` writes the table.

use crate::secrets::Secrets;
use crate::{SANITISE, items};
use buttress_dump::{DumpItem, DumpOptions, Error, ReduceOptions, Reduced, reduce, write};
use buttress_fs::Progress;
use buttress_hostile::plants::{self, Plant};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A report fits into the attachment of a mail or an issue.
const BYTES_MAX: usize = 100 << 10;

/// The plants that the suite reduces: one of each kind of tree.
const SUITE: [&str; 4] = [
    "link-count",
    "reference-surplus",
    "free-space-count",
    "uuid-missing",
];

fn reduced(plant: &Plant, code: &str) -> buttress_dump::Result<Reduced> {
    let options = ReduceOptions {
        sanitise: SANITISE,
        checks_max: 400,
        bytes_max: 64 << 20,
        threads: 1,
    };
    reduce(&plant.make().open(), code, &options, &Progress::new())
}

/// Returns the items of the plain dump of a plant.
fn plain(plant: &Plant) -> Vec<DumpItem> {
    let mut bytes = Vec::new();
    let volume = plant.make().open();
    write(&volume, &mut bytes, &DumpOptions::default(), &Progress::new()).unwrap();
    items(&bytes)
}

/// Reduces a plant for its first code. Returns the row of the table.
fn row(plant: &Plant, code: &str) -> Option<(usize, usize, usize)> {
    let found = match reduced(plant, code) {
        Ok(found) => found,
        Err(Error::FindingMissing { .. }) => return None,
        Err(error) => panic!("{}: {error}", plant.name),
    };
    assert_eq!(found.finding.code(), code, "{}", plant.name);
    assert!(
        found.dump.len() < BYTES_MAX,
        "{}: {} bytes",
        plant.name,
        found.dump.len()
    );
    let secrets = Secrets::of(&plant.make().open(), &plain(plant));
    secrets.require_none_in(plant.name, &items(&found.dump));
    Some((found.blocks_before, found.blocks, found.dump.len()))
}

#[test]
fn reduced_dumps_show_their_finding() {
    for name in SUITE {
        let plant = plants::named(name);
        let (before, blocks, _) = row(&plant, plant.codes[0]).expect("a dump shows the finding");
        assert!(blocks * 2 < before, "{name}: {blocks} of {before} blocks");
    }
}

#[test]
fn finding_that_no_dump_shows_is_refused() {
    let plant = plants::named("data-damaged");
    let refused = reduced(&plant, "data-damaged").unwrap_err();
    assert!(refused.to_string().contains("data-damaged"), "{refused}");
}

#[test]
fn table_of_reduced_dumps_has_sixty_codes() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("tests/sanitised/reduced.txt");
    if std::env::var_os("BUTTRESS_SOAK").is_some() {
        let mut rows = BTreeMap::new();
        for plant in plants::all() {
            for code in plant.codes {
                if !rows.contains_key(code)
                    && let Some(row) = row(&plant, code)
                {
                    rows.insert(code, (plant.name, row));
                }
            }
        }
        let mut table = String::from("code plant blocks-before blocks bytes\n");
        for (code, (plant, (before, blocks, bytes))) in rows {
            writeln!(table, "{code} {plant} {before} {blocks} {bytes}").unwrap();
        }
        if std::env::var_os("BUTTRESS_WRITE_DOCS").is_some() {
            std::fs::write(&path, &table).unwrap();
        }
        let codes = |table: &str| {
            table
                .lines()
                .filter_map(|row| Some(row.split_once(' ')?.0.to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(codes(&table), codes(&std::fs::read_to_string(&path).unwrap()));
    }
    let table = std::fs::read_to_string(&path).unwrap();
    let rows = table.lines().skip(1);
    let small = rows.filter(|row| {
        let bytes = row.split(' ').next_back().and_then(|bytes| bytes.parse().ok());
        bytes.is_some_and(|bytes: usize| bytes < BYTES_MAX)
    });
    assert!(small.count() >= 60, "{table}");
}
