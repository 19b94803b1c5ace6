//! Regular files: content with its holes, then attributes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use buttress::salvage::{CompleteReader, FileFindings};
use buttress::{ByteCount, Chunk, Content, FileReader, WalkEntry};
use rustix::fs::{AtFlags, OFlags};

use super::Shared;
use super::attributes::Attributes;
use super::beneath::{self, Identity};
use super::destination::{Directory, make_way};
use super::replacing::{Spot, Way, is_positioned};
use super::staging::stage;

/// Creates the file `name` in `directory`. If a range of the source is damaged, it becomes a hole
/// in the copy and is reported. Returns the identity of the file, by which hard links are
/// recognised. `handled` counts the processed bytes of the file, including holes.
pub(super) fn make(
    directory: &Directory,
    name: &OsStr,
    is_named: bool,
    entry: &mut WalkEntry,
    handled: &mut u64,
    shared: &Shared,
) -> Result<Option<Identity>> {
    // Open the source first, so that the copy truncates no file if the source is unreadable.
    let reader = entry.reader()?;
    let attributes = Attributes::of(entry, shared);
    // Until the file has its owner and content, no other user may access it.
    let mode = if shared.preserve.metadata() {
        0o600
    } else {
        attributes.permissions & 0o777
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let spot = Spot {
        directory,
        name,
        is_named,
        path: &entry.path(),
    };
    let mut is_new = false;
    let file = match spot.for_file(shared)? {
        Way::Closed => {
            if let Some(review) = &shared.review {
                review.skipped(entry);
            }
            return Ok(None);
        }
        Way::Free if shared.review.is_some() => {
            let inherits_acl = directory.has_default_acl();
            let replaces = shared.replacing.remove;
            let (identity, findings) = stage(directory, name, mode, replaces, |file| {
                fill(file, reader, (&attributes, inherits_acl), entry, handled, shared)
            })?;
            if let Some(review) = &shared.review {
                review.end(entry, &findings);
            }
            return Ok(Some(identity));
        }
        Way::Into(file) => file,
        Way::Free => {
            is_new = true;
            File::from(make_way(directory, name, || {
                beneath::open(directory.fd(), name, flags, mode)
            })?)
        }
    };
    if !is_positioned(&file) {
        *handled = entry.metadata().size.get();
        pour(&file, reader, entry, shared)?;
        return Ok(None);
    }
    let inherits_acl = is_new && directory.has_default_acl();
    let made = fill(&file, reader, (&attributes, inherits_acl), entry, handled, shared);
    if made.is_err() && is_new {
        // Remove the incomplete file, which could be mistaken for a complete one. This call has
        // created the file, so no other data is lost.
        let _ = rustix::fs::unlinkat(directory.fd(), name, AtFlags::empty());
    }
    Ok(Some(made?.0))
}

/// Writes a file's content and sets its attributes. Returns the file's identity, and the findings of
/// the review.
fn fill(
    file: &File,
    reader: FileReader,
    (attributes, inherits_acl): (&Attributes, bool),
    entry: &WalkEntry,
    handled: &mut u64,
    shared: &Shared,
) -> Result<(Identity, FileFindings)> {
    let size = entry.metadata().size.get();
    let mut written_to = 0;
    let mut source = Source::new(reader, size, shared);
    let mut findings = FileFindings::default();
    while let Some(chunk) = source.next(shared)? {
        *handled = handled.saturating_add(chunk.length.get());
        shared.progress.advance(0, chunk.length);
        let chunks = match &shared.review {
            Some(review) => review.take(entry, chunk, &mut findings),
            None => vec![chunk],
        };
        for chunk in chunks {
            let end = chunk.end();
            match chunk.content {
                Content::Data(bytes) => {
                    file.write_all_at(&bytes, chunk.offset.get()).context("writing")?;
                    written_to = end.get();
                    shared.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                // The review reports damage once for the whole file.
                Content::Damaged(_) if shared.review.is_some() => {}
                Content::Hole => {}
                Content::Damaged(error) => {
                    shared.lost(anyhow::Error::new(error).context(shared.shown(&entry.path())));
                }
            }
        }
    }
    if let Some(review) = &shared.review {
        review.check(entry, &findings)?;
    }
    if written_to < size && file.metadata()?.is_file() {
        file.set_len(size)
            .with_context(|| format!("making it {size} bytes long"))?;
    }
    shared.files.fetch_add(1, Ordering::Relaxed);
    attributes.apply_to_file(file, inherits_acl, shared)?;
    Ok((Identity::from(&rustix::fs::fstat(file)?), findings))
}

/// The content of a file.
enum Source {
    /// A plain copy ends at the first failure of the reader.
    Plain(Box<FileReader>),
    /// A restoration gets the rest in damaged pieces.
    Complete(Box<CompleteReader>),
}

impl Source {
    fn new(reader: FileReader, size: u64, shared: &Shared) -> Self {
        match shared.review {
            Some(_) => Self::Complete(Box::new(CompleteReader::new(reader, ByteCount::new(size)))),
            None => Self::Plain(Box::new(reader)),
        }
    }

    fn next(&mut self, shared: &Shared) -> Result<Option<Chunk>> {
        Ok(match self {
            Self::Plain(reader) => reader.next_chunk()?,
            Self::Complete(reader) => reader.next_chunk(&shared.progress)?,
        })
    }
}

/// Writes the content sequentially, with zeros for holes, to a pipe or a device that the user
/// named.
fn pour(mut file: &File, mut reader: FileReader, entry: &WalkEntry, shared: &Shared) -> Result<()> {
    while let Some(chunk) = reader.next_chunk()? {
        if let Content::Data(bytes) = &chunk.content {
            file.write_all(bytes).context("writing")?;
            shared.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        } else {
            let mut zeros = std::io::Read::take(std::io::repeat(0), chunk.length.get());
            std::io::copy(&mut zeros, &mut file).context("writing")?;
        }
        if let Content::Damaged(error) = chunk.content {
            shared.lost(anyhow::Error::new(error).context(shared.shown(&entry.path())));
        }
        shared.progress.advance(0, chunk.length);
    }
    shared.files.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
