//! Compression of extents into the form that [`super::decompress`] and the kernel read.
//!
//! Each call compresses one extent of at most 128 KiB of content. A [`Compressor`] keeps its
//! contexts from one extent to the next, so each compressing thread keeps one.
//!
//! A compressed form must be at least one sector shorter than the content. If compression cannot
//! save a sector, the compressor stops as soon as it exceeds the limit, and returns `None`. Inline
//! content is not rounded to sectors, so it only has to become shorter.
//!
//! Source: btrfs(5), section "Compression": limits, levels and their defaults.

use super::{lzo, lzo1x, zlib};
use crate::file_extent::{COMPRESSED_EXTENT_BYTES_MAX, Compression};
use zlib_rs::{Deflate, DeflateFlush, Status};
use zstd_safe::{CCtx, CParameter, ResetDirective};

/// A compression algorithm and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressionMethod {
    compression: Compression,
    level: i8,
}

impl CompressionMethod {
    /// Returns the algorithm at its default level: 3 for zlib and zstd. LZO has no levels.
    #[must_use]
    pub const fn new(compression: Compression) -> Self {
        let level = match compression {
            Compression::Zlib | Compression::Zstd => 3,
            Compression::None | Compression::Lzo => 0,
        };
        Self { compression, level }
    }

    /// Returns the algorithm at the nearest level that it has: 1 to 9 for zlib, -15 to 15 without 0
    /// for zstd. Level 0 selects the default.
    #[must_use]
    pub fn with_level(compression: Compression, level: i32) -> Self {
        let default = Self::new(compression);
        let limits = match compression {
            _ if level == 0 => return default,
            Compression::Zlib => 1..=9,
            Compression::Zstd => -15..=15,
            Compression::None | Compression::Lzo => return default,
        };
        let level = level.clamp(*limits.start(), *limits.end());
        Self {
            compression,
            level: i8::try_from(level).unwrap_or(default.level),
        }
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn compression(self) -> Compression {
        self.compression
    }

    /// Returns the level, or 0 if the algorithm has no levels.
    #[must_use]
    pub const fn level(self) -> i8 {
        self.level
    }
}

impl core::str::FromStr for CompressionMethod {
    type Err = String;

    /// Parses a method in the form that users write: `zstd`, `zstd:9`, `zlib`, `lzo`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let known = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
        let compression = known.into_iter().find(|compression| compression.name() == name);
        let compression = compression.ok_or_else(|| format!("{name:?} is not zlib, lzo or zstd"))?;
        let Some(level) = level else {
            return Ok(Self::new(compression));
        };
        let wanted: i32 = level.parse().map_err(|_| format!("{level:?} is not a level"))?;
        let method = Self::with_level(compression, wanted);
        if i32::from(method.level()) != wanted && wanted != 0 {
            return Err(match compression {
                Compression::Zlib => "zlib has levels 1 to 9".to_owned(),
                Compression::Zstd => "zstd has levels -15 to 15".to_owned(),
                _ => format!("{name} has no levels"),
            });
        }
        Ok(method)
    }
}

/// The compression encoders, which are reused from one extent to the next. Each encoder is created
/// at its first use.
#[derive(Default)]
pub struct Compressor {
    zlib: Option<(i8, Deflate)>,
    zstd: Option<CCtx<'static>>,
    lzo: Option<lzo1x::Encoder>,
}

impl core::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Compressor {
    /// Makes a compressor that has created no encoder yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the stored form of a regular extent: whole sectors, padded with zeros, at least one
    /// sector shorter than the content. Returns `None` if the content does not compress to that
    /// size, is empty, or exceeds [`COMPRESSED_EXTENT_BYTES_MAX`].
    pub fn compress(
        &mut self,
        method: CompressionMethod,
        content: &[u8],
        sector_bytes: usize,
    ) -> Option<Vec<u8>> {
        let sectors_bytes = content.len().checked_next_multiple_of(sector_bytes)?;
        let limit_bytes = sectors_bytes.checked_sub(sector_bytes)?;
        let mut stored = self.encode(method, content, limit_bytes, sector_bytes)?;
        stored.resize(stored.len().checked_next_multiple_of(sector_bytes)?, 0);
        Some(stored)
    }

    /// Returns the stored form of inline content, at most `limit_bytes` long and shorter than the
    /// content. The content is at most one sector. Returns `None` if the content does not compress
    /// to that size.
    pub fn compress_inline(
        &mut self,
        method: CompressionMethod,
        content: &[u8],
        sector_bytes: usize,
        limit_bytes: usize,
    ) -> Option<Vec<u8>> {
        if content.len() > sector_bytes {
            return None;
        }
        let limit_bytes = limit_bytes.min(content.len().checked_sub(1)?);
        self.encode(method, content, limit_bytes, sector_bytes)
    }

    fn encode(
        &mut self,
        method: CompressionMethod,
        content: &[u8],
        limit_bytes: usize,
        sector_bytes: usize,
    ) -> Option<Vec<u8>> {
        let is_too_long = u64::try_from(content.len()).is_ok_and(|bytes| bytes > COMPRESSED_EXTENT_BYTES_MAX);
        if limit_bytes == 0 || is_too_long {
            return None;
        }
        match method.compression {
            Compression::None => None,
            Compression::Zlib => self.encode_zlib(method.level, content, limit_bytes),
            Compression::Zstd => self.encode_zstd(method.level, content, limit_bytes),
            Compression::Lzo => {
                let encoder = self.lzo.get_or_insert_with(lzo1x::Encoder::new);
                lzo::compress(encoder, content, sector_bytes, limit_bytes)
            }
        }
    }

    fn encode_zlib(&mut self, level: i8, content: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let encoder = match &mut self.zlib {
            Some((present, encoder)) if *present == level => {
                encoder.reset();
                encoder
            }
            other => {
                let deflate = Deflate::new(i32::from(level), true, zlib::WINDOW_BITS);
                &mut other.insert((level, deflate)).1
            }
        };
        let mut stored = vec![0; limit_bytes];
        let status = encoder.compress(content, &mut stored, DeflateFlush::Finish);
        if !matches!(status, Ok(Status::StreamEnd)) {
            return None;
        }
        stored.truncate(usize::try_from(encoder.total_out()).ok()?);
        Some(stored)
    }

    /// Encodes a zstd frame. Its known length limits the window to 128 KiB, the most that the
    /// kernel's decoder supports.
    fn encode_zstd(&mut self, level: i8, content: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let encoder = match &mut self.zstd {
            Some(encoder) => encoder,
            none => none.insert(CCtx::try_create()?),
        };
        encoder.reset(ResetDirective::SessionAndParameters).ok()?;
        encoder
            .set_parameter(CParameter::CompressionLevel(i32::from(level)))
            .ok()?;
        let mut stored = vec![0; limit_bytes];
        let stored_bytes = encoder.compress2(stored.as_mut_slice(), content).ok()?;
        stored.truncate(stored_bytes);
        Some(stored)
    }
}

#[cfg(test)]
mod tests;
