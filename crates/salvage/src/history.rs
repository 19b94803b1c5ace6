//! The history of files: versions that the newest state no longer has.
//!
//! States are read from the newest to the oldest. Each state costs only the blocks that no newer state
//! shares (`history/leaves`). An inode with an item in such a leaf may be a version of a file. It is one
//! if neither the newest state nor a newer version has the same content under the same path.
//!
//! The content of a version is read once, from the newest state that has it. If checksums of that state
//! are lost, older states with the same version are asked. The version keeps its extents allocated all
//! the time, so their checksums describe the same data.
//!
//! # Invariants
//!
//! - A version is verified only if its content matches checksums of a state that has this version.
//! - A root of the scan that is newer than the superblocks of the scan was not committed then. If an index
//!   is older than the volume, no file of such a root is verified.
//! - If a crash interrupted a commit, its generation can have a second root that was never committed.
//!   No file of such a state is verified: its tree blocks and checksums can be of the other root.
//!
//! # Left out
//!
//! Leaves below no known root, names beyond the first 16 of an inode, special files, and changes that
//! only a log tree holds.

mod directories;
mod doubts;
mod entries;
mod leaves;
mod names;
mod search;
mod version;

use crate::error::Result;
use crate::identity::Identity;
use crate::states::{Origin, State};
use crate::view::{self, ViewOptions};
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_fs::Progress;
use doubts::Doubts;
use search::Search;
use std::sync::Arc;

pub use directories::Directories;
pub use entries::entries;
pub use search::{History, VERSIONS_MAX, WantedFiles};
pub use version::Version;

/// Finds versions of files in the states, which are in the order of [`states()`](crate::states()).
///
/// # Errors
/// Fails if `progress` was cancelled, with unsupported features, and if devices of the newest state are
/// missing. Other states and blocks that cannot be read are counted.
pub fn history(
    devices: &[Device],
    identity: &Identity,
    states: &[State],
    options: &ViewOptions,
    wanted: &dyn WantedFiles,
    progress: &Progress,
) -> Result<History> {
    let open = |state: &State| match view::open(devices, identity, state, options) {
        Err(error) if error.ends_search() => Err(error),
        // Older states are expected to be damaged.
        opened => Ok(opened),
    };
    let is_last = |state: &&State| matches!(state.origin, Origin::Superblock(_));
    let last = states.iter().find(is_last).or(states.first()).copied();
    let (newest, newest_error) = match last.as_ref().map(open).transpose()? {
        Some(Err(error)) if error.lacks_devices() => return Err(error),
        Some(Err(error)) => (None, Some(Arc::new(error))),
        Some(Ok(view)) => (Some(view), None),
        None => (None, None),
    };
    let mut search = Search::new(wanted, newest.as_ref(), progress);
    search.history.newest_error = newest_error;
    search.read_newest()?;
    let doubts = Doubts::new(states, last.as_ref(), options.index.as_deref());
    for state in states {
        progress.check()?;
        if Some(*state) == last && newest.is_some() {
            continue;
        }
        let Ok(view) = open(state)? else {
            search.history.unopened = search.history.unopened.exact_add(1);
            continue;
        };
        let is_doubtful = doubts.concern(state);
        search.read(&view, is_doubtful)?;
    }
    let mut history = search.history;
    let order = |version: &Version| (version.path.clone(), core::cmp::Reverse(version.generation));
    history.versions.sort_by_cached_key(order);
    Ok(history)
}

/// Returns the best version of each path: the newest of those with the best verdict.
#[must_use]
pub fn best_versions(versions: &[Version]) -> Vec<&Version> {
    let mut best: Vec<&Version> = Vec::new();
    for version in versions {
        match best.last_mut().filter(|known| known.path == version.path) {
            Some(known) if version.verdict() < known.verdict() => *known = version,
            Some(_) => {}
            None => best.push(version),
        }
    }
    best
}
