//! The contents of a manifest's files: text in the manifest, files of the host, files of another
//! image.

use core::ops::Range;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use buttress_build::{ContentReader, Contents, DataExtent, EntryPath, FileContent, SourceError};
use buttress_format::{FileKind, FileOffset, SubvolumeId};
use buttress_fs::{Filesystem, Follow, RangeKind};
use rustix::fs::{Mode, OFlags, SeekFrom};

use super::error::Problem;

/// The locator holds the content.
const INLINE: u8 = 0;
/// The locator holds the state of a host file, followed by its path.
const HOST: u8 = 1;
/// The image of the manifest holds the content, at the path of the entry.
const IMAGE: u8 = 2;
/// The stamp holds seconds, nanoseconds and inode.
const STAMP_BYTES: usize = 24;

/// The place of contents that no table names.
#[derive(Debug)]
pub(super) enum Base {
    None,
    Directory(PathBuf),
    Image(Box<Filesystem>),
}

#[derive(Debug)]
pub(super) struct ManifestContents {
    folder: PathBuf,
    base: Base,
}

/// Makes a locator that holds the content.
pub(super) fn inline(bytes: Vec<u8>) -> (Vec<u8>, u64) {
    let size = bytes.len() as u64;
    ([vec![INLINE], bytes].concat(), size)
}

impl ManifestContents {
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self::with_base(folder, Base::None)
    }

    pub(super) const fn with_base(folder: PathBuf, base: Base) -> Self {
        Self { folder, base }
    }

    /// Returns the locator and the size of a host file, whose path is relative to the manifest.
    pub(super) fn of_host(&self, path: &Path) -> Result<(Vec<u8>, u64), Problem> {
        let path = self.folder.join(path);
        let failed = |cause: io::Error| Problem::Content {
            place: path.display().to_string(),
            cause: Box::new(cause),
        };
        let metadata = path.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        let locator = [&[HOST][..], &stamp(&metadata), path.as_os_str().as_bytes()].concat();
        Ok((locator, metadata.len()))
    }

    /// Returns the data extent of a file: of the host, or of the base's image at this path. Returns
    /// `None` for a file without holes.
    pub(super) fn data_of(&self, locator: &[u8], path: &[u8]) -> Option<DataExtent> {
        let (kind, rest) = locator.split_first()?;
        match (*kind, &self.base) {
            (HOST, _) => {
                let (_, path) = rest.split_first_chunk::<STAMP_BYTES>()?;
                let path = Path::new(std::ffi::OsStr::from_bytes(path));
                buttress_build::data_of_file(path, &path.metadata().ok()?)
            }
            (IMAGE, Base::Image(filesystem)) => data_of_image_file(filesystem, path),
            _ => None,
        }
    }

    /// Returns the locator and the size of the base's file at this path. If `size` is given, it is
    /// not checked yet.
    pub(super) fn of_base(&self, path: &[u8], size: Option<u64>) -> Result<(Vec<u8>, u64), Problem> {
        match &self.base {
            Base::None if size == Some(0) => Ok(inline(Vec::new())),
            Base::None => Err(Problem::NoContent),
            Base::Directory(directory) => self.of_host(&directory.join(std::ffi::OsStr::from_bytes(path))),
            Base::Image(filesystem) => {
                if let Some(size) = size {
                    return Ok((vec![IMAGE], size));
                }
                let failed = |cause| Problem::Content {
                    place: format!("/{}", String::from_utf8_lossy(path)),
                    cause,
                };
                let file = file_of(filesystem, path).map_err(failed)?;
                Ok((vec![IMAGE], file.size().get()))
            }
        }
    }
}

/// Returns the state of a file besides its size, which detects changes.
fn stamp(metadata: &std::fs::Metadata) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    let numbers = [
        metadata.mtime().to_le_bytes(),
        metadata.mtime_nsec().to_le_bytes(),
        metadata.ino().to_le_bytes(),
    ];
    for (place, byte) in stamp.iter_mut().zip(numbers.concat()) {
        *place = byte;
    }
    stamp
}

fn file_of(
    filesystem: &Filesystem,
    path: &[u8],
) -> Result<buttress_fs::File, Box<dyn std::error::Error + Send + Sync>> {
    let root = filesystem.root_directory(SubvolumeId::TOP_LEVEL);
    let location = filesystem.resolve(root, path, Follow::NotLast)?;
    let metadata = filesystem.metadata(location)?;
    if metadata.kind != FileKind::Regular {
        return Err("it is not a regular file".into());
    }
    Ok(filesystem.open_file(location)?)
}

/// Returns the data extent of a file inside an image. Returns `None` if the file has no holes, or
/// cannot be read: the read of its content reports the error.
fn data_of_image_file(filesystem: &Filesystem, path: &[u8]) -> Option<DataExtent> {
    let file = file_of(filesystem, path).ok()?;
    let size = file.size();
    if file.metadata().allocated >= size {
        return None;
    }
    let mut found = DataExtent::default();
    for range in file.extents_from(FileOffset::MIN).ok()? {
        let range = range.ok()?;
        if !matches!(range.kind, RangeKind::Hole | RangeKind::Preallocated(_)) {
            found = found.with_range(range.length.get());
        }
    }
    Some(found)
}

impl Contents for ManifestContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let place = || format!("/{}", String::from_utf8_lossy(path.as_bytes()));
        let size = content.size.get();
        let changed = |what: &str| SourceError::Changed {
            place: place(),
            what: what.to_owned(),
        };
        match (content.locator.split_first(), &self.base) {
            (Some((&INLINE, bytes)), _) => {
                let memory = FileContent {
                    size: content.size,
                    data: None,
                    locator: bytes.to_vec(),
                    share: None,
                };
                buttress_build::LocatorContents.open(path, &memory)
            }
            (Some((&HOST, rest)), _) => {
                let (stamp, path) = rest
                    .split_first_chunk::<STAMP_BYTES>()
                    .ok_or_else(|| changed("its position is unknown"))?;
                let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
                Ok(Box::new(HostReader::open(path, *stamp, size)?))
            }
            (Some((&IMAGE, _)), Base::Image(filesystem)) => {
                let file = file_of(filesystem, path.as_bytes()).map_err(|problem| SourceError::Invalid {
                    place: place(),
                    problem,
                })?;
                if file.size().get() != size {
                    return Err(SourceError::Changed {
                        place: place(),
                        what: format!(
                            "wrong size (found {} bytes, expected {size} by the manifest)",
                            file.size()
                        ),
                    });
                }
                Ok(Box::new(ImageReader { place: place(), file }))
            }
            _ => Err(changed("its position is unknown")),
        }
    }
}

/// A reader of a host file.
struct HostReader {
    path: PathBuf,
    file: File,
    stamp: [u8; STAMP_BYTES],
    size: u64,
}

impl HostReader {
    fn open(path: PathBuf, stamp: [u8; STAMP_BYTES], size: u64) -> Result<Self, SourceError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        let file = opened.map_err(|error| SourceError::Io {
            action: "opening",
            place: path.display().to_string(),
            cause: error.into(),
        })?;
        let reader = Self {
            path,
            file: File::from(file),
            stamp,
            size,
        };
        reader.compare()?;
        Ok(reader)
    }

    fn failed(&self, cause: io::Error) -> SourceError {
        SourceError::Io {
            action: "reading",
            place: self.path.display().to_string(),
            cause,
        }
    }

    fn compare(&self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|cause| self.failed(cause))?;
        let what = if metadata.len() != self.size {
            format!("its size changed from {} to {} bytes", self.size, metadata.len())
        } else if stamp(&metadata) != self.stamp {
            "it was changed or replaced".to_owned()
        } else {
            return Ok(());
        };
        Err(SourceError::Changed {
            place: self.path.display().to_string(),
            what,
        })
    }
}

impl ContentReader for HostReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        if from.get() >= self.size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(self.file.as_fd(), SeekFrom::Data(from.get())) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // The file system does not report holes.
            Err(_) => from.get(),
        };
        let end = rustix::fs::seek(self.file.as_fd(), SeekFrom::Hole(start)).unwrap_or(self.size);
        let end = end.min(self.size);
        Ok((start < end).then_some(FileOffset::new(start)..FileOffset::new(end)))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        match self.file.read_exact_at(into, at.get()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.compare()?;
                Err(self.failed(error))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.compare()
    }
}

/// A reader of an image's file, in its committed state, which does not change.
struct ImageReader {
    place: String,
    file: buttress_fs::File,
}

impl ImageReader {
    fn failed(&self, error: buttress_fs::Error) -> SourceError {
        SourceError::Invalid {
            place: self.place.clone(),
            problem: Box::new(error),
        }
    }
}

impl ContentReader for ImageReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        let size = self.file.size().get();
        let mut found: Option<(u64, u64)> = None;
        for range in self.file.extents_from(from).map_err(|error| self.failed(error))? {
            let range = range.map_err(|error| self.failed(error))?;
            let start = range.offset.get().max(from.get());
            let end = range.offset.get().saturating_add(range.length.get()).min(size);
            if start >= end {
                continue;
            }
            let is_hole = matches!(range.kind, RangeKind::Hole | RangeKind::Preallocated(_));
            found = match found {
                None if is_hole => continue,
                None => Some((start, end)),
                // Adjacent extents form one range of data.
                Some((first, known)) if !is_hole && known == start => Some((first, end)),
                Some(_) => break,
            };
        }
        Ok(found.map(|(start, end)| FileOffset::new(start)..FileOffset::new(end)))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        let mut filled = 0_usize;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let place = FileOffset::new(at.get().saturating_add(filled as u64));
            let read = self
                .file
                .read_at(place, rest)
                .map_err(|error| self.failed(error))?;
            if read == 0 {
                return Err(SourceError::Changed {
                    place: self.place.clone(),
                    what: format!("it ends at byte {place}"),
                });
            }
            filled = filled.saturating_add(read);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
