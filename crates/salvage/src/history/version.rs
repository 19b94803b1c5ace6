//! A version of a file: its content as some states had it.

use crate::error::Result;
use crate::states::State;
use crate::verdict::{FileFindings, Judge, Verdict};
use crate::view::View;
use buttress_format::{ByteCount, FileKind, Generation, Timestamp};
use buttress_fs::{Error, InodeRecord, Location, Progress, RangeKind};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The bits of a mode that hold the kind of file.
const KIND_BITS: u32 = 0o170_000;

/// A version of a file.
#[derive(Clone, Debug)]
pub struct Version {
    /// The path from the top level, without a slash at its start.
    pub path: Vec<u8>,
    /// The subvolume and inode.
    pub location: Location,
    /// The kind of file: regular or a symlink.
    pub kind: FileKind,
    /// The generation of the newest state that has the version.
    pub generation: Generation,
    /// The state whose blocks and checksums the findings are from. An older state can have the same
    /// version with checksums that can still be read.
    pub state: State,
    /// True if the state may not have been committed, so that no file of it is verified.
    pub is_doubtful: bool,
    /// The size of the content.
    pub size: ByteCount,
    /// The time of the last change of content.
    pub modified: Timestamp,
    /// The transaction that created the inode.
    pub(super) inode_generation: Generation,
    /// The path at which the newest state has the same content.
    pub renamed_to: Option<Vec<u8>>,
    /// The findings about the content, without the list of lost ranges.
    pub findings: FileFindings,
    /// The identity of the content; `None` if a part of the map is lost.
    pub(super) content: Option<ContentId>,
    /// The transaction that wrote the newest extent of the version.
    pub(super) written: Generation,
    /// The number of states whose checksums may still be tried.
    pub(super) tries: u32,
}

impl Version {
    /// Returns the judge of the version's content. `view` is the version's state.
    #[must_use]
    pub fn judge(&self, view: &View) -> Judge {
        judge(view, self.is_doubtful)
    }

    pub(super) const fn identity(&self) -> Identity {
        Identity {
            content: self.content,
            size: self.size,
            modified: self.modified,
            generation: self.inode_generation,
        }
    }

    /// Returns how far the content can be trusted.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.findings.verdict()
    }
}

/// Returns the judge of a state's content.
pub(super) fn judge(view: &View, is_doubtful: bool) -> Judge {
    let judge = Judge::new(&view.filesystem);
    match is_doubtful {
        true => judge.doubting("the state may not have been committed"),
        false => judge,
    }
}

/// The identity of a version's content: a hash of the inode's generation, the size and the map. Two
/// states with the same identity have the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentId(u64);

/// The identity of a file in a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// `None` if a part of the map is lost.
    content: Option<ContentId>,
    size: ByteCount,
    modified: Timestamp,
    generation: Generation,
}

impl Identity {
    /// Returns whether the file of an older state has the same content. If the older map is lost in
    /// part, inode, size and time count. A whole older map is never that of a damaged newer file.
    pub(super) fn has_content_of(&self, older: &Self) -> bool {
        let facts = |file: &Self| (file.size, file.modified, file.generation);
        match (self.content, older.content) {
            (Some(own), Some(other)) => own == other,
            (_, None) => facts(self) == facts(older),
            (None, Some(_)) => false,
        }
    }
}

/// An inode as a state has it.
pub(super) struct Found {
    pub(super) record: InodeRecord,
    pub(super) lost: Option<Error>,
    pub(super) content: Option<ContentId>,
    /// The transaction that wrote the newest extent.
    pub(super) written: Generation,
}

impl Found {
    /// Reads an inode of a state. Returns `None` if nothing of it can be read.
    pub(super) fn read(view: &View, location: Location) -> Option<Self> {
        let filesystem = &view.filesystem;
        let (record, lost) = filesystem.salvaged_record(location, FileKind::Regular).ok()?;
        let mut found = Self {
            written: record.metadata.generation,
            record,
            lost,
            content: None,
        };
        if found.lost.is_none() {
            found.identify(view);
        }
        Some(found)
    }

    pub(super) const fn identity(&self) -> Identity {
        let metadata = &self.record.metadata;
        Identity {
            content: self.content,
            size: metadata.size,
            modified: metadata.modified,
            generation: metadata.generation,
        }
    }

    fn identify(&mut self, view: &View) {
        let metadata = &self.record.metadata;
        let mut hasher = DefaultHasher::new();
        (
            metadata.generation.get(),
            metadata.size.get(),
            metadata.mode & KIND_BITS,
        )
            .hash(&mut hasher);
        let known = self.record.extents.clone();
        let Ok(file) = view.filesystem.open_known(metadata.clone(), known) else {
            return;
        };
        let Ok(ranges) = file.extents() else { return };
        for range in ranges {
            let Ok(range) = range else { return };
            let written = range.generation.map(Generation::get);
            (range.offset.get(), range.length.get(), written).hash(&mut hasher);
            match &range.kind {
                RangeKind::Hole => 0_u8.hash(&mut hasher),
                RangeKind::Inline(inline) => inline.stored.hash(&mut hasher),
                RangeKind::Data(extent) | RangeKind::Preallocated(extent) => {
                    let is_data = matches!(range.kind, RangeKind::Data(_));
                    let place = (extent.logical.get(), extent.disk_bytes.get(), extent.offset.get());
                    (place, is_data).hash(&mut hasher);
                    self.written = range.generation.map_or(self.written, |by| by.max(self.written));
                }
            }
        }
        self.content = Some(ContentId(hasher.finish()));
    }

    /// Reads the content, and judges it.
    pub(super) fn examine(&self, judge: &Judge, progress: &Progress) -> Result<FileFindings> {
        let mut findings = match self.record.metadata.kind {
            FileKind::Regular => judge.examine(&self.record, progress)?,
            // Tree blocks have checksums of their own.
            _ => FileFindings::default(),
        };
        judge.complete(self.lost.as_ref(), &mut findings);
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::{ContentId, Identity};
    use buttress_format::{ByteCount, Generation, Timestamp};

    fn identity(content: Option<u64>, generation: u64) -> Identity {
        Identity {
            content: content.map(ContentId),
            size: ByteCount::new(4096),
            modified: Timestamp {
                seconds: 7,
                nanoseconds: 0,
            },
            generation: Generation::new(generation),
        }
    }

    #[test]
    fn whole_older_file_differs_from_lost_newer_one() {
        let lost = identity(None, 5);
        assert!(!lost.has_content_of(&identity(Some(1), 5)));
        assert!(lost.has_content_of(&identity(None, 5)));
        assert!(identity(Some(1), 5).has_content_of(&identity(Some(1), 5)));
        // Another inode with the same number, size and time is another file.
        assert!(!identity(Some(1), 5).has_content_of(&identity(None, 6)));
    }
}
