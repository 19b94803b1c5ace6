//! All four times of every inode, through random histories of calls, against a model.
//!
//! - [`model`]: which times a call sets, and which of them must survive a crash;
//! - [`history`]: calls drawn from a seed, on a volume in memory with a clock that the test sets.
//!
//! After each call, `metadata` of every inode equals the model's times. After a commit, the volume opened again has the
//! same times. Snapshots have them too, whatever was dirty when they were made. A snapshot is durable when it returns. After a power cut each inode has times
//! that it had since it was last durable. An inode that was synced and not changed since has exactly the synced times.
//!
//! `BUTTRESS_TIMES_SEED` and `BUTTRESS_TIMES_HISTORIES` choose the first seed and the number of histories.
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
    // The events that the histories exist for did occur.
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
