//! Totals of the extents of a file.

use std::io::Write;

use anyhow::Result;
use buttress::{FiemapExtent, FiemapFlags};
use serde_json::{Map, Value, json};

use super::filefrag::{Filefrag, Sizes};
use crate::output::size::Units;

/// The kinds of extents that a summary counts, with the flag of each kind.
const KINDS: [(FiemapFlags, &str); 5] = [
    (FiemapFlags::SHARED, "shared"),
    (FiemapFlags::ENCODED, "encoded"),
    (FiemapFlags::UNWRITTEN, "unwritten"),
    (FiemapFlags::INLINE, "inline"),
    (FiemapFlags::DELALLOC, "delalloc"),
];

/// A number of extents, and their bytes in the file.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    extents: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.extents = self.extents.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Totals of one file.
#[derive(Debug)]
pub struct Summary {
    sizes: Sizes,
    pieces: Filefrag,
    all: Sum,
    kinds: [Sum; KINDS.len()],
    largest_bytes: u64,
}

impl Summary {
    /// Creates totals without extents.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            pieces: Filefrag::new(&sizes),
            sizes,
            all: Sum::default(),
            kinds: [Sum::default(); KINDS.len()],
            largest_bytes: 0,
        }
    }

    /// Adds an extent.
    pub fn add(&mut self, extent: &FiemapExtent) {
        let bytes = extent.length.get();
        self.pieces.count(extent);
        self.all.add(bytes);
        self.largest_bytes = self.largest_bytes.max(bytes);
        for (sum, (flag, _)) in self.kinds.iter_mut().zip(KINDS) {
            if extent.flags.contains(flag) {
                sum.add(bytes);
            }
        }
    }

    /// Prints the totals of the extents.
    pub fn print(&self, name: &[u8], out: &mut dyn Write) -> Result<()> {
        let units = Units::default();
        out.write_all(name)?;
        writeln!(
            out,
            ": {} extents in {} pieces, {} of {} mapped, the largest {}",
            self.all.extents,
            self.pieces.pieces(),
            units.text(self.all.bytes),
            units.text(self.sizes.file.get()),
            units.text(self.largest_bytes),
        )?;
        for (sum, (_, kind)) in self.kinds.iter().zip(KINDS).filter(|(sum, _)| sum.extents > 0) {
            writeln!(
                out,
                "    {kind:<10} {:>10} extents {:>10}",
                sum.extents,
                units.text(sum.bytes)
            )?;
        }
        Ok(())
    }

    /// Returns the totals as a JSON object, in bytes.
    pub fn as_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("size".into(), self.sizes.file.get().into());
        object.insert("extents".into(), self.all.extents.into());
        object.insert("pieces".into(), self.pieces.pieces().into());
        object.insert("mapped".into(), self.all.bytes.into());
        object.insert("largest".into(), self.largest_bytes.into());
        for (sum, (_, kind)) in self.kinds.iter().zip(KINDS) {
            object.insert(kind.into(), json!({ "extents": sum.extents, "bytes": sum.bytes }));
        }
        object
    }
}
