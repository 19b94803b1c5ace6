//! Solid-state drives.
//!
//! A controller accepts requests one after another. The controller cuts each request into pages,
//! which are distributed round-robin over parallel units. Pages then cross one bus, which never
//! carries more than its rate since it was last idle. A single small read therefore takes command +
//! unit + bus. The command time limits many small reads, and the bus limits large ones.
//!
//! Left out: garbage collection, the exhaustion of write caches, and the order in which two ready
//! pages cross the bus.
//!
//! Clamps: times and costs of a simulated disk; no bytes depend on them.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "parameters are the program's own, and offsets are below 2^63: sums and the products in u128 fit"
)]

use super::{Command, Direction, Drive, Served};
use buttress_exact::Exact as _;

/// The parameters of an SSD. Sources of the figures: docs/internals/simulated-disks.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashParameters {
    /// The number of units that work in parallel.
    pub units: u64,
    /// The bytes of a page, the smallest read of a unit.
    pub page_bytes: u64,
    /// The number of requests that the drive accepts at once.
    pub queue_depth: usize,
    /// The times of reads.
    pub read: FlashTimes,
    /// The times of writes into the drive's write cache.
    pub write: FlashTimes,
}

/// The times of a flash drive for one direction, reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashTimes {
    /// The controller's time for a request, during which it accepts no other.
    pub command_nanoseconds: u64,
    /// A unit's time for a page.
    pub unit_nanoseconds: u64,
    /// The bus's rate in bytes a second.
    pub bus_bytes_per_second: u64,
}

impl FlashParameters {
    pub(super) fn sata_ssd() -> Self {
        Self {
            units: 64,
            page_bytes: 16 << 10,
            queue_depth: 32,
            read: FlashTimes {
                command_nanoseconds: 10_204,
                unit_nanoseconds: 82_200,
                bus_bytes_per_second: 540_000_000,
            },
            write: FlashTimes {
                command_nanoseconds: 11_111,
                unit_nanoseconds: 6_000,
                bus_bytes_per_second: 520_000_000,
            },
        }
    }

    pub(super) fn nvme_ssd() -> Self {
        Self {
            units: 128,
            page_bytes: 16 << 10,
            queue_depth: 1024,
            read: FlashTimes {
                command_nanoseconds: 2_632,
                unit_nanoseconds: 67_500,
                bus_bytes_per_second: 3_200_000_000,
            },
            write: FlashTimes {
                command_nanoseconds: 2_778,
                unit_nanoseconds: 15_000,
                bus_bytes_per_second: 1_900_000_000,
            },
        }
    }
}

#[derive(Debug)]
pub(super) struct FlashDrive {
    parameters: FlashParameters,
    /// The time from which each unit is free.
    units: Vec<u64>,
    /// The time at which the bus has carried all pages so far.
    bus: u64,
}

impl FlashDrive {
    pub(super) fn new(parameters: FlashParameters) -> Self {
        let units = parameters.units.narrow::<usize>();
        Self {
            parameters,
            units: vec![0; units],
            bus: 0,
        }
    }
}

impl Drive for FlashDrive {
    fn queue_depth(&self) -> usize {
        self.parameters.queue_depth.max(1)
    }

    fn choose(&self, _queue: &[Command], _now: u64) -> usize {
        0
    }

    fn serve(&mut self, command: &Command, start: u64) -> Served {
        let times = match command.direction {
            Direction::Read => self.parameters.read,
            Direction::Write => self.parameters.write,
        };
        let page_bytes = self.parameters.page_bytes.max(1);
        let accepted = start + times.command_nanoseconds;
        let end = command.offset_bytes + command.length_bytes;
        let mut offset = command.offset_bytes;
        let mut done = accepted;
        while offset < end {
            let page = offset / page_bytes;
            let page_end = end.min((page + 1) * page_bytes);
            let count = self.units.len().max(1);
            let unit = page.narrow::<usize>() % count;
            if let Some(free) = self.units.get_mut(unit) {
                let ready = (*free).max(accepted) + times.unit_nanoseconds;
                *free = ready;
                let crossing = u128::from(page_end - offset) * 1_000_000_000;
                let crossing = crossing / u128::from(times.bus_bytes_per_second.max(1));
                let crossing = u64::try_from(crossing).unwrap_or(u64::MAX / 4);
                self.bus = self.bus.max(accepted) + crossing;
                done = done.max(self.bus).max(ready + crossing);
            }
            offset = page_end;
        }
        Served {
            done,
            next_start: accepted,
        }
    }
}
