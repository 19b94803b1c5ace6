//! The bytes for the target of a replacement: for each piece on the source, bytes from any device
//! that pass their check.
//!
//! For profiles with copies, a group reads the source alone, or with `avoids_source` the other
//! devices alone. A group reads all devices only if these reads do not give all bytes. For rows of
//! RAID5 and RAID6, the replacement copies or rebuilds the source's column: its parts in use, and
//! the parts that parity covers beside them. The copy reads a data column alone first. For a parity
//! column, the copy reads the row's data, and computes parity from the data. If some of the data
//! has no checksums, the parities are read too, because nothing else shows that the data is right.
//!
//! Bytes without a valid copy:
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

/// A replacement, in the form that the groups of a scrub job use.
#[derive(Clone, Debug)]
pub(crate) struct Copying {
    pub(crate) replacement: Arc<Replacement>,
    /// True if the source device is read only if no other device has valid bytes.
    pub(crate) avoids_source: bool,
}

/// The stripes of a group that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The stripes whose reads usually suffice.
    Few,
    /// All stripes.
    All,
}

impl Copying {
    pub(crate) fn is_source(&self, slot: &Arc<DeviceSlot>) -> bool {
        Arc::ptr_eq(self.replacement.source(), slot)
    }

    /// Returns whether the source device's content can be right: the device is present, and missed
    /// no commit.
    pub(crate) fn source_is_trusted(&self) -> bool {
        self.replacement.source().is_written()
    }

    /// Returns whether a stripe is on a source that missed commits, so that its data without
    /// checksums may be old.
    pub(crate) fn may_be_old(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        !self.source_is_trusted() && self.is_on_source(chunk, stripe) && may_miss_writes(chunk)
    }

    fn is_on_source(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        chunk
            .devices()
            .get(stripe)
            .is_some_and(|slot| self.is_source(slot))
    }

    /// Returns the stripes of a chunk on the source device.
    pub(crate) fn stripes_on_source(&self, chunk: &MappedChunk) -> Vec<usize> {
        let all = 0..chunk.devices().len();
        all.filter(|stripe| self.is_on_source(chunk, *stripe)).collect()
    }

    /// Returns whether a stripe must be read at an offset. `bare` tells whether the stripe's row
    /// has data without checksums.
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
            // Checksums and generations show which data the device missed, except in rows with
            // parity.
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

    /// Returns whether a returning device may already have a part of a stripe, from an interrupted
    /// run. The copy then reads the stripe, and does not write sectors again that pass their check.
    /// Rows with parity are excluded, because they are right only as a whole. Moved stripes of the
    /// returning device are excluded too.
    pub(crate) fn reads_own(&self, chunk: &MappedChunk, stripe: usize) -> bool {
        let returns = self.replacement.returning().is_some();
        returns && !chunk.layout().has_parity() && !self.replacement.is_moved(chunk, stripe)
    }

    /// Keeps only the pieces of a group that have a part on the source. For a returning device the
    /// copy keeps newer pieces, pieces that may have been overwritten in place, and all pieces of a
    /// moved stripe. The copy writes rows with parity as a whole, because parity also covers space
    /// that was freed since. Returns the number of bytes on the device that the copy leaves out.
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

    /// Returns the bytes of a group's pieces on the source, counting each copy there.
    pub(crate) fn bytes_on_source(&self, group: &Group) -> ByteCount {
        let own = self.stripes_on_source(&group.chunk);
        let bytes = group.pieces.iter().map(|piece| bytes_on(&own, piece));
        bytes.fold(ByteCount::ZERO, ByteCount::exact_add)
    }

    /// Returns whether progress counts inspected bytes instead of written bytes. Most bytes of a
    /// returning device are already right, so the copy compares before it writes.
    pub(crate) fn counts_inspected(&self, chunk: &MappedChunk) -> bool {
        self.replacement.returning().is_some() && !chunk.layout().has_parity()
    }

    /// Returns the target's physical address for an offset in a stripe.
    pub(crate) fn place(&self, chunk: &MappedChunk, stripe: usize, offset: u64) -> Option<Physical> {
        let at = physical(chunk, stripe, offset)?;
        self.replacement.place_on_target(chunk, stripe, at)
    }
}

/// Returns whether the volume can write a chunk without one of its devices. If a chunk cannot be
/// written without one of its devices, an absent device missed no write to the chunk.
pub(crate) const fn may_miss_writes(chunk: &MappedChunk) -> bool {
    chunk.layout().profile().tolerated_failures() > 0
}

/// Returns the bytes of a piece on some stripes, counting each copy.
fn bytes_on(stripes: &[usize], piece: &Piece) -> ByteCount {
    let copies = stripes.iter().filter(|stripe| piece.stripes().contains(stripe));
    ByteCount::of(copies.count().exact_mul(piece.length))
}

/// Bytes that the copy could not write, because they have no valid copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The address of the first lost byte.
    pub logical: Logical,
    /// The number of lost bytes.
    pub length: ByteCount,
    /// The kind of the lost content: data or a tree block.
    pub part: Part,
    /// True if a checksum makes reads of the lost bytes fail.
    pub has_checksum: bool,
}

impl Lost {
    /// Returns the loss of a range of a piece.
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

    /// Merges `next` into this loss if both are data and `next` begins at the end of this one.
    /// Returns whether `next` was merged into this loss.
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

/// The bytes to write to the target, in no particular order.
#[derive(Debug)]
pub(crate) struct Copied<'a> {
    segments: Vec<(Physical, Cow<'a, [u8]>)>,
    /// The stripes that were read. If some stripes were not read, bytes without a valid copy are
    /// only counted.
    wanted: Wanted,
    /// Whether some of the read bytes were not valid.
    pub(crate) is_lacking: bool,
    /// The lost bytes. Empty unless the copy tried all stripes.
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

    /// Records that some of the read bytes are not valid.
    pub(crate) const fn lack(&mut self) {
        self.is_lacking = true;
    }

    /// Returns whether all stripes were read, so that missing bytes are lost.
    pub(crate) fn is_last_try(&self) -> bool {
        self.wanted == Wanted::All
    }

    pub(crate) fn lose(&mut self, lost: Lost) {
        self.lost.push(lost);
    }

    /// Returns whether the copy lost a tree block.
    pub(crate) fn loses_metadata(&self) -> bool {
        self.lost.iter().any(|lost| lost.part == Part::Tree)
    }

    /// Writes all bytes, with neighbours joined. Returns the number of written bytes.
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
        // Wait for all writes: no write may reach the device after the rows are unlocked.
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

/// Returns the device address of an offset in a stripe.
pub(crate) fn physical(chunk: &MappedChunk, stripe: usize, offset: u64) -> Option<Physical> {
    let stripe = chunk.chunk().stripes.get(stripe)?;
    stripe.physical.checked_add(ByteCount::new(offset))
}

/// Returns the bytes of a view in a range.
pub(crate) fn part<'a>(view: &View<'a>, range: &Range<usize>) -> Option<&'a [u8]> {
    view.bytes.get(range.clone())
}

/// A line of the text that replaces lost bytes.
const FILLER: &[u8] = b"buttress replace: no device gave the data of this place\n";

/// Returns bytes for a sector that no device can read: text that the user can search for, never
/// zeros. If the sector has a checksum, the bytes do not match it.
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

/// Returns the stored checksum of a sector of a piece; `packed` is the place of the piece's
/// checksums.
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
    /// Returns a group's bytes to be written to the replacement target, after `wanted` of the
    /// group's stripes were read.
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
