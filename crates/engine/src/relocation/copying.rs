//! The content of data extents: read in large requests, verified, and written to new places. A copy
//! holds no lock during device I/O.
//!
//! The copied content of each sector comes from a copy that its checksum accepts. Sectors without a
//! checksum come from devices that missed no commit. The content cannot change during the copy:
//! nothing overwrites it in place, since its block group is being emptied.

use super::closure::Moved;
use crate::areas::Relocations;
use crate::block_groups::{Found, Purpose};
use crate::data_extents::DataRange;
use crate::engine::Engine;
use crate::running_parts::DataSpace;
use buttress_accounts::Accounts as _;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ExtentItem, Logical};
use buttress_fs::checksums::ExpectedChecksums;
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_locks::Excused;
use buttress_volume::{ExtentRead, ExtentWrite};
use std::collections::BTreeSet;

/// How many files an error names.
const USERS_MAX: usize = 16;

/// Data extents that have a copy at a new place. Dropping the value frees the ranges of copies that
/// no tree uses.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    engine: &'a Engine,
    moved: Vec<Moved>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        if self.moved.is_empty() {
            return;
        }
        let mut handle = self.engine.start_reading();
        for moved in &self.moved {
            handle.data_space().give_back(range_of(moved));
        }
    }
}

const fn range_of(moved: &Moved) -> DataRange {
    DataRange {
        logical: moved.to,
        length: moved.length,
    }
}

impl Copies<'_> {
    pub(super) fn moved(&self) -> &[Moved] {
        &self.moved
    }

    /// Keeps the extents that are in the trees now.
    pub(super) fn keep(&mut self, is_used: impl Fn(&Moved) -> bool) {
        self.moved.retain(|moved| !is_used(moved));
    }
}

impl<'e> Relocations<'e> {
    /// Copies the content of extents to new places.
    ///
    /// # Errors
    /// Fails with [`Error::NotMoved`], [`Error::NoSpace`], or an error of a device.
    pub(super) fn copy_extents(&self, group: Logical, extents: &[ExtentItem]) -> Result<Copies<'e>> {
        let mut copies = Copies {
            engine: self.engine,
            moved: Vec::with_capacity(extents.len()),
        };
        if extents.is_empty() {
            return Ok(copies);
        }
        let view = self.engine.view();
        for extent in extents {
            let sums = self.sums_of(&view, extent)?;
            let start = self.engine.start_unchecked();
            let (handle, to) = self
                .engine
                .retry(start, |handle| handle.data_space().allocate_copy(extent.length))?;
            drop(handle);
            copies.moved.push(Moved {
                from: extent.start,
                length: extent.length,
                to,
                sums,
            });
        }
        self.fill(&view, group, &copies)?;
        Ok(copies)
    }

    /// Copies the content of extents to consecutive places. Returns `None` if a sector of an extent
    /// has no checksum.
    ///
    /// # Errors
    /// Fails as [`copy_extents`](Self::copy_extents) does.
    pub(super) fn copy_extents_together(
        &self,
        group: Logical,
        extents: &[ExtentItem],
    ) -> Result<Option<Copies<'e>>> {
        let view = self.engine.view();
        let mut sums = Vec::with_capacity(extents.len());
        let mut length = ByteCount::ZERO;
        for extent in extents {
            let of_extent = self.sums_of(&view, extent)?;
            if !of_extent.missing().is_empty() {
                return Ok(None);
            }
            sums.push(of_extent);
            length = ByteCount::new(length.get().exact_add(extent.length.get()));
        }
        let start = self.engine.start_unchecked();
        let (handle, to) = self
            .engine
            .retry(start, |handle| handle.data_space().allocate_copy(length))?;
        drop(handle);
        let mut to = to.get();
        let moved = extents.iter().zip(sums).map(|(extent, sums)| {
            let place = Logical::new(to);
            to = to.exact_add(extent.length.get());
            Moved {
                from: extent.start,
                length: extent.length,
                to: place,
                sums,
            }
        });
        let copies = Copies {
            engine: self.engine,
            moved: moved.collect(),
        };
        self.fill(&view, group, &copies)?;
        Ok(Some(copies))
    }

    fn sums_of(&self, view: &Filesystem, extent: &ExtentItem) -> Result<ExpectedChecksums> {
        let sums = view.expected_checksums(extent.start, extent.length.exact_usize())?;
        sums.ok_or(Error::Invalid {
            what: "a volume that is read without checksums is not relocated",
        })
    }

    /// Writes the content of extents to the places of their copies.
    fn fill(&self, view: &Filesystem, group: Logical, copies: &Copies<'_>) -> Result<()> {
        let writes = self.read_extents(view, group, &copies.moved)?;
        self.engine
            .write_data_beside(&writes)
            .map_err(|error| match error {
                buttress_volume::Error::Io(failure) if failure.is_out_of_space() => {
                    Error::OutOfHostSpace(failure)
                }
                other => other.into(),
            })?;
        Ok(())
    }

    fn read_extents(&self, view: &Filesystem, group: Logical, moved: &[Moved]) -> Result<Vec<ExtentWrite>> {
        let volume = self.engine.forest().volume();
        let reads: Vec<ExtentRead> = moved
            .iter()
            .map(|moved| ExtentRead {
                logical: moved.from,
                length: moved.length.exact_usize(),
            })
            .collect();
        let mut writes = Vec::with_capacity(moved.len());
        for (moved, pending) in moved.iter().zip(volume.start_reads(&reads)) {
            let pending = match moved.sums.missing() {
                [] => pending,
                _ => pending.unverified(),
            };
            let is_unverified = buttress_faults::on("relocation-copies-unverified");
            let verify = |data: &[u8], bad: &mut Vec<core::ops::Range<usize>>| {
                if !is_unverified {
                    moved.sums.verify(data, bad);
                }
            };
            let (data, lost) = pending.wait_data(volume, &verify)?;
            if let Some(lost) = lost.into_iter().next() {
                return Err(not_moved(view, group, moved, lost.error.into()));
            }
            writes.push(ExtentWrite {
                logical: moved.to,
                bytes: data.into_bytes(),
            });
        }
        writes.sort_unstable_by_key(|write| write.logical);
        Ok(writes)
    }
}

/// The error for an extent without an intact copy, with the files that use the extent.
fn not_moved(view: &Filesystem, group: Logical, moved: &Moved, cause: Error) -> Error {
    let _excused = Excused::from_device_rule();
    let found = view.data_references(moved.from, true);
    let users: BTreeSet<Location> = match found {
        Ok(found) => found.iter().map(|reference| reference.location).collect(),
        // The cause suffices as an error; the list of users is only additional.
        Err(_) => BTreeSet::new(),
    };
    Error::NotMoved {
        group,
        logical: moved.from,
        length: moved.length,
        users: users.into_iter().take(USERS_MAX).collect(),
        cause: Box::new(cause),
    }
}

impl DataSpace<'_> {
    /// Allocates a contiguous range for the copy of an extent. If a block is not in memory, the
    /// method ends before it changes anything.
    fn allocate_copy(&mut self, length: ByteCount) -> Result<Logical> {
        let bytes = length.get();
        loop {
            let promised = self.running.core.reserved_data_bytes;
            let is_spare = self.free_bytes() >= promised.exact_add(bytes);
            let found = match is_spare {
                true => self.running.core.groups.allocate(
                    Purpose::Data,
                    bytes,
                    bytes,
                    self.running.core.sector_bytes(),
                )?,
                false => Found::Nothing,
            };
            match found {
                Found::Range(start, _) => return Ok(Logical::new(start)),
                Found::Load(group) => self.running.load_group(group)?,
                Found::Nothing => {
                    if !self.add(bytes)? {
                        return Err(self.no_space(length));
                    }
                }
            }
        }
    }
}
