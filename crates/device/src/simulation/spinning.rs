//! A spinning disk.
//!
//! Geometry: tracks follow each other from the outer edge inwards, `heads` of them to a cylinder. Zones of equally
//! many tracks hold fewer and fewer bytes a track. Each track is turned against the one before by the time that
//! changing to it takes (skew), so that reading on across tracks loses exactly that time and no revolution.
//!
//! Positioning: a seek over `d` of `C` cylinders takes `single + (average - single) / (8/15) * sqrt(d / C)`. The
//! mean of `sqrt(x)` over seeks between two random cylinders is 8/15, so a random seek takes the data sheet's
//! average; a neighbouring cylinder takes its single-track time. Then the platter turns on to the first byte.
//!
//! On-drive read-ahead: after a read the head reads on, while no other request wants it, until the segment of the
//! cache is full. A read that lies in a segment takes only the command and the interface's time; one that begins
//! in the segment being filled and ends beyond it streams on from there.
//!
//! Choice: of the queued requests, cached ones first, then the one with the shortest positioning time; the oldest
//! one, once it has waited for [`STARVATION_NANOSECONDS`].
//!
//! What it leaves out: reading the part of a track that passes before the wanted sector arrives, settling that
//! depends on direction, defects.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "parameters are the program's own, and offsets are below 2^63: sums and the products in u128 fit"
)]

use std::collections::VecDeque;

use super::{Command, Drive, Served};
use crate::queue::statistics::Direction;

/// What makes a spinning disk. Sources of the figures: docs/simulated-disks.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinningParameters {
    /// Bytes on the whole drive; simulated devices lie at its beginning, the outer edge.
    pub capacity_bytes: u64,
    /// Time of one revolution.
    pub revolution_nanoseconds: u64,
    /// Recording surfaces.
    pub heads: u64,
    /// Bands of tracks of equal size.
    pub zones: u64,
    /// Bytes a second that reading on gives in the outermost zone, track changes included.
    pub outer_bytes_per_second: u64,
    /// The same for the innermost zone.
    pub inner_bytes_per_second: u64,
    /// Time to change to the next track, and of a seek to the neighbouring cylinder.
    pub track_switch_nanoseconds: u64,
    /// Mean time of a seek between random cylinders, for reading.
    pub average_seek_nanoseconds: u64,
    /// What a write adds to a seek.
    pub write_settle_nanoseconds: u64,
    /// Time that the drive's electronics take for a request that its cache serves, and that positioning hides.
    pub command_nanoseconds: u64,
    /// Bytes a second of the interface.
    pub interface_bytes_per_second: u64,
    /// Bytes of one segment of the on-drive cache.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// Requests that the drive takes in at once.
    pub queue_depth: usize,
}

impl SpinningParameters {
    pub(super) fn disk_7200() -> Self {
        Self {
            capacity_bytes: 1_000_204_886_016,
            revolution_nanoseconds: 8_333_333,
            heads: 3,
            zones: 16,
            outer_bytes_per_second: 175_000_000,
            inner_bytes_per_second: 83_000_000,
            track_switch_nanoseconds: 1_000_000,
            average_seek_nanoseconds: 8_500_000,
            write_settle_nanoseconds: 1_000_000,
            command_nanoseconds: 50_000,
            interface_bytes_per_second: 600_000_000,
            segment_bytes: 2 << 20,
            segments: 64,
            queue_depth: 32,
        }
    }
}

/// A request that has waited this long goes next.
const STARVATION_NANOSECONDS: u64 = 1_000_000_000;

/// Tracks hold whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;

/// A byte's place on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    track: u64,
    /// Byte in the track.
    position: u64,
    /// Bytes that its track holds.
    track_bytes: u64,
}

/// A part of the medium in the drive's cache: the bytes `[start, end)`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
}

#[derive(Debug)]
pub(super) struct SpinningDrive {
    parameters: SpinningParameters,
    /// Bytes of a track, zone by zone.
    track_bytes: Vec<u64>,
    tracks_per_zone: u64,
    cylinders: u64,
    /// The track under the head.
    track: u64,
    /// Oldest first; the last is the one that the head may be filling.
    cache: VecDeque<Segment>,
    /// The head has been reading on since this time, filling the last segment.
    reading_on_since: Option<u64>,
}

impl SpinningDrive {
    pub(super) fn new(parameters: SpinningParameters) -> Self {
        let per_track = parameters.revolution_nanoseconds + parameters.track_switch_nanoseconds;
        let (outer, inner) = (
            parameters.outer_bytes_per_second,
            parameters.inner_bytes_per_second,
        );
        let zones = parameters.zones.max(1);
        let track_bytes: Vec<u64> = (0..zones)
            .map(|zone| outer - outer.saturating_sub(inner) * zone / zones.saturating_sub(1).max(1))
            .map(|rate| scale(per_track, rate, 1_000_000_000).next_multiple_of(BLOCK_BYTES))
            .collect();
        let band: u64 = track_bytes.iter().sum();
        let tracks_per_zone = parameters.capacity_bytes.div_ceil(band.max(1)).max(1);
        let cylinders = (tracks_per_zone * zones).div_ceil(parameters.heads.max(1)).max(1);
        Self {
            parameters,
            track_bytes,
            tracks_per_zone,
            cylinders,
            track: 0,
            cache: VecDeque::new(),
            reading_on_since: None,
        }
    }

    fn place(&self, offset: u64) -> Place {
        let mut offset = offset;
        let mut first_track = 0;
        let mut zones = self.track_bytes.iter().peekable();
        loop {
            let track_bytes = zones.next().copied().unwrap_or(BLOCK_BYTES);
            let zone_bytes = track_bytes * self.tracks_per_zone;
            // A device larger than the drive goes on in the innermost zone.
            if offset < zone_bytes || zones.peek().is_none() {
                return Place {
                    track: first_track + offset / track_bytes,
                    position: offset % track_bytes,
                    track_bytes,
                };
            }
            offset -= zone_bytes;
            first_track += self.tracks_per_zone;
        }
    }

    /// The time within a revolution at which a place passes under its head.
    fn phase(&self, place: Place) -> u64 {
        let revolution = self.parameters.revolution_nanoseconds;
        let skew = scale(place.track, self.parameters.track_switch_nanoseconds, 1) % revolution;
        (scale(place.position, revolution, place.track_bytes) + skew) % revolution
    }

    /// Time from having the head on track `from` at the time `start` until `place` lies under it.
    fn positioning(&self, from: u64, start: u64, place: Place, direction: Direction) -> u64 {
        let parameters = &self.parameters;
        let heads = parameters.heads.max(1);
        let mut moving = match (place.track / heads).abs_diff(from / heads) {
            0 if place.track == from => 0,
            0 => parameters.track_switch_nanoseconds,
            cylinders => self.seek(cylinders),
        };
        if direction == Direction::Write {
            moving += parameters.write_settle_nanoseconds;
        }
        let revolution = parameters.revolution_nanoseconds;
        let arrival = (start + moving) % revolution;
        moving + (self.phase(place) + revolution - arrival) % revolution
    }

    fn seek(&self, cylinders: u64) -> u64 {
        let single = self.parameters.track_switch_nanoseconds;
        let spread = self.parameters.average_seek_nanoseconds.saturating_sub(single) * 15 / 8;
        let square = u128::from(spread) * u128::from(spread) * u128::from(cylinders - 1);
        single + u64::try_from((square / u128::from(self.cylinders)).isqrt()).unwrap_or(u64::MAX / 4)
    }

    /// Time to read or write `length` bytes from `offset` on, once its first byte lies under the head.
    fn transfer(&self, offset: u64, length: u64) -> u64 {
        let first = self.place(offset);
        if length <= first.track_bytes - first.position {
            return scale(length, self.parameters.revolution_nanoseconds, first.track_bytes);
        }
        let here = first.track_bytes - first.position;
        let time = scale(here, self.parameters.revolution_nanoseconds, first.track_bytes);
        time + self.parameters.track_switch_nanoseconds + self.transfer_tracks(offset + here, length - here)
    }

    /// As [`transfer`](Self::transfer), from the beginning of a track on.
    fn transfer_tracks(&self, offset: u64, length: u64) -> u64 {
        let (mut offset, mut length, mut time) = (offset, length, 0);
        loop {
            let track_bytes = self.place(offset).track_bytes;
            let here = length.min(track_bytes);
            time += scale(here, self.parameters.revolution_nanoseconds, track_bytes);
            length -= here;
            offset += here;
            if length == 0 {
                return time;
            }
            time += self.parameters.track_switch_nanoseconds;
        }
    }

    /// How many bytes the head reads in `span` from `offset` on, at most `limit`.
    fn read_in(&self, offset: u64, span: u64, limit: u64) -> u64 {
        let (mut offset, mut span, mut read) = (offset, span, 0);
        while read < limit {
            let place = self.place(offset);
            let here = (place.track_bytes - place.position).min(limit - read);
            let time = scale(here, self.parameters.revolution_nanoseconds, place.track_bytes);
            if time > span {
                return read
                    + scale(span, place.track_bytes, self.parameters.revolution_nanoseconds).min(here);
            }
            span = (span - time).saturating_sub(self.parameters.track_switch_nanoseconds);
            read += here;
            offset += here;
        }
        read
    }

    /// The segment being filled as it is at the time `now`, and whether the head still reads on.
    fn filling(&self, now: u64) -> Option<(Segment, bool)> {
        let since = self.reading_on_since?;
        let segment = *self.cache.back()?;
        let room = self
            .parameters
            .segment_bytes
            .saturating_sub(segment.end - segment.start);
        let read = self.read_in(segment.end, now.saturating_sub(since), room);
        Some((
            Segment {
                start: segment.start,
                end: segment.end + read,
            },
            read < room,
        ))
    }

    fn is_cached(&self, command: &Command, now: u64) -> bool {
        let (start, end) = (command.offset_bytes, command.offset_bytes + command.length_bytes);
        let filling = self.filling(now).map(|(segment, _)| segment);
        command.direction == Direction::Read
            && self
                .cache
                .iter()
                .copied()
                .chain(filling)
                .any(|s| s.start <= start && end <= s.end)
    }

    /// When a read that begins in the segment being filled, but that the head has not reached the end of, is done
    /// by just reading on.
    fn streamed(&self, command: &Command, now: u64) -> Option<u64> {
        let (segment, true) = self.filling(now)? else {
            return None;
        };
        let begins_here = (segment.start..=segment.end).contains(&command.offset_bytes);
        if command.direction == Direction::Write || !begins_here {
            return None;
        }
        // From where reading on began, which is exact also while the head changes tracks.
        let (began, since) = (self.cache.back()?.end, self.reading_on_since?);
        Some(now.max(since + self.transfer(began, command.offset_bytes + command.length_bytes - began)))
    }

    /// Time until the first byte of a request passes under the head; zero if the cache has it all.
    fn cost(&self, command: &Command, now: u64) -> u64 {
        if self.is_cached(command, now) {
            return 0;
        }
        if self.streamed(command, now).is_some() {
            return 0;
        }
        self.positioning(
            self.track_at(now),
            now,
            self.place(command.offset_bytes),
            command.direction,
        )
    }

    /// Where reading on has brought the head by the time `now`.
    fn track_at(&self, now: u64) -> u64 {
        match self.filling(now) {
            Some((segment, _)) => self.place(segment.end).track,
            None => self.track,
        }
    }

    /// Puts a new segment at the end of the cache, to be filled by reading on from `done`.
    fn begin_segment(&mut self, start: u64, end: u64, done: u64) {
        // A request larger than a segment leaves its last part in it.
        let start = start.max(end.saturating_sub(self.parameters.segment_bytes));
        self.cache.push_back(Segment { start, end });
        while self.cache.len() > self.parameters.segments.max(1) {
            self.cache.pop_front();
        }
        let next = self.place(end);
        // At the end of a track, changing to the next one comes first.
        let switch = if next.position == 0 {
            self.parameters.track_switch_nanoseconds
        } else {
            0
        };
        self.reading_on_since = Some(done + switch);
        self.track = next.track;
    }

    /// Ends reading on at the time `now`: the head is wanted elsewhere.
    fn stop_reading_on(&mut self, now: u64) {
        self.track = self.track_at(now);
        if let (Some((segment, _)), Some(last)) = (self.filling(now), self.cache.back_mut()) {
            *last = segment;
        }
        self.reading_on_since = None;
    }
}

impl Drive for SpinningDrive {
    fn queue_depth(&self) -> usize {
        self.parameters.queue_depth.max(1)
    }

    fn choose(&self, queue: &[Command], now: u64) -> usize {
        let oldest = queue
            .iter()
            .enumerate()
            .min_by_key(|(_, command)| command.arrived);
        if let Some((index, command)) = oldest
            && now.saturating_sub(command.arrived) >= STARVATION_NANOSECONDS
        {
            return index;
        }
        let nearest = queue
            .iter()
            .enumerate()
            .min_by_key(|(_, command)| self.cost(command, now));
        nearest.map_or(0, |(index, _)| index)
    }

    fn serve(&mut self, command: &Command, start: u64) -> Served {
        let Command {
            direction,
            offset_bytes,
            length_bytes,
            ..
        } = *command;
        let end = offset_bytes + length_bytes;
        if self.is_cached(command, start) {
            // The head is not needed: it goes on with what it does.
            let interface = scale(
                length_bytes,
                1_000_000_000,
                self.parameters.interface_bytes_per_second,
            );
            let done = start + self.parameters.command_nanoseconds + interface;
            return Served {
                done,
                next_start: done,
            };
        }
        let streamed = self.streamed(command, start);
        self.stop_reading_on(start);
        let done = match streamed {
            Some(done) => done,
            None => {
                let place = self.place(offset_bytes);
                let reached = start + self.positioning(self.track, start, place, direction);
                reached + self.transfer(offset_bytes, length_bytes)
            }
        };
        self.track = self.place(end.saturating_sub(1)).track;
        if direction == Direction::Read {
            self.begin_segment(offset_bytes, end, done);
        } else {
            // What a write covers is no longer what the cache holds.
            self.cache
                .retain(|segment| segment.end <= offset_bytes || end <= segment.start);
        }
        Served {
            done,
            next_start: done,
        }
    }
}

/// `value * numerator / denominator` without overflow in between.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator);
    u64::try_from(product / u128::from(denominator.max(1))).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive() -> SpinningDrive {
        SpinningDrive::new(SpinningParameters::disk_7200())
    }

    #[test]
    fn the_geometry_holds_the_capacity_and_shrinks_inwards() {
        let drive = drive();
        let capacity: u64 = drive
            .track_bytes
            .iter()
            .map(|bytes| bytes * drive.tracks_per_zone)
            .sum();
        assert!(capacity >= drive.parameters.capacity_bytes);
        assert!(capacity < drive.parameters.capacity_bytes * 1001 / 1000);
        assert!(drive.track_bytes.is_sorted_by(|a, b| a > b));
        let last = drive.place(drive.parameters.capacity_bytes - 1);
        assert!(last.track < drive.cylinders * drive.parameters.heads);
    }

    /// The parameters' average is what seeks between random cylinders take.
    #[test]
    fn the_mean_of_all_seeks_is_the_data_sheets() {
        let drive = drive();
        let cylinders = drive.cylinders;
        let step = cylinders / 2000;
        // A seek over d cylinders is possible from C - d places.
        let (mut sum, mut weight) = (0_u128, 0_u128);
        for distance in (1..cylinders).step_by(step as usize) {
            let places = u128::from(cylinders - distance);
            sum += u128::from(drive.seek(distance)) * places;
            weight += places;
        }
        let mean = (sum / weight) as u64;
        let expected = drive.parameters.average_seek_nanoseconds;
        assert!(
            mean.abs_diff(expected) < expected / 200,
            "{mean} against {expected}"
        );
        assert_eq!(drive.seek(1), drive.parameters.track_switch_nanoseconds);
    }

    #[test]
    fn reading_on_across_a_track_loses_only_the_switch() {
        let drive = drive();
        let track = drive.track_bytes[0];
        let end_of_first = drive.place(track - BLOCK_BYTES);
        let next = drive.place(track);
        let block = drive.transfer(0, BLOCK_BYTES);
        let after_first = drive.phase(end_of_first) + block;
        let wait = drive.positioning(0, after_first, next, Direction::Read);
        assert!(
            wait.abs_diff(drive.parameters.track_switch_nanoseconds) <= 2,
            "{wait}"
        );
        assert_eq!(
            drive.transfer(0, 2 * track),
            2 * drive.transfer(0, track) + 1_000_000
        );
        assert!(
            drive
                .transfer(track / 2, track)
                .abs_diff(drive.transfer(0, track) + 1_000_000)
                <= 2
        );
    }

    #[test]
    fn bytes_read_in_a_time_are_the_inverse_of_the_time_for_bytes() {
        let drive = drive();
        for (offset, length) in [(0, 4096), (1 << 20, 3 << 20), (5, 12_345_678)] {
            let time = drive.transfer(offset, length);
            let read = drive.read_in(offset, time, u64::MAX / 4);
            assert!(read.abs_diff(length) < 512, "{read} of {length} from {offset}");
            assert_eq!(drive.read_in(offset, time, 1000), 1000);
        }
    }

    #[test]
    fn the_nearest_request_is_chosen_and_the_oldest_not_forgotten() {
        let drive = drive();
        let read = |offset_bytes, arrived| Command {
            direction: Direction::Read,
            offset_bytes,
            length_bytes: 4096,
            arrived,
        };
        let queue = [
            read(900_000_000_000, 0),
            read(1 << 20, 1),
            read(400_000_000_000, 2),
        ];
        assert_eq!(drive.choose(&queue, 10), 1);
        assert_eq!(drive.choose(&queue, STARVATION_NANOSECONDS), 0);
    }

    /// Every boundary between tracks costs its switch, also where a request ends exactly there.
    #[test]
    fn requests_that_end_at_a_track_pay_for_the_next() {
        let mut drive = drive();
        let length = drive.track_bytes[0] / 399 * 21;
        let mut now = 0;
        let mut times = Vec::new();
        for index in 0..40 {
            let command = Command {
                direction: Direction::Read,
                offset_bytes: index * length,
                length_bytes: length,
                arrived: 0,
            };
            let done = drive.serve(&command, now).done;
            times.push(done - now);
            now = done;
        }
        let tracks = drive.transfer(0, 40 * length);
        assert!(
            (now - times[0]).abs_diff(tracks - drive.transfer(0, length)) < 100,
            "{times:?}"
        );
    }
}
