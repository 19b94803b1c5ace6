//! Random histories from seeds: 60 in the suite, as many as there is time for in `cargo xtask soak`.
//!
//! A seed chooses the history and the kind of volume. A failure names its seed, looks for a smaller history
//! that still fails, and keeps its streams.

use anyhow::{Result, ensure};
use buttress_oracle::history::{Strictness, random};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::round_trip::{RoundTrip, Sums};
use buttress_proof::send::volumes::Flavour;
use buttress_proof::send::{FORMATS, Sender};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeds of the ordinary suite.
const SEEDS: u64 = 60;

/// How long a failing history is made smaller.
const TIME_TO_LOOK: Duration = Duration::from_secs(20);

fn one(seed: u64, sender: Sender) -> Result<Sums> {
    let round_trip = RoundTrip {
        name: &format!("seed-{seed}"),
        sender,
        formats: &FORMATS,
        flavour: Flavour::of_seed(seed),
        strictness: Strictness::Lenient,
    };
    round_trip.check(&random::history(seed), TIME_TO_LOOK)
}

fn seeded(seed: u64, sender: Sender) -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    println!("seed {seed}: {}", one(seed, sender)?);
    Ok(Outcome::Passed)
}

/// Seeds count up from `first_seed` until the time is over; several threads share them. Failures are gathered,
/// because the rest of a night should not be lost to the first of them.
fn soak(first_seed: u64, time: Duration) -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let start = Instant::now();
    let next = AtomicU64::new(first_seed);
    let gathered = Mutex::new((Sums::default(), Vec::new()));
    let worker = || {
        while start.elapsed() < time {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let result = one(seed, Sender::under_test());
            let mut gathered = gathered.lock().unwrap_or_else(|poison| poison.into_inner());
            match result {
                Ok(sums) => gathered.0 += sums,
                Err(error) => {
                    println!("soak: seed {seed}: {error:#}");
                    gathered.1.push(seed);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(worker);
        }
    });
    let (sums, failed) = gathered.into_inner().unwrap_or_else(|poison| poison.into_inner());
    let end = next.into_inner();
    println!(
        "soak: {} histories, seeds [{first_seed}, {end}): {sums}",
        end - first_seed
    );
    ensure!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let mut cases: Vec<Case> = (1..=SEEDS)
        .map(|seed| {
            Case::new(format!("histories::seed_{seed:02}"), move || {
                seeded(seed, Sender::under_test())
            })
        })
        .collect();
    if let Some(seconds) = number("BUTTRESS_SOAK_SECONDS") {
        let seed = number("BUTTRESS_SOAK_SEED").unwrap_or(1);
        cases.push(Case::new("soak::histories", move || {
            soak(seed, Duration::from_secs(seconds))
        }));
    }
    cases
}
