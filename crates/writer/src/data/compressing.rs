//! The extents that content becomes: plain extents of up to 128 MiB, compressed extents of up to
//! 128 KiB of content.
//!
//! Content is compressed in pieces of 128 KiB on all cores. A piece that would not save a sector by
//! compression stays plain, and adjacent plain pieces become one extent. Unless compression is
//! forced, an estimate decides whether a piece is compressed at all. After one failed attempt to
//! compress, the inode is marked. Later write-backs skip compression, except if the inode's own
//! property requests it.
//!
//! Source: btrfs(5), section "Compression".

use super::content::Content;
use crate::areas::WriteBack;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::compression::{CompressionMethod, Compressor, looks_compressible};
use buttress_format::{Compression, InodeFlags, InodeItem};
use buttress_fs::error::Result;
use buttress_fs::executor::Task;
use buttress_fs::property::{COMPRESSION_NAME, CompressionProperty};
use bytes::{Bytes, BytesMut};
use core::cell::RefCell;

/// The most bytes of content in a compressed extent.
pub(super) const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// The greatest length of a plain extent, in bytes.
pub(super) const EXTENT_BYTES_MAX: u64 = 128 << 20;

/// How a file's content is compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompressionPlan {
    pub(super) method: CompressionMethod,
    /// Whether to compress without first estimating the compressibility.
    pub(super) is_forced: bool,
    /// Whether a failed attempt to compress marks the file as incompressible.
    pub(super) gives_up: bool,
}

/// A new extent that has no address yet.
#[derive(Clone, Debug)]
pub(super) struct NewExtent {
    /// The file offset at which the extent begins.
    pub(super) start: u64,
    /// The number of bytes of the file that the extent covers.
    pub(super) length: u64,
    pub(super) compression: Compression,
    /// The bytes of the extent to store, in order.
    pub(super) parts: Vec<Bytes>,
    /// The content of a compressed extent, in case it must be stored plain.
    pub(super) plain: Option<Bytes>,
    /// The part that the file uses of a compressed extent's content; `None` for all of it.
    pub(super) part: Option<PartOfExtent>,
}

/// The part of a compressed extent's content that a file uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartOfExtent {
    /// The length of the whole content, in bytes.
    pub(super) ram_bytes: u64,
    /// The offset of the part in the content.
    pub(super) offset: u64,
}

impl NewExtent {
    pub(super) fn stored_bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, part| sum.saturating_add(length_of(part)))
    }

    /// Cuts a plain extent in two, and returns the second part.
    pub(super) fn split_off(&mut self, length: u64) -> Self {
        let mut rest = Vec::new();
        let mut kept = Vec::new();
        let mut left = length;
        for part in core::mem::take(&mut self.parts) {
            let taken = left.min(length_of(&part));
            let at = taken.narrow::<usize>();
            if at > 0 {
                kept.push(part.slice(..at));
            }
            if at < part.len() {
                rest.push(part.slice(at..));
            }
            left = left.saturating_sub(taken);
        }
        let whole = self.length;
        self.parts = kept;
        self.length = length;
        Self {
            start: self.start.saturating_add(length),
            length: whole.saturating_sub(length),
            compression: Compression::None,
            parts: rest,
            plain: None,
            part: None,
        }
    }

    /// Returns the same extent for storage without compression.
    pub(super) fn into_plain(self) -> Self {
        match self.plain {
            Some(plain) => Self {
                compression: Compression::None,
                parts: vec![plain],
                plain: None,
                part: None,
                ..self
            },
            None => self,
        }
    }
}

pub(super) fn length_of(bytes: &[u8]) -> u64 {
    u64_of(bytes.len())
}

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = RefCell::new(Compressor::new());
}

/// Runs `body` with this thread's compressor.
pub(super) fn with_compressor<T>(body: impl FnOnce(&mut Compressor) -> T) -> T {
    COMPRESSOR.with_borrow_mut(body)
}

/// The result of compressing a piece.
enum Outcome {
    Compressed(Bytes, Vec<u8>),
    /// The piece is stored uncompressed, because the estimate advised against compression.
    Plain,
    /// The piece is stored uncompressed, because compression saved no sector.
    Failed,
}

impl Content<'_> {
    /// Returns how the file's content is to be compressed, if at all.
    pub(super) fn compression_plan(&self, item: &InodeItem) -> Result<Option<CompressionPlan>> {
        let options = self.filesystem.data().options;
        let flags = item.flags;
        if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            return Ok(None);
        }
        let mut own = None;
        if flags.contains(InodeFlags::COMPRESS) {
            let value = self
                .filesystem
                .read_under_lock(|operation| operation.xattr(self.location, COMPRESSION_NAME))?;
            own = value.and_then(|value| CompressionProperty::parse(&value).ok());
        }
        let property = match own {
            Some(CompressionProperty::With(compression)) => Some(CompressionMethod::new(compression)),
            Some(CompressionProperty::Never) | None => None,
        };
        let method = property.or(options.compression);
        let default = flags
            .contains(InodeFlags::COMPRESS)
            .then(|| CompressionMethod::new(Compression::Zlib));
        let Some(method) = method.or(default) else {
            return Ok(None);
        };
        let is_forced = options.compress_force && options.compression.is_some();
        if flags.contains(InodeFlags::NOCOMPRESS) && !is_forced {
            return Ok(None);
        }
        Ok(Some(CompressionPlan {
            method,
            is_forced,
            gives_up: !is_forced && property.is_none(),
        }))
    }
}

impl WriteBack<'_> {
    /// Returns the extents for a run of content, and whether an attempt to compress failed.
    pub(super) fn make_extents(
        &self,
        run: &[(u64, Bytes)],
        plan: Option<&CompressionPlan>,
    ) -> (Vec<NewExtent>, bool) {
        let Some(plan) = plan else {
            return (plain_extents(run.iter().cloned()), false);
        };
        let sector_bytes = self
            .filesystem
            .forest()
            .block_format()
            .sector_bytes
            .narrow::<usize>();
        let plan = *plan;
        let tasks: Vec<(u64, Bytes, Task<Outcome>)> = pieces(run)
            .into_iter()
            .map(|(start, piece)| {
                let content = piece.clone();
                let task = self
                    .filesystem
                    .executor()
                    .spawn(move || compress(&plan, content, sector_bytes));
                (start, piece, task)
            })
            .collect();
        let mut extents: Vec<NewExtent> = Vec::new();
        let mut plain: Vec<(u64, Bytes)> = Vec::new();
        let mut failed = false;
        for (start, piece, task) in tasks {
            match task.take() {
                Ok(Outcome::Compressed(content, stored)) => {
                    extents.extend(plain_extents(plain.drain(..)));
                    extents.push(NewExtent {
                        start,
                        length: length_of(&content),
                        compression: plan.method.compression(),
                        parts: vec![Bytes::from(stored)],
                        plain: Some(content),
                        part: None,
                    });
                }
                Ok(Outcome::Failed) => {
                    failed = true;
                    plain.push((start, piece));
                }
                Ok(Outcome::Plain) | Err(_) => plain.push((start, piece)),
            }
        }
        extents.extend(plain_extents(plain.drain(..)));
        (extents, failed && plan.gives_up)
    }
}

fn compress(plan: &CompressionPlan, content: Bytes, sector_bytes: usize) -> Outcome {
    // Content of one sector cannot save a sector.
    if content.len() <= sector_bytes || (!plan.is_forced && !looks_compressible(&content)) {
        return Outcome::Plain;
    }
    match with_compressor(|compressor| compressor.compress(plan.method, &content, sector_bytes)) {
        Some(stored) => Outcome::Compressed(content, stored),
        None => Outcome::Failed,
    }
}

/// Cuts a run into pieces that are compressed separately.
fn pieces(run: &[(u64, Bytes)]) -> Vec<(u64, Bytes)> {
    let most = COMPRESSED_BYTES_MAX.narrow::<usize>();
    let mut pieces = Vec::new();
    let mut begun: Option<(u64, BytesMut)> = None;
    for (start, bytes) in run {
        let mut start = *start;
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            if let Some((at, mut piece)) = begun.take() {
                let taken = rest.split_to(most.saturating_sub(piece.len()).min(rest.len()));
                start = start.saturating_add(length_of(&taken));
                piece.extend_from_slice(&taken);
                if piece.len() >= most {
                    pieces.push((at, piece.freeze()));
                } else {
                    begun = Some((at, piece));
                }
            } else if rest.len() >= most {
                let piece = rest.split_to(most);
                pieces.push((start, piece));
                start = start.saturating_add(COMPRESSED_BYTES_MAX);
            } else {
                begun = Some((start, BytesMut::from(&rest[..])));
                rest.clear();
            }
        }
    }
    pieces.extend(begun.map(|(at, piece)| (at, piece.freeze())));
    pieces
}

/// Returns extents that store adjacent pieces uncompressed.
pub(super) fn plain_extents(pieces: impl Iterator<Item = (u64, Bytes)>) -> Vec<NewExtent> {
    let mut extents: Vec<NewExtent> = Vec::new();
    for (start, bytes) in pieces {
        let length = length_of(&bytes);
        match extents.last_mut() {
            Some(last)
                if last.start.saturating_add(last.length) == start
                    && last.length.saturating_add(length) <= EXTENT_BYTES_MAX =>
            {
                last.length = last.length.saturating_add(length);
                last.parts.push(bytes);
            }
            _ => extents.push(NewExtent {
                start,
                length,
                compression: Compression::None,
                parts: vec![bytes],
                plain: None,
                part: None,
            }),
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_into_pieces_and_joined_again() {
        let mut at = 8192;
        let mut run = Vec::new();
        for (number, length) in [4096, 300 << 10, 1 << 20, 4096, 128 << 10, 8192]
            .into_iter()
            .enumerate()
        {
            run.push((at, Bytes::from(vec![u8::try_from(number).unwrap(); length])));
            at += length as u64;
        }
        let whole: Vec<u8> = run.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        let pieces = pieces(&run);
        let mut expected = 8192;
        let mut joined = Vec::new();
        for (position, (start, piece)) in pieces.iter().enumerate() {
            assert_eq!(*start, expected);
            assert!(piece.len() == 128 << 10 || position + 1 == pieces.len());
            expected += piece.len() as u64;
            joined.extend_from_slice(piece);
        }
        assert_eq!(joined, whole);
        let mut extents = plain_extents(run.into_iter());
        assert_eq!((extents.len(), extents[0].length), (1, whole.len() as u64));
        let rest = extents[0].split_off(12_288);
        assert_eq!((extents[0].stored_bytes(), rest.start), (12_288, 8192 + 12_288));
        assert_eq!(rest.parts.concat(), whole[12_288..]);
    }
}
