//! From an account to output rows: one for each subvolume, or for each entry of a directory.

use buttress_exact::Exact as _;
use std::collections::{HashMap, HashSet};

use anyhow::Result;
use buttress::accounting::{
    Accounting, Files, Group, Nesting, Occupied, Options, OwnerSpace, Parts, Scope, Share,
};
use buttress::unstable::filesystem_of;
use buttress::{FileKind, InodeNumber, Location, SubvolumeId};

use super::Job;

/// Largest total length of all lists of subvolumes with common space.
const SHARERS_MAX: usize = 1 << 18;

/// Largest number of entries that a directory shows individually; the files of a larger directory
/// share one row.
const LINES_MAX: usize = 1 << 14;

/// The figures of the account to print.
pub(super) struct Report {
    /// Rows for subvolumes, or for entries of the directory.
    pub(super) rows: Vec<Row>,
    /// Total of all rows.
    pub(super) total: Row,
    /// True if rows are subvolumes.
    pub(super) is_of_subvolumes: bool,
    /// Space that becomes free when deleted subvolumes are dropped.
    pub(super) pending: Occupied,
    /// Space that the directory shares with other subvolumes, or with other files of its own
    /// subvolume.
    pub(super) shared: Vec<(Sharer, Occupied)>,
    /// For subvolumes: the common space of each set of them.
    pub(super) groups: Vec<(Vec<Sharer>, Occupied)>,
    /// Sum of the smallest groups, which are too many to list.
    pub(super) smaller_groups: Occupied,
}

/// An owner that shares space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sharer {
    /// A subvolume, by its id.
    Subvolume(u64),
    /// Files of the same subvolume outside of the directory.
    Beside,
    /// Unlinked files of a subvolume, by its id.
    Unlinked(u64),
    /// A tree other than a subvolume, by its id.
    Tree(u64),
}

/// One row of the output.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Id of the subvolume, if the row is a whole subvolume.
    pub(super) subvolume: Option<u64>,
    pub(super) name: Vec<u8>,
    pub(super) files: Files,
    pub(super) occupied: Occupied,
    pub(super) exclusive: Occupied,
    /// True for a deleted subvolume that is not dropped yet.
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

/// Returns a row for each subvolume and snapshot of the volume.
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

/// A row of a directory's listing: one entry, or several.
struct Entry {
    name: Vec<u8>,
    /// Subvolume that the entry leads to.
    subvolume: Option<SubvolumeId>,
    /// Subvolumes at or below the entry.
    nested: Vec<SubvolumeId>,
}

/// Rows of a directory; each is a part of its files.
#[derive(Default)]
struct Entries {
    lines: Vec<Entry>,
    /// Inodes with the indexes of their rows.
    inodes: Vec<(InodeNumber, u32)>,
}

/// Returns a row for each entry of a directory, or one row for a file.
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

/// Returns the entries of a directory; several names of a file count once.
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
        // In a snapshot, a placeholder for a nested subvolume has no inode and no content.
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

/// Returns whether a directory has too many entries to show individually.
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
    /// Adds a row and returns its index.
    fn add(&mut self, name: Vec<u8>, subvolume: Option<SubvolumeId>) -> u32 {
        let line = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        self.lines.push(Entry {
            name,
            subvolume,
            nested: Vec::new(),
        });
        line
    }

    /// Adds the subvolumes below the directory to the table rows that lead to them.
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

    /// Returns the union of all rows of the account.
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
