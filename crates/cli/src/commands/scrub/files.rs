//! Whose data is damaged: the files of an address, in all snapshots; and whether data was ever written.

use buttress::accounts::Accounts as _;
use buttress::format::{ByteCount, Logical};
use buttress::fs::{Filesystem, RangeKind};
use buttress::scrub::{Damage, Part, Report};

use crate::commands::inspect_internal::paths::PathFinder;

/// A damage and the paths of the files that it touches.
#[derive(Clone, Debug)]
pub(super) struct Affected {
    pub(super) damage: Damage,
    pub(super) paths: Vec<Vec<u8>>,
}

/// For more damages than this nobody reads paths.
const LOOKED_UP_MAX: usize = 1000;

/// The damages of a report, each with at most `most` paths. Trees that are damaged may stand in the way: then there are none.
pub(super) fn of(filesystem: &Filesystem, report: &Report, most: usize) -> Vec<Affected> {
    let mut finder = PathFinder::new(filesystem);
    let mut looked_up = 0_usize;
    let mut affected = |damage: &Damage| {
        let wanted = damage.part == Part::Data && most > 0 && looked_up < LOOKED_UP_MAX;
        let mut paths = Vec::new();
        if wanted {
            looked_up = looked_up.saturating_add(1);
            paths = paths_of(filesystem, &mut finder, damage.logical, most);
        }
        Affected {
            damage: damage.clone(),
            paths,
        }
    };
    report.damages.iter().map(&mut affected).collect()
}

fn paths_of(
    filesystem: &Filesystem,
    finder: &mut PathFinder<'_>,
    logical: Logical,
    most: usize,
) -> Vec<Vec<u8>> {
    let Ok(references) = filesystem.data_references(logical, true) else {
        return Vec::new();
    };
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for reference in references.iter() {
        for path in finder.paths(reference.location).unwrap_or_default() {
            if paths.len() < most && !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

/// Whether any file has data there, and not only a reservation. Where that cannot be said it counts as written.
pub(super) fn is_written(filesystem: &Filesystem, logical: Logical, length: ByteCount) -> bool {
    let Ok(references) = filesystem.data_references(logical, true) else {
        return true;
    };
    let end = logical.saturating_add(length);
    let writes = |reference: &buttress::accounts::DataReference| -> buttress::fs::Result<bool> {
        let file = filesystem.open_file(reference.location)?;
        for range in file.extents_from(reference.offset)? {
            if let RangeKind::Data(extent) = range?.kind {
                let its_end = extent.logical.saturating_add(extent.disk_bytes);
                if extent.logical < end && logical < its_end {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    let mut references = references.iter();
    references.any(|reference| writes(reference).unwrap_or(true))
}
