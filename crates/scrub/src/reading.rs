//! Asking all devices for what a group needs of them, each in one plug, and waiting for it.

use crate::copying::Wanted;
use crate::fetched::Fetched;
use crate::filling::Trees;
use crate::group::{Arrived, Group, StripeReads, Submitted};
use crate::job::{Job, physical_of};
use crate::verify::sector_of;
use buttress_device::{PendingRead, ReadRequest};
use buttress_format::Physical;
use buttress_volume::{DeviceSlot, MappedChunk};
use core::time::Duration;
use std::time::Instant;

/// How long a stream sleeps at a time when it keeps to a limit.
const NAP: Duration = Duration::from_millis(100);

impl Job<'_> {
    /// Asks all devices for what a group needs of them.
    pub(crate) fn submit(&self, group: Group, trees: &Trees) -> Submitted {
        let writes = self.volume.writes_to_rows(&group.chunk, group.rows());
        Submitted {
            stripes: self.submit_stripes(&group, Wanted::Few),
            trees: trees.clone(),
            group,
            writes,
        }
    }

    pub(crate) fn submit_stripes(&self, group: &Group, wanted: Wanted) -> Vec<StripeReads> {
        let requests = group.requests().into_iter().enumerate();
        let submitted = requests.map(|(stripe, runs)| {
            let copying = self.replaces.as_ref().map(|replacing| &replacing.copying);
            if copying.is_some_and(|copying| !copying.wants(&group.chunk, stripe, wanted)) {
                return StripeReads { runs, reads: None };
            }
            self.submit_stripe(&group.chunk, stripe, runs)
        });
        submitted.collect()
    }

    fn submit_stripe(
        &self,
        chunk: &MappedChunk,
        stripe: usize,
        runs: Vec<core::ops::Range<u64>>,
    ) -> StripeReads {
        let slot = chunk.devices().get(stripe);
        let device = slot.and_then(|slot| slot.device());
        let physical = physical_of(chunk, stripe);
        let (Some(slot), Some(device), Some(physical)) = (slot, device, physical) else {
            return StripeReads { runs, reads: None };
        };
        let requests: Vec<ReadRequest> = runs
            .iter()
            .map(|run| ReadRequest {
                offset_bytes: physical.get().saturating_add(run.start),
                length: usize::try_from(run.end.saturating_sub(run.start)).unwrap_or(usize::MAX),
            })
            .collect();
        let bytes = runs.iter().fold(0_u64, |sum, run| {
            sum.saturating_add(run.end.saturating_sub(run.start))
        });
        self.slow_down(slot, bytes);
        let reads: Vec<PendingRead> = if self.options.shape.plugged {
            device.start_reads(&requests)
        } else {
            requests
                .iter()
                .map(|request| device.start_read(*request))
                .collect()
        };
        StripeReads {
            runs,
            reads: Some(reads),
        }
    }

    /// Keeps to the limit of a device.
    fn slow_down(&self, slot: &DeviceSlot, bytes: u64) {
        let Some(state) = self.devices.get(&slot.uuid()) else {
            return;
        };
        let mut left = state.limiter.delay(bytes, Instant::now());
        while left > Duration::ZERO && !self.progress.is_cancelled() {
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            left = left.saturating_sub(nap);
        }
    }

    pub(crate) fn wait(&self, group: Group, stripes: Vec<StripeReads>) -> Arrived {
        let sector = sector_of(&self.format);
        let fetched = stripes.into_iter().enumerate().map(|(stripe, reads)| {
            let device = group.chunk.devices().get(stripe).and_then(|slot| slot.device());
            let physical = physical_of(&group.chunk, stripe).unwrap_or(Physical::MIN);
            Fetched::wait(reads, device, physical, sector)
        });
        let stripes = fetched.collect();
        Arrived { group, stripes }
    }

    pub(crate) fn fetch_again(&self, arrived: Arrived, wanted: Wanted) -> Arrived {
        let Arrived { group, stripes } = arrived;
        drop(stripes);
        let stripes = self.submit_stripes(&group, wanted);
        self.wait(group, stripes)
    }
}
