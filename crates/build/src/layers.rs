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
use crate::nested::OpenPath;
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
    path_bytes: usize,
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
        open: OpenPath::default(),
        current: None,
        give,
    };
    let mut reader = records.reader()?;
    let mut record = Record::default();
    while reader.next(&mut record)? {
        pass.take(&record)?;
    }
    pass.close_path()
}

/// The path whose entries are being read. Of these entries, only the one that stays so far is in
/// memory.
struct Current {
    path: Vec<u8>,
    /// The floor of the directory above.
    floor: Order,
    level: Level,
    placed: Option<Placed>,
    last_order: Option<Order>,
}

struct Pass<'a> {
    groups: Option<(Groups<'a>, Groups<'a>)>,
    source_names: &'a [String],
    default: &'a Attributes,
    levels: Vec<Level>,
    /// The path of the innermost level.
    open: OpenPath,
    current: Option<Current>,
    give: &'a mut dyn FnMut(Placed) -> Result<()>,
}

impl Pass<'_> {
    /// Processes the next entry.
    fn take(&mut self, record: &Record) -> Result<()> {
        let at = place(&record.key).ok_or(Error::Defect { what: "a key" })?;
        let mut current = match self.current.take() {
            Some(current) if current.path == at.path => current,
            other => {
                self.current = other;
                self.close_path()?;
                self.begin_path(&at)
            }
        };
        self.add(&mut current, &at, record)?;
        self.current = Some(current);
        Ok(())
    }

    fn begin_path(&mut self, first: &Place) -> Current {
        let path = first.path.clone();
        self.open_levels_above(&path);
        let level = self.level_below(path.len());
        Current {
            path,
            floor: level.floor,
            level,
            placed: None,
            last_order: None,
        }
    }

    /// Adds an entry of the current path.
    fn add(&mut self, current: &mut Current, at: &Place, record: &Record) -> Result<()> {
        if at.class == Class::Entry && current.last_order == Some(at.order) {
            let source_name = self.source_names.get(usize::from(at.order.source));
            return Err(Error::Duplicate {
                path: shown(&at.path),
                source_name: source_name.cloned().unwrap_or_default(),
            });
        }
        let is_hidden = at.order < current.floor || current.level.left_out.contains(&at.order.source);
        match at.class {
            Class::Entry => {
                current.last_order = Some(at.order);
                let placed = self.placed(at, record, is_hidden)?;
                if is_hidden {
                    return self.hide(Some(placed));
                }
                let replaced = put_over(&mut current.placed, placed, &mut current.level.floor, at.order);
                self.hide(replaced)
            }
            _ if is_hidden => Ok(()),
            Class::LeftOut => {
                let source = at.order.source;
                current.level.left_out.push(source);
                if current
                    .placed
                    .as_ref()
                    .is_some_and(|placed| placed.source == source)
                {
                    current.placed = None;
                }
                Ok(())
            }
            Class::Whiteout => {
                current.level.floor = at.order;
                let taken = current.placed.take();
                self.hide(taken)
            }
            Class::Opaque => {
                current.level.floor = at.order;
                Ok(())
            }
            Class::Last => Ok(()),
        }
    }

    /// Gives the entry that stays at the current path, and makes the path a level.
    fn close_path(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        if let Some(placed) = current.placed {
            self.add_levels_above(&current.path)?;
            current.level.state = match placed.entry.kind {
                EntryKind::Directory(_) => State::Directory,
                _ => State::Other,
            };
            (self.give)(placed)?;
        }
        self.levels.push(current.level);
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
        while let Some(level) = self.levels.last()
            && !self.open.contains(level.path_bytes, path)
        {
            self.levels.pop();
        }
        self.open.set(path);
        let known = self.levels.last().map_or(0, |level| level.path_bytes);
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends.filter(|(end, _)| *end > known) {
            let level = self.level_below(end);
            self.levels.push(level);
        }
    }

    /// Returns a level for a path of this length, which inherits from the innermost level.
    fn level_below(&self, path_bytes: usize) -> Level {
        let (floor, left_out) = self
            .levels
            .last()
            .map_or_else(Default::default, |above| (above.floor, above.left_out.clone()));
        Level {
            path_bytes,
            floor,
            left_out,
            state: State::Absent,
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
                        above: shown(self.open.of(level.path_bytes)),
                    });
                }
                State::Absent => {
                    level.state = State::Directory;
                    let above = self.open.of(level.path_bytes);
                    let path = EntryPath::new(above).map_err(|_| Error::Defect { what: "a path" })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{LinkKey, Precedence};
    use crate::record::Encoder;
    use crate::sort_key::sort_key;
    use core::cell::Cell;

    /// Returns the record of one name of a linked symbolic link.
    fn record(path: &str, precedence: u64) -> Record {
        let entry = Entry {
            path: EntryPath::new(path.as_bytes()).unwrap(),
            precedence: Precedence(precedence),
            kind: EntryKind::Symlink(b"x".to_vec()),
            attributes: Attributes {
                link: Some(LinkKey(0, precedence)),
                ..Attributes::default()
            },
        };
        let order = Order {
            source: 1,
            precedence: entry.precedence,
        };
        let mut payload = Encoder::default();
        payload.entry(&entry);
        Record {
            key: sort_key(path.as_bytes(), order, Class::Entry),
            payload: payload.0,
        }
    }

    /// A replaced entry whose inode has other names leaves memory before the next record is read.
    #[test]
    fn replaced_entries_of_one_path_are_not_held() {
        let (hidden, given) = (Cell::new(0), Cell::new(0));
        let mut give = |placed: Placed| {
            let count = if placed.hidden { &hidden } else { &given };
            count.set(count.get() + 1);
            Ok(())
        };
        let mut pass = Pass {
            groups: None,
            source_names: &[],
            default: &Attributes::default(),
            levels: Vec::new(),
            open: OpenPath::default(),
            current: None,
            give: &mut give,
        };
        for taken in 0..1000 {
            pass.take(&record("a", taken)).unwrap();
            assert_eq!((hidden.get(), given.get()), (taken, 0));
        }
        pass.take(&record("b", 0)).unwrap();
        pass.close_path().unwrap();
        assert_eq!((hidden.get(), given.get()), (999, 2));
    }
}
