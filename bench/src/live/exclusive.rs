//! The exclusive part of each call: the second table of `live`.
//!
//! A call's exclusive time is the time that it holds the edit lock, or another lock that all
//! callers share, exclusively. The exclusive time comes from the figures of the locks with one
//! thread, one rank at a time. Two limits bound the rate on 16 cores: 16 calls at once, and one
//! call at a time for the exclusive part. Measuring takes some tens of nanoseconds for each lock,
//! so the time of the call itself comes from the first table.

use super::Call;
use anyhow::Result;
use buttress_locks::figures as locks;

/// The locks of a single file, inode or tree: threads on different files, inodes or trees do not
/// wait for each other.
const OF_ONE_THING: [(&str, &str); 7] = [
    ("state", "data/waiting.rs"),
    ("layout", "data/waiting.rs"),
    ("waiting", "data/waiting.rs"),
    ("LiveInode", "live/inodes.rs"),
    ("shards", "live/inodes.rs"),
    ("tree", "live/trees.rs"),
    ("state", "executor.rs"),
];

/// The exclusive microseconds of a call.
pub(super) struct Exclusive {
    name: String,
    total: f64,
    edit_lock: f64,
    takes: f64,
    other: f64,
    other_name: String,
}

/// Measures a call; `total` is its time alone, in microseconds.
pub(super) fn measure(name: &str, total: f64, calls: usize, call: Call<'_>) -> Result<Exclusive> {
    let mut exclusive = Exclusive {
        name: name.to_owned(),
        total,
        edit_lock: 0.0,
        takes: 0.0,
        other: 0.0,
        other_name: String::new(),
    };
    let seen = gather(None, calls, call)?;
    let mut ranks: Vec<u8> = seen.iter().filter_map(|lock| lock.class.rank.number()).collect();
    ranks.dedup();
    for rank in ranks {
        for lock in gather(Some(rank), calls, call)? {
            let micros = lock.exclusive.total.as_secs_f64() * 1e6 / calls as f64;
            let class = lock.class;
            let is_of_one = OF_ONE_THING
                .iter()
                .any(|(name, file)| class.name == *name && class.file.ends_with(file));
            if class.name == "running" {
                exclusive.edit_lock = exclusive.edit_lock.max(micros);
                exclusive.takes = exclusive.takes.max(lock.exclusive.count as f64 / calls as f64);
            } else if !is_of_one && micros > exclusive.other {
                exclusive.other = micros;
                exclusive.other_name = class.name.to_owned();
            }
        }
    }
    Ok(exclusive)
}

/// Makes the calls and returns the locks' figures for one rank, because timing inner locks
/// lengthens an outer hold.
fn gather(rank: Option<u8>, calls: usize, call: Call<'_>) -> Result<Vec<locks::LockFigures>> {
    locks::measure_only(rank);
    locks::reset();
    locks::measure(true);
    let done = (0..calls).try_for_each(|number| call(0, number));
    locks::measure(false);
    let figures = locks::read();
    locks::measure_only(None);
    done?;
    Ok(figures)
}

/// Prints the table.
pub(super) fn print(rows: &[Exclusive]) {
    println!("\nexclusive microseconds of a call, one thread, and what 16 cores could make of it\n");
    println!(
        "| call | alone | edit lock | times taken | most of another shared lock | calls a second, 16 cores |"
    );
    println!("|---|---|---|---|---|---|");
    for row in rows {
        let exclusive = row.edit_lock.max(row.other);
        let rate = (16.0 / row.total).min(1.0 / exclusive.max(1e-6)) * 1e6;
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} {} | {rate:.0} |",
            row.name, row.total, row.edit_lock, row.takes, row.other, row.other_name
        );
    }
}
