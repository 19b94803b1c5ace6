//! An open file of a volume that is open for writing: calls that change its content or make it
//! durable.

use super::File;
use crate::error::Result;
use crate::volume::WritableVolume;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::Progress;
use buttress_writer::AllocateMode;
use buttress_writer::data::{DefragmentOptions, DefragmentSummary};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Deref, Range};

/// An open file of a volume, for reading and writing. [`WritableFile`] dereferences to [`File`],
/// which has the calls that read.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use buttress::{ByteCount, Device, Volume};
/// # let device = Device::memory(vec![0; 256 << 20]);
/// # let volume = Volume::create().on_devices(vec![device])?;
/// use buttress::FileOffset;
/// use std::io::{Read, Seek, SeekFrom, Write};
///
/// let mut file = volume.root().create("notes")?;
/// file.write_all(b"first line\n")?;
/// file.write_at(FileOffset::new(0), b"FIRST")?;
/// file.seek(SeekFrom::Start(0))?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "FIRST line\n");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WritableFile {
    file: File,
    volume: WritableVolume,
}

impl Deref for WritableFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsRef<File> for WritableFile {
    fn as_ref(&self) -> &File {
        &self.file
    }
}

impl WritableFile {
    pub(crate) const fn new(volume: WritableVolume, file: File) -> Self {
        Self { file, volume }
    }

    /// Writes all bytes at an offset, without moving the file's own position. The file grows as
    /// needed, and gaps read as zeros.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// let file = root.create("data")?;
    /// file.write_at(FileOffset::new(3), b"!")?;
    /// assert_eq!(root.read("data")?, b"\0\0\0!");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the volume or the subvolume is read-only, if no space is free, or if the file would
    /// grow past 2^63 - 1 bytes.
    pub fn write_at(&self, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        Ok(self.volume.writer().write_at(self.location(), offset, bytes)?)
    }

    /// Writes all bytes at the current end of the file, and returns their offset.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let log = root.create("log")?;
    /// log.append(b"one\n")?;
    /// let second = log.append(b"two\n")?;
    /// assert_eq!(second.get(), 4);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] does.
    pub fn append(&self, bytes: &[u8]) -> Result<FileOffset> {
        Ok(self.volume.writer().append(self.location(), bytes)?)
    }

    /// Sets the file's size. A larger size adds a hole.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::ByteCount;
    ///
    /// let file = root.create("disk.img")?;
    /// file.set_size(ByteCount::new(1 << 30))?; // a hole, which takes no space
    /// assert_eq!(file.size()?.get(), 1 << 30);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] does.
    pub fn set_size(&self, size: ByteCount) -> Result<()> {
        Ok(self.volume.writer().truncate(self.location(), size)?)
    }

    /// Preallocates a range, or punches a hole into it.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{AllocateMode, FileOffset};
    ///
    /// let file = root.create("database")?;
    /// let range = FileOffset::new(0)..FileOffset::new(1 << 20);
    /// file.allocate(range, AllocateMode::Allocate)?;
    /// assert_eq!(file.size()?.get(), 1 << 20);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] does, or if the range is empty.
    pub fn allocate(&self, range: Range<FileOffset>, mode: AllocateMode) -> Result<()> {
        Ok(self.volume.writer().allocate(self.location(), range, mode)?)
    }

    /// Rewrites small extents of the file as large ones, or compresses its content. Content and
    /// times stay, and snapshots keep the old extents. Other threads may read and write the file
    /// meanwhile.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{CompressionMethod, Compression, FileOffset, Progress};
    /// use buttress::{DefragmentCompression, DefragmentOptions};
    ///
    /// let file = root.create("log")?;
    /// for line in 0..8_u64 {
    ///     file.write_at(FileOffset::new(line * 4096), &[b'x'; 4096])?;
    ///     file.sync()?; // each line is an extent of its own
    /// }
    /// let options = DefragmentOptions {
    ///     compression: DefragmentCompression::With(CompressionMethod::new(Compression::Zstd)),
    ///     ..DefragmentOptions::default()
    /// };
    /// let summary = file.defragment(&options, &Progress::new())?;
    /// assert_eq!((summary.old_extents, summary.new_extents), (8, 1));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The job was cancelled, or no space is free.
    /// - The subvolume is read-only, or the file is immutable.
    /// - The range begins past the end of the file.
    /// - Content cannot be read.
    ///
    /// The part before the error is defragmented.
    pub fn defragment(&self, options: &DefragmentOptions, progress: &Progress) -> Result<DefragmentSummary> {
        Ok(self
            .volume
            .writer()
            .defragment(self.location(), options, progress)?)
    }

    /// Shares the extents of a range of `source` with this file, from `offset` on. The bounds must
    /// be whole sectors, except for an end at the end of the source.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("original", vec![7; 8192])?;
    /// let (original, copy) = (root.open("original")?, root.create("copy")?);
    /// let second_half = FileOffset::new(4096)..FileOffset::new(8192);
    /// copy.clone_range(&original, second_half, FileOffset::new(0))?;
    /// assert_eq!(root.read("copy")?, vec![7; 4096]);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] does. Fails also if ranges are not whole sectors,
    /// overlap in one file, or end past the source.
    pub fn clone_range(
        &self,
        source: impl AsRef<File>,
        range: Range<FileOffset>,
        offset: FileOffset,
    ) -> Result<()> {
        let writer = self.volume.writer();
        Ok(writer.clone_range(source.as_ref().location(), range, self.location(), offset)?)
    }

    /// Copies `length` bytes of `source` to this file: shares extents if possible, and writes the
    /// rest. Returns the copied bytes, which are fewer if the source ends.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{ByteCount, FileOffset};
    ///
    /// root.write("original", "0123456789")?;
    /// let (original, copy) = (root.open("original")?, root.create("copy")?);
    /// copy.copy_range(&original, FileOffset::new(2), ByteCount::new(5), FileOffset::new(0))?;
    /// assert_eq!(root.read("copy")?, b"23456");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] does, or if the source cannot be read.
    pub fn copy_range(
        &self,
        source: impl AsRef<File>,
        source_offset: FileOffset,
        length: ByteCount,
        offset: FileOffset,
    ) -> Result<ByteCount> {
        let writer = self.volume.writer();
        // Clamp: in any case the copy ends at the end of the source.
        let range = source_offset..source_offset.saturating_add(length);
        Ok(writer.copy_range(source.as_ref().location(), range, self.location(), offset)?)
    }

    /// Shares the extents of a range of `source` with this file if both have the same bytes there.
    /// Returns whether the two ranges had equal bytes.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("one", vec![7; 8192])?;
    /// root.write("two", vec![7; 8192])?;
    /// let whole = FileOffset::new(0)..FileOffset::new(8192);
    /// let is_same = root.open("two")?.dedupe_range(&root.open("one")?, whole, FileOffset::new(0))?;
    /// assert!(is_same);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableFile::clone_range`] does, or if the content of a file cannot be read.
    pub fn dedupe_range(
        &self,
        source: impl AsRef<File>,
        range: Range<FileOffset>,
        offset: FileOffset,
    ) -> Result<bool> {
        let writer = self.volume.writer();
        Ok(writer.dedupe_range(source.as_ref().location(), range, self.location(), offset)?)
    }

    /// Makes the file's current content, attributes and names durable, as `fsync(2)` does. The cost
    /// depends on changes of the file, not on other changes of the volume.
    ///
    /// # Errors
    /// Fails as [`WritableVolume::sync`] does.
    pub fn sync(&self) -> Result<()> {
        self.volume.writer().log_tree().fsync(self.location())?;
        Ok(())
    }

    /// Makes the file durable as [`WritableFile::sync`] does, except for changes of times alone,
    /// like `fdatasync(2)`.
    ///
    /// # Errors
    /// Fails as [`WritableFile::sync`] does.
    pub fn sync_data(&self) -> Result<()> {
        self.volume.writer().log_tree().fdatasync(self.location())?;
        Ok(())
    }

    /// Makes the content of a range durable. A range without dirty data causes no write, even if
    /// the rest of the file is dirty.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// let file = root.create("journal")?;
    /// file.write_at(FileOffset::new(0), &[7; 8192])?;
    /// file.sync_range(FileOffset::new(0)..FileOffset::new(4096))?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`WritableVolume::sync`] does.
    pub fn sync_range(&self, range: Range<FileOffset>) -> Result<()> {
        self.volume
            .writer()
            .log_tree()
            .sync_range(self.location(), range)?;
        Ok(())
    }

    /// Writes all bytes at an offset, and returns once they are durable, as `write(2)` does on a
    /// file opened with `O_DSYNC`.
    ///
    /// # Errors
    /// Fails as [`WritableFile::write_at`] and [`WritableVolume::sync`] do.
    pub fn write_durably_at(&self, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        let writer = self.volume.writer();
        writer
            .log_tree()
            .write_durably_at(self.location(), offset, bytes)?;
        Ok(())
    }
}

/// Reads from the file's current position.
impl Read for WritableFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Seek for WritableFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Writes at the file's current position. The handle buffers nothing, so `flush` does nothing. To
/// make writes durable, call [`WritableFile::sync`].
impl Write for WritableFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_at(FileOffset::new(self.file.position), bytes)?;
        // The write succeeded, so its end is an offset.
        self.file.position = self.file.position.exact_add(u64_of(bytes.len()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
