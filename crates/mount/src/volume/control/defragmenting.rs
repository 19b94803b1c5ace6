//! `BTRFS_IOC_DEFRAG` and `BTRFS_IOC_DEFRAG_RANGE`, the commands of `btrfs filesystem defragment`.
//!
//! The kernel also accepts callers with write permission by groups or access lists; the server
//! accepts the owner and privileged callers. A signal to the caller and an unmount end the call with
//! `EINTR`; what was defragmented stays so. For a directory, the kernel defragments trees; the
//! server does nothing.
//!
//! Source: `linux/btrfs.h`, `struct btrfs_ioctl_defrag_range_args`.

use super::super::MountedVolume;
use super::arguments::Fields;
use super::rights::{require_owner, require_privileged};
use crate::vfs::{Answered, Control, Errno, Result, Stale};
use buttress::{
    ByteCount, Compression, CompressionMethod, DefragmentCompression, DefragmentOptions, FileKind,
    FileOffset, Location,
};

/// Bits of the flags.
const COMPRESS: u64 = 1;
const START_IO: u64 = 2;
const COMPRESS_LEVEL: u64 = 4;
const NO_COMPRESS: u64 = 8;
const KNOWN: u64 = COMPRESS | START_IO | COMPRESS_LEVEL | NO_COMPRESS;

/// The target size for a size of zero.
const TARGET: u32 = 256 << 10;

impl MountedVolume {
    /// Defragments a whole file.
    pub(super) fn defragment_all(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let options = DefragmentOptions {
            target: ByteCount::new(TARGET.into()),
            ..DefragmentOptions::default()
        };
        self.defragment_by(location, control, &options)
    }

    /// Defragments a range of a file.
    pub(super) fn defragment_range(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let options = options_of(control.input)?;
        self.defragment_by(location, control, &options)
    }

    fn defragment_by(
        &self,
        location: Location,
        control: &Control<'_>,
        options: &DefragmentOptions,
    ) -> Result<Answered> {
        let writer = self.writer()?;
        let metadata = self.metadata(location)?;
        match metadata.kind {
            FileKind::Directory => {
                require_privileged(control.caller)?;
                return Ok(Answered::default());
            }
            FileKind::Regular => require_owner(control.caller, &metadata)?,
            _ => return Err(Errno::INVAL),
        }
        let _job = self.begin_job(control)?;
        let done = writer.defragment(location, options, control.progress);
        done.map_err(|error| self.failed(&error))?;
        // The file's space changed, and the kernel may have its attributes cached.
        let node = self.numbers.of(location)?;
        Ok(Answered {
            stale: vec![Stale::Attributes(node)],
            ..Answered::default()
        })
    }
}

fn options_of(input: &[u8]) -> Result<DefragmentOptions> {
    let mut fields = Fields(input);
    let (start, length, flags) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (target, compression) = (fields.u32()?, fields.u32()?);
    if flags & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // As in Linux, a range without length reaches to the end of the file.
    let length = match length {
        0 => u64::MAX,
        length => length,
    };
    Ok(DefragmentOptions {
        start: FileOffset::new(start),
        length: ByteCount::new(length),
        target: ByteCount::new(u64::from(if target == 0 { TARGET } else { target })),
        compression: compression_of(flags, compression)?,
        ..DefragmentOptions::default()
    })
}

/// Returns the compression of a call. With a level, the first byte of the field is the algorithm
/// and the second is the level.
fn compression_of(flags: u64, field: u32) -> Result<DefragmentCompression> {
    if flags & NO_COMPRESS != 0 {
        let is_both = flags & (COMPRESS | COMPRESS_LEVEL) != 0;
        return match is_both {
            true => Err(Errno::INVAL),
            false => Ok(DefragmentCompression::Never),
        };
    }
    if flags & COMPRESS == 0 {
        return Ok(DefragmentCompression::Keep);
    }
    let [kind, level, _, _] = field.to_le_bytes();
    let (kind, level) = match flags & COMPRESS_LEVEL {
        0 => (field, 0),
        _ => (u32::from(kind), i32::from(level.cast_signed())),
    };
    let compression = match kind {
        0 | 1 => Compression::Zlib,
        2 => Compression::Lzo,
        3 => Compression::Zstd,
        _ => return Err(Errno::INVAL),
    };
    Ok(DefragmentCompression::With(CompressionMethod::with_level(
        compression,
        level,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(flags: u64, target: u32, compression: u32) -> Vec<u8> {
        input_of(u64::MAX, flags, target, compression)
    }

    fn input_of(length: u64, flags: u64, target: u32, compression: u32) -> Vec<u8> {
        let words = [4096, length, flags].into_iter().flat_map(u64::to_ne_bytes);
        let halves = [target, compression, 0, 0, 0, 0]
            .into_iter()
            .flat_map(u32::to_ne_bytes);
        words.chain(halves).collect()
    }

    #[test]
    fn range_without_length_reaches_to_the_end() {
        let length_of = |length| {
            options_of(&input_of(length, 0, 0, 0))
                .unwrap_or_default()
                .length
                .get()
        };
        assert_eq!((length_of(0), length_of(4096)), (u64::MAX, 4096));
    }

    #[test]
    fn structure_of_the_kernel_gives_options() {
        let options = options_of(&input(START_IO, 0, 7)).unwrap_or_default();
        assert_eq!((options.start.get(), options.target.get()), (4096, 256 << 10));
        assert_eq!(options.compression, DefragmentCompression::Keep);
        let of = |flags, field| compression_of(flags, field);
        let zstd = CompressionMethod::with_level(Compression::Zstd, -5);
        let with_level = 3 | 0xfb << 8;
        assert_eq!(
            of(COMPRESS | COMPRESS_LEVEL, with_level),
            Ok(DefragmentCompression::With(zstd))
        );
        let zlib = CompressionMethod::new(Compression::Zlib);
        assert_eq!(of(COMPRESS, 0), Ok(DefragmentCompression::With(zlib)));
        assert_eq!(of(NO_COMPRESS, 0), Ok(DefragmentCompression::Never));
        assert!(of(COMPRESS, 4).is_err() && of(COMPRESS | NO_COMPRESS, 1).is_err());
        assert!(options_of(&input(16, 0, 0)).is_err() && options_of(&[0; 20]).is_err());
    }
}
