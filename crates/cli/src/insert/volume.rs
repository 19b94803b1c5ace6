//! Copying from a volume: from another one, or within the target volume.

use anyhow::Result;
use buttress::{
    Content, FileKind, FileReader, Follow, InodeRecord, Location, Subvolume, WalkEntry, WalkItem, WalkOptions,
};

use super::{Facts, Inserter, Piece, Source, refuse_directory};
use crate::context::Context;
use crate::opening::absolute;
use crate::replacing::{directory_in_the_way, into_itself};

/// Options of copying from a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// Copies directories, too.
    pub recursive: bool,
    /// Treatment of symbolic links that the user named.
    pub follow: Follow,
    /// Leaves nested subvolumes empty.
    pub one_file_system: bool,
    /// The source is the target volume: extents are shared.
    pub same_volume: bool,
}

/// Inserts the file or directory at a path of a volume under this name. Without a target name, the
/// directory's entries go into the inserter's base. Errors below the source are passed to `failed`,
/// and the walk continues unless nothing more can be created.
pub fn insert(
    inserter: &mut Inserter<'_>,
    opened: &Subvolume,
    path: &[u8],
    name: Option<&[u8]>,
    options: VolumeOptions,
    failed: &mut dyn FnMut(anyhow::Error),
) -> Result<()> {
    let start = opened.locate(path, options.follow)?;
    if opened.volume().metadata(start)?.is_directory() && !options.recursive {
        return Err(refuse_directory());
    }
    let walk_options = WalkOptions {
        one_file_system: options.one_file_system,
        progress: inserter.progress.clone(),
        ..if options.same_volume {
            WalkOptions::without_content()
        } else {
            WalkOptions::default()
        }
    };
    let mut walk = VolumeWalk {
        entering: None,
        skipped: 0,
        name,
        same_volume: options.same_volume,
        opened,
        path,
        base: inserter.base,
    };
    for item in opened.volume().walk(start, walk_options) {
        let path = match &item {
            WalkItem::Entry(entry) => entry.path(),
            WalkItem::Enter(path) | WalkItem::Leave(path) => path.to_vec(),
            WalkItem::Failed(_) => Vec::new(),
        };
        if let Err(error) = walk.take(inserter, item) {
            failed(error.context(path.escape_ascii().to_string()));
            if inserter.is_over() {
                break;
            }
        }
    }
    walk.settle(inserter)
}

/// State of a walk.
struct VolumeWalk<'a> {
    /// True if the walk created the last directory. Whether the walk enters that directory next, or
    /// else leaves it.
    entering: Option<bool>,
    /// Number of directories on the current path that could not be created.
    skipped: u64,
    /// Target name for the walk's root.
    name: Option<&'a [u8]>,
    same_volume: bool,
    opened: &'a Subvolume,
    /// Path of the walk's root.
    path: &'a [u8],
    /// Directory for the copy.
    base: Location,
}

impl VolumeWalk<'_> {
    fn take(&mut self, inserter: &mut Inserter<'_>, item: WalkItem) -> Result<()> {
        match item {
            WalkItem::Entry(entry) => {
                self.settle(inserter)?;
                if self.skipped > 0 {
                    if entry.metadata().is_directory() {
                        self.entering = Some(false);
                    }
                    return Ok(());
                }
                self.take_entry(inserter, *entry)
            }
            WalkItem::Enter(_) => {
                if self.entering.take() == Some(false) {
                    self.skipped = self.skipped.saturating_add(1);
                }
                Ok(())
            }
            WalkItem::Leave(_) => {
                self.settle(inserter)?;
                if self.skipped > 0 {
                    self.skipped = self.skipped.saturating_sub(1);
                    return Ok(());
                }
                inserter.leave()
            }
            WalkItem::Failed(error) => Err(error.into()),
        }
    }

    /// Leaves a directory that the walk did not enter.
    fn settle(&mut self, inserter: &mut Inserter<'_>) -> Result<()> {
        match self.entering.take() {
            Some(true) => inserter.leave(),
            _ => Ok(()),
        }
    }

    fn take_entry(&mut self, inserter: &mut Inserter<'_>, mut entry: WalkEntry) -> Result<()> {
        let is_start = entry.name.is_empty();
        let own_name = entry.name.clone();
        let name = if is_start {
            self.name
        } else {
            Some(own_name.as_slice())
        };
        let mut facts = facts(inserter, &entry.record);
        if self.same_volume {
            facts.origin = Some(entry.location());
            if facts.kind == FileKind::Symlink {
                let path = absolute(self.path, &entry.path());
                facts.referent = self.opened.locate(&path, Follow::All).ok();
            }
            if !is_start && entry.location() == self.base {
                self.entering = Some(false);
                return Err(into_itself(&inserter.source_name, &inserter.base_shown()));
            }
        }
        if facts.kind == FileKind::Directory {
            let entered = inserter.enter(name, facts);
            self.entering = Some(entered.is_ok());
            return entered;
        }
        let Some(name) = name else {
            return Err(directory_in_the_way(&inserter.base_shown()));
        };
        let target = match facts.kind {
            FileKind::Symlink => entry.link_target()?,
            _ => Vec::new(),
        };
        let source = match facts.kind {
            FileKind::Regular if self.same_volume => Some(Source::Same(entry.metadata().location)),
            FileKind::Regular => Some(Source::Stream(Box::new(entry.reader()?))),
            _ => None,
        };
        inserter.make(name, &facts, &target, source)
    }
}

fn facts(inserter: &Inserter<'_>, record: &InodeRecord) -> Facts {
    let metadata = &record.metadata;
    Facts {
        kind: metadata.kind,
        permissions: metadata.permissions(),
        uid: metadata.uid,
        gid: metadata.gid,
        accessed: metadata.accessed,
        modified: metadata.modified,
        links: if metadata.is_directory() {
            1
        } else {
            metadata.nlink
        },
        identity: (metadata.location.subvolume.get(), metadata.location.inode.get()),
        device: metadata.device,
        size_bytes: metadata.size.get(),
        xattrs: if inserter.preserve().all() {
            record.xattrs.clone()
        } else {
            Vec::new()
        },
        origin: None,
        referent: None,
    }
}

/// Passes the data of a file to `write` in pieces without holes. Damaged ranges become holes, and
/// are reported as lost.
pub(super) fn read(
    reader: &mut FileReader,
    context: &Context,
    write: &mut dyn FnMut(Piece) -> Result<()>,
) -> Result<()> {
    while let Some(chunk) = reader.next_chunk()? {
        match chunk.content {
            Content::Data(bytes) => write(Piece {
                offset: chunk.offset,
                bytes,
            })?,
            Content::Hole => {}
            Content::Damaged(error) => context.lost(&anyhow::Error::new(error)),
        }
    }
    Ok(())
}
