//! Files that an account counts separately: those below each entry of a directory.
//!
//! Inodes record their own names, with the directory of each. A pass over the leaves of the
//! subvolume gathers these names. A walk down from the directory then uses the gathered names,
//! without reading directory entries.
//!
//! Bound: the walk accepts at most `NAMES_MAX` names in the subvolume.

use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, InodeExtrefs, InodeNumber, InodeRefs, ItemType, SubvolumeId, TreeBlock};
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_tree::{BlockPointer, Scanner};
use std::sync::Arc;

/// The most names of a subvolume with separately counted files.
const NAMES_MAX: usize = 1 << 22;

/// Files of one subvolume that an account counts separately.
#[derive(Clone, Debug)]
pub struct Parts {
    pub(super) subvolume: SubvolumeId,
    /// The memberships, in order of inodes.
    members: Arc<[Member]>,
    count: u32,
}

/// The membership of an inode in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    inode: InodeNumber,
    pub(super) part: u32,
    /// The number of the inode's names in the part.
    pub(super) names: u32,
}

/// A name: the inode and its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    directory: InodeNumber,
    inode: InodeNumber,
}

impl Parts {
    /// Returns the number of parts, which are numbered from zero.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the subvolume of these files.
    #[must_use]
    pub const fn subvolume(&self) -> SubvolumeId {
        self.subvolume
    }

    /// Returns the counted parts of a subvolume to which an inode belongs; a file with several
    /// names may belong to several.
    pub fn of_inode(&self, inode: InodeNumber) -> impl Iterator<Item = u32> {
        self.members_of(inode).iter().map(|member| member.part)
    }

    /// Returns the parts of an inode, with its number of names in each.
    pub(super) fn members_of(&self, inode: InodeNumber) -> &[Member] {
        let start = self.members.partition_point(|member| member.inode < inode);
        // Clamp: a search of the list returned these positions.
        let rest = self.members.get(start..).unwrap_or(&[]);
        let count = rest.partition_point(|member| member.inode == inode);
        rest.get(..count).unwrap_or(&[])
    }

    /// Returns one part with everything below `directory`.
    ///
    /// # Errors
    /// Fails with [`Error::AccountingTooBig`], [`Error::Cancelled`], or with an error of reading a
    /// block of the subvolume.
    pub fn below(filesystem: &Filesystem, directory: Location, progress: &Progress) -> Result<Self> {
        Self::gather(filesystem, directory, progress, |_| Some(0))
    }

    /// Returns parts of some entries of a directory, each entry given with its part: the file, or
    /// the directory with everything below it.
    ///
    /// # Errors
    /// Fails as [`Parts::below`] does.
    pub fn of_entries(
        filesystem: &Filesystem,
        directory: Location,
        entries: impl IntoIterator<Item = (InodeNumber, u32)>,
        progress: &Progress,
    ) -> Result<Self> {
        let mut order: Vec<(InodeNumber, u32)> = entries.into_iter().collect();
        order.sort_unstable();
        Self::gather(filesystem, directory, progress, |inode| {
            let start = order.partition_point(|(other, _)| *other < inode);
            let (found, part) = order.get(start)?;
            (*found == inode).then_some(*part)
        })
    }

    /// Returns one part of one file.
    #[must_use]
    pub fn of_file(file: Location) -> Self {
        Self {
            subvolume: file.subvolume,
            members: Arc::new([Member {
                inode: file.inode,
                part: 0,
                names: 1,
            }]),
            count: 1,
        }
    }

    /// Gathers the parts; `part_of` returns the part of an entry in the start directory.
    fn gather(
        filesystem: &Filesystem,
        directory: Location,
        progress: &Progress,
        part_of: impl Fn(InodeNumber) -> Option<u32>,
    ) -> Result<Self> {
        let names = names_of(filesystem, directory.subvolume, progress)?;
        let mut is_entered = vec![false; names.len()];
        let mut waiting: Vec<(InodeNumber, Option<u32>)> = vec![(directory.inode, None)];
        let mut members = Vec::new();
        while let Some((current, part)) = waiting.pop() {
            progress.check()?;
            // A valid directory has exactly one name. If a damaged volume gives a directory several
            // names, the walk still visits the directory once.
            let Some(start) = first_in(&names, current) else {
                continue;
            };
            match is_entered.get_mut(start) {
                Some(entered) if !*entered => *entered = true,
                _ => continue,
            }
            // Clamp: a binary search of the list returned this position.
            let below = names.get(start..).unwrap_or(&[]);
            for name in below.iter().take_while(|name| name.directory == current) {
                if let Some(part) = part.or_else(|| part_of(name.inode)) {
                    members.push(Member {
                        inode: name.inode,
                        part,
                        names: 1,
                    });
                    if first_in(&names, name.inode).is_some() {
                        waiting.push((name.inode, Some(part)));
                    }
                }
            }
        }
        members.sort_unstable_by_key(|member| (member.inode, member.part));
        members.dedup_by(|later, first| {
            let same = (later.inode, later.part) == (first.inode, first.part);
            if same {
                first.names = first.names.exact_add(later.names);
            }
            same
        });
        let count = members.iter().map(|member| member.part.exact_add(1)).max();
        Ok(Self {
            subvolume: directory.subvolume,
            members: members.into(),
            // Clamp: without members there are no parts.
            count: count.unwrap_or(0),
        })
    }
}

/// Returns the index of a directory's first name, if it has any.
fn first_in(names: &[Named], directory: InodeNumber) -> Option<usize> {
    let start = names.partition_point(|name| name.directory < directory);
    let first = names.get(start)?;
    (first.directory == directory).then_some(start)
}

/// Returns all names in a subvolume, by directory.
fn names_of(filesystem: &Filesystem, subvolume: SubvolumeId, progress: &Progress) -> Result<Vec<Named>> {
    let tree = filesystem.subvolume_tree(subvolume)?;
    if tree.is_in_memory() {
        return Err(Error::Invalid {
            what: "the subvolume has uncommitted changes; commit them, then count its space",
        });
    }
    let surveyor = Names { progress };
    let found = filesystem.forest().survey([(*tree.root(), ())], &surveyor);
    progress.check()?;
    let mut names: Vec<Named> = Vec::new();
    for part in found {
        names.append(&mut part?);
        if names.len() > NAMES_MAX {
            return Err(too_many());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn too_many() -> Error {
    Error::AccountingTooBig {
        what: "names in the directory's subvolume",
        limit: u64_of(NAMES_MAX),
    }
}

/// Gathers names.
struct Names<'a> {
    progress: &'a Progress,
}

impl Scanner for Names<'_> {
    type Tally = Result<Vec<Named>>;
    type Tag = ();

    fn begin(&self) -> Self::Tally {
        Ok(Vec::new())
    }

    fn wants(&self, tally: &mut Self::Tally, _: &BlockPointer, (): ()) -> Option<()> {
        tally.is_ok().then_some(())
    }

    fn visit(&self, tally: &mut Self::Tally, _: &BlockPointer, block: &TreeBlock, (): ()) {
        self.progress.advance(0, ByteCount::of(block.bytes().len()));
        let Ok(names) = tally else { return };
        for item in block.items() {
            let inode = InodeNumber::new(item.key.objectid.get());
            let mut add = |directory: InodeNumber| {
                if directory != inode {
                    names.push(Named { directory, inode });
                }
            };
            match item.key.item_type {
                ItemType::INODE_REF => {
                    if let Ok(refs) = InodeRefs::parse(&item.key, item.data) {
                        refs.for_each(|name| add(name.parent));
                    }
                }
                ItemType::INODE_EXTREF => {
                    if let Ok(refs) = InodeExtrefs::parse(&item.key, item.data) {
                        refs.for_each(|name| add(name.parent));
                    }
                }
                _ => {}
            }
        }
        if names.len() > NAMES_MAX {
            *tally = Err(too_many());
        }
    }

    fn failed(&self, tally: &mut Self::Tally, error: buttress_tree::Error, (): ()) {
        *tally = Err(error.into());
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}
