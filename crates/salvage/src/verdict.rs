//! Verdicts: how far the content of a restored file can be trusted.
//!
//! | verdict | when |
//! |---|---|
//! | verified | inode and extents are in sound blocks of the state; content matches its checksums |
//! | unverified | all content was read, and a part of it has no checksum that can be read |
//! | partial | a part of the content is lost |
//! | lost | nothing of the file could be read |
//!
//! Checksums count only if they come from the checksum tree of the state itself. A leaf of another
//! state can describe other data at the same address.
//!
//! # Left out
//!
//! Content of older generations.

use crate::complete::CompleteReader;
use crate::error::Result;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Chunk, Content, Corruption, Error, File, Filesystem, InodeRecord, Progress};

/// The largest number of lost ranges that are kept for one file.
pub const RANGES_MAX: usize = 10_000;

/// The largest number of bytes that are read again at once. A reader plans less data at once.
const AGAIN_MAX: u64 = 64 << 20;

/// The trust in a restored file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All content matches checksums.
    Verified,
    /// The content is complete, and a part of it has no checksum that can be read.
    Unverified,
    /// A part of the content is lost, and reads as zeros.
    Partial,
    /// Nothing could be read.
    Lost,
}

impl Verdict {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Unverified => "unverified",
            Self::Partial => "partial",
            Self::Lost => "lost",
        }
    }
}

/// The findings about a file while it is read.
#[derive(Clone, Debug, Default)]
pub struct FileFindings {
    /// The lost ranges, in order, at most [`RANGES_MAX`].
    pub lost: Vec<(FileOffset, ByteCount)>,
    /// The number of lost bytes.
    pub lost_bytes: ByteCount,
    /// The number of bytes without a checksum that can be read.
    pub unverified_bytes: ByteCount,
    /// The number of lost bytes that differ from their checksum, so that they were overwritten.
    pub mismatched_bytes: ByteCount,
    /// True if items of the inode are lost, so that its size and attributes may be wrong.
    pub has_lost_items: bool,
    /// True if the state may not have been committed, so that its tree blocks prove nothing.
    pub is_doubtful: bool,
    /// The first reason for a verdict that is not `verified`.
    pub reason: Option<String>,
}

impl FileFindings {
    /// Returns the verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.lost_bytes != ByteCount::ZERO {
            Verdict::Partial
        } else if self.lacks_proof() || self.has_lost_items {
            Verdict::Unverified
        } else {
            Verdict::Verified
        }
    }

    /// Returns the findings without the list of lost ranges, which a later read finds again.
    pub(crate) fn without_ranges(self) -> Self {
        Self {
            lost: Vec::new(),
            ..self
        }
    }

    /// Returns whether a part of the content has no checksum of a committed state.
    pub(crate) fn lacks_proof(&self) -> bool {
        self.unverified_bytes != ByteCount::ZERO || self.is_doubtful
    }

    /// Returns whether these findings, from an older state with the same version, say more than
    /// `known`: they verify more content, or prove that it was overwritten. An older state that cannot
    /// read content that `known` can read says less.
    pub(crate) fn is_better_than(&self, known: &Self) -> bool {
        let unproved = |findings: &Self| (findings.is_doubtful, findings.unverified_bytes);
        unproved(self) < unproved(known) && self.unreadable_bytes() <= known.unreadable_bytes()
    }

    /// Returns the number of lost bytes that could not be read at all.
    fn unreadable_bytes(&self) -> u64 {
        self.lost_bytes.get().exact_sub(self.mismatched_bytes.get())
    }

    /// Records that items of the inode are lost.
    pub fn lose_items(&mut self, error: &Error) {
        self.has_lost_items = true;
        self.reason
            .get_or_insert_with(|| format!("attributes may be wrong: {error}"));
    }

    fn lose(&mut self, offset: FileOffset, length: ByteCount, error: &Error) {
        self.reason.get_or_insert_with(|| error.to_string());
        self.lost_bytes = sum(self.lost_bytes, length);
        match self.lost.last_mut() {
            Some((start, known)) if start.saturating_add(*known) == offset => *known = sum(*known, length), // Clamp: ranges of one file.
            _ => {
                if self.lost.len() < RANGES_MAX {
                    self.lost.push((offset, length));
                }
            }
        }
    }

    /// Records that content differs from its checksum in all copies.
    fn mismatch(&mut self, offset: FileOffset, length: ByteCount, error: &Error) {
        self.lose(offset, length, error);
        self.mismatched_bytes = sum(self.mismatched_bytes, length);
    }

    fn doubt(&mut self, length: ByteCount, reason: impl FnOnce() -> String) {
        self.reason.get_or_insert_with(reason);
        self.unverified_bytes = sum(self.unverified_bytes, length);
    }
}

fn sum(one: ByteCount, other: ByteCount) -> ByteCount {
    ByteCount::new(one.get().exact_add(other.get()))
}

/// Judges the files of a state, and reads content again whose checksums cannot be read.
#[derive(Clone, Debug)]
pub struct Judge {
    filesystem: Filesystem,
    unverified: Filesystem,
    /// The reason why no file of the state is verified.
    doubt: Option<&'static str>,
}

impl Judge {
    /// Returns a judge of the files of `filesystem`.
    #[must_use]
    pub fn new(filesystem: &Filesystem) -> Self {
        Self {
            filesystem: filesystem.clone(),
            unverified: filesystem.without_data_checksums(),
            doubt: None,
        }
    }

    /// Returns a judge that verifies no file, for a reason.
    #[must_use]
    pub fn doubting(self, reason: &'static str) -> Self {
        Self {
            doubt: Some(reason),
            ..self
        }
    }

    /// Completes the findings about a file. `lost` is the first error of its items.
    pub fn complete(&self, lost: Option<&Error>, findings: &mut FileFindings) {
        if let Some(error) = lost {
            findings.lose_items(error);
        }
        // Holes, sizes and inline content are in tree blocks, which can be those of another commit.
        if let Some(reason) = self.doubt {
            findings.is_doubtful = true;
            findings.reason.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Takes a chunk that a reader of the file returned, and returns the chunks to write. Content
    /// whose checksums cannot be read is read without them.
    pub fn take(&self, record: &InodeRecord, chunk: Chunk, findings: &mut FileFindings) -> Vec<Chunk> {
        match &chunk.content {
            Content::Hole => vec![chunk],
            Content::Data(_) => {
                let has_checksums = |file: File| file.is_verified() || is_inline(record);
                if !self.filesystem.open_record(record).is_ok_and(has_checksums) {
                    findings.doubt(chunk.length, || "the file has no checksums".to_owned());
                } else if let Some(reason) = self.doubt.filter(|_| !is_inline(record)) {
                    findings.doubt(chunk.length, || reason.to_owned());
                }
                vec![chunk]
            }
            Content::Damaged(error) if is_mismatch(error) => {
                findings.mismatch(chunk.offset, chunk.length, error);
                vec![chunk]
            }
            // The map of a longer part is lost, so there is nothing to read.
            Content::Damaged(error) if chunk.length.get() > AGAIN_MAX => {
                findings.lose(chunk.offset, chunk.length, error);
                vec![chunk]
            }
            Content::Damaged(error) => self.read_again(record, &chunk, error, findings),
        }
    }

    /// Reads a whole file, and returns the findings. `progress` counts the bytes.
    ///
    /// # Errors
    /// Fails if `progress` was cancelled.
    pub fn examine(&self, record: &InodeRecord, progress: &Progress) -> Result<FileFindings> {
        let mut findings = FileFindings::default();
        let size = record.metadata.size;
        let file = match self.filesystem.open_record(record) {
            Ok(file) => file,
            Err(error) => {
                findings.lose(FileOffset::MIN, size, &error);
                return Ok(findings);
            }
        };
        let mut reader = CompleteReader::new(file.reader(), size);
        while let Some(chunk) = reader.next_chunk(progress)? {
            progress.advance(0, chunk.length);
            self.take(record, chunk, &mut findings);
        }
        Ok(findings)
    }

    fn read_again(
        &self,
        record: &InodeRecord,
        chunk: &Chunk,
        error: &Error,
        findings: &mut FileFindings,
    ) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut next = chunk.offset;
        if let Ok(file) = self.unverified.open_record(record) {
            let mut reader = file.reader_of(chunk.offset..chunk.end());
            while let Ok(Some(again)) = reader.next_chunk() {
                next = again.end();
                match &again.content {
                    Content::Data(_) => findings.doubt(again.length, || error.to_string()),
                    Content::Hole => {}
                    Content::Damaged(error) => findings.lose(again.offset, again.length, error),
                }
                chunks.push(again);
            }
        }
        if let Some(rest) = chunk
            .end()
            .checked_distance_from(next)
            .filter(|rest| *rest != ByteCount::ZERO)
        {
            findings.lose(next, rest, error);
        }
        chunks
    }
}

/// Returns whether content is stored in the tree, which has checksums of its own.
fn is_inline(record: &InodeRecord) -> bool {
    match record.extents.as_deref() {
        Some([range]) => matches!(range.kind, buttress_fs::RangeKind::Inline(_)),
        _ => false,
    }
}

/// Returns whether the data of every copy is wrong, so that reading it again helps nothing.
fn is_mismatch(error: &Error) -> bool {
    match error {
        Error::Corrupt(corruption) => matches!(**corruption, Corruption::DataChecksum { .. }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::FileFindings;
    use buttress_format::ByteCount;

    /// Returns findings about unverified, lost and mismatched bytes.
    fn findings(unverified: u64, lost: u64, mismatched: u64) -> FileFindings {
        FileFindings {
            unverified_bytes: ByteCount::new(unverified),
            lost_bytes: ByteCount::new(lost),
            mismatched_bytes: ByteCount::new(mismatched),
            ..FileFindings::default()
        }
    }

    #[test]
    fn older_findings_count_unless_content_is_unreadable() {
        let known = findings(4096, 0, 0);
        assert!(findings(0, 0, 0).is_better_than(&known));
        assert!(findings(0, 4096, 4096).is_better_than(&known));
        assert!(!findings(0, 4096, 0).is_better_than(&known));
        assert!(!findings(4096, 0, 0).is_better_than(&known));
    }
}
