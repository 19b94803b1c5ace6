//! Extents in the text of `filefrag` 1.47.
//!
//! Places are in blocks, those of inline content in bytes. An extent that lies where the one before it would go on, either
//! right behind it or at the same distance as in the file, continues it; else it is a new piece, and `-v` shows where it
//! was expected. Columns grow with the file and the volume.

use std::io::{self, Write};

use buttress::{ByteCount, FiemapExtent, FiemapFlags, Logical};

use super::FLAG_NAMES;
use super::columns::Columns;

/// What `statfs(2)` says of btrfs.
const BTRFS_MAGIC: u32 = 0x9123_683e;

/// Sizes that the text depends on.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of the file.
    pub file: ByteCount,
    /// Of a block: a sector of the volume.
    pub block_bytes: u64,
    /// Of the volume.
    pub volume: ByteCount,
}

impl Sizes {
    /// How many blocks `bytes` take.
    fn blocks(&self, bytes: ByteCount) -> u64 {
        bytes.get().div_ceil(self.block_bytes.max(1))
    }

    /// The widths of offsets and addresses.
    fn widths(&self) -> (usize, usize) {
        let digits = |blocks: u64| {
            blocks
                .checked_ilog10()
                .and_then(|log| usize::try_from(log).ok())
                .unwrap_or(0)
        };
        (
            digits(self.blocks(self.file)).max(8),
            digits(self.blocks(self.volume)).max(10),
        )
    }
}

/// Prints what comes before the extents of a file.
pub fn print_title(sizes: &Sizes, name: &[u8], is_first: bool, out: &mut dyn Write) -> io::Result<()> {
    if is_first {
        writeln!(out, "Filesystem type is: {BTRFS_MAGIC:x}")?;
    }
    let blocks = sizes.blocks(sizes.file);
    let plural = if blocks == 1 { "" } else { "s" };
    out.write_all(b"File size of ")?;
    out.write_all(name)?;
    writeln!(
        out,
        " is {} ({blocks} block{plural} of {} bytes)",
        sizes.file.get(),
        sizes.block_bytes
    )
}

/// The extents of one file, as they come.
#[derive(Debug)]
pub struct Filefrag {
    sizes: Sizes,
    columns: Columns,
    number: u64,
    pieces: u64,
    /// Offset, address and length of the extent before.
    previous: (u64, u64, u64),
}

impl Filefrag {
    /// Nothing yet.
    pub fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: *sizes,
            columns: Columns::new(sizes.widths()),
            number: 0,
            pieces: 0,
            previous: (0, 0, 0),
        }
    }

    /// How many pieces there were.
    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Adds an extent; gives where it was expected, if it is a new piece.
    pub fn count(&mut self, extent: &FiemapExtent) -> Option<u64> {
        let (offset, length) = (extent.offset.get(), extent.length.get());
        let address = extent.address.map_or(0, Logical::get);
        let (last_offset, last_address, last_length) = self.previous;
        let at_distance = last_address.wrapping_add(offset.wrapping_sub(last_offset));
        let behind = last_address.wrapping_add(last_length);
        let is_new = offset != 0 && address != at_distance && address != behind;
        if is_new || self.pieces == 0 {
            self.pieces = self.pieces.saturating_add(1);
        }
        self.previous = (offset, address, length);
        is_new.then_some(at_distance)
    }

    /// Adds an extent, and its line to `text`; with the first the head comes before it.
    pub fn push_line(&mut self, extent: &FiemapExtent, text: &mut Vec<u8>) {
        let expected = self.count(extent);
        if self.number == 0 {
            self.columns.push_head(text);
        }
        let is_unknown = extent.flags.contains(FiemapFlags::UNKNOWN);
        let is_inline = extent.flags.contains(FiemapFlags::INLINE);
        let unit = if is_inline {
            1
        } else {
            self.sizes.block_bytes.max(1)
        };
        // There are millions of these divisions, and sectors are powers of two.
        let shift = unit.is_power_of_two().then(|| unit.trailing_zeros());
        let units = |bytes: u64| match shift {
            Some(shift) => bytes.checked_shr(shift).unwrap_or(0),
            None => bytes.checked_div(unit).unwrap_or(0),
        };
        let start = units(extent.offset.get());
        let length = if is_unknown { 0 } else { units(extent.length.get()) };
        let address = if is_unknown {
            0
        } else {
            units(extent.address.map_or(0, Logical::get))
        };
        let last = length.saturating_sub(1);
        let numbers = [
            self.number,
            start,
            start.saturating_add(last),
            address,
            address.saturating_add(last),
            length,
        ];
        let expected = expected.filter(|_| !is_unknown).map(units);
        self.columns.grow_for(self.number);
        self.columns.push_numbers(numbers, expected, text);
        for (_, name) in FLAG_NAMES.iter().filter(|(flag, _)| extent.flags.contains(*flag)) {
            text.extend_from_slice(name.as_bytes());
            text.push(b',');
        }
        // What separates the last column or flag from the next one.
        text.pop();
        if extent.end().get() >= self.sizes.file.get() {
            text.extend_from_slice(b",eof");
        }
        text.push(b'\n');
        self.number = self.number.saturating_add(1);
    }

    /// Prints the closing line.
    pub fn print_end(&self, name: &[u8], out: &mut dyn Write) -> io::Result<()> {
        out.write_all(name)?;
        let plural = if self.pieces == 1 { "" } else { "s" };
        writeln!(out, ": {} extent{plural} found", self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress::FileOffset;

    fn extent((offset, address, length, flags): (u64, u64, u64, u32)) -> FiemapExtent {
        FiemapExtent {
            offset: FileOffset::new(offset),
            length: ByteCount::new(length),
            address: (address != 0).then(|| Logical::new(address)),
            flags: FiemapFlags::from_bits_truncate(flags),
        }
    }

    /// The whole text for a file of `size` bytes, but for its title.
    fn text(size: u64, extents: &[(u64, u64, u64, u32)]) -> String {
        let sizes = Sizes {
            file: ByteCount::new(size),
            block_bytes: 4096,
            volume: ByteCount::new(1 << 30),
        };
        let mut report = Filefrag::new(&sizes);
        let mut text = Vec::new();
        for one in extents {
            report.push_line(&extent(*one), &mut text);
        }
        report.print_end(b"foo", &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    const HEAD: &str = " ext:     logical_offset:        physical_offset: length:   expected: flags:\n";

    // What filefrag 1.47.0 prints when the ioctl gives it these extents.
    #[test]
    fn text_is_that_of_filefrag() {
        let pieces = "   0:        0..       0:        256..       256:      1:            \n\
            \x20  1:        2..       2:        258..       258:      1:            \n\
            \x20  2:        4..       4:        502..       502:      1:        260: last\n\
            foo: 2 extents found\n";
        let extents = [
            (0, 1_048_576, 4096, 0),
            (8192, 1_056_768, 4096, 0),
            (16384, 2_056_192, 4096, 1),
        ];
        assert_eq!(text(524_288, &extents), format!("{HEAD}{pieces}"));
        let inline = "   0:        0..    4095:          0..      4095:   4096:             \
            last,not_aligned,inline,eof\nfoo: 1 extent found\n";
        assert_eq!(text(100, &[(0, 0, 4096, 0x301)]), format!("{HEAD}{inline}"));
        let waiting = "   0:        0..       0:          1..         1:      1:            \n\
            \x20  1:        2..       2:          0..         0:      0:             unknown_loc,delalloc\n\
            \x20  2:        4..       4:          4..         4:      1:          2: last\n\
            foo: 3 extents found\n";
        let extents = [(0, 4096, 4096, 0), (8192, 0, 4096, 6), (16384, 16384, 4096, 1)];
        assert_eq!(text(524_288, &extents), format!("{HEAD}{waiting}"));
        let without_flags = "   0:        0..       0:        256..       256:      1:            ,eof\n\
            \x20  1:        2..       2:          2..         2:      1:        258:,eof\n\
            foo: 2 extents found\n";
        let extents = [(0, 1_048_576, 4096, 0), (8192, 8192, 4096, 0)];
        assert_eq!(text(100, &extents), format!("{HEAD}{without_flags}"));
        assert_eq!(text(100, &[]), "foo: 0 extents found\n");
    }

    #[test]
    fn columns_grow_with_the_file() {
        let wide = " ext:             logical_offset:        physical_offset: length:   expected: flags:\n\
            \x20  0:            0..           0:        256..       256:      1:             last\n\
            foo: 1 extent found\n";
        assert_eq!(text(4 << 50, &[(0, 1_048_576, 4096, 1)]), wide);
    }
}
