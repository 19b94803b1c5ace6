//! From an account to what is printed: a row for each subvolume, or for each entry of a directory.

use buttress_exact::Exact as _;
use std::collections::{HashMap, HashSet};

use anyhow::Result;
use buttress::accounting::{
    Accounting, Files, Group, Nesting, Occupied, Options, OwnerSpace, Parts, Scope, Share,
};
use buttress::unstable::filesystem_of;
use buttress::{FileKind, InodeNumber, Location, SubvolumeId};

use super::Job;

/// How many subvolumes all lists of those that have something in common may name together.
const SHARERS_MAX: usize = 1 << 18;

/// A directory with more entries than this has one line for all its files together.
const LINES_MAX: usize = 1 << 14;

/// What is printed.
pub(super) struct Report {
    /// Subvolumes, or entries of the directory.
    pub(super) rows: Vec<Row>,
    /// All of them together.
    pub(super) total: Row,
    /// Whether rows are subvolumes.
    pub(super) is_of_subvolumes: bool,
    /// What comes back by itself when deleted subvolumes are dropped.
    pub(super) pending: Occupied,
    /// What the directory shares with other subvolumes: their ids, or none for files beside it in its own.
    pub(super) shared: Vec<(Sharer, Occupied)>,
    /// For subvolumes: what each set of them has in common.
    pub(super) groups: Vec<(Vec<Sharer>, Occupied)>,
    /// The sum of those that are too many to be listed, the smallest.
    pub(super) smaller_groups: Occupied,
}

/// Somebody who has a share in something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sharer {
    /// A subvolume.
    Subvolume(u64),
    /// Files of the same subvolume that lie elsewhere.
    Beside,
    /// Files without a name of a subvolume.
    Unlinked(u64),
    /// A tree that is no subvolume.
    Tree(u64),
}

/// One line.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// The subvolume, where it is one as a whole.
    pub(super) subvolume: Option<u64>,
    pub(super) name: Vec<u8>,
    pub(super) files: Files,
    pub(super) occupied: Occupied,
    pub(super) exclusive: Occupied,
    /// Whether it is a subvolume that was deleted and is not yet dropped.
    pub(super) is_deleted: bool,
}

impl Row {
    fn of_owner(space: &OwnerSpace, name: Vec<u8>) -> Self {
        Self {
            name,
            files: space.files,
            occupied: space.occupied,
            exclusive: space.exclusive,
            ..Self::default()
        }
    }

    fn of_scope(accounting: &Accounting, scope: &Scope, name: Vec<u8>) -> Self {
        Self {
            name,
            files: accounting.files_of(scope),
            occupied: accounting.occupied_by(scope),
            exclusive: accounting.exclusive_to(scope),
            ..Self::default()
        }
    }
}

/// A row for each subvolume and snapshot of the volume.
pub(super) fn of_subvolumes(job: &Job<'_>) -> Result<Report> {
    let accounting = job.account(&Options::default())?;
    let by_owner = accounting.by_owner();
    let mut owners: HashMap<SubvolumeId, Vec<&OwnerSpace>> = HashMap::new();
    for (owner, space) in accounting.owners().iter().zip(&by_owner) {
        if let Some(id) = owner.subvolume() {
            owners.entry(id).or_default().push(space);
        }
    }
    let mut rows = Vec::new();
    for info in &job.subvolumes {
        let mut row = match owners.get(&info.id).map(Vec::as_slice) {
            Some([only]) => Row::of_owner(only, Vec::new()),
            // Only a subvolume with unlinked files has several owners.
            _ => Row::of_scope(&accounting, &accounting.subvolumes(&[info.id]), Vec::new()),
        };
        row.subvolume = Some(info.id.get());
        row.name = job.path_of(info);
        row.is_deleted = info.is_deleted();
        rows.push(row);
    }
    let everything = accounting.scope(|owner| owner.subvolume().is_some());
    let (groups, smaller_groups) = if job.context.json() {
        let to_sharers = |group: Group| {
            let owners = group.owners.iter().filter_map(|index| {
                let index = usize::try_from(*index).ok()?;
                accounting.owners().get(index).map(sharer)
            });
            (owners.collect(), group.occupied)
        };
        let (groups, rest) = accounting.groups(SHARERS_MAX);
        (groups.into_iter().map(to_sharers).collect(), rest)
    } else {
        (Vec::new(), Occupied::default())
    };
    Ok(Report {
        rows,
        total: Row::of_scope(&accounting, &everything, b"together".to_vec()),
        is_of_subvolumes: true,
        pending: accounting.pending(),
        shared: Vec::new(),
        groups,
        smaller_groups,
    })
}

fn sharer(owner: &buttress::accounting::Owner) -> Sharer {
    match (owner.subvolume(), owner.share) {
        (Some(id), Share::Unlinked) => Sharer::Unlinked(id.get()),
        (Some(id), _) => Sharer::Subvolume(id.get()),
        (None, _) => Sharer::Tree(owner.tree.get()),
    }
}

/// A line of a directory: an entry, or several.
struct Entry {
    name: Vec<u8>,
    /// The subvolume that it leads to.
    subvolume: Option<SubvolumeId>,
    /// The subvolumes at or below it.
    nested: Vec<SubvolumeId>,
}

/// The lines of a directory, each a part of its files.
#[derive(Default)]
struct Entries {
    lines: Vec<Entry>,
    /// Inodes with the numbers of their lines.
    inodes: Vec<(InodeNumber, u32)>,
}

/// A row for each entry of a directory; for a file, one.
pub(super) fn of_directory(job: &Job<'_>, one_file_system: bool) -> Result<Report> {
    let location = job.location()?;
    let filesystem = filesystem_of(job.filesystem());
    let (mut entries, parts) = if job.kind_of(location)? == FileKind::Directory {
        let mut entries = entries_of(job, location)?;
        let inodes = std::mem::take(&mut entries.inodes);
        let parts = Parts::of_entries(&filesystem, location, inodes, &job.progress)?;
        (entries, parts)
    } else {
        (Entries::default(), Parts::of_file(location))
    };
    if !one_file_system {
        entries.add_nested(&Nesting::of(&job.subvolumes), location, &parts);
    }
    let accounting = job.account(&Options {
        parts: Some(parts),
        ..Options::default()
    })?;
    let whole = entries.whole(&accounting, location);
    let mut rows = entries.rows(&accounting, location);
    rows.sort_by(|a, b| {
        let data = |row: &Row| row.occupied.data();
        data(b).cmp(&data(a)).then_with(|| a.name.cmp(&b.name))
    });
    let shared = accounting
        .shared_with(&whole)
        .into_iter()
        .filter_map(|(index, occupied)| {
            let owner = accounting.owners().get(usize::try_from(index).ok()?)?;
            let who = match sharer(owner) {
                Sharer::Subvolume(id) if id == location.subvolume.get() => Sharer::Beside,
                other => other,
            };
            Some((who, occupied))
        })
        .filter(|(_, occupied)| occupied.data().get() > 0)
        .collect();
    Ok(Report {
        rows,
        total: Row::of_scope(&accounting, &whole, job.target.path.clone()),
        is_of_subvolumes: false,
        pending: accounting.pending(),
        shared,
        groups: Vec::new(),
        smaller_groups: Occupied::default(),
    })
}

/// The entries of a directory, several names of a file once.
fn entries_of(job: &Job<'_>, directory: Location) -> Result<Entries> {
    let mut entries = Entries::default();
    let are_together = has_many_entries(job, directory)?;
    let together = are_together.then(|| entries.add(b"<files>".to_vec(), None));
    let mut seen = HashSet::new();
    for entry in job.filesystem().read_dir(directory)? {
        let entry = entry?;
        job.progress.check()?;
        let inode = entry.target.inode;
        let is_nested = entry.target.subvolume != directory.subvolume;
        // What stands for a subvolume that a snapshot left out is no inode, and holds nothing.
        let is_inode = !is_nested && inode >= InodeNumber::ROOT_DIRECTORY;
        let together = together.filter(|_| is_inode && entry.kind != FileKind::Directory);
        if let Some(line) = together {
            entries.inodes.push((inode, line));
        } else if !is_inode || seen.insert(inode) {
            let line = entries.add(entry.name, is_nested.then_some(entry.target.subvolume));
            if is_inode {
                entries.inodes.push((inode, line));
            }
        }
    }
    Ok(entries)
}

/// Whether a directory has more entries than are shown one by one.
fn has_many_entries(job: &Job<'_>, directory: Location) -> Result<bool> {
    for (count, entry) in job.filesystem().read_dir(directory)?.enumerate() {
        entry?;
        job.progress.check()?;
        if count >= LINES_MAX {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Entries {
    /// Adds a line; its number.
    fn add(&mut self, name: Vec<u8>, subvolume: Option<SubvolumeId>) -> u32 {
        let line = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        self.lines.push(Entry {
            name,
            subvolume,
            nested: Vec::new(),
        });
        line
    }

    /// Puts the subvolumes that lie below the directory into the lines that lead to them.
    fn add_nested(&mut self, nesting: &Nesting, directory: Location, parts: &Parts) {
        for line in &mut self.lines {
            if let Some(id) = line.subvolume {
                line.nested = nesting.below(id, |_| true);
                line.nested.push(id);
            }
        }
        for (inside, id) in nesting.directly_in(directory.subvolume) {
            for part in parts.of_inode(*inside) {
                let index = part.narrow::<usize>();
                if let Some(line) = self.lines.get_mut(index) {
                    line.nested.push(*id);
                    line.nested.extend(nesting.below(*id, |_| true));
                }
            }
        }
    }

    /// Everything that any line is about.
    fn whole(&self, accounting: &Accounting, directory: Location) -> Scope {
        let is_whole = directory == Location::root_of(directory.subvolume);
        let nested: HashSet<SubvolumeId> = self.lines.iter().flat_map(|line| &line.nested).copied().collect();
        accounting.scope(|owner| {
            let is_own = owner.subvolume() == Some(directory.subvolume);
            (is_own && (is_whole || matches!(owner.share, Share::Part(_))))
                || owner.subvolume().is_some_and(|id| nested.contains(&id))
        })
    }

    fn rows(self, accounting: &Accounting, directory: Location) -> Vec<Row> {
        let by_owner = accounting.by_owner();
        let owners = accounting.owners().iter().zip(&by_owner);
        let parts: HashMap<u32, &OwnerSpace> = owners
            .filter_map(|(owner, space)| match owner.share {
                Share::Part(part) => Some((part, space)),
                _ => None,
            })
            .collect();
        let row = |(line, part): (Entry, u32)| {
            let mut row = match parts.get(&part) {
                Some(space) if line.nested.is_empty() => Row::of_owner(space, line.name),
                None if line.nested.is_empty() => Row::of_owner(&OwnerSpace::default(), line.name),
                _ => {
                    let scope = accounting.scope(|owner| {
                        let is_part = owner.subvolume() == Some(directory.subvolume)
                            && owner.share == Share::Part(part);
                        is_part || owner.subvolume().is_some_and(|id| line.nested.contains(&id))
                    });
                    Row::of_scope(accounting, &scope, line.name)
                }
            };
            row.subvolume = line.subvolume.map(SubvolumeId::get);
            row
        };
        self.lines.into_iter().zip(0_u32..).map(row).collect()
    }
}
