//! All four times of every inode, compared with a model through random histories of calls.
//!
//! - [`model`]: the times that a call sets, and those that must survive a crash;
//! - [`history`]: random calls from a seed, on a volume in memory with a clock that the test sets.
//!
//! After each call, `metadata` of every inode equals the model's times. After a commit and a
//! reopening, the volume has the same times. Snapshots have the model's times too, with any dirty
//! state at their creation. A snapshot is durable when it returns. After a power cut each inode has
//! times that it has had since it was last durable. An inode that was synced and not changed since
//! has exactly the synced times.
//!
//! `BUTTRESS_TIMES_SEED` and `BUTTRESS_TIMES_HISTORIES` set the first seed and the number of
//! histories.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod history;
mod model;

use buttress_oracle::seeds::{number, seed};
use history::History;

#[test]
fn every_history_of_times_follows_the_model() {
    let first = seed(
        "every_history_of_times_follows_the_model",
        "BUTTRESS_TIMES_SEED",
        1,
    );
    let count = number("BUTTRESS_TIMES_HISTORIES").unwrap_or(100);
    let mut met = history::Met::default();
    for seed in first..first + count {
        println!("history of seed {seed}");
        met.add(&History::new(seed).run());
    }
    println!("{met:?}");
    // The intended events must occur often enough.
    let least = count / 10;
    assert!(
        met.cuts >= least && met.remounts >= least && met.snapshots >= least && met.exact >= least,
        "{met:?}"
    );
    assert!(
        met.reads_of_dirty_files >= count && met.accesses >= count,
        "{met:?}"
    );
    assert!(
        met.punched_holes >= least && met.direct_accesses >= least,
        "{met:?}"
    );
}
