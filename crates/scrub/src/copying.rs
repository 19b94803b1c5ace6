//! What goes to the target of a replacement: of each piece on the source the bytes that pass their check, from wherever.
//!
//! Of profiles with copies a group reads the source alone, or with `avoids_source` the others alone; all of them only where
//! that does not give everything. Of rows of RAID5 and RAID6 the source's column is copied, or rebuilt: what is in use of it, and
//! what parity counts on beside it. Where it holds data, it is read alone first. Where it holds parity, the row's data is read and
//! parity computed from it; the parities are read, too, where some of the data has no checksums: nothing else says then that it is right.
//!
//! Bytes of which no copy is good:
//!
//! | bytes | the target gets |
//! |---|---|
//! | tree block with right checksum and address, whose generation or level differs from the extent tree | the block as it is: its parent decides whether it is read |
//! | any other tree block | nothing: the replacement stops ([`Lost`]) |
//! | data with checksums | the bytes of a device, which still fail their checksum; if no device can read any, [filler](filler) that fails it |
//! | data without checksums | filler: nothing on a device can make a read of it fail |

use crate::damage::Part;
use crate::fetched::View;
use crate::group::{Arrived, Expected, Group, Piece};
use crate::job::Job;
use crate::verify::sector_of;
use buttress_device::{Buffer, Device, IoError, WriteRequest};
use buttress_exact::Exact as _;
use buttress_format::{BlockFormat, ByteCount, Logical, Physical};
use buttress_volume::layout::{Content, StripeOffset};
use buttress_volume::{DeviceSlot, MappedChunk, Replacement};
use core::ops::Range;
use std::borrow::Cow;
use std::sync::Arc;

/// A replacement, as the groups of a job need it.
#[derive(Clone, Debug)]
pub(crate) struct Copying {
    pub(crate) replacement: Arc<Replacement>,
    /// Whether the source is read only where nothing else gives what is wanted.
    pub(crate) avoids_source: bool,
}

/// Which stripes of a group are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What should do.
    Few,
    /// Whatever there is.
    All,
}

impl Copying {
    pub(crate) fn is_source(&self, slot: &Arc<DeviceSlot>) -> bool {
        Arc::ptr_eq(self.replacement.source(), slot)
    }

    /// Whether what the source holds can be right: it is there, and missed nothing.
    pub(crate) fn source_is_trusted(&self) -> bool {
        self.replacement.source().is_written()
    }

    /// Whether a stripe is on a source that missed commits: what it holds without checksums may be old.
    pub(crate) fn may_be_old(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        !self.source_is_trusted() && self.is_on_source(chunk, stripe) && may_miss_writes(chunk)
    }

    fn is_on_source(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        chunk
            .devices()
            .get(stripe)
            .is_some_and(|slot| self.is_source(slot))
    }

    /// The stripes of a chunk that lie on the source.
    pub(crate) fn stripes_on_source(&self, chunk: &MappedChunk) -> Vec<usize> {
        let all = 0..chunk.devices().len();
        all.filter(|stripe| self.is_on_source(chunk, *stripe)).collect()
    }

    /// Whether a stripe is to be read at an offset. `bare`: whether data without checksums is in its row.
    pub(crate) fn wants(
        &self,
        chunk: &MappedChunk,
        stripe: usize,
        offset: u64,
        bare: bool,
        wanted: Wanted,
    ) -> bool {
        let is_source = self.is_on_source(chunk, stripe);
        if is_source && self.reads_own(chunk, stripe) {
            return true;
        }
        if is_source && !self.source_is_trusted() {
            // Checksums and generations show what the device missed, except in rows with parity.
            return wanted == Wanted::All && !chunk.layout().has_parity();
        }
        if wanted == Wanted::All {
            return true;
        }
        let layout = chunk.layout();
        if layout.has_parity() {
            let is_data = |stripe: usize| {
                let content = layout.content(stripe, StripeOffset::new(offset));
                matches!(content, Some(Content::Data(_) | Content::Unused))
            };
            let all = 0..chunk.devices().len();
            let mut own = all.filter(|stripe| self.is_on_source(chunk, *stripe));
            let reads_source = self.source_is_trusted() && !self.avoids_source;
            return match own.next().is_some_and(is_data) {
                true => is_source == reads_source,
                false if bare => !is_source || reads_source,
                false => is_data(stripe),
            };
        }
        let has_others = layout.ways() > 1;
        let reads_source = self.source_is_trusted() && !(self.avoids_source && has_others);
        is_source == reads_source
    }

    /// Whether a returning device may already have a part of a stripe, from a run that was interrupted. Such a stripe
    /// is read, and sectors that pass their check are not written again. Rows with parity, which are right only as a
    /// whole, and moved stripes are excluded.
    pub(crate) fn reads_own(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        let returns = self.replacement.returning().is_some();
        returns && !chunk.layout().has_parity() && !self.replacement.is_moved(chunk, stripe)
    }

    /// Keeps only the pieces of a group that have a part on the source. For a returning device it keeps newer pieces,
    /// pieces that may have been overwritten in place, and all pieces of a moved stripe. Rows with parity stay whole:
    /// parity counts on what was freed since, too. Returns the bytes on the device that it leaves out.
    pub(crate) fn keep_wanted(&self, group: &mut Group) -> ByteCount {
        let chunk = Arc::clone(&group.chunk);
        if chunk.layout().has_parity() {
            return ByteCount::ZERO;
        }
        let own = self.stripes_on_source(&chunk);
        let since = self.replacement.returning().map(|returning| returning.since);
        let is_wanted = |piece: &Piece| {
            let is_missed =
                since.is_none_or(|since| piece.generation > since || piece.expected == Expected::Bare);
            piece.stripes().any(|stripe| {
                self.is_on_source(&chunk, stripe) && (is_missed || self.replacement.is_moved(&chunk, stripe))
            })
        };
        let mut passed_over = ByteCount::ZERO;
        group.pieces.retain(|piece| {
            let keeps = is_wanted(piece);
            if !keeps {
                passed_over = passed_over.exact_add(bytes_on(&own, piece));
            }
            keeps
        });
        passed_over
    }

    /// How many bytes of a group's pieces lie on the source, each copy there counted.
    pub(crate) fn bytes_on_source(&self, group: &Group) -> ByteCount {
        let own = self.stripes_on_source(&group.chunk);
        let bytes = group.pieces.iter().map(|piece| bytes_on(&own, piece));
        bytes.fold(ByteCount::ZERO, ByteCount::exact_add)
    }

    /// Whether progress counts what was inspected, not what was written: of a device that is brought up to date most is in
    /// place already.
    pub(crate) fn counts_inspected(&self, chunk: &MappedChunk) -> bool {
        self.replacement.returning().is_some() && !chunk.layout().has_parity()
    }

    /// Returns the place on the target of an offset of a stripe.
    pub(crate) fn place(&self, chunk: &MappedChunk, stripe: usize, offset: u64) -> Option<Physical> {
        let at = physical(chunk, stripe, offset)?;
        self.replacement.place_on_target(chunk, stripe, at)
    }
}

/// Whether a chunk can be written without one of its devices. Otherwise a device that was away missed nothing of it.
pub(crate) const fn may_miss_writes(chunk: &MappedChunk) -> bool {
    chunk.layout().profile().tolerated_failures() > 0
}

/// How many bytes a piece has on some stripes, each copy counted.
fn bytes_on(stripes: &[usize], piece: &Piece) -> ByteCount {
    let copies = stripes.iter().filter(|stripe| piece.stripes().contains(stripe));
    ByteCount::of(copies.count().exact_mul(piece.length))
}

/// Bytes of which no copy is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The address of the first of them.
    pub logical: Logical,
    /// The number of bytes.
    pub length: ByteCount,
    /// Their kind: data or a tree block.
    pub part: Part,
    /// Whether a checksum makes reads of them fail.
    pub has_checksum: bool,
}

impl Lost {
    /// A range of a piece.
    pub(crate) fn of(piece: &Piece, range: &Range<usize>) -> Self {
        Self {
            logical: piece.logical.exact_add(ByteCount::of(range.start)),
            length: ByteCount::of(range.len()),
            part: match piece.is_data() {
                true => Part::Data,
                false => Part::Tree,
            },
            has_checksum: piece.expected != Expected::Bare,
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        let end = |lost: &Self| lost.logical.exact_add(lost.length);
        self.part == other.part && self.logical <= other.logical && end(other) <= end(self)
    }

    /// Takes `next` in if both are data and `next` begins where this ends.
    pub(crate) fn absorb(&mut self, next: &Self) -> bool {
        let continues = self.part == Part::Data
            && next.part == Part::Data
            && self.has_checksum == next.has_checksum
            && self.logical.checked_add(self.length) == Some(next.logical);
        if continues {
            self.length = self.length.exact_add(next.length);
        }
        continues
    }
}

/// Bytes for the target, in any order.
#[derive(Debug)]
pub(crate) struct Copied<'a> {
    segments: Vec<(Physical, Cow<'a, [u8]>)>,
    /// Whether all stripes were asked that have any of it. If not, what is not good is only counted.
    wanted: Wanted,
    /// Whether anything was not good.
    pub(crate) is_lacking: bool,
    /// The lost bytes. Empty unless all stripes were asked.
    pub(crate) lost: Vec<Lost>,
}

/// The longest request.
const REQUEST_BYTES: usize = 512 << 10;

impl<'a> Copied<'a> {
    const fn new(wanted: Wanted) -> Self {
        Self {
            segments: Vec::new(),
            wanted,
            is_lacking: false,
            lost: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, at: Physical, bytes: Cow<'a, [u8]>) {
        self.segments.push((at, bytes));
    }

    /// Notes that some bytes are not good in what was read.
    pub(crate) const fn lack(&mut self) {
        self.is_lacking = true;
    }

    /// Whether what is lacking now is lost: no other stripe is left to be read.
    pub(crate) fn is_last_try(&self) -> bool {
        self.wanted == Wanted::All
    }

    pub(crate) fn lose(&mut self, lost: Lost) {
        self.lost.push(lost);
    }

    /// Whether a tree block is among what is lost.
    pub(crate) fn loses_metadata(&self) -> bool {
        self.lost.iter().any(|lost| lost.part == Part::Tree)
    }

    /// Writes all of it, neighbours together; how many bytes.
    pub(crate) fn write(mut self, target: &Device) -> Result<ByteCount, IoError> {
        self.segments.sort_by_key(|(at, _)| *at);
        let mut requests: Vec<WriteRequest> = Vec::new();
        let mut run: Vec<&[u8]> = Vec::new();
        let (mut start, mut length) = (Physical::MIN, 0_usize);
        let mut all = ByteCount::ZERO;
        for (at, bytes) in &self.segments {
            let end = start.exact_add(ByteCount::of(length));
            if *at != end || length.exact_add(bytes.len()) > REQUEST_BYTES {
                requests.extend(request(start, length, &run));
                run.clear();
                (start, length) = (*at, 0);
            }
            run.push(bytes);
            length = length.exact_add(bytes.len());
            all = all.exact_add(ByteCount::of(bytes.len()));
        }
        requests.extend(request(start, length, &run));
        let pending = target.start_writes(&requests);
        // All are waited for: none may reach the device after the rows are let go of.
        let mut result = Ok(all);
        for write in pending {
            if let Err(error) = write.wait() {
                result = Err(error);
            }
        }
        result
    }
}

fn request(start: Physical, length: usize, run: &[&[u8]]) -> Option<WriteRequest> {
    if length == 0 {
        return None;
    }
    let mut buffer = Buffer::zeroed(length);
    let mut rest: &mut [u8] = &mut buffer;
    for bytes in run {
        let (place, after) = rest.split_at_mut_checked(bytes.len())?;
        place.copy_from_slice(bytes);
        rest = after;
    }
    Some(WriteRequest {
        offset_bytes: start.get(),
        bytes: buffer.into_bytes(),
    })
}

/// Where an offset of a stripe lies on its device.
pub(crate) fn physical(chunk: &MappedChunk, stripe: usize, offset: u64) -> Option<Physical> {
    let stripe = chunk.chunk().stripes.get(stripe)?;
    stripe.physical.checked_add(ByteCount::new(offset))
}

/// The bytes of a view at a range.
pub(crate) fn part<'a>(view: &View<'a>, range: &Range<usize>) -> Option<&'a [u8]> {
    view.bytes.get(range.clone())
}

/// A line of the text that replaces lost bytes.
const FILLER: &[u8] = b"buttress replace: no device gave the data of this place\n";

/// Bytes for a sector that no device can read: text that the user can search for, never zeros. If the sector has a
/// checksum, they do not match it.
pub(crate) fn filler(group: &Group, piece: &Piece, range: &Range<usize>, format: &BlockFormat) -> Vec<u8> {
    if buttress_faults::on("replace-lost-data-is-zeros") {
        return vec![0; range.len()];
    }
    let mut bytes: Vec<u8> = FILLER.iter().copied().cycle().take(range.len()).collect();
    if let Expected::Sums(packed) = &piece.expected
        && stored_checksum(group, packed, range, format)
            == Some(format.checksum_type.compute(&bytes).as_bytes())
        && let Some(first) = bytes.first_mut()
    {
        *first = !*first;
    }
    bytes
}

/// The checksum of a sector of a piece, of whose checksums `packed` is the place.
pub(crate) fn stored_checksum<'a>(
    group: &'a Group,
    packed: &Range<usize>,
    sector: &Range<usize>,
    format: &BlockFormat,
) -> Option<&'a [u8]> {
    let size = format.checksum_type.size_bytes();
    let number = sector.start.checked_div(sector_of(format))?;
    let from = packed.start.checked_add(number.checked_mul(size)?)?;
    group.packed.get(from..from.checked_add(size)?)
}

impl Job<'_> {
    /// Returns the bytes of a group for the target, if `wanted` of its stripes were read.
    pub(crate) fn copied<'a>(
        &'a self,
        copying: &Copying,
        arrived: &'a Arrived,
        wanted: Wanted,
    ) -> Copied<'a> {
        let mut copied = Copied::new(wanted);
        if arrived.group.chunk.layout().has_parity() {
            crate::rows::copy(self, arrived, copying, &mut copied);
        } else {
            crate::mirrors::copy_pieces(self, arrived, copying, &mut copied);
        }
        copied
    }
}
