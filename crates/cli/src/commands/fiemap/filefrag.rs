//! Extents in the text of `filefrag` 1.47.
//!
//! Places are in blocks, those of inline content in bytes. An extent that lies where the one before it would go on, either
//! right behind it or at the same distance as in the file, continues it; else it is a new piece, and `-v` shows where it
//! was expected. Columns grow with the file and the volume.

use std::io::{self, Write};

use buttress_format::{ByteCount, Logical};
use buttress_fs::{FiemapExtent, FiemapFlags};

use super::FLAG_NAMES;

/// What `statfs(2)` says of btrfs.
const BTRFS_MAGIC: u32 = 0x9123_683e;

/// Sizes that the text depends on.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of the file.
    pub file: ByteCount,
    /// Of a block: a sector of the volume.
    pub block_bytes: u32,
    /// Of the volume.
    pub volume: ByteCount,
}

impl Sizes {
    /// How many blocks `bytes` take.
    fn blocks(&self, bytes: ByteCount) -> u64 {
        bytes.get().div_ceil(u64::from(self.block_bytes.max(1)))
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
    widths: (usize, usize),
    number: u64,
    pieces: u64,
    /// Offset, address and length of the extent before.
    previous: (u64, u64, u64),
    /// The line that was made last.
    line: Vec<u8>,
}

impl Filefrag {
    /// Nothing yet.
    pub fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: *sizes,
            widths: sizes.widths(),
            number: 0,
            pieces: 0,
            previous: (0, 0, 0),
            line: Vec::new(),
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

    /// Adds an extent; gives its line, before which the head comes with the first.
    pub fn line(&mut self, extent: &FiemapExtent) -> &[u8] {
        let expected = self.count(extent);
        self.line.clear();
        if self.number == 0 {
            self.push_head();
        }
        let is_unknown = extent.flags.contains(FiemapFlags::UNKNOWN);
        let unit = if extent.flags.contains(FiemapFlags::INLINE) {
            1
        } else {
            self.sizes.block_bytes.max(1)
        };
        let units = |bytes: u64| bytes.checked_div(u64::from(unit)).unwrap_or(0);
        let start = units(extent.offset.get());
        let length = if is_unknown { 0 } else { units(extent.length.get()) };
        let address = if is_unknown {
            0
        } else {
            units(extent.address.map_or(0, Logical::get))
        };
        let last = length.saturating_sub(1);
        let (offset_width, address_width) = self.widths;
        self.push(self.number, 4, b": ");
        self.push(start, offset_width, b"..");
        self.push(start.saturating_add(last), offset_width, b": ");
        self.push(address, address_width, b"..");
        self.push(address.saturating_add(last), address_width, b": ");
        self.push(length, 6, b": ");
        self.push_flags(extent, expected.filter(|_| !is_unknown).map(units));
        self.number = self.number.saturating_add(1);
        &self.line
    }

    /// The names of the columns, and a new line.
    fn push_head(&mut self) {
        let (offset_width, address_width) = self.widths;
        let (offsets, addresses) = (offset_width.saturating_mul(2), address_width.saturating_mul(2));
        let head = format!(
            " ext: {:>offsets$} {:>addresses$} length: {:>expected$} flags:\n",
            "logical_offset:",
            "physical_offset:",
            "expected:",
            offsets = offsets.saturating_add(3),
            addresses = addresses.saturating_add(3),
            expected = address_width.saturating_add(1),
        );
        self.line.extend_from_slice(head.as_bytes());
    }

    /// A number to the right of so many columns, and what comes behind it. There may be millions of them, and the
    /// machinery of `format!` takes longer than finding an extent does.
    fn push(&mut self, number: u64, width: usize, behind: &[u8]) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        self.push_spaces(width.saturating_sub(digits.len()));
        self.line.extend_from_slice(digits);
        self.line.extend_from_slice(behind);
    }

    fn push_spaces(&mut self, count: usize) {
        self.line.resize(self.line.len().saturating_add(count), b' ');
    }

    /// The expected address and the flags: each with a separator behind it, of which the last one goes.
    fn push_flags(&mut self, extent: &FiemapExtent, expected: Option<u64>) {
        let width = self.widths.1;
        match expected {
            Some(expected) => self.push(expected, width, b": "),
            None => self.push_spaces(width.saturating_add(2)),
        }
        for (_, name) in FLAG_NAMES.iter().filter(|(flag, _)| extent.flags.contains(*flag)) {
            self.line.extend_from_slice(name.as_bytes());
            self.line.push(b',');
        }
        self.line.pop();
        if extent.end().get() >= self.sizes.file.get() {
            self.line.extend_from_slice(b",eof");
        }
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
    use buttress_format::FileOffset;

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
        let line_of =
            |one: &(u64, u64, u64, u32)| String::from_utf8(report.line(&extent(*one)).to_vec()).unwrap();
        let mut lines: Vec<String> = extents.iter().map(line_of).collect();
        let mut end = Vec::new();
        report.print_end(b"foo", &mut end).unwrap();
        lines.push(String::from_utf8(end).unwrap());
        lines.join("\n")
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
