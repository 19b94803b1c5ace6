//! Extents in the text format of `filefrag` 1.47.
//!
//! Positions are in blocks, and in bytes for inline content. An extent continues the previous one
//! if it directly follows it, or follows at the same distance as in the file. If an extent does not
//! continue the previous one, it begins a new piece, and `-v` shows the expected address. Column
//! widths depend on the sizes of the file and the volume.

use std::io::{self, Write};

use buttress::{ByteCount, FiemapExtent, FiemapFlags, Logical};

use super::FLAG_NAMES;
use super::columns::Columns;

/// File system type of btrfs in `statfs(2)`.
const BTRFS_MAGIC: u32 = 0x9123_683e;

/// Sizes of file and volume that determine the text.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of the file.
    pub file: ByteCount,
    /// Size of a block in bytes: a sector of the volume.
    pub block_bytes: u64,
    /// Size of the volume.
    pub volume: ByteCount,
}

impl Sizes {
    /// Returns the number of blocks that hold `bytes`.
    fn blocks(&self, bytes: ByteCount) -> u64 {
        bytes.get().div_ceil(self.block_bytes.max(1))
    }

    /// Returns the widths of offsets and addresses.
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

/// Prints the title before the extents of a file.
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

/// State of the output of one file's extents.
#[derive(Debug)]
pub struct Filefrag {
    sizes: Sizes,
    columns: Columns,
    number: u64,
    pieces: u64,
    /// Offset, address and length of the previous extent.
    previous: (u64, u64, u64),
}

impl Filefrag {
    /// Creates the state before the first extent.
    pub fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: *sizes,
            columns: Columns::new(sizes.widths()),
            number: 0,
            pieces: 0,
            previous: (0, 0, 0),
        }
    }

    /// Returns the number of filefrag's pieces so far.
    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Adds an extent; returns its expected address if it begins a new piece.
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

    /// Adds an extent, and appends its line to `text`. The header precedes the first line.
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
        // A map may need millions of these divisions, and sector sizes are powers of two.
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
        // Remove the separator after the last column or flag.
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

    /// Returns the text for a file of `size` bytes, without its title.
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

    // The expected text is the output of filefrag 1.47.0 for these extents of the ioctl.
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
