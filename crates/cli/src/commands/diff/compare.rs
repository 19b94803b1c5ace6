//! Going through two trees side by side.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use buttress_format::FileKind;

use super::Aspect;
use super::content::compare;
use super::side::{Entry, Facts, Node, Root, Side};
use crate::commands::stat::kind_name;

/// How deep the trees may be.
const DEPTH_MAX: usize = 4096;

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Only on the new side; its kind.
    Added(&'static str),
    /// Only on the old side; its kind.
    Removed(&'static str),
    /// The same kind of file, different in these.
    Modified(Vec<Aspect>),
    /// Another kind of file.
    TypeChanged { old: &'static str, new: &'static str },
}

impl Difference {
    /// The word at the start of a line.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Added(_) => "added",
            Self::Removed(_) => "removed",
            Self::Modified(_) => "modified",
            Self::TypeChanged { .. } => "type changed",
        }
    }
}

/// Takes differences, each with its path.
pub(super) type Found<'a> = dyn FnMut(&[u8], &Difference) -> Result<()> + 'a;

/// Takes what could not be compared.
pub(super) type Failed<'a> = dyn FnMut(anyhow::Error) + 'a;

/// A comparison: what is compared, and which names were seen of files with several.
#[derive(Debug)]
pub(super) struct Comparison {
    aspects: Vec<Aspect>,
    holes: bool,
    old_links: HashMap<(u64, u64), Vec<u8>>,
    new_links: HashMap<(u64, u64), Vec<u8>>,
    /// Directories of images that were entered: on a damaged volume they may hold each other.
    entered: [HashSet<(u64, u64)>; 2],
}

/// Two directories, or one where the other side has none, on the way down.
struct Level {
    path: Vec<u8>,
    old: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    new: std::iter::Peekable<std::vec::IntoIter<Entry>>,
}

impl Comparison {
    pub(super) fn new(ignore: &[Aspect], holes: bool) -> Self {
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
                .filter(|aspect| !ignore.contains(aspect))
                .collect(),
            holes,
            old_links: HashMap::new(),
            new_links: HashMap::new(),
            entered: [HashSet::new(), HashSet::new()],
        }
    }

    /// Compares everything below two beginnings, and these themselves.
    pub(super) fn run(
        &mut self,
        old: &Root,
        new: &Root,
        found: &mut Found<'_>,
        failed: &mut Failed<'_>,
    ) -> Result<()> {
        let named = |error: anyhow::Error, root: &Root| error.context(root.name.display().to_string());
        let (old_start, new_start) = (old.side.start(), new.side.start());
        old.side.facts(&old_start).map_err(|error| named(error, old))?;
        new.side.facts(&new_start).map_err(|error| named(error, new))?;
        let start = |node| {
            vec![Entry {
                name: b".".to_vec(),
                node,
            }]
            .into_iter()
            .peekable()
        };
        let mut stack = vec![Level {
            path: Vec::new(),
            old: start(old_start),
            new: start(new_start),
        }];
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
            let name = old_entry
                .as_ref()
                .or(new_entry.as_ref())
                .map(|entry| entry.name.as_slice());
            let path = join(&level.path, name.unwrap_or_default());
            let sides = (&old.side, &new.side);
            let nodes = (
                old_entry.map(|entry| entry.node),
                new_entry.map(|entry| entry.node),
            );
            let below = match self.visit(sides, &nodes, &path, found) {
                Ok(below) => below,
                Err(Stop::Output(error)) => return Err(error),
                Err(Stop::Input(error)) => {
                    failed(error.context(path.escape_ascii().to_string()));
                    continue;
                }
            };
            if below == (false, false) {
                continue;
            }
            if stack.len() >= DEPTH_MAX {
                failed(anyhow::anyhow!("{}: lies too deep", path.escape_ascii()));
                continue;
            }
            let mut list = |wanted: bool, side: &Side, node: &Option<Node>| {
                let entries = match node.as_ref().filter(|_| wanted) {
                    Some(node) => side.entries(node, failed).unwrap_or_else(|error| {
                        failed(error.context(path.escape_ascii().to_string()));
                        Vec::new()
                    }),
                    None => Vec::new(),
                };
                entries.into_iter().peekable()
            };
            let old = list(below.0, sides.0, &nodes.0);
            let new = list(below.1, sides.1, &nodes.1);
            stack.push(Level { path, old, new });
        }
        Ok(())
    }

    /// Looks at one name. Says on which sides it is a directory that is to be entered.
    fn visit(
        &mut self,
        sides: (&Side, &Side),
        nodes: &(Option<Node>, Option<Node>),
        path: &[u8],
        found: &mut Found<'_>,
    ) -> Result<(bool, bool), Stop> {
        let facts = |side: &Side, node: &Option<Node>| node.as_ref().map(|node| side.facts(node)).transpose();
        let old = facts(sides.0, &nodes.0).map_err(Stop::Input)?;
        let new = facts(sides.1, &nodes.1).map_err(Stop::Input)?;
        let difference = match (&old, &new) {
            (Some(old), Some(new)) if old.kind != new.kind => Some(Difference::TypeChanged {
                old: kind_name(old.kind),
                new: kind_name(new.kind),
            }),
            (Some(old), Some(new)) => {
                let (Some(old_node), Some(new_node)) = (&nodes.0, &nodes.1) else {
                    return Ok((false, false));
                };
                let aspects = self
                    .aspects_that_differ(sides, (old_node, new_node), (old, new), path)
                    .map_err(Stop::Input)?;
                (!aspects.is_empty()).then_some(Difference::Modified(aspects))
            }
            (Some(old), None) => Some(Difference::Removed(kind_name(old.kind))),
            (None, Some(new)) => Some(Difference::Added(kind_name(new.kind))),
            (None, None) => None,
        };
        if let Some(difference) = difference {
            found(path, &difference).map_err(Stop::Output)?;
        }
        let mut enter = |index: usize, facts: &Option<Facts>, node: &Option<Node>| {
            let Some(facts) = facts.as_ref().filter(|facts| facts.kind == FileKind::Directory) else {
                return Ok(false);
            };
            let placeholder = matches!(node, Some(Node::Image(location)) if location.placeholder().is_some());
            let first = self
                .entered
                .get_mut(index)
                .is_none_or(|entered| entered.insert(facts.identity));
            if !first && !placeholder && matches!(node, Some(Node::Image(_))) {
                return Err(Stop::Input(anyhow::anyhow!("the directory was met before")));
            }
            Ok(!placeholder)
        };
        Ok((enter(0, &old, &nodes.0)?, enter(1, &new, &nodes.1)?))
    }

    fn aspects_that_differ(
        &mut self,
        sides: (&Side, &Side),
        nodes: (&Node, &Node),
        facts: (&Facts, &Facts),
        path: &[u8],
    ) -> Result<Vec<Aspect>> {
        let (old, new) = facts;
        let mut different = Vec::new();
        let is_link = old.kind == FileKind::Symlink;
        for aspect in self.aspects.clone() {
            let differs = match aspect {
                Aspect::Content if is_link => {
                    sides.0.link_target(nodes.0)? != sides.1.link_target(nodes.1)?
                }
                Aspect::Content if old.kind == FileKind::Regular => {
                    let (bytes, holes) = self.contents_differ(sides, nodes, facts).context("content")?;
                    if holes && self.holes {
                        different.push(Aspect::Holes);
                    }
                    bytes
                }
                Aspect::Content | Aspect::Holes => false,
                Aspect::Mode => old.permissions != new.permissions,
                Aspect::Owner => (old.uid, old.gid) != (new.uid, new.gid),
                Aspect::Mtime => old.modified != new.modified,
                Aspect::Xattrs => sides.0.xattrs(nodes.0)? != sides.1.xattrs(nodes.1)?,
                Aspect::Links => self.links_differ(facts, path),
                Aspect::Device => old.device != new.device,
            };
            if differs {
                different.push(aspect);
            }
        }
        Ok(different)
    }

    fn contents_differ(
        &self,
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

    /// Whether this name is the same file as different names on the two sides.
    fn links_differ(&mut self, facts: (&Facts, &Facts), path: &[u8]) -> bool {
        let (old, new) = facts;
        if old.kind == FileKind::Directory || (old.links < 2 && new.links < 2) {
            return false;
        }
        let first = |links: &mut HashMap<(u64, u64), Vec<u8>>, identity| {
            links.entry(identity).or_insert_with(|| path.to_vec()).clone()
        };
        first(&mut self.old_links, old.identity) != first(&mut self.new_links, new.identity)
    }
}

/// Why looking at a name ended early.
enum Stop {
    /// It could not be read; the comparison goes on.
    Input(anyhow::Error),
    /// The result could not be written.
    Output(anyhow::Error),
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() || directory == b"." {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}
