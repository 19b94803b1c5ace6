//! The guarantees of returned syncs, compared with the state after a crash.

use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

use crate::TOP;
use crate::history::Run;
use crate::moments::{Moment, Snapshot};

/// Asserts that the state after a crash meets the guarantees of all syncs.
pub(crate) fn expect_promised(run: &Run, done: usize, found: &Moment) -> Result<()> {
    let last = (done + 1).min(run.moments.len() - 1);
    let returned = || run.syncs.iter().rev().filter(|(operation, _)| *operation <= done);
    let committed = returned()
        .find(|(_, inode)| inode.is_none())
        .map_or(0, |(operation, _)| *operation);
    let since_of = |inode: u64| {
        let synced = returned().find(|(_, synced)| *synced == Some(inode));
        synced.map_or(committed, |(operation, _)| committed.max(*operation))
    };
    let inodes: BTreeSet<u64> = run.moments[committed..=last]
        .iter()
        .flat_map(|moment| moment.inodes.keys().copied())
        .chain(found.inodes.keys().copied())
        .collect();
    let nothing = Snapshot::default();
    for inode in inodes {
        let since = since_of(inode);
        let at = |moment: &Moment| moment.inodes.get(&inode).cloned().unwrap_or_default();
        let states = || run.moments[since..=last].iter().map(at);
        let is = found.inodes.get(&inode).unwrap_or(&nothing);
        ensure!(
            states().any(|state| state.names == is.names),
            "inode {inode} has the names {:?}, and since operation {since} it never had",
            is.names
        );
        if is.names.is_empty() && inode != TOP.inode.get() {
            continue;
        }
        ensure!(
            states().any(|state| state.content == is.content),
            "inode {inode} has content {:?}, and since operation {since} it never had",
            is.content
        );
        ensure!(
            states().any(|state| state.attributes == is.attributes),
            "inode {inode} has the attributes {:?}, and since operation {since} it never had",
            is.attributes
        );
    }
    expect_entries(run, done, last, found)
}

/// Asserts that each synced directory has the names that it had at one moment since its sync.
fn expect_entries(run: &Run, done: usize, last: usize, found: &Moment) -> Result<()> {
    for (operation, inode) in run.syncs.iter().filter(|(operation, _)| *operation <= done) {
        let Some(inode) = inode else { continue };
        if !run.moments[*operation].entries.contains_key(inode) {
            continue;
        }
        let states = &run.moments[*operation..=last];
        let names: BTreeSet<&Vec<u8>> = states
            .iter()
            .chain([found])
            .filter_map(|moment| moment.entries.get(inode))
            .flat_map(BTreeMap::keys)
            .collect();
        for name in names {
            let of = |moment: &Moment| {
                moment
                    .entries
                    .get(inode)
                    .and_then(|entries| entries.get(name))
                    .copied()
            };
            ensure!(
                states.iter().any(|moment| of(moment) == of(found)),
                "directory {inode}, synced by operation {operation}: {} leads to {:?}, and never did since",
                name.escape_ascii(),
                of(found)
            );
        }
    }
    Ok(())
}
