//! A spinning disk.
//!
//! Geometry: tracks follow each other from the outer edge inwards, `heads` of them to a cylinder.
//! Zones have equal numbers of tracks, and inner zones hold fewer bytes a track. Each track is
//! rotated against the previous track by the time of a track change (skew). A sequential read
//! across tracks therefore loses exactly that time and no revolution.
//!
//! Positioning: a seek over `d` of `C` cylinders takes `single + (average - single) / (8/15) *
//! sqrt(d / C)`. The mean of `sqrt(x)` over seeks between two random cylinders is 8/15, so a random
//! seek takes the data sheet's average. A seek to a neighbouring cylinder takes its single-track
//! time. The platter then rotates to the first byte.
//!
//! On-drive read-ahead: after a read the head reads ahead, while no other request needs the head,
//! until the cache segment is full. A read inside a segment takes only the command's and the
//! interface's time. A read that begins in the segment being filled and ends beyond the segment
//! continues from its end.
//!
//! Choice: of the queued requests, cached ones come first, then the request with the shortest
//! positioning time. The oldest request comes first once it has waited for
//! [`STARVATION_NANOSECONDS`].
//!
//! Left out: reading the part of a track that passes before the requested sector, settling times
//! that depend on direction, and defects.
//!
//! Clamps: times and costs of a simulated disk; no bytes depend on them.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "parameters are the program's own, and offsets are below 2^63: sums and the products in u128 fit"
)]

mod geometry;

use std::collections::VecDeque;

use geometry::{Geometry, scale};

use super::{Command, Direction, Drive, Served};

/// The parameters of a spinning disk. Sources of the figures: docs/internals/simulated-disks.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinningParameters {
    /// The bytes of the whole drive. A simulated device is at the drive's beginning, the outer
    /// edge.
    pub capacity_bytes: u64,
    /// The time of a revolution.
    pub revolution_nanoseconds: u64,
    /// The number of recording surfaces.
    pub heads: u64,
    /// The number of bands of tracks, equal in tracks.
    pub zones: u64,
    /// The rate of sequential reads in the outermost zone, in bytes a second, track changes
    /// included.
    pub outer_bytes_per_second: u64,
    /// The rate of sequential reads in the innermost zone.
    pub inner_bytes_per_second: u64,
    /// The time of a change to the next track, and of a seek to the neighbouring cylinder.
    pub track_switch_nanoseconds: u64,
    /// The mean time of a seek between random cylinders, for reading.
    pub average_seek_nanoseconds: u64,
    /// The additional seek time of a write.
    pub write_settle_nanoseconds: u64,
    /// The time of the drive's electronics for a cached request. Positioning hides the electronics'
    /// time for other requests.
    pub command_nanoseconds: u64,
    /// The interface's rate in bytes a second.
    pub interface_bytes_per_second: u64,
    /// The bytes of a segment of the on-drive cache.
    pub segment_bytes: u64,
    /// The number of segments in the on-drive cache.
    pub segments: usize,
    /// The number of requests that the drive accepts at once.
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

/// The waiting time after which a request comes next.
const STARVATION_NANOSECONDS: u64 = 1_000_000_000;

/// A part of the medium in the drive's cache: the bytes `[start, end)`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
}

#[derive(Debug)]
pub(super) struct SpinningDrive {
    geometry: Geometry,
    /// The track under the head.
    track: u64,
    /// The cached segments, oldest first. The head may be filling the last segment.
    cache: VecDeque<Segment>,
    /// The time since which the head has been reading ahead into the last segment.
    reading_on_since: Option<u64>,
}

impl SpinningDrive {
    pub(super) fn new(parameters: SpinningParameters) -> Self {
        let geometry = Geometry::new(parameters);
        Self {
            geometry,
            track: 0,
            cache: VecDeque::new(),
            reading_on_since: None,
        }
    }

    /// Returns the segment being filled at the time `now`, and whether the head still reads ahead.
    fn filling(&self, now: u64) -> Option<(Segment, bool)> {
        let since = self.reading_on_since?;
        let segment = *self.cache.back()?;
        let room = self
            .geometry
            .parameters
            .segment_bytes
            .saturating_sub(segment.end - segment.start);
        let read = self
            .geometry
            .read_in(segment.end, now.saturating_sub(since), room);
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

    /// Returns the end of a read by reading ahead alone, if the read begins in the segment being
    /// filled and ends beyond the head's place.
    fn streamed(&self, command: &Command, now: u64) -> Option<u64> {
        let (segment, true) = self.filling(now)? else {
            return None;
        };
        let begins_here = (segment.start..=segment.end).contains(&command.offset_bytes);
        if command.direction == Direction::Write || !begins_here {
            return None;
        }
        // The start of reading ahead is exact, also while the head changes tracks.
        let (began, since) = (self.cache.back()?.end, self.reading_on_since?);
        Some(
            now.max(
                since
                    + self
                        .geometry
                        .transfer(began, command.offset_bytes + command.length_bytes - began),
            ),
        )
    }

    /// Returns the time until the first byte of a request passes under the head; zero for a fully
    /// cached request.
    fn cost(&self, command: &Command, now: u64) -> u64 {
        if self.is_cached(command, now) {
            return 0;
        }
        if self.streamed(command, now).is_some() {
            return 0;
        }
        self.geometry.positioning(
            self.track_at(now),
            now,
            self.geometry.place(command.offset_bytes),
            command.direction,
        )
    }

    /// Returns the track that reading ahead has reached by the time `now`.
    fn track_at(&self, now: u64) -> u64 {
        match self.filling(now) {
            Some((segment, _)) => self.geometry.place(segment.end).track,
            None => self.track,
        }
    }

    /// Adds a segment at the end of the cache, which reading ahead fills from the time `done` on.
    fn begin_segment(&mut self, start: u64, end: u64, done: u64) {
        // The segment keeps the last part of a request larger than a segment.
        let start = start.max(end.saturating_sub(self.geometry.parameters.segment_bytes));
        self.cache.push_back(Segment { start, end });
        while self.cache.len() > self.geometry.parameters.segments.max(1) {
            self.cache.pop_front();
        }
        let next = self.geometry.place(end);
        // At the end of a track the head first changes to the next track.
        let switch = if next.position == 0 {
            self.geometry.parameters.track_switch_nanoseconds
        } else {
            0
        };
        self.reading_on_since = Some(done + switch);
        self.track = next.track;
    }

    /// Ends reading ahead at the time `now`, because another request needs the head.
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
        self.geometry.parameters.queue_depth.max(1)
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
            // The cached request does not need the head, which continues reading ahead.
            let interface = scale(
                length_bytes,
                1_000_000_000,
                self.geometry.parameters.interface_bytes_per_second,
            );
            let done = start + self.geometry.parameters.command_nanoseconds + interface;
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
                let place = self.geometry.place(offset_bytes);
                let reached = start + self.geometry.positioning(self.track, start, place, direction);
                reached + self.geometry.transfer(offset_bytes, length_bytes)
            }
        };
        self.track = self.geometry.place(end.saturating_sub(1)).track;
        if direction == Direction::Read {
            self.begin_segment(offset_bytes, end, done);
        } else {
            // A write invalidates the cached bytes that it covers.
            self.cache
                .retain(|segment| segment.end <= offset_bytes || end <= segment.start);
        }
        Served {
            done,
            next_start: done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive() -> SpinningDrive {
        SpinningDrive::new(SpinningParameters::disk_7200())
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

    /// Every boundary between tracks costs a track change, also if a request ends exactly there.
    #[test]
    fn requests_that_end_at_a_track_pay_for_the_next() {
        let mut drive = drive();
        let length = drive.geometry.place(0).track_bytes / 399 * 21;
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
        let tracks = drive.geometry.transfer(0, 40 * length);
        assert!(
            (now - times[0]).abs_diff(tracks - drive.geometry.transfer(0, length)) < 100,
            "{times:?}"
        );
    }
}
