//! Verifies data against its checksums: every copy, on all cores.

use crate::context::Check;
use crate::finding::Finding;
use crate::roots::Root;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ChecksumItem, ChecksumType, ItemType, Logical, STRIPE_BYTES, TreeId};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, Tree};
use buttress_volume::ExtentRead;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;

/// The bytes of data that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Consecutive data sectors with their checksums.
struct Piece {
    logical: Logical,
    packed: Vec<u8>,
}

/// Reads pieces from the checksum tree.
struct Source {
    tree: Tree,
    at: Option<buttress_format::Key>,
    pieces: Vec<Piece>,
}

struct Verifier<'a> {
    check: &'a Check<'a>,
    source: Mutex<Source>,
    checksum_type: ChecksumType,
    verified: AtomicU64,
}

/// Verifies all data. Returns the number of verified bytes.
pub(crate) fn check(check: &Check<'_>, roots: &[Root]) -> Result<u64> {
    let Some(tree) = check.tree(TreeId::CHECKSUM, roots) else {
        return Ok(0);
    };
    let verifier = Verifier {
        check,
        source: Mutex::new(Source {
            tree,
            at: Some(buttress_format::Key::MIN),
            pieces: Vec::new(),
        }),
        checksum_type: check.filesystem.checksum_type(),
        verified: AtomicU64::new(0),
    };
    for result in crate::threads::run(check, usize::MAX, &|| verifier.work()) {
        result?;
    }
    Ok(verifier.verified.load(Ordering::Relaxed))
}

impl Source {
    /// Returns the next piece of data with checksums. Skips unreadable items, which the scan of all
    /// blocks reports.
    fn next(&mut self, check: &Check<'_>, checksum_type: ChecksumType) -> Option<Piece> {
        while self.pieces.is_empty() {
            let from = self.at?;
            let mut leaves = self.tree.leaves(from.., ReadAhead::ForwardAlways);
            let leaf = loop {
                match leaves.next() {
                    Ok(leaf) => break leaf,
                    Err(_) => continue,
                }
            };
            let Some(leaf) = leaf else {
                self.at = None;
                return None;
            };
            for item in leaf
                .items()
                .filter(|item| item.key.item_type == ItemType::EXTENT_CSUM)
            {
                let parsed = ChecksumItem::parse(&item.key, item.data, check.sector_bytes, checksum_type);
                if let Ok(parsed) = parsed {
                    self.split(check, &parsed);
                }
            }
            self.pieces.reverse();
            self.at = leaf
                .block
                .key(leaf.slots.end.saturating_sub(1))
                .and_then(|key| key.successor());
        }
        self.pieces.pop()
    }

    fn split(&mut self, check: &Check<'_>, item: &ChecksumItem<'_>) {
        let mut from = item.start;
        while from < item.end {
            let to = from.saturating_add(ByteCount::new(PIECE_BYTES)).min(item.end);
            // If a piece of data crosses from one chunk to another, the chunks may have different
            // numbers of copies.
            let map = check.volume().chunk_map();
            let to = map.find(from).map_or(to, |chunk| to.min(chunk.end()));
            if let Some((logical, packed)) = item.range(from, to) {
                let packed = packed.to_vec();
                self.pieces.push(Piece { logical, packed });
            }
            from = to.max(from.saturating_add(ByteCount::new(check.sector_bytes.into())));
        }
    }
}

impl Verifier<'_> {
    fn work(&self) -> Result<()> {
        loop {
            self.check.progress.check()?;
            let Some(piece) = self.source.lock().next(self.check, self.checksum_type) else {
                return Ok(());
            };
            self.verify(&piece);
        }
    }

    fn verify(&self, piece: &Piece) {
        let volume = self.check.volume();
        let sector = self.check.sector_bytes.narrow::<usize>();
        let size = self.checksum_type.size_bytes();
        let sectors = piece.packed.len().checked_div(size).unwrap_or(0);
        let length = sectors.saturating_mul(sector);
        // Checksums of addresses that no chunk maps are a separate finding.
        let Ok(copies) = volume.copies(piece.logical) else {
            return;
        };
        let mut bad: Vec<Vec<bool>> = Vec::new();
        for copy in 1..=copies {
            let mut failed = vec![false; sectors];
            let mut reason = "checksums do not match".to_owned();
            if self.verify_copy(piece, copy, 0..sectors, &mut failed).is_err() {
                for part in self.units(piece, sectors) {
                    if let Err(error) = self.verify_copy(piece, copy, part.clone(), &mut failed) {
                        failed.get_mut(part).unwrap_or_default().fill(true);
                        reason = error.to_string();
                    }
                }
            }
            if failed.contains(&true) {
                self.report_copy(piece, copy, &failed, &reason);
            }
            bad.push(failed);
        }
        self.report_lost(piece, sectors, &bad);
        let bytes = ByteCount::of(length);
        self.verified.fetch_add(bytes.get(), Ordering::Relaxed);
        self.check.progress.advance(0, bytes);
    }

    /// Reads some sectors of a copy, and marks those that do not match their checksums.
    fn verify_copy(
        &self,
        piece: &Piece,
        copy: u32,
        part: Range<usize>,
        failed: &mut [bool],
    ) -> core::result::Result<(), buttress_volume::Error> {
        let (logical, length) = self.place(piece, &part);
        let read = ExtentRead {
            logical,
            length: length.to_usize().unwrap_or(usize::MAX),
        };
        let bytes = self.check.volume().read_copy(read, copy)?;
        let size = self.checksum_type.size_bytes();
        let sector = self.check.sector_bytes.narrow::<usize>();
        let stored = piece.packed.chunks(size.max(1)).skip(part.start);
        let marks = failed.iter_mut().skip(part.start);
        for ((data, stored), failed) in bytes.chunks(sector).zip(stored).zip(marks) {
            *failed = self.checksum_type.compute(data).as_bytes() != stored
                && !buttress_faults::on("check-data-unverified");
        }
        Ok(())
    }

    /// Returns the sectors of a piece by stripe units. With parity, the devices of a data copy
    /// change from stripe unit to stripe unit. Each stripe unit may then be readable although the
    /// piece as a whole is not.
    fn units(&self, piece: &Piece, sectors: usize) -> Vec<Range<usize>> {
        let map = self.check.volume().chunk_map();
        let offset = map
            .find(piece.logical)
            .and_then(|chunk| piece.logical.checked_distance_from(chunk.start()))
            .and_then(ByteCount::to_usize)
            .unwrap_or(0);
        let sector = self.check.sector_bytes.narrow::<usize>();
        let unit_bytes = ByteCount::new(STRIPE_BYTES).to_usize().unwrap_or(sector);
        let unit = unit_bytes.checked_div(sector).unwrap_or(1).max(1);
        let before = offset
            .checked_div(sector)
            .and_then(|whole| whole.checked_rem(unit));
        let mut parts = Vec::new();
        let mut from = 0_usize;
        let mut wanted = unit.saturating_sub(before.unwrap_or(0));
        while from < sectors {
            let to = from.saturating_add(wanted).min(sectors);
            parts.push(from..to);
            (from, wanted) = (to, unit);
        }
        parts
    }

    /// Reports a bad copy. If the bad copy is the only copy, the data is lost, and the finding is
    /// about lost data instead.
    fn report_copy(&self, piece: &Piece, copy: u32, failed: &[bool], reason: &str) {
        if self
            .check
            .volume()
            .copies(piece.logical)
            .is_ok_and(|copies| copies < 2)
        {
            return;
        }
        for range in ranges(failed) {
            let (logical, length) = self.place(piece, &range);
            self.check.find(Finding::DataCopyDamaged {
                logical,
                length,
                copy,
                reason: reason.to_owned(),
            });
        }
    }

    /// Reports sectors that are bad in all copies.
    fn report_lost(&self, piece: &Piece, sectors: usize, bad: &[Vec<bool>]) {
        let is_lost = |sector: usize| bad.iter().all(|copy| copy.get(sector) == Some(&true));
        let lost: Vec<bool> = (0..sectors).map(is_lost).collect();
        for range in ranges(&lost) {
            let (logical, length) = self.place(piece, &range);
            self.check.find(Finding::DataDamaged { logical, length });
        }
    }

    fn place(&self, piece: &Piece, range: &Range<usize>) -> (Logical, ByteCount) {
        let bytes = |sectors: usize| {
            let count = ByteCount::of(sectors).get();
            ByteCount::new(count.saturating_mul(self.check.sector_bytes.into()))
        };
        (
            piece.logical.saturating_add(bytes(range.start)),
            bytes(range.len()),
        )
    }
}

/// Returns the ranges in which the flags are `true`.
fn ranges(marks: &[bool]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (index, _) in marks.iter().enumerate().filter(|(_, mark)| **mark) {
        match found.last_mut() {
            Some(last) if last.end == index => last.end = index.saturating_add(1),
            _ => found.push(index..index.saturating_add(1)),
        }
    }
    found
}
