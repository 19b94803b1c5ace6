//! The handling of a group that has arrived: check and repair, or copy; beside writers with its
//! rows locked.

use crate::copying::Wanted;
use crate::filling::Trees;
use crate::group::{Arrived, Group, Piece, Submitted};
use crate::job::Job;
use crate::{mirrors, rows};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, STRIPE_BYTES};
use core::time::Duration;
use std::sync::Arc;

/// The CPU time that checking 64 KiB takes, in virtual time: crc32c at some 6 GB in a second.
const CHECK_COST_PER_STRIPE: Duration = Duration::from_micros(10);

impl Job<'_> {
    /// Waits for a group, checks it and repairs it.
    pub(crate) fn check(&self, submitted: Submitted) {
        let Submitted {
            group,
            stripes,
            writes,
            trees,
        } = submitted;
        self.charge_cpu(&group);
        let (chunk, number) = (group.chunk.start(), group.number);
        let arrived = self.wait(group, stripes);
        if let Some(replacing) = &self.replaces {
            self.copy(&replacing.copying, arrived, writes);
        } else if self.views.is_none() {
            self.judge(&arrived);
        } else {
            self.judge_beside_writers(arrived, &trees);
        }
        drop(trees);
        // After a failure of the target, or a loss that ends the replacement, no more groups count
        // as done.
        if !self.replaced.lock().is_over() {
            self.running.lock().ended(chunk, number);
        }
    }

    pub(crate) fn judge(&self, arrived: &Arrived) {
        match arrived.group.chunk.layout().has_parity() {
            true => rows::check(self, arrived),
            false => mirrors::check(self, arrived),
        }
    }

    pub(crate) fn count_group(&self, arrived: &Arrived) {
        match arrived.group.chunk.layout().has_parity() {
            true => rows::count(self, arrived),
            false => mirrors::count(self, arrived),
        }
    }

    /// Handles a group of which parts may have been written during the read: if a check fails, the
    /// group is read again with its rows locked.
    fn judge_beside_writers(&self, arrived: Arrived, trees: &Trees) {
        let is_clean = match arrived.group.chunk.layout().has_parity() {
            true => rows::is_clean(self, &arrived),
            false => mirrors::is_clean(self, &arrived),
        };
        if is_clean {
            return self.count_group(&arrived);
        }
        self.learn_written(&arrived.group, trees);
        let chunk = Arc::clone(&arrived.group.chunk);
        let rows = arrived.group.rows();
        let _locked =
            (!buttress_faults::on("scrub-rows-unlocked")).then(|| self.volume.lock_rows(&chunk, rows));
        self.judge(&self.fetch_again(arrived, Wanted::All));
    }

    /// On simulated devices, advances the clock by the time that checking a group takes.
    fn charge_cpu(&self, group: &Group) {
        let copies = |piece: &Piece| u64::from(piece.place.copies.narrow::<u32>());
        let bytes = group.pieces.iter().fold(0_u64, |sum, piece| {
            let bytes = ByteCount::of(piece.length).get().exact_mul(copies(piece));
            sum.exact_add(bytes)
        });
        let stripes = bytes.div_ceil(STRIPE_BYTES).narrow::<u32>();
        // Clamp: the time is simulated.
        self.volume
            .charge_cpu(CHECK_COST_PER_STRIPE.saturating_mul(stripes));
    }
}
