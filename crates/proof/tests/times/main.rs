//! All four times of every inode, through random histories of calls, against a model.
//!
//! - [`model`]: which times a call sets, and which of them must survive a crash;
//! - [`history`]: calls drawn from a seed, on a volume in memory with a clock that the test sets.
//!
//! After each call, `metadata` of every inode equals the model's times. After a commit, the volume opened again has the
//! same times. Snapshots have them too, whatever was dirty when they were made. After a power cut each inode has times
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

use history::History;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn every_history_of_times_follows_the_model() {
    let first = number("BUTTRESS_TIMES_SEED", 1);
    let count = number("BUTTRESS_TIMES_HISTORIES", 100);
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
}
