//! The places of bytes on a spinning disk, and the head's times to reach and to read them.
//!
//! Clamps: times and costs of a simulated disk; no bytes depend on them.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "parameters are the program's own, and offsets are below 2^63: sums and the products in u128 fit"
)]

use super::SpinningParameters;
use crate::simulation::Direction;

/// The block size; a track holds whole blocks.
const BLOCK_BYTES: u64 = 4096;

/// A byte's place on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) track: u64,
    /// The byte's offset in its track.
    pub(super) position: u64,
    /// The bytes of the track.
    pub(super) track_bytes: u64,
}

/// The tracks of a drive.
#[derive(Debug)]
pub(super) struct Geometry {
    pub(super) parameters: SpinningParameters,
    /// The bytes of a track, zone by zone.
    track_bytes: Vec<u64>,
    tracks_per_zone: u64,
    cylinders: u64,
}

impl Geometry {
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
        }
    }

    pub(super) fn place(&self, offset: u64) -> Place {
        let mut offset = offset;
        let mut first_track = 0;
        let mut zones = self.track_bytes.iter().peekable();
        loop {
            let track_bytes = zones.next().copied().unwrap_or(BLOCK_BYTES);
            let zone_bytes = track_bytes * self.tracks_per_zone;
            // A device larger than the drive continues in the innermost zone.
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

    /// Returns the time within a revolution at which a place passes under its head.
    pub(super) fn phase(&self, place: Place) -> u64 {
        let revolution = self.parameters.revolution_nanoseconds;
        let skew = scale(place.track, self.parameters.track_switch_nanoseconds, 1) % revolution;
        (scale(place.position, revolution, place.track_bytes) + skew) % revolution
    }

    /// Returns the time from the head on track `from` at the time `start` until `place` is under
    /// the head.
    pub(super) fn positioning(&self, from: u64, start: u64, place: Place, direction: Direction) -> u64 {
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

    pub(super) fn seek(&self, cylinders: u64) -> u64 {
        let single = self.parameters.track_switch_nanoseconds;
        let spread = self.parameters.average_seek_nanoseconds.saturating_sub(single) * 15 / 8;
        let square = u128::from(spread) * u128::from(spread) * u128::from(cylinders - 1);
        single + u64::try_from((square / u128::from(self.cylinders)).isqrt()).unwrap_or(u64::MAX / 4)
    }

    /// Returns the time to read or write `length` bytes from `offset` on, once the first byte is
    /// under the head.
    pub(super) fn transfer(&self, offset: u64, length: u64) -> u64 {
        let first = self.place(offset);
        if length <= first.track_bytes - first.position {
            return scale(length, self.parameters.revolution_nanoseconds, first.track_bytes);
        }
        let here = first.track_bytes - first.position;
        let time = scale(here, self.parameters.revolution_nanoseconds, first.track_bytes);
        time + self.parameters.track_switch_nanoseconds + self.transfer_tracks(offset + here, length - here)
    }

    /// Returns the time of a transfer as [`transfer`](Self::transfer) does, from the beginning of a
    /// track on.
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

    /// Returns the number of bytes that the head reads in `span` from `offset` on, at most `limit`.
    pub(super) fn read_in(&self, offset: u64, span: u64, limit: u64) -> u64 {
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
}

/// Returns `value * numerator / denominator` without overflow in between.
pub(super) fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator);
    u64::try_from(product / u128::from(denominator.max(1))).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new(SpinningParameters::disk_7200())
    }

    #[test]
    fn the_geometry_holds_the_capacity_and_shrinks_inwards() {
        let geometry = geometry();
        let capacity: u64 = geometry
            .track_bytes
            .iter()
            .map(|bytes| bytes * geometry.tracks_per_zone)
            .sum();
        assert!(capacity >= geometry.parameters.capacity_bytes);
        assert!(capacity < geometry.parameters.capacity_bytes * 1001 / 1000);
        assert!(geometry.track_bytes.is_sorted_by(|a, b| a > b));
        let last = geometry.place(geometry.parameters.capacity_bytes - 1);
        assert!(last.track < geometry.cylinders * geometry.parameters.heads);
    }

    /// The parameter's average is the mean time of seeks between random cylinders.
    #[test]
    fn the_mean_of_all_seeks_is_the_data_sheets() {
        let geometry = geometry();
        let cylinders = geometry.cylinders;
        let step = cylinders / 2000;
        // On C cylinders, a seek over d cylinders can start at C - d places.
        let (mut sum, mut weight) = (0_u128, 0_u128);
        for distance in (1..cylinders).step_by(step as usize) {
            let places = u128::from(cylinders - distance);
            sum += u128::from(geometry.seek(distance)) * places;
            weight += places;
        }
        let mean = (sum / weight) as u64;
        let expected = geometry.parameters.average_seek_nanoseconds;
        assert!(
            mean.abs_diff(expected) < expected / 200,
            "{mean} against {expected}"
        );
        assert_eq!(geometry.seek(1), geometry.parameters.track_switch_nanoseconds);
    }

    #[test]
    fn reading_on_across_a_track_loses_only_the_switch() {
        let geometry = geometry();
        let track = geometry.track_bytes[0];
        let end_of_first = geometry.place(track - BLOCK_BYTES);
        let next = geometry.place(track);
        let block = geometry.transfer(0, BLOCK_BYTES);
        let after_first = geometry.phase(end_of_first) + block;
        let wait = geometry.positioning(0, after_first, next, Direction::Read);
        assert!(
            wait.abs_diff(geometry.parameters.track_switch_nanoseconds) <= 2,
            "{wait}"
        );
        assert_eq!(
            geometry.transfer(0, 2 * track),
            2 * geometry.transfer(0, track) + 1_000_000
        );
        assert!(
            geometry
                .transfer(track / 2, track)
                .abs_diff(geometry.transfer(0, track) + 1_000_000)
                <= 2
        );
    }

    #[test]
    fn bytes_read_in_a_time_are_the_inverse_of_the_time_for_bytes() {
        let geometry = geometry();
        for (offset, length) in [(0, 4096), (1 << 20, 3 << 20), (5, 12_345_678)] {
            let time = geometry.transfer(offset, length);
            let read = geometry.read_in(offset, time, u64::MAX / 4);
            assert!(read.abs_diff(length) < 512, "{read} of {length} from {offset}");
            assert_eq!(geometry.read_in(offset, time, 1000), 1000);
        }
    }
}
