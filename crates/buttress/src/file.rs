//! An open file: read, write and seek as in the standard library, and calls at explicit offsets
//! from several threads.

#[cfg(feature = "write")]
mod writable;

use crate::error::Result;
use crate::volume::{Access, Volume};
use buttress_accounts::{DataRuns, Fiemap, Maps as _};
use buttress_exact::u64_of;
#[cfg(feature = "write")]
use buttress_format::FileKind;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{FileExtents, FileReader, InodeRecord, Location, Metadata};
#[cfg(feature = "write")]
use buttress_writer::{WritableFilesystem, operations::OpenInode};
use core::ops::Range;
use std::io::{self, Read, Seek, SeekFrom};

#[cfg(feature = "write")]
pub use writable::WritableFile;

/// An open file of a volume, for reading. After its last name is removed, the file exists until
/// this value is dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use buttress::{ByteCount, Device, Volume};
/// # let device = Device::memory(vec![0; 256 << 20]);
/// # let volume = Volume::create().on_devices(vec![device])?;
/// # volume.root().write("notes", "first line")?;
/// use std::io::{Read, Seek, SeekFrom};
///
/// let mut file = volume.held()?.root().open("notes")?;
/// file.seek(SeekFrom::Start(6))?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "line");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct File {
    location: Location,
    content: Content,
    /// The offset of the next read or write.
    position: u64,
}

#[derive(Debug)]
enum Content {
    /// A file that does not change, and a stream with readahead, with its position.
    Still {
        file: buttress_fs::File,
        stream: Option<(u64, Box<FileReader>)>,
    },
    /// A file of a volume that is open for writing.
    #[cfg(feature = "write")]
    Live {
        writer: WritableFilesystem,
        /// Keeps the inode after its last name is removed.
        _open: OpenInode,
    },
}

impl Content {
    fn open(access: &Access, location: Location) -> Result<Self> {
        match access {
            Access::Reading(shown) => Ok(Self::Still {
                file: shown.filesystem.open_file(location)?,
                stream: None,
            }),
            #[cfg(feature = "write")]
            Access::Writing(writer) => {
                let open = writer.open_inode(location)?;
                match writer.live().metadata(location)?.kind {
                    FileKind::Regular => {}
                    FileKind::Directory => {
                        return Err(buttress_fs::Error::IsADirectory { location }.into());
                    }
                    _ => {
                        let what = "not a regular file";
                        return Err(buttress_fs::Error::Invalid { what }.into());
                    }
                }
                Ok(Self::Live {
                    writer: writer.clone(),
                    _open: open,
                })
            }
        }
    }
}

/// Lets a call that reads a file accept a writable file too.
impl AsRef<Self> for File {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl File {
    pub(crate) fn open(volume: &Volume, location: Location) -> Result<Self> {
        Ok(Self {
            location,
            content: Content::open(volume.access(), location)?,
            position: 0,
        })
    }

    pub(crate) fn open_record(volume: &Volume, record: &InodeRecord) -> Result<Self> {
        let location = record.metadata.location;
        match volume.access() {
            Access::Reading(shown) => Ok(Self {
                location,
                content: Content::Still {
                    file: shown.filesystem.open_record(record)?,
                    stream: None,
                },
                position: 0,
            }),
            #[cfg(feature = "write")]
            Access::Writing(_) => Self::open(volume, location),
        }
    }

    /// Returns the inode of the open file.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }

    /// Returns a reader of the file's current content, in chunks as they are stored. The reader
    /// reads the file ahead. An unreadable range is a chunk that contains the error, and the reader
    /// continues after it.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{ByteCount, Content};
    ///
    /// let file = root.create("sparse")?;
    /// file.set_size(ByteCount::new(1 << 20))?;
    /// let mut chunks = file.chunks()?;
    /// while let Some(chunk) = chunks.next_chunk()? {
    ///     assert!(matches!(chunk.content, Content::Hole));
    /// }
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the file's items cannot be read.
    pub fn chunks(&self) -> Result<FileReader> {
        Ok(self.still()?.reader())
    }

    /// Returns the runs of data from an offset on, as `SEEK_DATA` and `SEEK_HOLE` find them.
    ///
    /// # Errors
    /// Fails if the file's items cannot be read.
    pub fn data_runs(&self, start: FileOffset) -> Result<DataRuns> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.data_runs(start)?),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => Ok(writer.live().data_runs(self.location, start)?),
        }
    }

    /// Returns the current extents of the whole file as the tree maps them, including holes.
    ///
    /// # Errors
    /// Fails if the file's items cannot be read.
    pub fn ranges(&self) -> Result<FileExtents> {
        Ok(self.still()?.extents()?)
    }

    /// Writes dirty data back, and returns the file in its current state.
    fn still(&self) -> Result<buttress_fs::File> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.clone()),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => {
                writer.writeback().write_file(self.location)?;
                Ok(writer.view().open_file(self.location)?)
            }
        }
    }

    /// Returns the file's size.
    ///
    /// # Errors
    /// Fails if the inode cannot be read.
    pub fn size(&self) -> Result<ByteCount> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.size()),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => Ok(ByteCount::new(writer.contents().size_of(self.location)?)),
        }
    }

    /// Returns the attributes that `fstat(2)` returns.
    ///
    /// # Errors
    /// Fails if the inode cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.metadata().clone()),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => Ok(writer.live().metadata(self.location)?),
        }
    }

    /// Reads at an offset, without moving the file's own position. Returns the bytes read: fewer
    /// than requested only at the end of the file.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("data", "0123456789")?;
    /// let file = root.open("data")?;
    /// let mut end = [0; 100];
    /// assert_eq!(file.read_at(FileOffset::new(7), &mut end)?, 3);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a byte of the range cannot be read because no copy of it is valid.
    pub fn read_at(&self, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.read_at(offset, buffer)?),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => Ok(writer.live().read_at(self.location, offset, buffer)?),
        }
    }

    /// Fills the buffer from an offset on, without moving the file's own position.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("data", "0123456789")?;
    /// let file = root.open("data")?;
    /// let mut header = [0; 4];
    /// file.read_exact_at(FileOffset::new(0), &mut header)?;
    /// assert_eq!(&header, b"0123");
    /// assert!(file.read_exact_at(FileOffset::new(8), &mut header).is_err(), "there are two bytes left");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`File::read_at`] does. If the file ends before the buffer is full, the buffer
    /// holds the bytes up to the end.
    pub fn read_exact_at(&self, offset: FileOffset, buffer: &mut [u8]) -> Result<()> {
        let wanted = buffer.len();
        let read = self.read_at(offset, buffer)?;
        if read == wanted {
            return Ok(());
        }
        let why = format!("the file is too short (found {read} bytes at {offset}, expected {wanted})");
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into())
    }

    /// Returns the extents of a range with the flags of `FIEMAP`.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("data", vec![7; 100_000])?;
    /// volume.sync()?;
    /// let whole = FileOffset::new(0)..FileOffset::new(100_000);
    /// let extents: Result<Vec<_>, _> = root.open("data")?.extents(whole)?.collect();
    /// assert!(!extents.unwrap().is_empty());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the file's items cannot be read.
    pub fn extents(&self, range: Range<FileOffset>) -> Result<Fiemap> {
        match &self.content {
            Content::Still { file, .. } => Ok(file.fiemap(range)?),
            #[cfg(feature = "write")]
            Content::Live { writer, .. } => Ok(writer.live().fiemap(self.location, range)?),
        }
    }
}

/// Reads from the file's position on. If the volume is open for reading, it also reads ahead.
impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.content {
            Content::Still { file, stream } => {
                let end = FileOffset::new(file.size().get());
                let start = FileOffset::new(self.position);
                let (at, reader) = stream
                    .get_or_insert_with(|| (self.position, Box::new(file.reader_of(start.min(end)..end))));
                if *at != self.position {
                    (*at, **reader) = (self.position, file.reader_of(start.min(end)..end));
                }
                let read = reader.read(buffer)?;
                *at = at.saturating_add(u64_of(read));
                read
            }
            #[cfg(feature = "write")]
            Content::Live { .. } => self.read_at(FileOffset::new(self.position), buffer)?,
        };
        self.position = self.position.saturating_add(u64_of(read));
        Ok(read)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.size()?.get().checked_add_signed(by),
        };
        let target = target.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a position before the start of the file, or past 2^64, from {to:?}"),
            )
        })?;
        self.position = target;
        Ok(target)
    }
}
