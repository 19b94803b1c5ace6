//! Profiles with copies, and those without redundancy: checks each copy of each piece, then repairs
//! bad copies from good ones.

use crate::copying::{Copied, Copying, Lost, filler, may_miss_writes, part};
use crate::damage::{Cause, Outcome, Part};
use crate::fetched::View;
use crate::group::{Arrived, Expected, Piece};
use crate::job::Job;
use crate::mending::{Site, site_of};
use crate::report::Counters;
use crate::verify::{Bad, judge, sector_of, sectors};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical};
use core::ops::Range;
use std::borrow::Cow;

/// A copy of a piece.
struct Copy<'a> {
    stripe: usize,
    /// The bytes of the copy; `None` if the device is missing.
    view: Option<View<'a>>,
    /// Whether the device of this copy missed commits.
    is_behind: bool,
    bad: Vec<Bad>,
}

impl Copy<'_> {
    /// Returns whether the bytes of `range` are present and right.
    fn is_good(&self, range: &Range<usize>) -> bool {
        self.view.is_some() && !self.bad.iter().any(|bad| overlap(&bad.range, range))
    }

    /// Returns whether the device returned the bytes of `range`, correct or not.
    fn is_given(&self, range: &Range<usize>) -> bool {
        let view = self.view.as_ref();
        view.is_some_and(|view| view.unreadable(range).is_none())
    }

    /// Returns whether the copy is a tree block whose only problem is a contradiction to the extent
    /// tree. On a device that missed commits, a block that contradicts the extent tree is older,
    /// and not right.
    fn may_be_right(&self) -> bool {
        let differs_only = self.bad.iter().all(|bad| bad.cause.may_be_right());
        self.view.is_some() && !self.is_behind && differs_only
    }

    fn bytes(&self, range: &Range<usize>) -> Option<&[u8]> {
        self.view.as_ref()?.bytes.get(range.clone())
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Checks and repairs a group of a chunk without parity.
pub(crate) fn check(job: &Job<'_>, arrived: &Arrived) {
    let stripes = arrived.group.chunk.layout().stripe_count();
    let mut counted = vec![Counters::default(); stripes];
    for piece in &arrived.group.pieces {
        let copies: Vec<Copy<'_>> = piece
            .stripes()
            .map(|stripe| copy(job, arrived, piece, stripe))
            .collect();
        for copy in copies.iter().filter(|copy| copy.view.is_some()) {
            if let Some(counted) = counted.get_mut(copy.stripe) {
                count_piece(job, arrived, piece, copy.stripe, counted);
            }
        }
        if copies.iter().any(|copy| !copy.bad.is_empty()) {
            for number in 0..copies.len() {
                mend_copy(job, arrived, piece, &copies, number);
            }
        }
        if piece.expected == Expected::Bare {
            compare(job, arrived, piece, &copies);
        }
    }
    add_counted(job, arrived, &counted);
}

/// Returns whether all read copies are right and equal.
pub(crate) fn is_clean(job: &Job<'_>, arrived: &Arrived) -> bool {
    arrived.group.pieces.iter().all(|piece| {
        let copies = piece.stripes().map(|stripe| copy(job, arrived, piece, stripe));
        let copies: Vec<Copy<'_>> = copies.collect();
        let are_right = copies.iter().all(|copy| copy.bad.is_empty());
        are_right && (piece.expected != Expected::Bare || agree(&copies, &(0..piece.length)))
    })
}

/// Counts all pieces of a group as scrubbed.
pub(crate) fn count(job: &Job<'_>, arrived: &Arrived) {
    let stripes = arrived.group.chunk.layout().stripe_count();
    let mut counted = vec![Counters::default(); stripes];
    for piece in &arrived.group.pieces {
        for stripe in piece.stripes() {
            let fetched = arrived.stripes.get(stripe);
            let is_there = fetched.is_some_and(|fetched| !fetched.is_missing());
            if let Some(counted) = counted.get_mut(stripe).filter(|_| is_there) {
                count_piece(job, arrived, piece, stripe, counted);
            }
        }
    }
    add_counted(job, arrived, &counted);
}

fn add_counted(job: &Job<'_>, arrived: &Arrived, counted: &[Counters]) {
    for (stripe, counted) in counted.iter().enumerate() {
        if let Some(slot) = arrived.group.chunk.devices().get(stripe) {
            job.count(slot, |counters| counters.add(counted));
        }
    }
}

/// Adds the right bytes of each piece on the source for the target.
pub(crate) fn copy_pieces<'a>(
    job: &Job<'_>,
    arrived: &'a Arrived,
    copying: &Copying,
    copied: &mut Copied<'a>,
) {
    let chunk = &arrived.group.chunk;
    let own = copying.stripes_on_source(chunk);
    for piece in &arrived.group.pieces {
        let copies: Vec<Copy<'a>> = piece
            .stripes()
            .map(|stripe| copy(job, arrived, piece, stripe))
            .collect();
        for stripe in own.iter().filter(|stripe| piece.stripes().contains(stripe)) {
            copy_piece(arrived, piece, &copies, *stripe, (job, copying), copied);
        }
    }
}

/// Adds a piece on one stripe of the source, sector by sector, preferring its own bytes. A sector
/// that a returning device already has is not written again.
fn copy_piece<'a>(
    arrived: &'a Arrived,
    piece: &Piece,
    copies: &[Copy<'a>],
    stripe: usize,
    (job, copying): (&Job<'_>, &Copying),
    copied: &mut Copied<'a>,
) {
    let unit = if piece.is_data() {
        sector_of(&job.format)
    } else {
        piece.length
    };
    let whole = 0..piece.length;
    let chunk = &arrived.group.chunk;
    let has_some = copying.reads_own(chunk, stripe);
    // It is unknown whether such unverified bytes are new.
    let own_counts = !(has_some && piece.expected == Expected::Bare && may_miss_writes(chunk));
    let is_own = |copy: &&Copy<'a>| copy.stripe == stripe;
    let own = copies.iter().filter(|copy| is_own(copy) && own_counts);
    let own_first: Vec<&Copy<'a>> = own.chain(copies.iter().filter(|copy| !is_own(copy))).collect();
    let best = |range: &Range<usize>| {
        let found = own_first.iter().find(|copy| copy.is_good(range))?;
        part(found.view.as_ref()?, range)
    };
    let has_already = |range: &Range<usize>, bytes: &[u8]| {
        let mut own = copies.iter().filter(is_own);
        has_some && own.any(|copy| copy.is_good(range) && copy.bytes(range) == Some(bytes))
    };
    let ranges: Vec<Range<usize>> = match best(&whole) {
        Some(_) => vec![whole],
        None => sectors(piece.length, unit).collect(),
    };
    for range in ranges {
        let offset = ByteCount::of(range.start).get();
        let offset = piece.on_stripe().start.exact_add(offset);
        let at = copying.place(chunk, stripe, offset);
        if let (Some(bytes), Some(at)) = (best(&range), at) {
            if !has_already(&range, bytes) {
                copied.add(at, Cow::Borrowed(bytes));
            }
            continue;
        }
        copied.lack();
        if !copied.is_last_try() {
            continue;
        }
        match at {
            Some(at) => copy_bad(job, arrived, piece, &own_first, (&range, at), copied),
            None => copied.lose(Lost::of(piece, &range)),
        }
    }
}

/// Handles a range of a piece without a valid copy, and the range's place on the target.
fn copy_bad<'a>(
    job: &Job<'_>,
    arrived: &'a Arrived,
    piece: &Piece,
    copies: &[&Copy<'a>],
    (range, at): (&Range<usize>, Physical),
    copied: &mut Copied<'a>,
) {
    let bytes_of = |copy: &&Copy<'a>| part(copy.view.as_ref()?, range);
    if !piece.is_data() {
        let found = copies.iter().find(|copy| copy.may_be_right());
        match found.and_then(bytes_of) {
            Some(bytes) => copied.add(at, Cow::Borrowed(bytes)),
            None => copied.lose(Lost::of(piece, range)),
        }
        return;
    }
    copied.lose(Lost::of(piece, range));
    let given = copies.iter().find(|copy| copy.is_given(range));
    let bytes = given.and_then(bytes_of).map(Cow::Borrowed);
    let filler = || filler(&arrived.group, piece, range, &job.format);
    copied.add(at, bytes.unwrap_or_else(|| Cow::Owned(filler())));
}

fn copy<'a>(job: &Job<'_>, arrived: &'a Arrived, piece: &Piece, stripe: usize) -> Copy<'a> {
    let view = arrived
        .stripes
        .get(stripe)
        .filter(|_| !is_unknown(job, arrived, piece, stripe))
        .and_then(|fetched| fetched.view(&piece.on_stripe()));
    let bad = view
        .as_ref()
        .map(|view| judge(&arrived.group, piece, view, &job.format));
    let slot = arrived.group.chunk.devices().get(stripe);
    Copy {
        stripe,
        view,
        is_behind: slot.is_some_and(|slot| slot.stale().is_some()),
        // Clamp: a copy that the scrub did not read has no judged errors.
        bad: bad.unwrap_or_default(),
    }
}

/// Returns whether a copy without checksums is on a device that missed commits, so that it may be
/// old.
fn is_unknown(job: &Job<'_>, arrived: &Arrived, piece: &Piece, stripe: usize) -> bool {
    let chunk = &arrived.group.chunk;
    let slot = chunk.devices().get(stripe);
    let is_stale = slot.is_some_and(|slot| slot.stale().is_some()) && may_miss_writes(chunk);
    let copying = job.replaces.as_ref().map(|replacing| &replacing.copying);
    let may_be_old = is_stale || copying.is_some_and(|copying| copying.may_be_old(chunk, stripe));
    // Unverified bytes of a returning device are compared with the right bytes, and written if they
    // differ.
    let is_compared = copying.is_some_and(|copying| copying.reads_own(chunk, stripe));
    let is_own = slot.is_some_and(|slot| copying.is_some_and(|copying| copying.is_source(slot)));
    piece.expected == Expected::Bare && may_be_old && !(is_compared && is_own)
}

/// Counts a piece as scrubbed on the device of a stripe.
pub(crate) fn count_piece(
    job: &Job<'_>,
    arrived: &Arrived,
    piece: &Piece,
    stripe: usize,
    counted: &mut Counters,
) {
    let bytes = ByteCount::of(piece.length).get();
    let (extents, scrubbed) = if piece.is_data() {
        (
            &mut counted.data_extents_scrubbed,
            &mut counted.data_bytes_scrubbed,
        )
    } else {
        (
            &mut counted.tree_extents_scrubbed,
            &mut counted.tree_bytes_scrubbed,
        )
    };
    *extents = extents.exact_add(piece.extents);
    *scrubbed = scrubbed.exact_add(bytes);
    if piece.expected == Expected::Bare {
        let bare = piece.length.quotient(sector_of(&job.format));
        counted.no_csum = counted.no_csum.exact_add(ByteCount::of(bare).get());
    }
    let end = site_of(&arrived.group.chunk, stripe, piece.on_stripe().end);
    counted.reached(end.map_or(Physical::MIN, |(_, physical)| physical));
    if job.replaces.is_none() {
        job.progress.advance(0, ByteCount::of(piece.length));
    }
}

/// Returns the device and physical address of a part of a piece on one stripe.
pub(crate) fn site(
    job: &Job<'_>,
    arrived: &Arrived,
    piece: &Piece,
    stripe: usize,
    range: &Range<usize>,
) -> Option<Site> {
    let from = ByteCount::of(range.start);
    let offset = piece.on_stripe().start.checked_add(from.get())?;
    let (slot, physical) = site_of(&arrived.group.chunk, stripe, offset)?;
    let (part, errors) = if piece.is_data() {
        let sectors = range.len().quotient(sector_of(&job.format));
        (Part::Data, ByteCount::of(sectors).get().max(1))
    } else {
        (Part::Tree, 1)
    };
    Some(Site {
        slot,
        physical,
        logical: piece.logical.exact_add(from),
        length: range.len(),
        part,
        errors,
    })
}

/// Repairs one copy from the others. Runs of sectors with the same cause and the same source are
/// repaired at once.
fn mend_copy(job: &Job<'_>, arrived: &Arrived, piece: &Piece, copies: &[Copy<'_>], number: usize) {
    let Some(copy) = copies.get(number) else {
        return;
    };
    let mut bad = copy.bad.iter().peekable();
    while let Some(first) = bad.next() {
        let source = source_of(copies, number, &first.range);
        let mut range = first.range.clone();
        while let Some(next) = bad.peek()
            && next.range.start == range.end
            && next.cause == first.cause
            && source_of(copies, number, &next.range) == source
        {
            range.end = next.range.end;
            bad.next();
        }
        let Some(site) = site(job, arrived, piece, copy.stripe, &range) else {
            continue;
        };
        let good = source.and_then(|source| copies.get(source)?.bytes(&range));
        let outcome = match good {
            Some(_) if piece.expected == Expected::Bare && !agree(copies, &range) => Outcome::Unverified,
            Some(good) => job.mend(&site, good),
            // The target gets the block unchanged.
            None if job.replaces.is_some() && first.cause.may_be_right() => Outcome::Unverified,
            None => Outcome::Uncorrectable {
                tried: tried(job, arrived, piece, copies, &range),
            },
        };
        job.note(&site, first.cause.clone(), outcome);
    }
}

/// Returns another copy of the piece that is good.
fn source_of(copies: &[Copy<'_>], number: usize, range: &Range<usize>) -> Option<usize> {
    let is_source = |(other, copy): &(usize, &Copy<'_>)| *other != number && copy.is_good(range);
    let found = copies.iter().enumerate().find(is_source);
    if buttress_faults::on("scrub-mends-from-bad-copy") {
        return copies
            .iter()
            .enumerate()
            .find(|(other, _)| *other != number)
            .map(|(other, _)| other);
    }
    found.map(|(other, _)| other)
}

/// Returns whether all readable copies are equal.
fn agree(copies: &[Copy<'_>], range: &Range<usize>) -> bool {
    let mut readable = copies
        .iter()
        .filter(|copy| copy.is_good(range))
        .map(|copy| copy.bytes(range));
    let first = readable.next();
    readable.all(|bytes| Some(bytes) == first)
}

/// Returns every place of a piece, with the reason why it did not help.
fn tried(
    job: &Job<'_>,
    arrived: &Arrived,
    piece: &Piece,
    copies: &[Copy<'_>],
    range: &Range<usize>,
) -> Vec<String> {
    let place = |(number, copy): (usize, &Copy<'_>)| {
        let site = site(job, arrived, piece, copy.stripe, range)?;
        let reason = match copy.bad.iter().find(|bad| overlap(&bad.range, range)) {
            _ if copy.view.is_none() => "the device is missing".to_owned(),
            Some(bad) => bad.cause.to_string(),
            None => "not read".to_owned(),
        };
        let number = number.exact_add(1);
        let (device, physical) = (site.slot.id(), site.physical);
        Some(format!(
            "copy {number} on device {device} at physical {physical}: {reason}"
        ))
    };
    copies.iter().enumerate().filter_map(place).collect()
}

/// Compares copies of data without checksums. If readable copies differ, the scrub reports the
/// copies in the minority; of two copies, the second.
fn compare(job: &Job<'_>, arrived: &Arrived, piece: &Piece, copies: &[Copy<'_>]) {
    let whole = 0..piece.length;
    let mut readable = copies.iter().filter(|copy| copy.view.is_some());
    let first = readable.next().and_then(|copy| copy.bytes(&whole));
    if readable.all(|copy| copy.bytes(&whole) == first) {
        return;
    }
    let most_common = |range: &Range<usize>| {
        let good = || copies.iter().filter(|copy| copy.is_good(range));
        let alike = |copy: &&Copy<'_>| {
            good()
                .filter(|other| other.bytes(range) == copy.bytes(range))
                .count()
        };
        // If several contents are equally frequent among the copies, the first content wins.
        good().rev().max_by_key(alike).and_then(|copy| copy.bytes(range))
    };
    for copy in copies.iter().filter(|copy| copy.view.is_some()) {
        let differs = |range: &Range<usize>| copy.is_good(range) && copy.bytes(range) != most_common(range);
        let mut differing: Vec<Range<usize>> = Vec::new();
        for range in sectors(piece.length, sector_of(&job.format)).filter(differs) {
            match differing.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => differing.push(range),
            }
        }
        for range in differing {
            let Some(site) = site(job, arrived, piece, copy.stripe, &range) else {
                continue;
            };
            // Preallocated data that was never written may differ.
            if job.is_written(&arrived.group, site.logical, ByteCount::of(site.length)) {
                job.note(&site, Cause::Differs, Outcome::Unverified);
            }
        }
    }
}
