//! Eight threads that make concurrent calls: some sequential order of all calls must explain the
//! answers.
//!
//! A failure of a concurrent run names its seed and round, and shows the smallest part of the round
//! that no order explains. The same seed draws the same calls, if threads get the same answers;
//! scheduling does not depend on the seed. `BUTTRESS_CONCURRENT_SEED` and
//! `BUTTRESS_CONCURRENT_CALLS` select other and longer runs.

use anyhow::Result;
use buttress::{ByteCount, Compression, CompressionMethod, DataOptions};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::concurrent::{Plan, run};
use buttress_proof::harness::{Case, Outcome, run as run_cases};

/// Number of calls in the ordinary suite, over all cases.
const CALLS: u64 = 30_000;

const THREADS: usize = 8;
const CALLS_A_ROUND: usize = 4;

fn number(name: &str, or: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Returns the kinds of runs: a cache that holds all trees, or few blocks; with compression, or
/// without.
fn kinds() -> [(&'static str, ByteCount, DataOptions); 3] {
    let compressed = DataOptions {
        compression: Some(CompressionMethod::new(Compression::Zstd)),
        ..DataOptions::default()
    };
    [
        ("plain", ByteCount::new(64 << 20), DataOptions::default()),
        ("small_cache", ByteCount::new(64 << 10), DataOptions::default()),
        ("compressed", ByteCount::new(64 << 20), compressed),
    ]
}

fn one(plan: &Plan) -> Result<Outcome> {
    let account = run(plan)?;
    println!("seed {}: {account}", plan.seed);
    account.expect_everything()?;
    Ok(Outcome::Passed)
}

fn main() -> std::process::ExitCode {
    let seed = buttress_oracle::seeds::seed("concurrent", "BUTTRESS_CONCURRENT_SEED", 1);
    let calls = number("BUTTRESS_CONCURRENT_CALLS", CALLS);
    let kinds = kinds();
    let count = kinds.len() as u64;
    let rounds = calls.div_ceil(count * (THREADS * CALLS_A_ROUND) as u64);
    let cases = (0..).zip(kinds).map(|(index, (name, cache, data))| {
        let plan = Plan {
            seed: seed * count + index,
            threads: THREADS,
            calls: CALLS_A_ROUND,
            rounds,
            check_every: 50,
            btrfs_check_every: kernel_missing().is_none().then_some(20),
            cache,
            data,
        };
        Case::new(format!("one_order_explains_all::{name}"), move || one(&plan))
    });
    run_cases(cases.collect())
}
