//! Random histories from seeds: 60 in the suite, as many as there is time for in `cargo xtask soak`.
//!
//! A seed chooses the history and the kind of volume. A failure names its seed, looks for a smaller history
//! that still fails, and keeps its streams.

use anyhow::{Context, Result};
use buttress_oracle::history::{Strictness, random};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::round_trip::{RoundTrip, Sums};
use buttress_proof::send::volumes::Flavour;
use buttress_proof::send::{FORMATS, Sender};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeds of the ordinary suite.
const SEEDS: u64 = 60;

/// How long a failing history is made smaller.
const TIME_TO_LOOK: Duration = Duration::from_secs(60);

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

/// Seeds count up from `first_seed` until the time is over; several runs share them.
fn soak(first_seed: u64, time: Duration) -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let start = Instant::now();
    let next = AtomicU64::new(first_seed);
    let worker = || -> Result<Sums> {
        let mut sum = Sums::default();
        while start.elapsed() < time {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            sum += one(seed, Sender::under_test()).with_context(|| format!("seed {seed}"))?;
        }
        Ok(sum)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<Result<Sums>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<Sums>>| {
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
        };
        workers.into_iter().map(join).collect()
    });
    let mut sum = Sums::default();
    for result in results {
        sum += result?;
    }
    let end = next.into_inner();
    println!(
        "soak: {} histories, seeds [{first_seed}, {end}): {sum}",
        end - first_seed
    );
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
