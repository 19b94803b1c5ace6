//! The bytes of an archive with random access: the archive itself, or a spool of it.
//!
//! Members of an archive are found one after another, but their contents are needed in the order of
//! the image's layout. An uncompressed archive file is read in place. Every other archive (from a
//! pipe, or compressed) is first unpacked into a spool. The spool is a file without a name in the
//! directory for temporary files, so it disappears however the program ends. The memory of a spool
//! is bounded by a buffer. A spool takes as much space as the uncompressed archive.
//!
//! The archive's first bytes, not its name, determine the compression: gzip, zstd, xz or bzip2,
//! also with several concatenated streams.

use buttress_exact::Exact as _;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use buttress_build::SourceError;
use buttress_format::ByteCount;
use buttress_fs::Progress;

/// The number of bytes that are unpacked at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The number of first bytes that determine a compression.
const MAGIC_BYTES: usize = 6;

/// The binary logarithm of the largest window of zstd and xz: the archive chooses its size.
const WINDOW_LOG_MAX: u32 = 27;
/// The memory of the xz decoder in KiB: the largest window, and the decoder's own buffers.
const XZ_KIB_MAX: u32 = (1 << (WINDOW_LOG_MAX - 10)) + 1024;

/// Bytes with random access, for several readers in parallel.
#[derive(Clone, Debug)]
pub struct Store {
    bytes: Bytes,
    size: u64,
    /// The time of the last change of a file that is read in place.
    changed: Option<SystemTime>,
}

#[derive(Clone, Debug)]
enum Bytes {
    File(Arc<File>),
    Memory(Arc<[u8]>),
}

/// The reason why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The archive cannot be opened.
    #[error("opening: {0}")]
    Open(#[source] io::Error),
    /// The archive cannot be read, or its compressed data is damaged.
    #[error("byte {offset}{}: {cause}", compressed(.compression))]
    Read {
        /// The number of bytes that were unpacked before this part.
        offset: u64,
        /// The compression of the archive.
        compression: Option<Compression>,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// The job was cancelled.
    #[error("interrupted while reading")]
    Cancelled,
    /// The spool cannot be created or written.
    #[error("writing to a temporary file in {}, with {written} bytes in it: {cause}", .directory.display())]
    Spool {
        /// The directory of the spool.
        directory: PathBuf,
        /// The number of bytes that were written.
        written: u64,
        /// The reason.
        #[source]
        cause: io::Error,
    },
}

impl StoreError {
    /// Converts the error to that of a source with this name.
    #[must_use]
    pub fn of(self, name: String) -> SourceError {
        match self {
            Self::Open(cause) => SourceError::Io {
                action: "opening",
                place: name,
                cause,
            },
            Self::Read {
                compression: None,
                offset,
                cause,
            } => SourceError::Io {
                action: "reading",
                place: format!("byte {offset} of {name}"),
                cause,
            },
            Self::Spool {
                directory,
                written,
                cause,
            } => SourceError::Io {
                action: "writing to",
                place: format!(
                    "a temporary file in {} ({written} bytes of {name} are in it)",
                    directory.display()
                ),
                cause,
            },
            Self::Cancelled => SourceError::Io {
                action: "reading",
                place: name,
                cause: io::ErrorKind::Interrupted.into(),
            },
            other @ Self::Read { .. } => SourceError::Invalid {
                place: name,
                problem: Box::new(other),
            },
        }
    }
}

fn compressed(compression: &Option<Compression>) -> String {
    compression.map_or_else(String::new, |compression| {
        format!(" of what its {} compression holds", compression.name())
    })
}

/// The compression of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip, by RFC 1952.
    Gzip,
    /// zstd, by RFC 8878.
    Zstd,
    /// The .xz file format.
    Xz,
    /// bzip2.
    Bzip2,
}

impl Compression {
    /// Returns the compression of a file that begins with these bytes.
    #[must_use]
    pub fn of(beginning: &[u8]) -> Option<Self> {
        let magics: [(&[u8], Self); 4] = [
            (&[0x1f, 0x8b, 8], Self::Gzip),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (b"BZh", Self::Bzip2),
        ];
        magics
            .into_iter()
            .find(|(magic, _)| beginning.starts_with(magic))
            .map(|(_, compression)| compression)
    }

    /// Returns the name of the compression.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
        }
    }

    /// Makes a reader that unpacks.
    fn reader<'a>(self, packed: impl io::BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                // This limit accepts the output of `zstd --long=31` like `zstd -d --long=31`, with
                // at most 128 MiB of memory.
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
            Self::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, XZ_KIB_MAX)),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
        })
    }
}

impl Store {
    /// Makes a store of bytes in memory.
    #[must_use]
    pub fn of_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            size: bytes.len() as u64,
            bytes: Bytes::Memory(bytes),
            changed: None,
        }
    }

    /// Opens an archive: a file, or standard input for `-`. Spools are created in `spool`.
    ///
    /// # Errors
    /// Fails if the archive cannot be opened, read, unpacked or spooled.
    pub fn open(path: &Path, spool: &Path, progress: &Progress) -> Result<Self, StoreError> {
        let file = if path == Path::new("-") {
            let input = rustix::io::dup(io::stdin()).map_err(|error| StoreError::Open(error.into()))?;
            File::from(input)
        } else {
            File::open(path).map_err(StoreError::Open)?
        };
        let metadata = file.metadata().map_err(StoreError::Open)?;
        if metadata.is_dir() {
            return Err(StoreError::Open(io::ErrorKind::IsADirectory.into()));
        }
        if metadata.is_file() && path != Path::new("-") {
            let mut beginning = [0; MAGIC_BYTES];
            let length = read_up_to(&mut &file, &mut beginning).map_err(StoreError::Open)?;
            if Compression::of(beginning.get(..length).unwrap_or_default()).is_none() {
                return Ok(Self {
                    size: metadata.len(),
                    bytes: Bytes::File(Arc::new(file)),
                    changed: metadata.modified().ok(),
                });
            }
            let file = File::open(path).map_err(StoreError::Open)?;
            return Self::spooled(file, spool, progress);
        }
        Self::spooled(file, spool, progress)
    }

    /// Reads the input to its end, unpacks it, and keeps all bytes in a spool.
    ///
    /// # Errors
    /// Fails if the input cannot be read, unpacked or spooled.
    pub fn spooled(mut packed: impl Read, spool: &Path, progress: &Progress) -> Result<Self, StoreError> {
        Self::spooled_and_seen(&mut packed, spool, progress, &mut |_| {})
    }

    fn spooled_and_seen(
        packed: &mut dyn Read,
        spool: &Path,
        progress: &Progress,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<Self, StoreError> {
        let failed = |written, cause| StoreError::Spool {
            directory: spool.to_owned(),
            written,
            cause,
        };
        let mut file = tempfile::tempfile_in(spool).map_err(|cause| failed(0, cause))?;
        let size = unpack(packed, |written, bytes| {
            progress.check().map_err(|_| StoreError::Cancelled)?;
            see(bytes);
            progress.advance(0, ByteCount::of(bytes.len()));
            file.write_all(bytes).map_err(|cause| failed(written, cause))
        })?;
        Ok(Self {
            size,
            bytes: Bytes::File(Arc::new(file)),
            changed: None,
        })
    }

    /// Reads a layer through `packed` to the end, from `file`. Passes the unpacked bytes of the
    /// layer to `see`. A compressed layer is kept in a spool, and an uncompressed layer is read in
    /// place.
    pub(crate) fn of_layer(
        packed: &mut dyn Read,
        file: File,
        spool: &Path,
        progress: &Progress,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<Self, StoreError> {
        let metadata = file.metadata().map_err(StoreError::Open)?;
        let mut beginning = [0; MAGIC_BYTES];
        let length = file.read_at(&mut beginning, 0).map_err(StoreError::Open)?;
        if Compression::of(beginning.get(..length).unwrap_or_default()).is_some() {
            return Self::spooled_and_seen(packed, spool, progress, see);
        }
        unpack(packed, |_, bytes| {
            progress.check().map_err(|_| StoreError::Cancelled)?;
            see(bytes);
            Ok(())
        })?;
        Ok(Self {
            size: metadata.len(),
            bytes: Bytes::File(Arc::new(file)),
            changed: metadata.modified().ok(),
        })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Checks that a file that is read in place has not changed since it was opened.
    ///
    /// # Errors
    /// Returns an error that states the difference, if there is one.
    pub fn unchanged(&self) -> Result<(), String> {
        let (Bytes::File(file), Some(changed)) = (&self.bytes, self.changed) else {
            return Ok(());
        };
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if metadata.len() != self.size {
            return Err(format!(
                "its size changed from {} to {} bytes",
                self.size,
                metadata.len()
            ));
        }
        if metadata.modified().ok() != Some(changed) {
            return Err("it was changed".to_owned());
        }
        Ok(())
    }

    /// Fills `into` with the bytes from this offset on.
    ///
    /// # Errors
    /// Fails if the bytes cannot be read, or lie beyond the end.
    pub fn read_exact_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::File(file) => file.read_exact_at(into, at),
            Bytes::Memory(bytes) => {
                let start = at.narrow::<usize>();
                let found = bytes.get(start..start.saturating_add(into.len()));
                into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

/// Unpacks all of `packed` into `write`, which also receives the number of bytes unpacked before
/// each piece. Returns the total number of unpacked bytes.
pub(crate) fn unpack(
    packed: &mut dyn Read,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let mut beginning = [0; MAGIC_BYTES];
    let read = |offset, compression, cause| StoreError::Read {
        offset,
        compression,
        cause,
    };
    let length = read_up_to(packed, &mut beginning).map_err(|cause| read(0, None, cause))?;
    let beginning = beginning.get(..length).unwrap_or_default();
    let compression = Compression::of(beginning);
    let whole = BufReader::with_capacity(BUFFER_BYTES, beginning.chain(packed));
    let mut unpacked: Box<dyn Read + '_> = match compression {
        Some(method) => method
            .reader(whole)
            .map_err(|cause| read(0, compression, cause))?,
        None => Box::new(whole),
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut written = 0_u64;
    loop {
        let length = match unpacked.read(&mut buffer) {
            Ok(0) => return Ok(written),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read(written, compression, too_large(error))),
        };
        write(written, buffer.get(..length).unwrap_or_default())?;
        written = written.saturating_add(length as u64);
    }
}

/// Adds the limit to a decoder's report that a window exceeds it.
fn too_large(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::OutOfMemory {
        return error;
    }
    let text = format!(
        "its window is too large (expected at most {} bytes)",
        1 << WINDOW_LOG_MAX
    );
    io::Error::new(io::ErrorKind::OutOfMemory, text)
}

/// Reads until the buffer is full or the input ends.
fn read_up_to(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = into.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(more) => length = length.saturating_add(more),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(store: &Store) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(store.size()).unwrap()];
        store.read_exact_at(0, &mut bytes).unwrap();
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_compression_and_concatenated_streams_unpack() {
        let spool = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..700_000_u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        let (first, second) = content.split_at(1_000_001);
        let packed = [
            content.clone(),
            [gzip(first), gzip(second)].concat(),
            [bzip2(first), bzip2(second)].concat(),
            [
                zstd::bulk::compress(first, 3).unwrap(),
                zstd::bulk::compress(second, 1).unwrap(),
            ]
            .concat(),
        ];
        for packed in packed {
            let store = Store::spooled(packed.as_slice(), spool.path(), &Progress::new()).unwrap();
            assert!(all(&store) == content);
            let path = spool.path().join("archive");
            std::fs::write(&path, &packed).unwrap();
            assert!(all(&Store::open(&path, spool.path(), &Progress::new()).unwrap()) == content);
        }
        assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 1);
    }

    /// Returns an xz stream of the byte `x`, whose block header states this size of the window.
    fn xz(size: u8, header_checksum: [u8; 4]) -> Vec<u8> {
        let parts: [&[u8]; 5] = [
            b"\xfd7zXZ\x00\x00\x01\x69\x22\xde\x36",
            &[2, 0, 0x21, 1, size, 0, 0, 0],
            &header_checksum,
            b"\x01\x00\x00x\x00\x00\x00\x00\x83\x16\xdc\x8c\x00\x01\x15\x01\xa9\x63\x34\x60",
            b"\x90\x42\x99\x0d\x01\x00\x00\x00\x00\x01YZ",
        ];
        parts.concat()
    }

    #[test]
    fn xz_window_is_limited() {
        let spool = tempfile::tempdir().unwrap();
        let open = |packed: Vec<u8>| Store::spooled(packed.as_slice(), spool.path(), &Progress::new());
        let largest = xz(30, [0x9b, 0x07, 0x51, 0x66]);
        assert_eq!(all(&open(largest).unwrap()), b"x", "128 MiB");
        let too_large = [xz(31, [0xfe, 0x60, 0xed, 0xde]), xz(40, [0xe6, 0xa0, 0x11, 0xb3])];
        for packed in too_large {
            let error = open(packed).unwrap_err().to_string();
            assert!(error.contains("expected at most 134217728 bytes"), "{error}");
        }
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let spool = tempfile::tempdir().unwrap();
        let content = vec![7; 3 << 20];
        for packed in [
            gzip(&content),
            bzip2(&content),
            zstd::bulk::compress(&content, 3).unwrap(),
        ] {
            let cut = &packed[..packed.len() - 5];
            let error = Store::spooled(cut, spool.path(), &Progress::new()).unwrap_err();
            assert!(
                matches!(
                    &error,
                    StoreError::Read {
                        compression: Some(_),
                        ..
                    }
                ),
                "{error}"
            );
        }
        let missing = Store::spooled(&b"x"[..], Path::new("/nonexistent"), &Progress::new()).unwrap_err();
        assert!(
            matches!(missing, StoreError::Spool { written: 0, .. }),
            "{missing}"
        );
    }
}
