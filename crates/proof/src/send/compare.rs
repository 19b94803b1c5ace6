//! Compares a received tree with the sent snapshot, and with the result of the kernel's stream.

use super::tree::{Place, Ranges, Tree};
use anyhow::{Result, bail, ensure};
use buttress_oracle::manifest::{expect_equal, shown};
use std::collections::HashMap;

/// Asserts that names, attributes, times, links and content of a received tree equal those of the
/// snapshot.
pub fn same_content(what: &str, source: &Tree, received: &Tree) -> Result<()> {
    expect_equal(what, &source.manifest, &received.manifest)
}

/// Asserts like [`same_content`], but ignores the times of directories.
///
/// The kernel's stream creates new inodes under temporary names at the top and moves them. The
/// kernel's stream sets a directory's times before its last change, or not at all for an unchanged
/// directory. Only the kernel's own stream may differ in this way.
pub fn same_but_for_times_of_directories(what: &str, source: &Tree, received: &Tree) -> Result<()> {
    let without = |tree: &Tree| {
        let mut manifest = tree.manifest.clone();
        for entry in manifest.values_mut() {
            if entry.mode & 0o170_000 == 0o040_000 {
                (entry.modified, entry.extra) = ((0, 0), None);
            }
        }
        manifest
    };
    expect_equal(what, &without(source), &without(received))
}

/// Asserts that holes are those of the snapshot or of the kernel's result: if both have data, the
/// tree has data, and if neither has data, the tree has none.
///
/// If the kernel's stream gives a wrong file or none, the test compares holes only with the
/// snapshot.
///
/// A stream without holes writes zeros, and keeps the zeros of earlier streams: `before` is the
/// receiver's earlier state for such a stream. (The kernel's result has a hole there if a clone
/// brought one, which depends on the first reference found.)
pub fn same_holes(
    what: &str,
    source: &Tree,
    kernel: Option<&Tree>,
    received: &Tree,
    before: Option<&Tree>,
) -> Result<()> {
    let empty = Ranges::new();
    let content = |tree: &Tree, path: &[u8]| {
        let entry = tree.manifest.get(path)?;
        Some((entry.size, entry.data.clone()))
    };
    for (path, found) in &received.data {
        let of = |tree: &'_ Tree| tree.data.get(path).unwrap_or(&empty).clone();
        let reference = kernel.filter(|kernel| content(kernel, path) == content(source, path));
        let source = of(source);
        let kernel = reference.map_or_else(|| source.clone(), of);
        let needed = intersection(&source, &kernel);
        let mut allowed = union(&source, &kernel);
        if let Some(before) = before {
            // If a file was moved, its zeros were sent under another path.
            allowed = union(&allowed, before.data.get(path).unwrap_or(found));
        }
        if intersection(&needed, found) != needed || intersection(&allowed, found) != *found {
            let kernel = reference.map(of);
            bail!(
                "{what}: {} has data in {found:?}; the snapshot in {source:?}, the kernel's stream makes {kernel:?}",
                shown(path)
            );
        }
    }
    Ok(())
}

/// Returns the intersection of two lists of ranges.
pub(super) fn intersection(a: &Ranges, b: &Ranges) -> Ranges {
    let mut both = Ranges::new();
    for (start, end) in a {
        for (other_start, other_end) in b {
            let (start, end) = ((*start).max(*other_start), (*end).min(*other_end));
            if start < end {
                add(&mut both, start, end);
            }
        }
    }
    both
}

/// Returns the union of two lists of ranges, with adjacent ranges joined.
pub(super) fn union(a: &Ranges, b: &Ranges) -> Ranges {
    let mut all: Ranges = a.iter().chain(b).copied().collect();
    all.sort_unstable();
    let mut joined = Ranges::new();
    for (start, end) in all {
        add(&mut joined, start, end);
    }
    joined
}

fn add(ranges: &mut Ranges, start: u64, end: u64) {
    match ranges.last_mut() {
        Some(last) if last.1 >= start => last.1 = last.1.max(end),
        _ => ranges.push((start, end)),
    }
}

/// A block of a received snapshot: index of the snapshot, path, offset.
type BlockName<'a> = (usize, &'a [u8], u64);

/// Asserts that blocks sharing one place after the kernel's streams also share one place after
/// Buttress's, over all snapshots of a history. [`same_holes`] covers blocks that are holes in
/// Buttress's result.
///
/// If a block can be cloned from several files, the choice is free; the kernel takes the first long
/// enough reference in extent tree order. A block may then share with other blocks than in the
/// kernel's result, if Buttress's total space is not larger.
pub fn same_sharing(what: &str, kernel: &[Option<Tree>], received: &[Option<Tree>]) -> Result<()> {
    let users = users(received);
    let mut places: HashMap<Place, (Place, BlockName<'_>)> = HashMap::new();
    let mut otherwise = None;
    for (number, (kernel, received)) in kernel.iter().zip(received).enumerate() {
        let (Some(kernel), Some(received)) = (kernel, received) else {
            continue;
        };
        for (path, blocks) in &kernel.places {
            let Some(ours) = received.places.get(path) else {
                continue;
            };
            for (offset, place) in blocks {
                let Some(our_place) = ours.get(offset) else {
                    continue;
                };
                let block = (number, path.as_slice(), *offset);
                let (first_place, first) = places.entry(*place).or_insert((*our_place, block));
                if first_place == our_place {
                    continue;
                }
                let difference = format!(
                    "{what}: the kernel's stream shares snapshot {} {} at {} with snapshot {number} {} at \
                     {offset}, this one does not",
                    first.0,
                    shown(first.1),
                    first.2,
                    shown(path)
                );
                // Either block may have been sent later, with a choice of sources.
                let shared = |place: &Place| users.get(place).is_some_and(|users| *users > 1);
                ensure!(shared(our_place) || shared(first_place), difference);
                otherwise.get_or_insert(difference);
            }
        }
    }
    if let Some(difference) = otherwise {
        let (ours, kernels) = (users.len(), self::users(kernel).len());
        ensure!(
            ours <= kernels,
            "{difference}, and takes {ours} blocks, not {kernels}"
        );
    }
    Ok(())
}

/// Returns the number of file blocks that use each place on the volume.
fn users(trees: &[Option<Tree>]) -> HashMap<Place, u64> {
    let mut users = HashMap::new();
    let files = trees.iter().flatten().flat_map(|tree| tree.places.values());
    for place in files.flat_map(|blocks| blocks.values()) {
        *users.entry(*place).or_default() += 1;
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_oracle::manifest::Entry;
    use std::collections::BTreeMap;

    fn tree(data: &[(u64, u64)], places: &[(u64, Place)]) -> Tree {
        Tree {
            manifest: BTreeMap::from([(b"f".to_vec(), Entry::default())]),
            data: BTreeMap::from([(b"f".to_vec(), data.to_vec())]),
            places: BTreeMap::from([(b"f".to_vec(), places.iter().copied().collect())]),
        }
    }

    #[test]
    fn holes_are_the_snapshots_or_the_kernels() {
        let (source, kernel) = (tree(&[(0, 4), (8, 12)], &[]), tree(&[(0, 8)], &[]));
        let holds =
            |data: &[(u64, u64)]| same_holes("", &source, Some(&kernel), &tree(data, &[]), None).is_ok();
        assert!(holds(&[(0, 4), (8, 12)]), "as the snapshot");
        assert!(holds(&[(0, 8)]), "as the kernel");
        assert!(holds(&[(0, 12)]), "both hold data somewhere");
        assert!(holds(&[(0, 4)]), "both leave holes somewhere");
        assert!(!holds(&[(0, 2)]), "data is missing where both have it");
        assert!(!holds(&[(0, 16)]), "data is where neither has it");
    }

    #[test]
    fn a_file_that_the_kernel_gets_wrong_says_nothing_about_holes() {
        let source = tree(&[(8, 12)], &[]);
        let mut wrong = tree(&[(0, 12)], &[]);
        let holds =
            |kernel: &Tree| same_holes("", &source, Some(kernel), &tree(&[(0, 12)], &[]), None).is_ok();
        assert!(holds(&wrong));
        wrong.manifest.get_mut(b"f".as_slice()).unwrap().size = 1;
        assert!(!holds(&wrong));
    }

    #[test]
    fn zeros_stay_where_no_stream_can_say_a_hole() {
        let source = tree(&[(8, 12)], &[]);
        let holds = |before: &[(u64, u64)]| {
            let before = tree(before, &[]);
            same_holes("", &source, None, &tree(&[(0, 12)], &[]), Some(&before)).is_ok()
        };
        assert!(holds(&[(0, 10)]));
        assert!(!holds(&[(4, 10)]));
    }

    #[test]
    fn blocks_shared_by_the_kernel_must_be_shared() {
        let kernel = [Some(tree(
            &[],
            &[(0, (100, 0)), (4096, (100, 0)), (8192, (200, 0))],
        ))];
        let ours = |places: &[(u64, Place)]| same_sharing("", &kernel, &[Some(tree(&[], places))]).is_ok();
        assert!(ours(&[(0, (7, 0)), (4096, (7, 0)), (8192, (9, 0))]));
        assert!(
            ours(&[(0, (7, 0)), (4096, (7, 0)), (8192, (7, 0))]),
            "more is shared"
        );
        assert!(
            ours(&[(0, (7, 0)), (4096, (9, 0)), (8192, (9, 0))]),
            "it shares otherwise"
        );
        assert!(!ours(&[(0, (7, 0)), (4096, (7, 4096)), (8192, (9, 0))]));
        assert!(!ours(&[(0, (7, 0)), (4096, (8, 0)), (8192, (9, 0))]));
    }
}
