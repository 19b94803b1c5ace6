//! From an account to what is printed: a row for each subvolume, or for each entry of a directory.

use anyhow::Result;
use buttress_format::{FileKind, InodeNumber};
use buttress_fs::space::accounting::{
    Accounting, Files, Group, Occupied, Options, OwnerSpace, Parts, Scope, Share, nested_in,
};
use buttress_fs::{Location, SubvolumeInfo};

use super::Job;

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
    let mut rows = Vec::new();
    for info in &job.subvolumes {
        let scope = accounting.subvolumes(&[info.id]);
        // Only a subvolume with unlinked files has several owners.
        let mut own = accounting
            .owners()
            .iter()
            .zip(&by_owner)
            .filter(|(owner, _)| owner.subvolume() == Some(info.id));
        let mut row = match (own.next(), own.next()) {
            (
                Some((
                    _,
                    OwnerSpace {
                        files,
                        occupied,
                        exclusive,
                    },
                )),
                None,
            ) => Row {
                files: *files,
                occupied: *occupied,
                exclusive: *exclusive,
                ..Row::default()
            },
            _ => Row::of_scope(&accounting, &scope, Vec::new()),
        };
        row.subvolume = Some(info.id.get());
        row.name = job.path_of(info);
        row.is_deleted = info.is_deleted();
        rows.push(row);
    }
    let everything = accounting.scope(|owner| owner.subvolume().is_some());
    let groups = if job.context.json() {
        let to_sharers = |group: Group| {
            let owners = group.owners.iter().filter_map(|index| {
                let index = usize::try_from(*index).ok()?;
                accounting.owners().get(index).map(sharer)
            });
            (owners.collect(), group.occupied)
        };
        accounting.groups().into_iter().map(to_sharers).collect()
    } else {
        Vec::new()
    };
    Ok(Report {
        rows,
        total: Row::of_scope(&accounting, &everything, b"together".to_vec()),
        is_of_subvolumes: true,
        pending: accounting.pending(),
        shared: Vec::new(),
        groups,
    })
}

fn sharer(owner: &buttress_fs::space::accounting::Owner) -> Sharer {
    match (owner.subvolume(), owner.share) {
        (Some(id), Share::Unlinked) => Sharer::Unlinked(id.get()),
        (Some(id), _) => Sharer::Subvolume(id.get()),
        (None, _) => Sharer::Tree(owner.tree.get()),
    }
}

/// An entry of the directory.
struct Entry {
    name: Vec<u8>,
    inode: InodeNumber,
    /// The subvolume that it leads to.
    subvolume: Option<u64>,
}

/// A row for each entry of a directory; for a file, one.
pub(super) fn of_directory(job: &Job<'_>, one_file_system: bool) -> Result<Report> {
    let location = job.location()?;
    let filesystem = job.filesystem();
    let (entries, parts) = if job.kind_of(location)? == FileKind::Directory {
        let entries = entries_of(job, location)?;
        let inodes: Vec<InodeNumber> = entries.iter().map(|entry| entry.inode).collect();
        let parts = Parts::of_entries(filesystem, location, &inodes, &job.progress)?;
        (entries, parts)
    } else {
        (Vec::new(), Parts::of_file(location))
    };
    let options = Options {
        parts: Some(parts.clone()),
        ..Options::default()
    };
    let accounting = job.account(&options)?;
    let by_owner = accounting.by_owner();
    let mut whole = accounting.scope(|owner| {
        let is_own = owner.subvolume() == Some(location.subvolume);
        let is_whole = location == Location::root_of(location.subvolume);
        is_own && (is_whole || matches!(owner.share, Share::Part(_)))
    });
    let mut rows = Vec::new();
    for (entry, part) in entries.into_iter().zip(0_u32..) {
        let nested = if one_file_system {
            Vec::new()
        } else {
            nested_below(&job.subvolumes, &entry, location, &parts, part)
        };
        let share = Share::Part(part);
        let scope = accounting.scope(|owner| {
            let is_part = owner.subvolume() == Some(location.subvolume) && owner.share == share;
            is_part || owner.subvolume().is_some_and(|id| nested.contains(&id))
        });
        whole = whole.union(&scope);
        let mut row = match (nested.is_empty(), single(&accounting, &by_owner, location, part)) {
            (true, Some(space)) => Row {
                name: entry.name,
                files: space.files,
                occupied: space.occupied,
                exclusive: space.exclusive,
                ..Row::default()
            },
            _ => Row::of_scope(&accounting, &scope, entry.name),
        };
        row.subvolume = entry.subvolume;
        rows.push(row);
    }
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
    })
}

/// The figures of a part that is one owner.
fn single(
    accounting: &Accounting,
    by_owner: &[OwnerSpace],
    location: Location,
    part: u32,
) -> Option<OwnerSpace> {
    let mut owners = accounting.owners().iter().zip(by_owner);
    owners
        .find(|(owner, _)| owner.subvolume() == Some(location.subvolume) && owner.share == Share::Part(part))
        .map(|(_, space)| *space)
}

/// The entries of a directory, several names of a file once.
fn entries_of(job: &Job<'_>, directory: Location) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for entry in job.filesystem().read_dir(directory)? {
        let entry = entry?;
        job.progress.check()?;
        let is_nested = entry.target.subvolume != directory.subvolume;
        // What stands for a subvolume that a snapshot left out is no inode, and holds nothing.
        let is_inode = !is_nested && entry.target.inode >= InodeNumber::ROOT_DIRECTORY;
        if !is_inode || seen.insert(entry.target.inode) {
            entries.push(Entry {
                name: entry.name,
                inode: if is_inode {
                    entry.target.inode
                } else {
                    InodeNumber::MIN
                },
                subvolume: is_nested.then_some(entry.target.subvolume.get()),
            });
        }
    }
    Ok(entries)
}

/// The subvolumes at or below an entry.
fn nested_below(
    all: &[SubvolumeInfo],
    entry: &Entry,
    directory: Location,
    parts: &Parts,
    part: u32,
) -> Vec<buttress_format::SubvolumeId> {
    if let Some(id) = entry.subvolume {
        let id = buttress_format::SubvolumeId::new(id);
        let mut nested = nested_in(all, id, |_| true);
        nested.push(id);
        return nested;
    }
    nested_in(all, directory.subvolume, |inode| {
        parts.of_inode(inode).any(|other| other == part)
    })
}
