//! `cargo xtask soak`: deep random runs against the kernel, with a seed and a time. With `CI=true`,
//! as for the tests: a step that cannot be run is a failure.

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, bail};
use buttress_oracle::seeds;
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask soak [--seed N] [--seconds N] [--histories N | --seeds N,N… | --operations N | \
     --concurrent N | --cuts N | --receive N | --fsync N | --fiemap N | --scrub SECONDS | --mount SECONDS | --mount-calls N | --mount-cuts N]";

/// The requested soak steps, and the first seed.
struct Options {
    seed: u64,
    seconds: u64,
    /// Only histories that are sent, at most this many.
    histories: Option<u64>,
    /// Only the histories of these seeds.
    seeds: Option<String>,
    /// Only the model of the writer, with so many operations.
    operations: Option<u64>,
    /// Run only the threads that call at once, with this number of calls.
    concurrent: Option<u64>,
    /// Only crashes, with so many cuts.
    cuts: Option<u64>,
    /// Only power cuts of receives, so many.
    receive: Option<u64>,
    /// Run only histories with syncs: this number, each cut off five times.
    fsync: Option<u64>,
    /// Compare only extent maps and seeks with the kernel's, on this number of volumes.
    fiemap: Option<u64>,
    /// Run only scrubs and replacements, and scrubs beside a writer for this many seconds.
    scrub: Option<u64>,
    /// Only a mount under mixed load that ends again and again, for so many seconds.
    mount: Option<u64>,
    /// Only so many calls on a mount and on the kernel's.
    mount_calls: Option<u64>,
    /// The number of power cuts under each program on a mount.
    mount_cuts: Option<u64>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut options = Options {
        seed: 0,
        seconds: 600,
        histories: None,
        seeds: None,
        operations: None,
        concurrent: None,
        cuts: None,
        receive: None,
        fsync: None,
        fiemap: None,
        scrub: None,
        mount: None,
        mount_calls: None,
        mount_cuts: None,
    };
    let mut seed = None;
    for pair in words.chunks(2) {
        let [word, value] = pair else { bail!(USAGE) };
        let number = || {
            value
                .parse::<u64>()
                .with_context(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--seed" => seed = Some(number()?),
            "--seconds" => options.seconds = number()?,
            "--histories" => options.histories = Some(number()?),
            "--seeds" => options.seeds = Some(value.clone()),
            "--operations" => options.operations = Some(number()?),
            "--concurrent" => options.concurrent = Some(number()?),
            "--cuts" => options.cuts = Some(number()?),
            "--receive" => options.receive = Some(number()?),
            "--fsync" => options.fsync = Some(number()?),
            "--fiemap" => options.fiemap = Some(number()?),
            "--scrub" => options.scrub = Some(number()?),
            "--mount" => options.mount = Some(number()?),
            "--mount-calls" => options.mount_calls = Some(number()?),
            "--mount-cuts" => options.mount_cuts = Some(number()?),
            _ => bail!(USAGE),
        }
    }
    options.seed = seed.unwrap_or_else(|| seeds::seed_of_day("soak"));
    Ok(options)
}

/// The soak increments seeds from `--seed`, or else from the day's seed, until the seconds are
/// over: once for random volumes, once for random histories that are sent. With `--histories` or
/// `--seeds` only histories, so many (within the seconds) or these. With `--operations`,
/// `--concurrent` or `--cuts` the writer instead: random operations beside its model, threads whose
/// calls must have an order, or crashes; with `--receive` power cuts while streams are received;
/// with `--fsync` histories of operations and syncs, cut off; with `--fiemap` extents and seeks: as
/// many as are said, however long that takes. With `--scrub` damage at every place, crashes at
/// every write of repairs and replacements, and scrubs beside a writer for so long. With `--mount`
/// and `--mount-calls` mounts: sixteen processes and ends of every kind for so long, or calls of
/// eight threads beside the kernel's; with `--mount-cuts` so many power cuts under each program of
/// the field.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let options = parse(words)?;
    tools::install_missing();
    if options.operations.is_some() || options.concurrent.is_some() || options.cuts.is_some() {
        return run_writer(&options);
    }
    if let Some(histories) = options.fsync {
        return run_fsync(options.seed, histories);
    }
    if let Some(cuts) = options.receive {
        return run_receive(options.seed, cuts);
    }
    if let Some(seconds) = options.scrub {
        return run_scrub(options.seed, seconds);
    }
    if options.mount.is_some() || options.mount_calls.is_some() || options.mount_cuts.is_some() {
        return run_mount(&options);
    }
    run::run(cargo()?.args(["build", "--release", "--quiet", "-p", "buttress-cli"]))?;
    if let Some(volumes) = options.fiemap {
        return run_fiemap(options.seed, volumes);
    }
    let mut command = cargo()?;
    command.args(["test", "--release", "-p", "buttress-proof", "--test", "send"]);
    if options.histories.is_none() && options.seeds.is_none() {
        command.args(["--test", "kernel"]);
    }
    command.args(["--no-fail-fast", "--", "soak"]);
    command
        .env("CI", "true")
        .env("BUTTRESS_SOAK_SEED", options.seed.to_string())
        .env("BUTTRESS_SOAK_SECONDS", options.seconds.to_string());
    if let Some(histories) = options.histories {
        command.env("BUTTRESS_SOAK_HISTORIES", histories.to_string());
    }
    if let Some(seeds) = &options.seeds {
        command.env("BUTTRESS_SOAK_SEEDS", seeds);
    }
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)
}

/// Soaks with power cuts while streams are received, resumed and dropped.
fn run_receive(seed: u64, cuts: u64) -> Result<()> {
    let mut command = cargo()?;
    command
        .args(["test", "--release", "-p", "buttress-proof", "--test", "send"])
        .args(["--", "soak::receive_cuts", "--nocapture"])
        .env("CI", "true")
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_RECEIVE_CUTS", cuts.to_string());
    run::run(&mut command)
}

/// Soak: damages every block of every copy in turn, cuts repairs and replacements at every write,
/// and scrubs beside a writer.
fn run_scrub(seed: u64, seconds: u64) -> Result<()> {
    let begin = Instant::now();
    let mut command = cargo()?;
    command
        .args(["test", "--release", "-p", "buttress-scrub", "--no-fail-fast"])
        .args(["--test", "scrub", "--", "--nocapture"])
        .args(["damage::", "crash::", "beside::", "replace_kernel::"])
        .env("CI", "true")
        .env("BUTTRESS_SOAK", "1")
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_SOAK_SECONDS", seconds.to_string());
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    println!("scrubs and replacements: seed {seed}, {seconds} s beside a writer");
    run::run(&mut command)?;
    println!(
        "scrubs and replacements: seed {seed}, all places and all cuts, {seconds} s beside a writer, in {} s",
        begin.elapsed().as_secs()
    );
    Ok(())
}

/// Calls of each of the eight threads in one run beside the kernel.
const MOUNT_CALLS_A_THREAD: u64 = 2000;
const MOUNT_CALLS_A_RUN: u64 = 8 * MOUNT_CALLS_A_THREAD;

/// A mount under load for so long, and calls beside the kernel's mount with seeds that count up.
fn run_mount(options: &Options) -> Result<()> {
    let test = |module: &str| -> Result<std::process::Command> {
        let mut command = cargo()?;
        command
            .args([
                "test",
                "--release",
                "-p",
                "buttress-cli",
                "--test",
                "mount",
                "--",
                "--nocapture",
                module,
            ])
            .env("CI", "true");
        Ok(command)
    };
    if let Some(seconds) = options.mount {
        run::run(test("soak::")?.env("BUTTRESS_MOUNT_SECONDS", seconds.to_string()))?;
    }
    for seed in (options.seed..).take(runs(options.mount_calls.unwrap_or(0), MOUNT_CALLS_A_RUN)) {
        let begin = Instant::now();
        run::run(
            test("beside_kernel::")?
                .env("BUTTRESS_MOUNT_SEED", seed.to_string())
                .env("BUTTRESS_MOUNT_CALLS", MOUNT_CALLS_A_THREAD.to_string()),
        )?;
        println!(
            "calls on a mount: seed {seed} without a difference, {MOUNT_CALLS_A_RUN} calls in {} s",
            begin.elapsed().as_secs()
        );
    }
    if let Some(cuts) = options.mount_cuts {
        run::run(
            test("power_cuts::")?
                .env("BUTTRESS_POWER_SEED", options.seed.to_string())
                .env("BUTTRESS_POWER_CUTS", cuts.to_string()),
        )?;
    }
    Ok(())
}

/// Half of the volumes made by the kernel, half by Buttress, with seeds that count up.
fn run_fiemap(seed: u64, volumes: u64) -> Result<()> {
    let mut command = cargo()?;
    command
        .args(["test", "--release", "-p", "buttress-proof", "--test", "fiemap"])
        .env("CI", "true")
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_FIEMAP_VOLUMES", volumes.to_string());
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)
}

/// Operations beside the model in one run, over fourteen volumes: few enough that each volume stays
/// small and is compared often.
const OPERATIONS_A_RUN: u64 = 140_000;

/// The number of simulated power cuts in one soak run, over the volumes of the crash tests. The
/// kernel and `btrfs check` look at each.
const CUTS_A_RUN: u64 = 8000;

/// The number of volumes of the crash tests, each with the same number of cuts; slow volumes have
/// fewer cuts.
const CRASH_VOLUMES: u64 = 12;

/// The tests of the writer, deeper: runs of a fixed size with consecutive seeds. Every run has
/// commits to inspect, and its memory is bounded.
fn run_writer(options: &Options) -> Result<()> {
    if let Some(operations) = options.operations {
        for seed in (options.seed..).take(runs(operations, OPERATIONS_A_RUN)) {
            let operations = operations.min(OPERATIONS_A_RUN);
            let begin = Instant::now();
            println!("beside the model: seed {seed}, {operations} operations");
            let mut command = cargo()?;
            command
                .args(["test", "--release", "-p", "buttress-proof", "--test", "writing"])
                .args(["--", "model::", "rounds::", "full::", "faults::"])
                .env("CI", "true")
                .env("BUTTRESS_WRITING_SEED", seed.to_string())
                .env("BUTTRESS_WRITING_OPERATIONS", operations.to_string());
            if let Some(folder) = tools::newer_progs()? {
                command.env("BUTTRESS_PROGS", folder);
            }
            run::run(&mut command)?;
            println!(
                "beside the model: seed {seed} without a difference, {operations} operations in {} s",
                begin.elapsed().as_secs()
            );
        }
    }
    if let Some(calls) = options.concurrent {
        run_concurrent(options.seed, calls)?;
    }
    let Some(cuts) = options.cuts else {
        return Ok(());
    };
    for seed in (options.seed..).take(runs(cuts, CUTS_A_RUN)) {
        println!("crashes: seed {seed}, {CUTS_A_RUN} cuts");
        let mut command = cargo()?;
        command
            .args(["test", "--release", "-p", "buttress-proof", "--test", "crash"])
            .env("CI", "true")
            .env("BUTTRESS_CRASH_SEED", seed.to_string())
            .env("BUTTRESS_CRASH_KERNEL_EVERY", "1")
            .env("BUTTRESS_CRASH_CUTS", (CUTS_A_RUN / CRASH_VOLUMES).to_string());
        if let Some(folder) = tools::newer_progs()? {
            command.env("BUTTRESS_PROGS", folder);
        }
        run::run(&mut command)?;
    }
    Ok(())
}

/// Histories with syncs in one run, over all kinds of volumes and runs of the crash tests.
const FSYNC_A_RUN: u64 = 60 * FSYNC_KINDS;

/// Histories of operations and syncs, with seeds that count up; five cuts of each.
fn run_fsync(seed: u64, histories: u64) -> Result<()> {
    let each = FSYNC_A_RUN / FSYNC_KINDS;
    for number in 0..histories.div_ceil(FSYNC_A_RUN) {
        let (begin, first) = (Instant::now(), seed + number * each);
        let mut command = cargo()?;
        command
            .args([
                "test",
                "--release",
                "-p",
                "buttress-proof",
                "--test",
                "fsync_crash",
            ])
            .env("CI", "true")
            .env("BUTTRESS_CRASH_SEED", first.to_string())
            .env("BUTTRESS_FSYNC_HISTORIES", each.to_string())
            .env("BUTTRESS_CRASH_CUTS", "5");
        if let Some(folder) = tools::newer_progs()? {
            command.env("BUTTRESS_PROGS", folder);
        }
        run::run(&mut command)?;
        println!(
            "syncs: seeds {first} to {}, {FSYNC_A_RUN} histories, {} cuts, in {} s",
            first + each - 1,
            FSYNC_A_RUN * 5,
            begin.elapsed().as_secs()
        );
    }
    Ok(())
}

/// How many tests of those take histories.
const FSYNC_KINDS: u64 = 16;

/// The number of calls by concurrent threads in one soak run, over three volumes.
const CONCURRENT_A_RUN: u64 = 100_000;

/// Threads that call at once.
fn run_concurrent(seed: u64, calls: u64) -> Result<()> {
    for seed in (seed..).take(runs(calls, CONCURRENT_A_RUN)) {
        let calls = calls.min(CONCURRENT_A_RUN);
        let begin = Instant::now();
        let mut command = cargo()?;
        command
            .args([
                "test",
                "--release",
                "-p",
                "buttress-proof",
                "--test",
                "concurrent",
            ])
            .env("CI", "true")
            .env("BUTTRESS_CONCURRENT_SEED", seed.to_string())
            .env("BUTTRESS_CONCURRENT_CALLS", calls.to_string());
        if let Some(folder) = tools::newer_progs()? {
            command.env("BUTTRESS_PROGS", folder);
        }
        run::run(&mut command)?;
        println!(
            "threads at once: seed {seed}, an order for each of {calls} calls, in {} s",
            begin.elapsed().as_secs()
        );
    }
    Ok(())
}

fn runs(wanted: u64, each: u64) -> usize {
    usize::try_from(wanted.div_ceil(each)).unwrap_or(usize::MAX)
}
