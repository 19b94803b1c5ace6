//! Parallel walk through two trees.
//!
//! The walk first compares all names that exist on both sides, from the roots down. It collects
//! names that exist on one side only. At the end it classifies them: moved files
//! ([`moves`](super::moves)), and added or removed files with everything below. The comparison
//! treats a moved file, and everything below it, as if both sides had the same name.
//!
//! If both sides are in one volume, the walk skips what they share ([`ChangedInodes`]); the result
//! is the same.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};

use anyhow::{Context as _, Result};
use buttress::{ChangedInodes, FileKind, Location};

use super::Aspect;
use super::content::compare;
use super::difference::{Difference, Found};
use super::side::{Entry, Facts, Node, Root, Side};
use crate::commands::stat::kind_name;

/// Largest depth of the trees.
const DEPTH_MAX: usize = 4096;

/// Receiver of errors of individual comparisons.
pub(super) type Failed<'a> = dyn FnMut(anyhow::Error) + 'a;

/// Options of a comparison.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) aspects: Vec<Aspect>,
    pub(super) holes: bool,
    /// Inodes that the two sides do not share, if known.
    pub(super) changed: Option<ChangedInodes>,
}

impl Options {
    /// Creates options that compare everything except the ignored aspects.
    pub(super) fn without(ignored: &[Aspect], holes: bool) -> Self {
        let all = [
            Aspect::Content,
            Aspect::Mode,
            Aspect::Owner,
            Aspect::Mtime,
            Aspect::Xattrs,
            Aspect::Links,
            Aspect::Device,
        ];
        Self {
            aspects: all
                .into_iter()
                .filter(|aspect| !ignored.contains(aspect))
                .collect(),
            holes,
            changed: None,
        }
    }
}

/// Identity of a file on one side: device or subvolume, and inode.
pub(super) type Identity = (u64, u64);

/// A file that exists on one side only.
#[derive(Clone, Debug)]
pub(super) struct Single {
    pub(super) path: Vec<u8>,
    pub(super) node: Node,
    /// Directory that holds the file; `None` for the root of the side.
    pub(super) directory: Option<Identity>,
    pub(super) name: Vec<u8>,
}

/// State of a comparison.
pub(super) struct Comparison<'a> {
    pub(super) old: &'a Side,
    pub(super) new: &'a Side,
    options: &'a Options,
    pub(super) found: Vec<Found>,
    pub(super) added: VecDeque<Single>,
    pub(super) removed: VecDeque<Single>,
    /// Old names whose file was found under another path on the new side.
    pub(super) taken: HashSet<(Identity, Vec<u8>)>,
    /// New directory that each old directory was compared with.
    pub(super) directories: HashMap<Identity, Node>,
    /// For a file with several names: the file of the other side with which the command compared it
    /// first.
    old_links: HashMap<Identity, Identity>,
    new_links: HashMap<Identity, Identity>,
    /// Directories of images that the walk has entered, because a damaged volume may have cycles.
    entered: [HashSet<Identity>; 2],
}

/// A directory of both sides on the current path.
struct Level {
    paths: [Vec<u8>; 2],
    identities: [Option<Identity>; 2],
    old: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    new: std::iter::Peekable<std::vec::IntoIter<Entry>>,
}

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Old,
    New,
}

/// Compares two roots and everything below them. Returns the differences in order.
pub(super) fn run(old: &Root, new: &Root, options: &Options, failed: &mut Failed<'_>) -> Result<Vec<Found>> {
    let named = |error: anyhow::Error, root: &Root| error.context(root.name.display().to_string());
    let (old_start, new_start) = (old.side.start(), new.side.start());
    old.side.facts(&old_start).map_err(|error| named(error, old))?;
    new.side.facts(&new_start).map_err(|error| named(error, new))?;
    let mut comparison = Comparison {
        old: &old.side,
        new: &new.side,
        options,
        found: Vec::new(),
        added: VecDeque::new(),
        removed: VecDeque::new(),
        taken: HashSet::new(),
        directories: HashMap::new(),
        old_links: HashMap::new(),
        new_links: HashMap::new(),
        entered: [HashSet::new(), HashSet::new()],
    };
    comparison.pair([b".", b"."], &old_start, &new_start, false, failed);
    super::moves::tell_apart(&mut comparison, failed)?;
    comparison.found.sort_by(Found::order);
    Ok(comparison.found)
}

impl Comparison<'_> {
    /// Compares two files and everything below them. For a `moved` file, the move itself is a
    /// difference.
    pub(super) fn pair(
        &mut self,
        paths: [&[u8]; 2],
        old: &Node,
        new: &Node,
        moved: bool,
        failed: &mut Failed<'_>,
    ) {
        let mut stack = Vec::new();
        stack.extend(self.visit(paths, old, new, moved, failed));
        while let Some(level) = stack.last_mut() {
            let order = match (level.old.peek(), level.new.peek()) {
                (None, None) => {
                    stack.pop();
                    continue;
                }
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let old_entry = if order.is_le() { level.old.next() } else { None };
            let new_entry = if order.is_ge() { level.new.next() } else { None };
            let [old_path, new_path] = &level.paths;
            let [old_identity, new_identity] = level.identities;
            let old_entry = old_entry.filter(|entry| {
                self.taken.is_empty()
                    || !old_identity
                        .is_some_and(|identity| self.taken.contains(&(identity, entry.name.clone())))
            });
            match (old_entry, new_entry) {
                (Some(old), Some(new)) => {
                    let paths = [join(old_path, &old.name), join(new_path, &new.name)];
                    let [old_path, new_path] = &paths;
                    let below = self.visit([old_path, new_path], &old.node, &new.node, false, failed);
                    if below.is_some() && stack.len() >= DEPTH_MAX {
                        failed(anyhow::anyhow!(
                            "{}: the directory is nested too deeply",
                            new_path.escape_ascii()
                        ));
                    } else {
                        stack.extend(below);
                    }
                }
                (Some(old), None) => self.removed.push_back(Single {
                    path: join(old_path, &old.name),
                    node: old.node,
                    directory: old_identity,
                    name: old.name,
                }),
                (None, Some(new)) => self.added.push_back(Single {
                    path: join(new_path, &new.name),
                    node: new.node,
                    directory: new_identity,
                    name: new.name,
                }),
                (None, None) => {}
            }
        }
    }

    /// Compares two files themselves, and enters them if both are directories.
    fn visit(
        &mut self,
        paths: [&[u8]; 2],
        old: &Node,
        new: &Node,
        moved: bool,
        failed: &mut Failed<'_>,
    ) -> Option<Level> {
        if !moved && self.is_shared(old, new) {
            return None;
        }
        match self.compare(paths, old, new, moved, failed) {
            Ok(below) => below,
            Err(error) => {
                let [_, path] = paths;
                failed(error.context(path.escape_ascii().to_string()));
                None
            }
        }
    }

    /// Returns whether two files, with everything below them, are shared by the two sides.
    fn is_shared(&self, old: &Node, new: &Node) -> bool {
        let (Some(changed), Node::Image(old), Node::Image(new)) = (&self.options.changed, old, new) else {
            return false;
        };
        let is_in = |location: &Location, side: &Side| {
            location.placeholder().is_none() && side.subvolume() == Some(location.subvolume)
        };
        is_in(old, self.old) && is_in(new, self.new) && old.inode == new.inode && !changed.contains(new.inode)
    }

    fn compare(
        &mut self,
        paths: [&[u8]; 2],
        old: &Node,
        new: &Node,
        moved: bool,
        failed: &mut Failed<'_>,
    ) -> Result<Option<Level>> {
        let (old_facts, new_facts) = (self.old.facts(old)?, self.new.facts(new)?);
        let [old_path, new_path] = paths;
        if old_facts.kind == new_facts.kind {
            let aspects = self.aspects_that_differ((old, new), (&old_facts, &new_facts), moved)?;
            let difference = if moved {
                Some(Difference::Moved {
                    from: old_path.to_vec(),
                    kind: kind_name(new_facts.kind),
                    aspects,
                })
            } else {
                (!aspects.is_empty()).then_some(Difference::Modified(aspects))
            };
            self.found.extend(difference.map(|difference| Found {
                path: new_path.to_vec(),
                difference,
            }));
        } else {
            self.found.push(Found {
                path: new_path.to_vec(),
                difference: Difference::TypeChanged {
                    old: kind_name(old_facts.kind),
                    new: kind_name(new_facts.kind),
                },
            });
        }
        let mut list = |comparison: &mut Self, which, node, facts: &Facts, path: &[u8]| {
            comparison.entries(which, node, facts, path, failed)
        };
        let old_entries = list(self, Which::Old, old, &old_facts, old_path)?;
        let new_entries = list(self, Which::New, new, &new_facts, new_path)?;
        Ok(match (old_entries, new_entries) {
            (None, None) => None,
            (old_entries, new_entries) => {
                if old_entries.is_some() && new_entries.is_some() {
                    self.directories.insert(old_facts.identity, new.clone());
                }
                Some(Level {
                    paths: paths.map(<[u8]>::to_vec),
                    identities: [Some(old_facts.identity), Some(new_facts.identity)],
                    old: old_entries.unwrap_or_default().into_iter().peekable(),
                    new: new_entries.unwrap_or_default().into_iter().peekable(),
                })
            }
        })
    }

    /// Returns the entries of a directory on one side; `None` for another kind of file, or for a
    /// directory that must not be entered.
    pub(super) fn entries(
        &mut self,
        which: Which,
        node: &Node,
        facts: &Facts,
        path: &[u8],
        failed: &mut Failed<'_>,
    ) -> Result<Option<Vec<Entry>>> {
        if facts.kind != FileKind::Directory
            || matches!(node, Node::Image(location) if location.placeholder().is_some())
        {
            return Ok(None);
        }
        let [old_entered, new_entered] = &mut self.entered;
        let (entered, side) = match which {
            Which::Old => (old_entered, self.old),
            Which::New => (new_entered, self.new),
        };
        if !entered.insert(facts.identity) && matches!(node, Node::Image(_)) {
            anyhow::bail!("the directory was already visited");
        }
        let entries = side.entries(node, failed).unwrap_or_else(|error| {
            failed(error.context(path.escape_ascii().to_string()));
            Vec::new()
        });
        Ok(Some(entries))
    }

    fn aspects_that_differ(
        &mut self,
        nodes: (&Node, &Node),
        facts: (&Facts, &Facts),
        moved: bool,
    ) -> Result<Vec<Aspect>> {
        let (old, new) = facts;
        let sides = (self.old, self.new);
        let mut different = Vec::new();
        let is_link = old.kind == FileKind::Symlink;
        for aspect in self.options.aspects.clone() {
            let differs = match aspect {
                Aspect::Content if is_link => {
                    sides.0.link_target(nodes.0)? != sides.1.link_target(nodes.1)?
                }
                Aspect::Content if old.kind == FileKind::Regular => {
                    let (bytes, holes) = contents_differ(sides, nodes, facts).context("content")?;
                    if holes && self.options.holes {
                        different.push(Aspect::Holes);
                    }
                    bytes
                }
                Aspect::Content | Aspect::Holes => false,
                Aspect::Mode => old.permissions != new.permissions,
                Aspect::Owner => (old.uid, old.gid) != (new.uid, new.gid),
                Aspect::Mtime => old.modified != new.modified,
                Aspect::Xattrs => sides.0.xattrs(nodes.0)? != sides.1.xattrs(nodes.1)?,
                Aspect::Links => !moved && self.links_differ(facts),
                Aspect::Device => old.device != new.device,
            };
            if differs {
                different.push(aspect);
            }
        }
        Ok(different)
    }

    /// Returns whether the hard links of a file differ between the two sides.
    fn links_differ(&mut self, facts: (&Facts, &Facts)) -> bool {
        let (old, new) = facts;
        if old.kind == FileKind::Directory || (old.links < 2 && new.links < 2) {
            return false;
        }
        let old_first = *self.old_links.entry(old.identity).or_insert(new.identity);
        let new_first = *self.new_links.entry(new.identity).or_insert(old.identity);
        old_first != new.identity || new_first != old.identity
    }
}

fn contents_differ(
    sides: (&Side, &Side),
    nodes: (&Node, &Node),
    facts: (&Facts, &Facts),
) -> Result<(bool, bool)> {
    if facts.0.size_bytes != facts.1.size_bytes {
        return Ok((true, false));
    }
    if facts.0.size_bytes == 0 {
        return Ok((false, false));
    }
    if let (Some(old), Some(new)) = (sides.0.shared_map(nodes.0), sides.1.shared_map(nodes.1))
        && old == new
    {
        return Ok((false, false));
    }
    let difference = compare(sides.0.segments(nodes.0)?, sides.1.segments(nodes.1)?)?;
    Ok((difference.bytes, difference.holes))
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() || directory == b"." {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}
