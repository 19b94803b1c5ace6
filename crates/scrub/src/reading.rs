//! Submits the reads of a group to all its devices, each in one plug, and waits for them.

use crate::copying::Wanted;
use crate::fetched::Fetched;
use crate::filling::Trees;
use crate::group::{Arrived, Group, Reads, StripeReads, Submitted, unit};
use crate::job::{Job, physical_of};
use crate::verify::sector_of;
use buttress_device::{Device, ReadRequest};
use buttress_exact::Exact as _;
use buttress_format::Physical;
use buttress_volume::MappedChunk;
use core::ops::Range;
use core::time::Duration;
use std::time::Instant;

/// How long a stream sleeps at a time while a limit delays it.
const NAP: Duration = Duration::from_millis(100);

impl Job<'_> {
    /// Submits the reads of a group to all its devices.
    pub(crate) fn submit(&self, group: Group, trees: &Trees) -> Submitted {
        // Wait before any read: columns of a row that are read at different times look wrong beside
        // a writer.
        self.nap(self.charge_limits(&group, Wanted::Few));
        let writes = self.volume.writes_to_rows(&group.chunk, group.rows());
        Submitted {
            stripes: self.submit_stripes(&group, Wanted::Few),
            trees: trees.clone(),
            group,
            writes,
        }
    }

    /// Submits the reads of a group again, with its rows locked. The rate limit does not delay
    /// these repeated reads, but later reads.
    fn submit_again(&self, group: &Group, wanted: Wanted) -> Vec<StripeReads> {
        let _paid_later = self.charge_limits(group, wanted);
        self.submit_stripes(group, wanted)
    }

    /// Returns the reads of each stripe of a group.
    fn wanted_runs(&self, group: &Group, wanted: Wanted) -> Vec<Vec<Range<u64>>> {
        let mut requests = group.requests();
        if let Some(replacing) = &self.replaces {
            let bare = group.rows_with_bare_data();
            for (stripe, runs) in requests.iter_mut().enumerate() {
                let copying = &replacing.copying;
                let is_bare = |run: &Range<u64>| bare.contains(&unit(run.start));
                runs.retain(|run| copying.wants(&group.chunk, stripe, run.start, is_bare(run), wanted));
            }
        }
        requests
    }

    fn submit_stripes(&self, group: &Group, wanted: Wanted) -> Vec<StripeReads> {
        let requests = self.wanted_runs(group, wanted).into_iter().enumerate();
        let submitted = requests.map(|(stripe, runs)| match runs.is_empty() {
            true => StripeReads {
                runs,
                reads: Reads::None,
            },
            false => self.submit_stripe(&group.chunk, stripe, runs),
        });
        submitted.collect()
    }

    fn submit_stripe(&self, chunk: &MappedChunk, stripe: usize, runs: Vec<Range<u64>>) -> StripeReads {
        let device = device_of(chunk, stripe);
        let physical = physical_of(chunk, stripe);
        let (Some(device), Some(physical)) = (device, physical) else {
            return StripeReads {
                runs,
                reads: Reads::None,
            };
        };
        let reads = if !self.options.shape.plugged {
            let requests = requests(&runs, physical);
            Reads::UnderWay(requests.map(|request| device.start_read(request)).collect())
        } else if is_in_memory(device, physical, &runs) {
            Reads::InMemory
        } else {
            let requests: Vec<ReadRequest> = requests(&runs, physical).collect();
            Reads::UnderWay(device.start_reads(&requests))
        };
        StripeReads { runs, reads }
    }

    /// Counts the bytes that a group reads of each device. Returns the longest delay that the
    /// limits of these devices demand.
    fn charge_limits(&self, group: &Group, wanted: Wanted) -> Duration {
        let mut longest = Duration::ZERO;
        if self.options.limit.is_none() {
            return longest;
        }
        let now = Instant::now();
        for (stripe, runs) in self.wanted_runs(group, wanted).into_iter().enumerate() {
            let slot = group.chunk.devices().get(stripe);
            let state = slot.and_then(|slot| self.devices.get(&slot.uuid()));
            if let Some(state) = state.filter(|_| !runs.is_empty()) {
                let lengths = runs.iter().map(|run| run.end.exact_sub(run.start));
                let bytes = lengths.fold(0_u64, u64::exact_add);
                longest = longest.max(state.limiter.delay(bytes, now));
            }
        }
        longest
    }

    /// Sleeps for a time, but wakes soon after the job is cancelled.
    fn nap(&self, mut left: Duration) {
        while left > Duration::ZERO && !self.progress.is_cancelled() {
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            // Clamp: a nap never exceeds the remaining time.
            left = left.saturating_sub(nap);
        }
    }

    pub(crate) fn wait(&self, group: Group, stripes: Vec<StripeReads>) -> Arrived {
        let sector = sector_of(&self.format);
        let fetched = stripes.into_iter().enumerate().map(|(stripe, reads)| {
            let device = device_of(&group.chunk, stripe);
            // Clamp: a stripe without a device location was not read.
            let physical = physical_of(&group.chunk, stripe).unwrap_or(Physical::MIN);
            Fetched::wait(reads, device, physical, sector)
        });
        let stripes = fetched.collect();
        Arrived { group, stripes }
    }

    /// Reads a group again; the caller has locked its rows.
    pub(crate) fn fetch_again(&self, arrived: Arrived, wanted: Wanted) -> Arrived {
        let Arrived { group, stripes } = arrived;
        drop(stripes);
        let stripes = self.submit_again(&group, wanted);
        self.wait(group, stripes)
    }
}

/// Returns the device of a stripe. A device that failed a write lacks that write, so it is not
/// read.
fn device_of(chunk: &MappedChunk, stripe: usize) -> Option<&Device> {
    let slot = chunk.devices().get(stripe)?;
    if buttress_faults::on("scrub-reads-failed-device") {
        return slot.device();
    }
    slot.in_use()
}

/// Returns the requests for runs of a stripe that begins at `physical` on its device.
pub(crate) fn requests(runs: &[Range<u64>], physical: Physical) -> impl Iterator<Item = ReadRequest> {
    runs.iter().map(move |run| ReadRequest {
        // Clamp: a chunk item can point anywhere; the device refuses the last address.
        offset_bytes: physical.get().saturating_add(run.start),
        length: run.end.exact_sub(run.start).narrow::<usize>(),
    })
}

/// Returns whether the first and the last byte of each run are in the page cache; the rest most
/// likely is too.
fn is_in_memory(device: &Device, physical: Physical, runs: &[Range<u64>]) -> bool {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return false;
    };
    let last = last.end.exact_sub(1);
    let mut ends = [first.start, last].into_iter();
    // Clamp: as in `requests`, a chunk item can point anywhere.
    ends.all(|offset| device.is_cached(physical.get().saturating_add(offset)))
}
