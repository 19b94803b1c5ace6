//! The files and subvolumes that a finding affects, by path. Damage may make the path of a file
//! unreadable; a finding then has no paths.

use crate::finding::Subject;
use crate::report::Report;
use buttress_accounts::Accounts as _;
use buttress_format::{InodeNumber, SubvolumeId, TreeId};
use buttress_fs::{Filesystem, Location, Progress, Result};
use std::collections::BTreeMap;

/// The most findings for which paths are looked up; readers do not read more.
const LOOKED_UP_MAX: usize = 1000;

/// Adds the paths of affected files to all findings.
pub(crate) fn fill(
    filesystem: &Filesystem,
    report: &mut Report,
    most: usize,
    progress: &Progress,
) -> Result<()> {
    let mut known: BTreeMap<Subject, Vec<Vec<u8>>> = BTreeMap::new();
    for reported in report.findings.iter_mut().take(LOOKED_UP_MAX) {
        progress.check()?;
        let subject = reported.finding.subject();
        let paths = known
            .entry(subject)
            .or_insert_with(|| paths_of(filesystem, subject, most));
        reported.affected.clone_from(paths);
    }
    Ok(())
}

fn paths_of(filesystem: &Filesystem, subject: Subject, most: usize) -> Vec<Vec<u8>> {
    let mut paths = match subject {
        Subject::Volume => Vec::new(),
        Subject::Tree(tree) => subvolume_path(filesystem, tree).into_iter().collect(),
        Subject::Inode(subvolume, inode) => inode_paths(filesystem, subvolume, inode),
        Subject::Address(logical) => match filesystem.data_references(logical, true) {
            Ok(references) => references
                .iter()
                .take(most)
                .flat_map(|reference| {
                    let Location { subvolume, inode, .. } = reference.location;
                    inode_paths(filesystem, subvolume, inode)
                })
                .collect(),
            Err(_) => filesystem
                .trees_of_block(logical)
                .map(|(trees, _)| trees)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|tree| subvolume_path(filesystem, tree))
                .collect(),
        },
    };
    paths.dedup();
    paths.truncate(most);
    paths
}

fn subvolume_path(filesystem: &Filesystem, tree: TreeId) -> Option<Vec<u8>> {
    let subvolume = tree.as_subvolume()?;
    let mut path = b"/".to_vec();
    if subvolume != SubvolumeId::TOP_LEVEL {
        path.extend(filesystem.subvolume_path(subvolume).ok()?);
    }
    Some(path)
}

fn inode_paths(filesystem: &Filesystem, subvolume: SubvolumeId, inode: InodeNumber) -> Vec<Vec<u8>> {
    let Some(top) = subvolume_path(filesystem, subvolume.tree()) else {
        return Vec::new();
    };
    let paths = filesystem.inode_paths(Location::new(subvolume, inode));
    let join = |path: Vec<u8>| {
        let mut full = top.clone();
        if !path.is_empty() && !full.ends_with(b"/") {
            full.push(b'/');
        }
        full.extend(path);
        full
    };
    paths.unwrap_or_default().into_iter().map(join).collect()
}
