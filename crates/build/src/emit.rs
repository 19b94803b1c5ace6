//! The emitter: the only writing pass, with items in key order, and contents in the order of their
//! inodes.
//!
//! The emitting pass reads items ahead, queues jobs for the contents that it finds, and continues
//! while workers read. The emitting pass takes the result of a job when the turn of the job's inode
//! comes. During this pass, a thread writes data to the devices. The pass keeps tree blocks aside,
//! because their places are known only when the data ends.

use crate::blocks::BlockLog;
use crate::content::{Job, Piece, SEGMENT_BYTES, channel, method, span};
use crate::data::{DataWriter, Extent, Owner};
use crate::entry::{Compress, ShareKey};
use crate::error::{Error, Result};
use crate::layout::{FileInfo, GENERATION, INODE_ITEM_BYTES, item_place};
use buttress_format::inode::RawInodeItem;
use buttress_format::{
    ByteCount, Compression, FileExtent, FileExtentBody, FileOffset, InodeFlags, InodeItem, InodeNumber,
    ItemType, Key, TreeId,
};
use buttress_fs::Progress;
use buttress_packing::{PackedRoot, Packer};
use buttress_packing::{Record, SortedReader};
use core::ops::Range;
use crossbeam_channel::{Receiver, Sender};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use zerocopy::FromBytes;

mod pack;

/// The number of bytes of content that may be in flight.
const AHEAD_BYTES: u64 = 40 << 20;

/// The number of items that may be queued.
const AHEAD_ITEMS: usize = 4096;

/// The bytes that each job adds to the budget in addition to its content.
const JOB_BYTES: u64 = 4096;

/// An element in the queue of the emitting pass.
enum Waiting {
    Item(TreeId, Key, Vec<u8>),
    /// A file's inode, which comes before the file's other items.
    File(Box<WaitingFile>),
    /// The result of one job of the current file.
    Content(Receiver<Result<Piece>>, u64),
    /// The end of the current file's content.
    EndOfFile,
    /// The inode of a file with the same content as an earlier file.
    Same(Box<(TreeId, Key, InodeItem, Arc<SameKey>)>),
}

struct WaitingFile {
    info: Arc<FileInfo>,
    tree: TreeId,
    key: Key,
    item: InodeItem,
    pieces: Receiver<Result<Piece>>,
    /// The key of the content, if other files have the same content.
    same: Option<Arc<SameKey>>,
}

/// The properties in which contents must agree to share their extents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SameKey {
    source: u16,
    share: ShareKey,
    size: ByteCount,
    flags: InodeFlags,
    compress: Option<(u8, i8)>,
}

/// Content that several files share.
#[derive(Clone, Default)]
struct SharedContent {
    data_bytes: u64,
    inline: Option<Vec<u8>>,
    extents: Vec<Extent>,
}

/// The file whose content the builder currently emits.
struct OpenFile {
    /// The file's properties; `None` if the content belongs to another file.
    info: Option<Arc<FileInfo>>,
    owner: Owner,
    same: Option<Arc<SameKey>>,
    shared: SharedContent,
    /// The whole inline content, in place of the first extent.
    inline: Option<Vec<u8>>,
    size: u64,
    /// The end of the last extent in the file.
    covered: u64,
}

/// A file whose next segments have no jobs yet.
struct MoreSegments {
    info: Arc<FileInfo>,
    flags: InodeFlags,
    next: u64,
    /// The number of bytes of the file that each job covers.
    span: u64,
    last_of: (TreeId, Key),
    first: Option<(Receiver<Result<Piece>>, u64)>,
}

/// The rules of the pass that emits all items.
pub(crate) struct EmitRules<'a> {
    pub(crate) compression: Compress,
    pub(crate) jobs: Sender<Job>,
    pub(crate) progress: &'a Progress,
    pub(crate) no_holes: bool,
    pub(crate) sector_bytes: u32,
    /// Subvolumes with the snapshots that share their trees.
    pub(crate) snapshots: &'a [(TreeId, TreeId)],
}

/// The pass.
pub(crate) struct Emitter<'a> {
    rules: EmitRules<'a>,
    log: &'a mut BlockLog,
    data: DataWriter<'a>,
    waiting: VecDeque<Waiting>,
    on_the_way: u64,
    segments: Option<MoreSegments>,
    seen: HashMap<Arc<SameKey>, Option<SharedContent>>,
    packer: Option<(TreeId, Packer)>,
    roots: Vec<PackedRoot>,
    open: Option<OpenFile>,
    /// Items of one key, gathered until the next key.
    merging: Option<(TreeId, Key, Vec<u8>)>,
    /// Names of an inode that do not fit their `INODE_REF` item.
    overflow: BTreeMap<Key, Vec<u8>>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(rules: EmitRules<'a>, log: &'a mut BlockLog, data: DataWriter<'a>) -> Self {
        Self {
            rules,
            log,
            data,
            waiting: VecDeque::new(),
            on_the_way: 0,
            segments: None,
            seen: HashMap::new(),
            packer: None,
            roots: Vec::new(),
            open: None,
            merging: None,
            overflow: BTreeMap::new(),
        }
    }

    /// Processes all sorted items. Returns the roots of the trees.
    pub(crate) fn run(mut self, mut items: SortedReader<'_>) -> Result<(Vec<PackedRoot>, DataWriter<'a>)> {
        let mut record = Record::default();
        let mut has_record = items.next(&mut record)?;
        loop {
            self.rules.progress.check()?;
            while self.may_go_ahead() && (has_record || self.segments.is_some()) {
                let place = item_place(&record.key).filter(|_| has_record);
                if self.next_segment(place)? {
                    continue;
                }
                let (tree, key) = place.ok_or(Error::Defect {
                    what: "an item's key",
                })?;
                self.read(tree, key, core::mem::take(&mut record.payload))?;
                has_record = items.next(&mut record)?;
            }
            match self.waiting.pop_front() {
                Some(waiting) => self.turn(waiting)?,
                None if !has_record && self.segments.is_none() => break,
                None => {}
            }
        }
        self.merged()?;
        self.pack_overflow(None)?;
        self.finish_tree()?;
        self.data.flush()?;
        Ok((self.roots, self.data))
    }

    fn may_go_ahead(&self) -> bool {
        self.waiting.is_empty() || (self.on_the_way < AHEAD_BYTES && self.waiting.len() < AHEAD_ITEMS)
    }

    /// Makes a job of the current file's next segment, once its inode's other items are read.
    /// Returns false if no segment is left, or if the other items must come first.
    fn next_segment(&mut self, next: Option<(TreeId, Key)>) -> Result<bool> {
        let Some(mut more) = self.segments.take() else {
            return Ok(false);
        };
        let (tree, key) = more.last_of;
        if next.is_some_and(|(other, next)| other == tree && next.objectid == key.objectid) {
            self.segments = Some(more);
            return Ok(false);
        }
        if let Some((pieces, cost)) = more.first.take() {
            self.waiting.push_back(Waiting::Content(pieces, cost));
        } else if more.next < more.info.content.size.get() {
            let end = more.next.saturating_add(more.span);
            let (pieces, cost) = self.job(&more.info, more.flags, more.next..end)?;
            self.waiting.push_back(Waiting::Content(pieces, cost));
            more.next = more.next.saturating_add(more.span);
        } else {
            self.waiting.push_back(Waiting::EndOfFile);
            return Ok(true);
        }
        self.segments = Some(more);
        Ok(true)
    }

    fn job(
        &mut self,
        info: &Arc<FileInfo>,
        flags: InodeFlags,
        bytes: Range<u64>,
    ) -> Result<(Receiver<Result<Piece>>, u64)> {
        let (to, pieces) = channel();
        let size = info.content.size.get();
        let cost = size
            .saturating_sub(bytes.start)
            .min(SEGMENT_BYTES)
            .saturating_add(JOB_BYTES);
        self.on_the_way = self.on_the_way.saturating_add(cost);
        let in_place = flags.contains(InodeFlags::NODATACOW);
        let may_compress =
            !flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::NOCOMPRESS);
        let job = Job {
            file: Arc::clone(info),
            start: bytes.start,
            end: bytes.end,
            is_first: bytes.start == 0,
            method: method(info.compress, self.rules.compression, may_compress),
            checksums: !flags.contains(InodeFlags::NODATASUM),
            inline: !in_place,
            to,
        };
        self.rules.jobs.send(job).map_err(|_| Error::Defect {
            what: "no worker is left",
        })?;
        Ok((pieces, cost))
    }

    /// Processes the next sorted item.
    fn read(&mut self, tree: TreeId, key: Key, payload: Vec<u8>) -> Result<()> {
        let is_file = key.item_type == ItemType::INODE_ITEM && payload.len() > INODE_ITEM_BYTES;
        if !is_file {
            self.waiting.push_back(Waiting::Item(tree, key, payload));
            return Ok(());
        }
        let parts = payload.split_at_checked(INODE_ITEM_BYTES);
        let parts = parts.and_then(|(item, info)| {
            let item = RawInodeItem::read_from_bytes(item).ok()?;
            Some((InodeItem::from_raw(&item), FileInfo::decode(info)?))
        });
        let (item, info) = parts.ok_or(Error::Defect {
            what: "a file's item",
        })?;
        if info.content.size == ByteCount::ZERO {
            let bytes = item.to_bytes().to_vec();
            self.waiting.push_back(Waiting::Item(tree, key, bytes));
            return Ok(());
        }
        let info = Arc::new(info);
        let same = info.content.share.map(|share| {
            let method = method(info.compress, self.rules.compression, true);
            Arc::new(SameKey {
                source: info.source,
                share,
                size: info.content.size,
                flags: item.flags & (InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::NOCOMPRESS),
                compress: method.map(|method| (method.compression().to_raw(), method.level())),
            })
        });
        if let Some(same) = &same {
            if self.seen.contains_key(same) {
                let waiting = (tree, key, item, Arc::clone(same));
                self.waiting.push_back(Waiting::Same(Box::new(waiting)));
                self.segments = Some(MoreSegments {
                    next: u64::MAX,
                    span: 0,
                    info,
                    flags: item.flags,
                    last_of: (tree, key),
                    first: None,
                });
                return Ok(());
            }
            self.seen.insert(Arc::clone(same), None);
        }
        let bytes = span(&info.content, self.rules.sector_bytes);
        let (pieces, cost) = self.job(&info, item.flags, 0..bytes)?;
        self.waiting.push_back(Waiting::File(Box::new(WaitingFile {
            info: Arc::clone(&info),
            tree,
            key,
            item,
            pieces: pieces.clone(),
            same,
        })));
        self.segments = Some(MoreSegments {
            info,
            flags: item.flags,
            next: bytes,
            span: bytes,
            last_of: (tree, key),
            first: Some((pieces, cost)),
        });
        Ok(())
    }

    /// Processes a queued element whose turn has come.
    fn turn(&mut self, waiting: Waiting) -> Result<()> {
        match waiting {
            Waiting::Item(tree, key, payload) => {
                self.rules
                    .progress
                    .advance(u64::from(key.item_type == ItemType::INODE_ITEM), ByteCount::ZERO);
                self.item(tree, key, payload)
            }
            Waiting::File(file) => self.begin(*file),
            Waiting::Content(pieces, cost) => {
                for piece in pieces {
                    self.piece(piece?)?;
                }
                self.on_the_way = self.on_the_way.saturating_sub(cost);
                Ok(())
            }
            Waiting::EndOfFile => self.end_of_file(),
            Waiting::Same(same) => self.same(*same),
        }
    }

    fn begin(&mut self, file: WaitingFile) -> Result<()> {
        let WaitingFile {
            info,
            tree,
            key,
            mut item,
            pieces,
            same,
        } = file;
        let owner = Owner {
            tree,
            inode: InodeNumber::new(key.objectid.get()),
        };
        let mut open = OpenFile {
            info: Some(info),
            owner,
            same,
            shared: SharedContent::default(),
            inline: None,
            size: item.size.get(),
            covered: 0,
        };
        let first = pieces.recv().map_err(|_| Error::Defect {
            what: "a worker that gave up",
        })?;
        match first? {
            Piece::Begin { data_bytes } => item.nbytes = ByteCount::new(data_bytes),
            Piece::Inline {
                stored,
                compression,
                content_bytes,
            } => {
                item.nbytes = ByteCount::new(content_bytes);
                open.inline = Some(
                    FileExtent {
                        generation: GENERATION,
                        ram_bytes: item.nbytes,
                        compression,
                        other_encoding: 0,
                        body: FileExtentBody::Inline(&stored),
                    }
                    .encode(),
                );
            }
            Piece::Data(_) => {
                return Err(Error::Defect {
                    what: "data before its beginning",
                });
            }
        }
        open.shared.data_bytes = item.nbytes.get();
        self.open = Some(open);
        self.rules.progress.advance(1, item.size);
        self.item(tree, key, item.to_bytes().to_vec())
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        let Piece::Data(data) = piece else {
            return Err(Error::Defect {
                what: "a file that begins twice",
            });
        };
        let mut open = self.open.take().ok_or(Error::Defect {
            what: "data of no file",
        })?;
        let info = open.info.clone().ok_or(Error::Defect {
            what: "data of a file whose content is another's",
        })?;
        let mut extents = Vec::new();
        self.data.piece(&info, &data, &mut |extent| {
            extents.push(extent);
            Ok(())
        })?;
        self.extents(&mut open, extents)?;
        self.open = Some(open);
        Ok(())
    }

    /// Packs finished extents of the current file.
    fn extents(&mut self, open: &mut OpenFile, extents: Vec<Extent>) -> Result<()> {
        for extent in extents {
            self.hole(open, extent.at)?;
            open.covered = extent.at.saturating_add(extent.content_bytes);
            self.data.refer(open.owner, &extent)?;
            let key = FileExtent::key(open.owner.inode, FileOffset::new(extent.at));
            self.item(open.owner.tree, key, extent.item())?;
            if open.same.is_some() {
                open.shared.extents.push(extent);
            }
        }
        Ok(())
    }

    /// Packs a hole item that ends at this offset, on volumes whose holes have items.
    fn hole(&mut self, open: &OpenFile, end: u64) -> Result<()> {
        let bytes = end.saturating_sub(open.covered);
        if self.rules.no_holes || bytes == 0 {
            return Ok(());
        }
        let hole = Extent {
            at: open.covered,
            logical: buttress_format::Logical::MIN,
            stored_bytes: 0,
            content_bytes: bytes,
            compression: Compression::None,
        };
        let key = FileExtent::key(open.owner.inode, FileOffset::new(hole.at));
        self.item(open.owner.tree, key, hole.item())
    }

    fn end_of_file(&mut self) -> Result<()> {
        let mut open = self.open.take().ok_or(Error::Defect {
            what: "the end of no file",
        })?;
        // If this file has the same content as another file, these are the other file's extents.
        let mut extents = match open.same {
            None => core::mem::take(&mut open.shared.extents),
            Some(_) => Vec::new(),
        };
        self.data.end(&mut |extent| {
            extents.push(extent);
            Ok(())
        })?;
        self.extents(&mut open, extents)?;
        if let Some(inline) = open.inline.take() {
            let key = FileExtent::key(open.owner.inode, FileOffset::MIN);
            self.item(open.owner.tree, key, inline.clone())?;
            open.shared.inline = Some(inline);
        } else {
            let whole = open
                .size
                .checked_next_multiple_of(u64::from(self.rules.sector_bytes));
            self.hole(&open, whole.unwrap_or(open.size))?;
        }
        if let Some(same) = open.same {
            self.seen.insert(same, Some(open.shared));
        }
        Ok(())
    }

    /// Begins a file with the content of another file, which is completely known.
    fn same(&mut self, (tree, key, mut item, same): (TreeId, Key, InodeItem, Arc<SameKey>)) -> Result<()> {
        let shared = self.seen.get(&same).and_then(Option::as_ref);
        let shared = shared.ok_or(Error::Defect {
            what: "content that was not read",
        })?;
        item.nbytes = ByteCount::new(shared.data_bytes);
        let mut open = OpenFile {
            info: None,
            owner: Owner {
                tree,
                inode: InodeNumber::new(key.objectid.get()),
            },
            same: None,
            inline: shared.inline.clone(),
            shared: SharedContent::default(),
            size: item.size.get(),
            covered: 0,
        };
        open.shared.extents.clone_from(&shared.extents);
        self.open = Some(open);
        self.rules.progress.advance(1, item.size);
        self.item(tree, key, item.to_bytes().to_vec())
    }
}
