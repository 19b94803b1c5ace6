//! Many small files, made at once in a subvolume whose names wait
//! ([`defer_names`](crate::areas::Subvolumes::defer_names)).
//!
//! Each file is made as by [`create_whole`](WritableFilesystem::create_whole), but all files in one
//! operation. The inode numbers of the files are consecutive, and their indexes in each directory
//! are consecutive too. The files' items therefore form few runs, and each directory changes once.
//!
//! The call makes all files, or none after an error. A caller that needs to know which file fails
//! makes them one by one.

use super::NewInode;
use super::create::{Plan, REGULAR, Whole};
use super::entries::{self, check_name};
use super::{AttributeChanges, Operation};
use crate::WritableFilesystem;
use crate::data::EncodedExtent;
use crate::data::encoded_files::WrittenFiles;
use buttress_engine::entry::{Entry, Target};
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    ByteCount, DirItem, FileKind, InodeItem, InodeNumber, InodeRefs, ItemError, Key, ObjectId, SubvolumeId,
};
use buttress_fs::error::{Corruption, Defect, Error, Name, Result};
use buttress_fs::location::Location;

/// The maximum number of items of a new file: inode, name, content, an index, and its part of a
/// directory's own change.
const ITEMS_OF_FILE: u64 = 5;

/// A file to be made.
#[derive(Debug)]
pub struct NewFile<'a> {
    /// The directory of the new name.
    pub directory: Location,
    /// The name of the file in its directory.
    pub name: &'a [u8],
    /// The attributes of the file.
    pub attributes: AttributeChanges,
    /// The content of the file, which the call moves out of this vector.
    pub content: &'a mut Vec<u8>,
    /// Extents to store unchanged instead of `content`, in order of their file ranges, which do not
    /// overlap.
    pub encoded: &'a [EncodedExtent],
}

/// The items of one of the new files.
struct Part<'a> {
    directory: Location,
    name: &'a [u8],
    whole: Whole<'a>,
    is_encoded: bool,
}

impl<'a> Part<'a> {
    fn of(file: &'a NewFile<'_>, inline_bytes_max: usize) -> Self {
        Part {
            directory: file.directory,
            name: file.name,
            whole: Whole {
                attributes: &file.attributes,
                content: match file.content.len() <= inline_bytes_max {
                    true => file.content.as_slice(),
                    false => &[],
                },
                has_content: !file.content.is_empty(),
            },
            is_encoded: !file.encoded.is_empty(),
        }
    }
}

impl WritableFilesystem {
    /// Makes regular files of one unfinished subvolume. Attributes that a file of the batch does
    /// not set come from `new`. The call moves the contents out of `files` and leaves the vectors
    /// empty. After an error, the content vectors are unchanged, and no file is made.
    ///
    /// # Errors
    /// Fails as [`create_whole`](Self::create_whole) does for each file. Fails with
    /// [`Error::Invalid`] for files in several subvolumes, for a subvolume that does not defer
    /// names, or for encoded content that does not fit.
    pub fn create_many(&self, new: &NewInode, files: &mut [NewFile<'_>]) -> Result<Vec<Location>> {
        let Some(subvolume) = files.first().map(|file| file.directory.subvolume) else {
            return Ok(Vec::new());
        };
        let latest = self.latest_time();
        let sector_bytes = u64::from(self.forest().block_format().sector_bytes);
        let inline_bytes_max = self.whole_file_bytes_max();
        let mut outside = Vec::with_capacity(files.len());
        for file in files.iter_mut() {
            check_name(file.name)?;
            file.attributes.check()?;
            file.attributes = file.attributes.no_later_than(latest);
            let sectors = ByteCount::of(file.content.len()).checked_align_up(sector_bytes);
            let sectors = sectors.filter(|_| file.content.len() > inline_bytes_max);
            outside.push(sectors.map_or(0, ByteCount::get));
        }
        let encoded: Vec<&[EncodedExtent]> = files.iter().map(|file| file.encoded).collect();
        let written = self
            .encoded_writes()
            .write_new_files(&encoded)?
            .ok_or(Error::Invalid {
                what: "encoded content that cannot be stored as it is",
            })?;
        // All steps that may fail for lack of space come before the creation of the files.
        let reserved = outside.iter().copied().fold(0, u64::saturating_add);
        let (limits, tree) = (self.quota_limits(), subvolume.tree());
        let all = written.reserved.exact_add(reserved);
        let charged = match self.quotas().charge_new_content(subvolume, all) {
            Ok(charged) => charged,
            Err(error) => {
                self.encoded_writes().give_up_new_files(written);
                return Err(error);
            }
        };
        let charged_of = |bytes: u64| if charged == 0 { 0 } else { bytes };
        if reserved > 0
            && let Err(error) = self
                .writeback()
                .write_excess()
                .and_then(|()| self.reserve_beside(reserved))
        {
            self.encoded_writes().give_up_new_files(written);
            limits.uncharge(tree, charged);
            return Err(error);
        }
        let parts: Vec<Part<'_>> = files
            .iter()
            .map(|file| Part::of(file, inline_bytes_max))
            .collect();
        let count = u64_of(parts.len());
        let items = count
            .saturating_mul(ITEMS_OF_FILE)
            .saturating_add(written.items());
        let made = self.operate_beside_data(Need::places(items), |operation| {
            operation.make_many(subvolume, new, &parts, &written)
        });
        drop(parts);
        let first = match made {
            Ok(first) => first,
            Err(error) => {
                self.release_beside(reserved);
                self.encoded_writes().give_up_new_files(written);
                limits.uncharge(tree, charged);
                return Err(error);
            }
        };
        self.encoded_writes().end_new_files(&written);
        limits.land(tree, charged_of(written.reserved));
        let mut locations = Vec::with_capacity(files.len());
        for ((file, reserved), inode) in files.iter_mut().zip(outside).zip(first.get()..) {
            let location = Location::new(subvolume, InodeNumber::new(inode));
            if reserved > 0 {
                let content = core::mem::take(file.content);
                self.take_first_content(location, content, reserved, charged_of(reserved))?;
            } else {
                self.count_content(file.content.len());
                file.content.clear();
            }
            locations.push(location);
        }
        Ok(locations)
    }
}

impl Operation<'_> {
    /// Makes the files of one batch in one operation. Returns the inode number of the first file;
    /// the other files get the following numbers.
    fn make_many(
        &mut self,
        subvolume: SubvolumeId,
        new: &NewInode,
        parts: &[Part<'_>],
        written: &WrittenFiles,
    ) -> Result<InodeNumber> {
        let tree = subvolume.tree();
        // Sort the new names by directory, and within a directory in the order of creation.
        let mut order: Vec<(Location, usize)> = parts.iter().map(|part| part.directory).zip(0..).collect();
        order.sort_unstable();
        let directories: Vec<&[(Location, usize)]> =
            order.chunk_by(|(one, _), (next, _)| one == next).collect();
        self.require_new_names(subvolume, parts)?;
        for files in &directories {
            let Some((directory, _)) = files.first() else {
                continue;
            };
            let parent = self.require_directory(*directory)?;
            self.require_adding(*directory, &parent)?;
            let index = self.lookups().next_index(*directory)?;
            self.reach(tree, &[DirItem::index_key(directory.inode, index)])?;
        }
        let first = self.lookups().next_inode_number(tree)?;
        let count = u64_of(parts.len());
        let end = first
            .checked_add(count)
            .filter(|end| *end <= ObjectId::LAST_FREE.get());
        end.ok_or(Error::TooMany {
            what: "inodes of a subvolume",
        })?;
        self.reach_new_inode(tree)?;
        written.reach(self)?;
        for _ in parts {
            self.begin().inode_items().free_number(tree)?;
        }
        let mut items = Vec::with_capacity(parts.len().saturating_mul(4));
        let mut indexes = vec![0_u64; parts.len()];
        for files in &directories {
            let Some((directory, _)) = files.first() else {
                continue;
            };
            let first_index = self.lookups().next_index(*directory)?;
            self.edit()
                .inode_items()
                .note_new_index(*directory, first_index)?;
            for (_, number) in *files {
                let index = self.begin().inode_items().free_index(*directory)?;
                if let Some(place) = indexes.get_mut(*number) {
                    *place = index;
                }
            }
        }
        self.add_entries(subvolume, parts, &order, first, &indexes, &mut items)?;
        self.add_inodes(new, parts, first, &indexes, written, &mut items)?;
        self.insert_items(tree, items)?;
        written.insert_sums(self)?;
        for files in &directories {
            let Some((directory, _)) = files.first() else {
                continue;
            };
            let names = files.iter().filter_map(|(_, number)| parts.get(*number));
            self.grow_directory_by(*directory, names.map(|part| part.name))?;
        }
        Ok(InodeNumber::new(first))
    }

    /// Returns an error for a name that is already deferred or occurs twice. The later insertion
    /// detects deferred names that are already in the tree.
    fn require_new_names(&mut self, subvolume: SubvolumeId, parts: &[Part<'_>]) -> Result<()> {
        let is_of_it = |part: &Part<'_>| part.directory.subvolume == subvolume;
        if !self.defers_names(subvolume)? || !parts.iter().all(is_of_it) {
            return Err(Error::Invalid {
                what: "files made together that are not of one subvolume whose names wait",
            });
        }
        let exists = |name: &[u8]| Error::Exists {
            name: Name::from(name),
        };
        let mut names: Vec<(Location, &[u8])> =
            parts.iter().map(|part| (part.directory, part.name)).collect();
        names.sort_unstable();
        if let Some([_, (_, twice)]) = names.array_windows().find(|[one, next]| one == next) {
            return Err(exists(twice));
        }
        for (directory, name) in names {
            if self.waiting_entry(directory, name)?.is_some() {
                return Err(exists(name));
            }
        }
        Ok(())
    }

    /// Adds the directory entries of the files: items under their indexes, and deferred names.
    fn add_entries(
        &mut self,
        subvolume: SubvolumeId,
        parts: &[Part<'_>],
        order: &[(Location, usize)],
        first: u64,
        indexes: &[u64],
        items: &mut Vec<(Key, Vec<u8>)>,
    ) -> Result<()> {
        let id = subvolume.tree();
        let generation = self.generation();
        let tree = self.edit().open_tree(id)?.tree.clone();
        for (directory, number) in order {
            let (Some(part), Some(index)) = (parts.get(*number), indexes.get(*number)) else {
                return Err(Defect::new("a file of a batch that is not in it").into());
            };
            let entry = Entry {
                target: Target::Inode(inode_of(first, *number)),
                kind: FileKind::Regular,
            };
            let item = entries::entry(entry.target, entry.kind, generation, part.name);
            let key = DirItem::key(directory.inode, part.name);
            let broken = |problem| Corruption::Item {
                tree: id,
                error: ItemError::new(&key, problem),
            };
            let data = item.encode().map_err(broken)?;
            items.push((DirItem::index_key(directory.inode, *index), data));
            tree.change_names(|names| names.add(key, &item)).map_err(broken)?;
        }
        Ok(())
    }

    /// Adds the items of the files' inodes.
    fn add_inodes(
        &mut self,
        new: &NewInode,
        parts: &[Part<'_>],
        first: u64,
        indexes: &[u64],
        written: &WrittenFiles,
        items: &mut Vec<(Key, Vec<u8>)>,
    ) -> Result<()> {
        let given = self.given_attributes(REGULAR, new);
        for ((number, part), index) in parts.iter().enumerate().zip(indexes) {
            let inode = inode_of(first, number);
            let plan = Plan {
                whole: Some(part.whole),
                ..Plan::of_type(REGULAR)
            };
            let mut item = self.new_item(&given, plan, 1);
            written.count(number, &mut item)?;
            items.push((InodeItem::key(inode), item.to_bytes().to_vec()));
            let mut reference = Vec::with_capacity(InodeRefs::entry_bytes(part.name));
            InodeRefs::push(&mut reference, *index, part.name)?;
            items.push((InodeRefs::key(inode, part.directory.inode), reference));
            if part.is_encoded {
                let location = Location::new(part.directory.subvolume, inode);
                written.add_items(number, location, self, items)?;
            } else if !part.whole.content.is_empty() {
                items.push(self.inline_item(inode, part.whole.content));
            } else if part.whole.has_content {
                // The inode item changes soon, when the content gets extents.
                self.edit()
                    .inode_items()
                    .know(Location::new(part.directory.subvolume, inode), item);
            }
        }
        Ok(())
    }
}

fn inode_of(first: u64, number: usize) -> InodeNumber {
    InodeNumber::new(first.saturating_add(u64_of(number)))
}
