//! Regular files: content with its holes, then attributes.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use buttress_fs::{Content, WalkEntry};
use rustix::fs::{Mode, OFlags};

use super::Shared;
use super::attributes::Attributes;
use super::destination::{Directory, make_way};

/// Makes the file `name` in `directory`. Damaged ranges stay holes, and are reported.
pub(super) fn make(
    directory: &Directory,
    name: &OsStr,
    entry: &mut WalkEntry,
    shared: &Shared,
) -> Result<()> {
    let attributes = Attributes::of(entry, shared);
    // Until it has its owner and content, a file that keeps its mode is nobody else's business.
    let mode = if shared.preserve.all() {
        0o600
    } else {
        attributes.permissions & 0o777
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = make_way(directory, name, || {
        rustix::fs::openat(directory.fd(), name, flags, Mode::from_raw_mode(mode))
    })?;
    let file = File::from(fd);
    let size = entry.metadata().size.get();
    let mut written_to = 0;
    let mut reader = entry.reader()?;
    while let Some(chunk) = reader.next_chunk()? {
        let end = chunk.end();
        match chunk.content {
            Content::Data(bytes) => {
                file.write_all_at(&bytes, chunk.offset.get()).context("writing")?;
                written_to = end.get();
                shared.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                shared.progress.advance(0, chunk.length);
            }
            Content::Hole => {}
            Content::Damaged(error) => {
                shared.lost(anyhow::Error::new(error).context(entry.path().escape_ascii().to_string()));
            }
        }
    }
    if written_to < size {
        file.set_len(size)
            .with_context(|| format!("making it {size} bytes long"))?;
    }
    shared.files.fetch_add(1, Ordering::Relaxed);
    if shared.preserve.all() {
        attributes.apply_to_file(&file, shared)
    } else {
        Ok(())
    }
}
