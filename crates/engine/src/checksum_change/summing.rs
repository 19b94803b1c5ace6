//! New checksums of data: the sectors are read in large requests, verified, and summed on all cores.

use crate::areas::ChecksumChange;
use crate::checksums::checksum_key;
use buttress_accounts::Accounts as _;
use buttress_exact::{Exact as _, u64_of, usize_of};
use buttress_format::{ByteCount, ChecksumItem, ChecksumType, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::Progress;
use buttress_fs::error::{Corruption, Defect, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_locks::Excused;
use buttress_tree::{EditableTree, NonBlocking, ReadAhead};
use buttress_volume::{ExtentRead, PendingExtent, Volume};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of data whose checksums one edit makes.
const BYTES_AT_ONCE: u64 = 16 << 20;

/// The bytes of the largest read of data.
const BYTES_OF_READ: u64 = 1 << 20;

/// The number of files that an error names.
const USERS_MAX: usize = 16;

/// Checksums that will be inserted: the first address, and the packed checksums.
pub(super) type Sums = (u64, Vec<u8>);

/// The new checksums of a run of sectors; the offset and cause of the first sector without an
/// intact copy.
pub(super) type Summed = (Vec<u8>, Option<(ByteCount, Error)>);

/// A run of sectors in one chunk, with its old checksums.
pub(super) struct Run {
    pub(super) logical: Logical,
    pub(super) bytes: u64,
    pub(super) stored: Vec<u8>,
}

impl ChecksumChange<'_> {
    /// Returns the new checksums of the next data, and the address after that data; `None` at the
    /// end of the old checksums.
    pub(super) fn new_checksums_from(
        &self,
        start: u64,
        to: ChecksumType,
        progress: &Progress,
    ) -> Result<(Vec<Sums>, Option<u64>)> {
        let view = self.engine.view();
        let (runs, next) = self.runs_from(&view, start, to)?;
        let summed = self.read_and_sum(&runs, self.old_type(), to)?;
        let mut sums = Vec::with_capacity(runs.len());
        for (run, (made, lost)) in runs.into_iter().zip(summed) {
            if let Some((offset, cause)) = lost {
                return Err(self.damaged(&view, run.logical.exact_add(offset), Some(cause)));
            }
            progress.advance(1, ByteCount::new(run.bytes));
            sums.push((run.logical.get(), made));
        }
        Ok((sums, next))
    }

    /// Returns the next runs of sectors with old checksums, and the address after them; `None` at
    /// the end of the old checksums.
    fn runs_from(&self, view: &Filesystem, start: u64, to: ChecksumType) -> Result<(Vec<Run>, Option<u64>)> {
        let old = self.old_type();
        let format = self.engine.forest().block_format();
        let tree = view.tree(TreeId::CHECKSUM)?;
        // New checksums of another program may end within an item of the former type.
        let around = EditableTree::open(&tree).at_or_before(&checksum_key(start))?;
        let first = match around.map(|item| item.key()) {
            Some(key) if key.objectid == ObjectId::EXTENT_CHECKSUM => key,
            _ => checksum_key(start),
        };
        let end = checksum_key(u64::MAX);
        let most = ChecksumItem::bytes_max(format.node_bytes, to).quotient(to.size_bytes());
        let most_bytes = u64_of(most).exact_mul(u64::from(format.sector_bytes));
        let (mut runs, mut done) = (Vec::new(), 0_u64);
        for item in tree.range(first..=end, ReadAhead::Forward) {
            let item = item?;
            if done >= BYTES_AT_ONCE {
                return Ok((runs, Some(item.key().offset)));
            }
            let item = ChecksumItem::parse(&item.key(), item.data(), format.sector_bytes, old)
                .map_err(of_checksum_tree)?;
            let mut at = item.start.max(Logical::new(start));
            while at < item.end {
                // Clamp: the end of a run may be beyond the last address of the data.
                let most_end = at.saturating_add(ByteCount::new(most_bytes));
                let stop = self.end_of_read(at, item.end).min(most_end);
                let stored = item.range(at, stop).map(|(_, packed)| packed.to_vec());
                let stored = stored
                    .ok_or_else(|| Defect::new("a checksum item has not the checksums that it covers"))?;
                let bytes = stop.get().exact_sub(at.get());
                done = done.exact_add(bytes);
                runs.push(Run {
                    logical: at,
                    bytes,
                    stored,
                });
                at = stop;
            }
        }
        Ok((runs, None))
    }

    /// Returns the end of a read from `at` on: at most at `end`, and in one chunk.
    fn end_of_read(&self, at: Logical, end: Logical) -> Logical {
        let map = self.engine.forest().volume().chunk_map();
        let of_chunk = map
            .find(at)
            .map(|chunk| chunk.start().saturating_add(chunk.length()));
        // Clamp: the end of a read may be beyond the last address of the data.
        let most = at.saturating_add(ByteCount::new(BYTES_OF_READ));
        end.min(most).min(of_chunk.unwrap_or(end))
    }

    /// Reads runs of sectors side by side, verifies them with their old checksums, and returns their
    /// new checksums.
    pub(super) fn read_and_sum(
        &self,
        runs: &[Run],
        old: ChecksumType,
        new: ChecksumType,
    ) -> Result<Vec<Summed>> {
        let volume = self.engine.forest().volume();
        let sector_bytes = usize_of(self.engine.forest().block_format().sector_bytes);
        let reads: Vec<ExtentRead> = runs
            .iter()
            .map(|run| ExtentRead {
                logical: run.logical,
                length: run.bytes.narrow(),
            })
            .collect();
        let pending = volume.start_reads(&reads);
        let jobs = runs.iter().zip(pending).map(|(run, pending)| {
            let (stored, volume) = (run.stored.clone(), Arc::clone(volume));
            self.engine
                .spawn_job(move || sum(pending, &volume, &stored, sector_bytes, [old, new]))
        });
        let jobs: Vec<_> = jobs.collect();
        jobs.into_iter()
            .map(|job| job.take().map_err(Error::from)?)
            .collect()
    }

    /// Returns the error for a sector without an intact copy, with the files that use it.
    pub(super) fn damaged(&self, view: &Filesystem, logical: Logical, cause: Option<Error>) -> Error {
        // Clamp: the error lacks the files if the extent tree is damaged, too.
        let users = self.users_of(view, logical).unwrap_or_default();
        let cause = cause.map(Box::new);
        Error::DataDamaged {
            logical,
            users,
            cause,
        }
    }

    fn users_of(&self, view: &Filesystem, logical: Logical) -> Result<Vec<Location>> {
        let _excused = Excused::from_device_rule();
        let key = Key::new(ObjectId::new(logical.get()), ItemType::METADATA_ITEM, u64::MAX);
        let extent = NonBlocking::lifted(|| self.engine.start_reading().at_or_before(TreeId::EXTENT, &key))?;
        let Some(extent) = extent else {
            return Ok(Vec::new());
        };
        let start = Logical::new(extent.key().objectid.get());
        let found = view.data_references(start, true)?;
        let users: BTreeSet<Location> = found.iter().map(|reference| reference.location).collect();
        Ok(users.into_iter().take(USERS_MAX).collect())
    }
}

/// Waits for a run of sectors, verifies it, and returns its new checksums.
fn sum(
    pending: PendingExtent,
    volume: &Volume,
    stored: &[u8],
    sector_bytes: usize,
    [old, new]: [ChecksumType; 2],
) -> Result<Summed> {
    let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| {
        let mut computed = Vec::new();
        old.compute_sectors(data, sector_bytes, &mut computed);
        let size = old.size_bytes();
        let pairs = computed.chunks(size).zip(stored.chunks(size)).enumerate();
        for (index, _) in pairs.filter(|(_, (computed, stored))| computed != stored) {
            let start = index.exact_mul(sector_bytes);
            bad.push(start..start.exact_add(sector_bytes));
        }
    };
    let (data, lost) = pending.wait_data(volume, &verify)?;
    let lost = lost.into_iter().next();
    let lost = lost.map(|lost| (ByteCount::of(lost.range.start), Error::from(lost.error)));
    let mut sums = Vec::new();
    new.compute_sectors(&data, sector_bytes, &mut sums);
    Ok((sums, lost))
}

fn of_checksum_tree(error: buttress_format::ItemError) -> Corruption {
    let tree = TreeId::CHECKSUM;
    Corruption::Item { tree, error }
}
