//! The final tree: the remaining entries in the order of a walk, with subvolumes and hard links
//! resolved.
//!
//! [`Tree::new`] stores the output of [`layers`](crate::layers), numbered. A separate sort groups
//! the names of one inode. In each subvolume, the first name of a group *holds* the inode, and the
//! other names refer to it. Names of one group in two subvolumes cannot name one inode. Each of the
//! two subvolumes then has an inode of its own, and the inodes share their content.

use crate::entry::{Attributes, Entry, EntryKind, EntryPath, Precedence, ShareKey, SubvolumeMark};
use crate::error::{Error, Result, shown};
use crate::layers::{Placed, marked, merge};
use crate::links::Links;
use crate::nested::SpooledPath;
use crate::record::{Decoder, Encoder};
use buttress_exact::Exact as _;
use buttress_format::{ChecksumType, TreeId};
use buttress_packing::{Record, Sorted, SortedReader, Sorter};
use buttress_packing::{Spool, SpoolFolder, SpoolReader, Spooled};
use std::collections::HashMap;

/// The first id of a subvolume other than the top level.
const FIRST_SUBVOLUME: u64 = 256;

/// The merged tree of all sources.
#[derive(Debug)]
pub(crate) struct Tree {
    names: Spooled,
    /// The resolved names of groups, by their numbers.
    linked: Option<Sorted>,
}

/// A name in the tree of the image.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) source: u16,
    /// If the name is the root of a subvolume, the id of that subvolume.
    pub(crate) subvolume: Option<TreeId>,
    pub(crate) entry: Entry,
    pub(crate) link: Option<Link>,
}

/// A resolved name of a group.
#[derive(Debug)]
pub(crate) struct Link {
    /// The number of the name in the group that holds the inode.
    pub(crate) holder: u64,
    /// The number of the inode's names.
    pub(crate) names: u64,
    /// If the name holds the inode: the inode's source and entry, which replace the name's own.
    pub(crate) inode: Option<(u16, Entry)>,
}

/// The inputs of [`Tree::new`].
pub(crate) struct Settling<'a> {
    pub(crate) records: &'a Sorted,
    pub(crate) links: Option<&'a Links>,
    pub(crate) source_names: &'a [String],
    pub(crate) default: &'a Attributes,
    pub(crate) subvolumes: &'a [(EntryPath, SubvolumeMark)],
    pub(crate) folder: &'a SpoolFolder,
    pub(crate) memory: usize,
}

impl Tree {
    pub(crate) fn new(settling: &Settling<'_>) -> Result<Self> {
        let mut pass = Numbering {
            names: Spool::new(settling.folder.clone(), settling.memory),
            paths: SpooledPath::default(),
            groups: Sorter::new(settling.folder, settling.memory),
            wanted: settling
                .subvolumes
                .iter()
                .map(|(path, mark)| (path.as_bytes(), *mark))
                .collect(),
            open: vec![(Vec::new(), TreeId::FS.get())],
            next_subvolume: FIRST_SUBVOLUME,
            next_number: 0,
        };
        merge(
            settling.records,
            settling.links,
            settling.source_names,
            settling.default,
            &mut |placed| pass.take(placed),
        )?;
        if let Some((path, _)) = pass.wanted.iter().min_by_key(|(path, _)| **path) {
            return Err(Error::Option {
                option: "subvolume",
                path: shown(path),
                problem: "is not in the tree",
            });
        }
        let names = pass.names.finish();
        let linked = if pass.groups.is_empty() {
            None
        } else {
            let groups = pass.groups.finish()?;
            Some(settle(&groups, settling.folder, settling.memory)?)
        };
        Ok(Self { names, linked })
    }

    pub(crate) fn reader(&self) -> Result<TreeReader<'_>> {
        let mut linked = match &self.linked {
            Some(linked) => Some((linked.reader()?, Record::default())),
            None => None,
        };
        if let Some((reader, record)) = &mut linked {
            reader.next(record)?;
        }
        Ok(TreeReader {
            names: self.names.reader(),
            paths: SpooledPath::default(),
            linked,
            bytes: Vec::new(),
            number: 0,
        })
    }
}

struct Numbering<'a> {
    names: Spool,
    paths: SpooledPath,
    groups: Sorter,
    /// Subvolumes that options name and that the pass over the entries has not reached.
    wanted: HashMap<&'a [u8], SubvolumeMark>,
    /// Subvolumes that contain the current position.
    open: Vec<(Vec<u8>, u64)>,
    next_subvolume: u64,
    next_number: u64,
}

impl Numbering<'_> {
    fn take(&mut self, mut placed: Placed) -> Result<()> {
        if placed.hidden {
            return self.group(&placed, u64::MAX);
        }
        let path = placed.entry.path.as_bytes().to_vec();
        if let Some(mark) = self.wanted.remove(path.as_slice())
            && !marked(&mut placed.entry.kind, mark)
        {
            return Err(Error::Option {
                option: "subvolume",
                path: shown(&path),
                problem: "is not a directory",
            });
        }
        while self.open.len() > 1 && self.open.last().is_some_and(|(above, _)| !is_below(&path, above)) {
            self.open.pop();
        }
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        self.group(&placed, number)?;
        let begins = match placed.entry.kind {
            EntryKind::Directory(Some(_)) => !placed.entry.path.is_root(),
            EntryKind::Snapshot { .. } => true,
            _ => false,
        };
        let subvolume = begins.then_some(self.next_subvolume);
        if let Some(id) = subvolume {
            self.next_subvolume = id.saturating_add(1);
            self.open.push((path, id));
        }
        let mut encoder = Encoder::default();
        encoder
            .number(u64::from(placed.source))
            .number(subvolume.unwrap_or(0))
            .flag(placed.group.is_some());
        self.paths.encode(placed.entry.path.as_bytes(), &mut encoder);
        encoder.entry(&placed.entry);
        let length = u32::try_from(encoder.0.len()).map_err(|_| Error::Entry {
            path: shown(placed.entry.path.as_bytes()),
            problem: format!("its attributes are too long (found {} bytes)", encoder.0.len()),
        })?;
        self.names.append(&length.to_le_bytes())?;
        Ok(self.names.append(&encoder.0)?)
    }

    /// Records a name, and its inode if the name has one, under the name's group. Hidden inodes go
    /// under the group of the last number.
    fn group(&mut self, placed: &Placed, number: u64) -> Result<()> {
        let Some(group) = &placed.group else {
            return Ok(());
        };
        let key = |subvolume: u64, number: u64| {
            let numbers = [subvolume.to_be_bytes(), number.to_be_bytes()].concat();
            [group.as_slice(), &numbers].concat()
        };
        if !matches!(placed.entry.kind, EntryKind::HardLink(_)) {
            let mut encoder = Encoder::default();
            encoder
                .number(u64::from(placed.source))
                .bytes(placed.entry.path.as_bytes())
                .entry(&placed.entry);
            self.groups.push(&key(0, number), &encoder.0)?;
        }
        if !placed.hidden {
            let subvolume = self.open.last().map_or(0, |(_, id)| *id);
            self.groups.push(&key(subvolume, number), &[])?;
        }
        Ok(())
    }
}

/// Returns true if `path` is below `above` in the tree.
pub(crate) fn is_below(path: &[u8], above: &[u8]) -> bool {
    match path.strip_prefix(above) {
        Some(rest) => (above.is_empty() && !rest.is_empty()) || rest.first() == Some(&b'/'),
        None => false,
    }
}

/// The names of one group, gathered until the next group begins. Each name of the group takes eight
/// bytes.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    inode: Option<Vec<u8>>,
    subvolumes: Vec<(u64, Vec<u64>)>,
}

/// Resolves each name of a group to its inode, by the name's number.
fn settle(groups: &Sorted, folder: &SpoolFolder, memory: usize) -> Result<Sorted> {
    let mut linked = Sorter::new(folder, memory);
    let mut reader = groups.reader()?;
    let mut record = Record::default();
    let mut group = Group::default();
    while reader.next(&mut record)? {
        let key = record
            .key
            .len()
            .checked_sub(16)
            .and_then(|at| record.key.split_at_checked(at));
        let Some((key, numbers)) = key else {
            return Err(Error::Defect { what: "a group" });
        };
        let (subvolume, number) = numbers.split_at(8);
        let read = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap_or_default());
        if key != group.key.as_slice() {
            core::mem::take(&mut group).settle(&mut linked)?;
            group.key = key.to_vec();
        }
        match (read(subvolume), read(number)) {
            // The first name of a group holds the inode.
            (0, _) => {
                group.inode.get_or_insert_with(|| record.payload.clone());
            }
            (subvolume, number) => match group.subvolumes.last_mut() {
                Some((last, numbers)) if *last == subvolume => numbers.push(number),
                _ => group.subvolumes.push((subvolume, vec![number])),
            },
        }
    }
    group.settle(&mut linked)?;
    Ok(linked.finish()?)
}

impl Group {
    fn settle(self, linked: &mut Sorter) -> Result<()> {
        let shared = self.subvolumes.len() > 1;
        for (_, numbers) in &self.subvolumes {
            let Some(holder) = numbers.first() else {
                continue;
            };
            for number in numbers {
                let mut encoder = Encoder::default();
                encoder.number(*holder).number(numbers.len() as u64);
                encoder.flag(number == holder);
                if number == holder {
                    let inode = self.inode.as_ref().ok_or(Error::Defect {
                        what: "links without an inode",
                    })?;
                    encoder.flag(shared).bytes(&self.key).bytes(inode);
                }
                linked.push(&number.to_be_bytes(), &encoder.0)?;
            }
        }
        Ok(())
    }
}

/// A reader of names in the order of a walk.
pub(crate) struct TreeReader<'a> {
    names: SpoolReader,
    paths: SpooledPath,
    linked: Option<(SortedReader<'a>, Record)>,
    bytes: Vec<u8>,
    number: u64,
}

impl TreeReader<'_> {
    /// Returns the next name with its number.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Name)>> {
        if self.names.at_end() {
            return Ok(None);
        }
        self.names.read(&mut self.bytes, 4)?;
        let length = self.bytes.as_slice().try_into().unwrap_or_default();
        let length = u32::from_le_bytes(length).narrow::<usize>();
        let mut bytes = core::mem::take(&mut self.bytes);
        self.names.read(&mut bytes, length)?;
        let (mut name, in_group) = decode(&bytes, &mut self.paths).ok_or(Error::Defect { what: "a name" })?;
        self.bytes = bytes;
        let number = self.number;
        self.number = number.saturating_add(1);
        if in_group {
            name.link = Some(self.link(number)?);
        }
        Ok(Some((number, name)))
    }

    fn link(&mut self, number: u64) -> Result<Link> {
        let missing = Error::Defect { what: "a link" };
        let Some((reader, record)) = &mut self.linked else {
            return Err(missing);
        };
        if record.key != number.to_be_bytes() {
            return Err(missing);
        }
        let link = decode_link(&record.payload).ok_or(missing)?;
        reader.next(record)?;
        Ok(link)
    }
}

fn decode(bytes: &[u8], paths: &mut SpooledPath) -> Option<(Name, bool)> {
    let mut decoder = Decoder(bytes);
    let source = u16::try_from(decoder.number()?).ok()?;
    let subvolume = decoder.number()?;
    let in_group = decoder.flag()?;
    let path = paths.decode(&mut decoder)?;
    let name = Name {
        source,
        subvolume: (subvolume != 0).then_some(TreeId::new(subvolume)),
        entry: decoder.entry(path, Precedence::default())?,
        link: None,
    };
    Some((name, in_group))
}

fn decode_link(bytes: &[u8]) -> Option<Link> {
    let mut decoder = Decoder(bytes);
    let (holder, names) = (decoder.number()?, decoder.number()?);
    if !decoder.flag()? {
        return Some(Link {
            holder,
            names,
            inode: None,
        });
    }
    let shared = decoder.flag()?;
    let key = decoder.bytes()?;
    let mut decoder = Decoder(decoder.bytes()?);
    let source = u16::try_from(decoder.number()?).ok()?;
    let path = decoder.path()?;
    let mut entry = decoder.entry(path, Precedence::default())?;
    if let (EntryKind::File(content), true) = (&mut entry.kind, shared) {
        content.share = content.share.or(Some(share_key(key)));
    }
    Some(Link {
        holder,
        names,
        inode: Some((source, entry)),
    })
}

/// Returns the key by which inodes of one group in several subvolumes share their content.
fn share_key(group: &[u8]) -> ShareKey {
    let hash = ChecksumType::Sha256.compute(group);
    let first = hash.as_bytes().first_chunk::<16>().copied().unwrap_or_default();
    ShareKey(u128::from_le_bytes(first))
}
