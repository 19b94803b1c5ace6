//! Random histories from seeds: 60 in the suite, as many as time allows in `cargo xtask soak`.
//!
//! A seed chooses the history and the kind of volume. A failure names its seed, looks for a smaller
//! history that still fails, and keeps its streams.

use anyhow::{Result, ensure};
use buttress_oracle::history::{Strictness, random};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::round_trip::{RoundTrip, Sums};
use buttress_proof::send::volumes::Flavour;
use buttress_proof::send::{FORMATS, Sender};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of seeds in the ordinary suite.
const SEEDS: u64 = 60;

/// Time for reducing a failing history.
const TIME_TO_LOOK: Duration = Duration::from_secs(20);

fn one(seed: u64, sender: Sender) -> Result<Sums> {
    let round_trip = RoundTrip {
        name: &format!("seed-{seed}"),
        sender,
        formats: &FORMATS,
        flavour: Flavour::of_seed(seed),
        strictness: Strictness::Lenient,
        received: Some(seed),
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

/// Seeds of a soak.
enum Seeds {
    /// Consecutive seeds from the first one, until the time is over or this number has run.
    From(u64, Duration, u64),
    /// These seeds.
    List(Vec<u64>),
}

impl Seeds {
    /// Reads the seeds from the environment: `BUTTRESS_SOAK_SEEDS` (a list with commas), or
    /// `BUTTRESS_SOAK_SECONDS` with `BUTTRESS_SOAK_SEED` (the first one) and
    /// `BUTTRESS_SOAK_HISTORIES` (the largest number).
    fn from_environment() -> Option<Self> {
        let text = |name: &str| std::env::var(name).ok();
        let number = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
        if let Some(list) = text("BUTTRESS_SOAK_SEEDS") {
            let seeds = list.split(',').filter_map(|seed| seed.trim().parse().ok());
            return Some(Self::List(seeds.collect()));
        }
        let seconds = number("BUTTRESS_SOAK_SECONDS")?;
        Some(Self::From(
            buttress_oracle::seeds::seed("send::histories", "BUTTRESS_SOAK_SEED", 1),
            Duration::from_secs(seconds),
            number("BUTTRESS_SOAK_HISTORIES").unwrap_or(u64::MAX),
        ))
    }

    /// Returns the seed of the history `number`, or `None` if the soak is over.
    fn get(&self, number: u64, start: Instant) -> Option<u64> {
        match self {
            Self::From(first, time, histories) => {
                (start.elapsed() < *time && number < *histories).then(|| first + number)
            }
            Self::List(seeds) => seeds.get(usize::try_from(number).ok()?).copied(),
        }
    }
}

/// Runs a soak on several threads. The soak collects failures, so that the first one does not end a
/// nightly run.
fn soak(seeds: &Seeds) -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let gathered = Mutex::new((Sums::default(), BTreeSet::new(), BTreeSet::new()));
    let worker = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed), start) {
            let result = one(seed, Sender::under_test());
            let mut gathered = gathered.lock().unwrap_or_else(|poison| poison.into_inner());
            match result {
                Ok(sums) => {
                    gathered.0 += sums;
                    gathered.1.insert(seed);
                }
                Err(error) => {
                    println!("soak: seed {seed}: {error:#}");
                    gathered.2.insert(seed);
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
    let (sums, passed, failed) = gathered.into_inner().unwrap_or_else(|poison| poison.into_inner());
    let all = passed.union(&failed);
    println!(
        "soak: {} histories passed and {} failed, seeds {} to {}: {sums}",
        passed.len(),
        failed.len(),
        all.clone().min().unwrap_or(&0),
        all.max().unwrap_or(&0),
    );
    ensure!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (1..=SEEDS)
        .map(|seed| {
            Case::new(format!("histories::seed_{seed:02}"), move || {
                seeded(seed, Sender::under_test())
            })
        })
        .collect();
    if let Some(seeds) = Seeds::from_environment() {
        cases.push(Case::new("soak::histories", move || soak(&seeds)));
    }
    cases
}
