//! Layers: the sorted entries of all sources become one tree. Entries of lower precedence are
//! hidden, and missing parent directories are added.
//!
//! The layers' tree is built in one pass in the order of a walk. Each path from the root to the
//! current position has a [`Level`]. A level holds the precedence from which entries below are
//! visible, and whether the path is in the tree. A directory without an entry is added before the
//! first entry below it.

use crate::entry::{Attributes, Entry, EntryKind, EntryPath, SubvolumeMark};
use crate::error::{Error, Result, shown};
use crate::links::{Links, group_of_key};
use crate::record::Decoder;
use crate::sort_key::{Class, Order, Place, place};
use buttress_packing::{Record, Sorted, SortedReader};

/// An entry of the tree.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The source of the entry.
    pub(crate) source: u16,
    pub(crate) entry: Entry,
    /// The group that the entry shares with other names of its inode.
    pub(crate) group: Option<Vec<u8>>,
    /// True if the entry itself is not in the tree, but links lead to it.
    pub(crate) hidden: bool,
}

/// A level of the path from the root to the current position.
#[derive(Debug)]
struct Level {
    path: Vec<u8>,
    /// Entries of lower precedence than this are hidden.
    floor: Order,
    left_out: Vec<u16>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The path is not in the tree so far.
    Absent,
    Directory,
    Other,
}

/// The keys of entries with their groups, read in parallel to the entries.
struct Groups<'a> {
    reader: SortedReader<'a>,
    record: Record,
    more: bool,
}

impl<'a> Groups<'a> {
    fn new(sorted: &'a Sorted) -> Result<Self> {
        let mut groups = Self {
            reader: sorted.reader()?,
            record: Record::default(),
            more: false,
        };
        groups.more = groups.reader.next(&mut groups.record)?;
        Ok(groups)
    }

    /// Returns the group of a key. Callers request the groups of keys in key order.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        while self.more && self.record.key.as_slice() < key {
            self.more = self.reader.next(&mut self.record)?;
        }
        let found = self.more && self.record.key == key;
        Ok(found.then(|| self.record.payload.clone()))
    }
}

/// Reads all layers' entries, and calls `give` with each entry of the merged tree, in the order of
/// a walk.
pub(crate) fn merge(
    records: &Sorted,
    links: Option<&Links>,
    source_names: &[String],
    default: &Attributes,
    give: &mut dyn FnMut(Placed) -> Result<()>,
) -> Result<()> {
    let groups = match links {
        Some(links) => Some((Groups::new(&links.links)?, Groups::new(&links.targets)?)),
        None => None,
    };
    let mut pass = Pass {
        groups,
        source_names,
        default,
        levels: Vec::new(),
        give,
    };
    let mut reader = records.reader()?;
    let mut record = Record::default();
    let mut path_entries: Vec<(Place, Record)> = Vec::new();
    while reader.next(&mut record)? {
        let at = place(&record.key).ok_or(Error::Defect { what: "a key" })?;
        if path_entries
            .first()
            .is_some_and(|(first, _)| first.path != at.path)
        {
            pass.path(&mut path_entries)?;
        }
        path_entries.push((at, core::mem::take(&mut record)));
    }
    pass.path(&mut path_entries)
}

struct Pass<'a> {
    groups: Option<(Groups<'a>, Groups<'a>)>,
    source_names: &'a [String],
    default: &'a Attributes,
    levels: Vec<Level>,
    give: &'a mut dyn FnMut(Placed) -> Result<()>,
}

impl Pass<'_> {
    /// Processes all entries of one path.
    fn path(&mut self, entries: &mut Vec<(Place, Record)>) -> Result<()> {
        let Some((first, _)) = entries.first() else {
            return Ok(());
        };
        let path = first.path.clone();
        self.open_levels_above(&path);
        let (floor, left_out) = self
            .levels
            .last()
            .map_or_else(Default::default, |above| (above.floor, above.left_out.clone()));
        let mut own = Level {
            path,
            floor,
            left_out,
            state: State::Absent,
        };
        let mut current: Option<Placed> = None;
        let mut last_order = None;
        for (at, record) in entries.drain(..) {
            if at.class == Class::Entry && last_order == Some(at.order) {
                let source_name = self.source_names.get(usize::from(at.order.source));
                return Err(Error::Duplicate {
                    path: shown(&at.path),
                    source_name: source_name.cloned().unwrap_or_default(),
                });
            }
            let is_hidden = at.order < floor || own.left_out.contains(&at.order.source);
            match at.class {
                Class::Entry => {
                    last_order = Some(at.order);
                    let placed = self.placed(&at, &record, is_hidden)?;
                    if is_hidden {
                        self.hide(Some(placed))?;
                        continue;
                    }
                    let replaced = put_over(&mut current, placed, &mut own.floor, at.order);
                    self.hide(replaced)?;
                }
                _ if is_hidden => {}
                Class::LeftOut => {
                    own.left_out.push(at.order.source);
                    if current
                        .as_ref()
                        .is_some_and(|placed| placed.source == at.order.source)
                    {
                        current = None;
                    }
                }
                Class::Whiteout => {
                    own.floor = at.order;
                    let taken = current.take();
                    self.hide(taken)?;
                }
                Class::Opaque => own.floor = at.order,
                Class::Last => {}
            }
        }
        if let Some(placed) = current {
            self.add_levels_above(&own.path)?;
            own.state = match placed.entry.kind {
                EntryKind::Directory(_) => State::Directory,
                _ => State::Other,
            };
            (self.give)(placed)?;
        }
        self.levels.push(own);
        Ok(())
    }

    fn placed(&mut self, at: &Place, record: &Record, hidden: bool) -> Result<Placed> {
        let path = EntryPath::new(&at.path).map_err(|_| Error::Defect { what: "a path" })?;
        let entry = Decoder(&record.payload).entry(path, at.order.precedence);
        let entry = entry.ok_or(Error::Defect { what: "an entry" })?;
        let mut group = entry
            .attributes
            .link
            .map(|key| group_of_key(at.order.source, key));
        if let Some((links, targets)) = &mut self.groups {
            group = match entry.kind {
                EntryKind::HardLink(_) => links.get(&record.key)?,
                _ => targets.get(&record.key)?.or(group),
            };
        }
        Ok(Placed {
            source: at.order.source,
            entry,
            group,
            hidden,
        })
    }

    /// Passes on an entry that is not in the tree if links lead to it.
    fn hide(&mut self, placed: Option<Placed>) -> Result<()> {
        match placed {
            Some(mut placed)
                if placed.group.is_some() && !matches!(placed.entry.kind, EntryKind::HardLink(_)) =>
            {
                placed.hidden = true;
                (self.give)(placed)
            }
            _ => Ok(()),
        }
    }

    /// Removes open levels that are not above `path`, and makes the missing levels.
    fn open_levels_above(&mut self, path: &[u8]) {
        while self
            .levels
            .last()
            .is_some_and(|level| !is_above(&level.path, path))
        {
            self.levels.pop();
        }
        let known = self.levels.last().map_or(0, |level| level.path.len());
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends.filter(|(end, _)| *end > known) {
            let (floor, left_out) = self
                .levels
                .last()
                .map_or_else(Default::default, |above| (above.floor, above.left_out.clone()));
            self.levels.push(Level {
                path: path.get(..end).unwrap_or_default().to_vec(),
                floor,
                left_out,
                state: State::Absent,
            });
        }
    }

    /// Adds directories above `path` that have no entry.
    fn add_levels_above(&mut self, path: &[u8]) -> Result<()> {
        for level in &mut self.levels {
            match level.state {
                State::Directory => {}
                State::Other => {
                    return Err(Error::NotADirectory {
                        path: shown(path),
                        above: shown(&level.path),
                    });
                }
                State::Absent => {
                    level.state = State::Directory;
                    let path = EntryPath::new(&level.path).map_err(|_| Error::Defect { what: "a path" })?;
                    (self.give)(Placed {
                        source: 0,
                        entry: Entry {
                            path,
                            precedence: crate::entry::Precedence::default(),
                            kind: EntryKind::Directory(None),
                            attributes: self.default.clone(),
                        },
                        group: None,
                        hidden: false,
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Places an entry over the existing one, and returns the replaced entry.
fn put_over(
    current: &mut Option<Placed>,
    mut placed: Placed,
    floor: &mut Order,
    order: Order,
) -> Option<Placed> {
    let mark_below = match current.as_ref().map(|placed| &placed.entry.kind) {
        Some(EntryKind::Directory(mark)) => *mark,
        _ => None,
    };
    if let EntryKind::Directory(mark) = &mut placed.entry.kind {
        *mark = mark.or(mark_below);
    } else {
        // The entries below the replaced directory are hidden with it.
        *floor = order;
    }
    current.replace(placed)
}

/// Returns true if `path` is located below `above`.
fn is_above(above: &[u8], path: &[u8]) -> bool {
    match path.strip_prefix(above) {
        Some(rest) => (above.is_empty() && !rest.is_empty()) || rest.first() == Some(&b'/'),
        None => false,
    }
}

/// Marks the directory that an option names as a subvolume.
pub(crate) fn marked(kind: &mut EntryKind, mark: SubvolumeMark) -> bool {
    match kind {
        EntryKind::Directory(own) => {
            *own = Some(mark);
            true
        }
        _ => false,
    }
}
