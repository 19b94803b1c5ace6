//! Compares a received tree with the snapshot that was sent, and with what the kernel's stream makes of it.

use super::tree::{Place, Ranges, Tree};
use anyhow::{Result, bail};
use buttress_oracle::manifest::{expect_equal, shown};
use std::collections::HashMap;

/// Names, attributes, times, links and content are those of the snapshot.
pub fn same_content(what: &str, source: &Tree, received: &Tree) -> Result<()> {
    expect_equal(what, &source.manifest, &received.manifest)
}

/// As [`same_content`], whatever the times of directories are.
///
/// The kernel's stream makes new inodes under made-up names at the top and moves them from there, and sets
/// the times of a directory before the last change in it, or not at all where the snapshot did not change
/// it: it alone is forgiven that.
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

/// Holes are those of the snapshot or those that the kernel's stream makes: where both have data there is
/// data, where neither has there is none. (Some streams can only say a hole by writing zeros.)
pub fn same_holes(what: &str, source: &Tree, kernel: &Tree, received: &Tree) -> Result<()> {
    let empty = Ranges::new();
    for (path, found) in &received.data {
        let of = |tree: &'_ Tree| tree.data.get(path).unwrap_or(&empty).clone();
        let (source, kernel) = (of(source), of(kernel));
        let needed = intersection(&source, &kernel);
        let allowed = union(&source, &kernel);
        if intersection(&needed, found) != needed || intersection(&allowed, found) != *found {
            bail!(
                "{what}: {} has data in {found:?}; the snapshot in {source:?}, the kernel's stream makes {kernel:?}",
                shown(path)
            );
        }
    }
    Ok(())
}

/// What lies in both.
fn intersection(a: &Ranges, b: &Ranges) -> Ranges {
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

/// What lies in one of them, ranges that touch joined.
fn union(a: &Ranges, b: &Ranges) -> Ranges {
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

/// A block of a received snapshot: which snapshot, which file, which offset.
type BlockName<'a> = (usize, &'a [u8], u64);

/// Blocks that lie at one place after the kernel's streams lie at one place after ours, over all snapshots
/// of a history. Blocks that are holes in ours are left to [`same_holes`].
pub fn same_sharing(what: &str, kernel: &[Option<Tree>], received: &[Option<Tree>]) -> Result<()> {
    let mut places: HashMap<Place, (Place, BlockName<'_>)> = HashMap::new();
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
                if first_place != our_place {
                    bail!(
                        "{what}: the kernel's stream shares snapshot {} {} at {} with snapshot {number} {} at \
                         {offset}, this one does not",
                        first.0,
                        shown(first.1),
                        first.2,
                        shown(path)
                    );
                }
            }
        }
    }
    Ok(())
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
        let holds = |data: &[(u64, u64)]| same_holes("", &source, &kernel, &tree(data, &[])).is_ok();
        assert!(holds(&[(0, 4), (8, 12)]), "as the snapshot");
        assert!(holds(&[(0, 8)]), "as the kernel");
        assert!(holds(&[(0, 12)]), "both hold data somewhere");
        assert!(holds(&[(0, 4)]), "both leave holes somewhere");
        assert!(!holds(&[(0, 2)]), "data is missing where both have it");
        assert!(!holds(&[(0, 16)]), "data is where neither has it");
    }

    #[test]
    fn what_the_kernel_shares_must_be_shared() {
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
        assert!(!ours(&[(0, (7, 0)), (4096, (7, 4096)), (8192, (9, 0))]));
        assert!(!ours(&[(0, (7, 0)), (4096, (8, 0)), (8192, (9, 0))]));
    }
}
