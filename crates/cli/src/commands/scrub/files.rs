//! Files with damaged data, in all snapshots, and written ranges of data.

use buttress::scrub::{Damage, Part, Report};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::fs::Filesystem;
use buttress::{ByteCount, Logical, RangeKind};
use buttress_exact::Exact as _;
use core::ops::Range;

use crate::commands::inspect_internal::paths::PathFinder;

/// A damaged range, and the paths of its files.
#[derive(Clone, Debug)]
pub(super) struct Affected {
    pub(super) damage: Damage,
    pub(super) paths: Vec<Vec<u8>>,
}

/// Largest number of damaged ranges whose files are looked up.
const LOOKED_UP_MAX: usize = 1000;

/// Returns the damaged ranges of a report, each with at most `most` paths. Damaged trees may
/// prevent the lookup; the range then has no paths.
pub(super) fn of(filesystem: &Filesystem, report: &Report, most: usize) -> Vec<Affected> {
    let mut finder = PathFinder::new(filesystem);
    let mut looked_up = 0_usize;
    let mut affected = |damage: &Damage| {
        let wanted = damage.part == Part::Data && most > 0 && looked_up < LOOKED_UP_MAX;
        let mut paths = Vec::new();
        if wanted {
            looked_up = looked_up.saturating_add(1);
            paths = paths_of(filesystem, &mut finder, damage.logical, damage.length, most);
        }
        Affected {
            damage: damage.clone(),
            paths,
        }
    };
    report.damages.iter().map(&mut affected).collect()
}

/// Returns the paths of the files that have data in a range of addresses, at most `most`. Damaged
/// trees may hide the files; the function then returns no path.
pub(in crate::commands) fn in_range(
    filesystem: &Filesystem,
    logical: Logical,
    length: ByteCount,
    most: usize,
) -> Vec<Vec<u8>> {
    paths_of(
        filesystem,
        &mut PathFinder::new(filesystem),
        logical,
        length,
        most,
    )
}

/// Largest number of sectors in a range whose files are looked up; each may belong to a separate
/// extent.
const SECTORS_MAX: usize = 256;

fn paths_of(
    filesystem: &Filesystem,
    finder: &mut PathFinder<'_>,
    logical: Logical,
    length: ByteCount,
    most: usize,
) -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    let sector = filesystem.sector_bytes().narrow::<usize>();
    for offset in (0..length.get()).step_by(sector).take(SECTORS_MAX) {
        let at = logical.saturating_add(ByteCount::new(offset));
        let Ok(references) = filesystem.data_references(at, true) else {
            continue;
        };
        for reference in references.iter() {
            for path in finder.paths(reference.location).unwrap_or_default() {
                if paths.len() >= most {
                    return paths;
                }
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
    }
    paths
}

/// Largest length of a data extent. After a reference, the extent does not extend further than
/// this.
const LONGEST_EXTENT: ByteCount = ByteCount::new(128 << 20);

/// Returns the parts of an address range to which any file has written. If the references to the
/// damaged range are unreadable, the whole range counts as written.
pub(super) fn written(filesystem: &Filesystem, logical: Logical, length: ByteCount) -> Vec<Range<Logical>> {
    let all = logical..logical.saturating_add(length);
    let Ok(references) = filesystem.data_references(logical, true) else {
        return vec![all];
    };
    let mut written = Vec::new();
    let mut add = |reference: &buttress::DataReference| -> buttress::unstable::fs::Result<()> {
        let file = filesystem.open_file(reference.location)?;
        let last = reference.offset.saturating_add(LONGEST_EXTENT);
        for range in file.extents_from(reference.offset)? {
            let range = range?;
            if range.offset > last {
                break;
            }
            if let RangeKind::Data(extent) = range.kind {
                let end = extent.logical.saturating_add(extent.disk_bytes);
                if extent.logical < all.end && all.start < end {
                    written.push(extent.logical..end);
                }
            }
        }
        Ok(())
    };
    for reference in references.iter() {
        if add(reference).is_err() {
            return vec![all];
        }
    }
    written
}
