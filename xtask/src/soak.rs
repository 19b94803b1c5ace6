//! `cargo xtask soak`: deep random runs against the kernel, with a seed and a time. The tests run
//! with `CI=true`, so a test that cannot run is a failure.

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, bail};
use buttress_oracle::seeds;
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask soak [--seed N] [--seconds N] [--histories N | --seeds N,N… | --operations N | \
     --concurrent N | --cuts N | --receive N | --fsync N | --fiemap N | --conversions N | --cut-balances N | --scrub SECONDS | --mount SECONDS | --mount-calls N | --mount-cuts N]";

/// The chosen runs, and their first seed.
struct Options {
    seed: u64,
    seconds: u64,
    /// Runs only histories that are sent, at most this many.
    histories: Option<u64>,
    /// Runs only the histories of these seeds.
    seeds: Option<String>,
    /// Runs only the writer's model, with this many operations.
    operations: Option<u64>,
    /// Runs only concurrent calls, this number of them.
    concurrent: Option<u64>,
    /// Runs only crashes, with this many cuts.
    cuts: Option<u64>,
    /// Runs only power cuts of receives, this number of them.
    receive: Option<u64>,
    /// Runs only histories with syncs, this number of them, each with five cuts.
    fsync: Option<u64>,
    /// Runs only extents and seeks beside the kernel's, on this many volumes.
    fiemap: Option<u64>,
    /// Runs only balances that convert, this number of pairs of layouts; 117 are all pairs.
    conversions: Option<u64>,
    /// Runs only balances of the kernel that a power cut ends, with this many cuts.
    cut_balances: Option<u64>,
    /// Runs only scrubs and replacements, with this many seconds of scrubs beside a writer.
    scrub: Option<u64>,
    /// Runs only a mount under mixed load that ends repeatedly, for this many seconds.
    mount: Option<u64>,
    /// Runs only calls on a mount and on the kernel's mount, this number of them.
    mount_calls: Option<u64>,
    /// Runs only power cuts under each program on a mount, this number of them.
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
        conversions: None,
        cut_balances: None,
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
            "--conversions" => options.conversions = Some(number()?),
            "--cut-balances" => options.cut_balances = Some(number()?),
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

/// Runs the chosen kinds of soaks. Seeds count up from `--seed`, or from the day's seed.
///
/// | options | runs |
/// |---|---|
/// | none | random volumes, and random sent histories, each until the seconds are over |
/// | `--histories`, `--seeds` | histories only: this many within the seconds, or those of these seeds |
/// | `--operations`, `--concurrent`, `--cuts` | the writer: operations, concurrent calls, crashes |
/// | `--receive` | power cuts during receives |
/// | `--fsync` | histories of operations and syncs, with cuts |
/// | `--fiemap` | extents and seeks, the given number however long it takes |
/// | `--conversions` | balances between profiles, of volumes with 50 snapshots; cuts of two conversions |
/// | `--cut-balances` | power cuts of the kernel's balances, ended here |
/// | `--scrub` | damage at every place, cuts of repairs and replacements, scrubs beside a writer |
/// | `--mount`, `--mount-calls` | mounts: mixed load with all kinds of ends, calls beside the kernel's |
/// | `--mount-cuts` | power cuts under each of Debian's programs |
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
    if let Some(conversions) = options.conversions {
        return run_conversions(options.seed, conversions);
    }
    if let Some(cuts) = options.cut_balances {
        return run_cut_balances(options.seed, cuts);
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

/// Runs power cuts during receives, which are then continued or dropped.
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

/// The number of cuts of each conversion in a soak.
const CONVERSION_CUTS: u64 = 2000;

/// Converts volumes between all profiles, and cuts conversions.
fn run_conversions(seed: u64, conversions: u64) -> Result<()> {
    let begin = Instant::now();
    let mut command = cargo()?;
    command
        .args(["test", "--release", "-p", "buttress-proof", "--test", "writing"])
        .args(["--", "converted::", "--nocapture"])
        .env("CI", "true")
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_CONVERSIONS", conversions.to_string())
        .env("BUTTRESS_CONVERSION_CUTS", CONVERSION_CUTS.to_string());
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)?;
    println!(
        "conversions: seed {seed}, {conversions} pairs, in {} s",
        begin.elapsed().as_secs()
    );
    Ok(())
}

/// Ends what power cuts of the kernel's balances left.
fn run_cut_balances(seed: u64, cuts: u64) -> Result<()> {
    let begin = Instant::now();
    let mut command = cargo()?;
    command
        .args(["test", "--release", "-p", "buttress-proof", "--test", "writing"])
        .args(["--", "cut_balances::", "--nocapture"])
        .env("CI", "true")
        .env("BUTTRESS_SOAK_SEED", seed.to_string())
        .env("BUTTRESS_CUT_BALANCES", cuts.to_string());
    if let Some(folder) = tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    run::run(&mut command)?;
    println!(
        "cut balances: seed {seed}, {cuts} cuts, in {} s",
        begin.elapsed().as_secs()
    );
    Ok(())
}

/// Damages every block of every copy in turn, cuts repairs and replacements at every write, and
/// scrubs beside a writer.
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

/// The number of calls of each of the eight threads in a run beside the kernel.
const MOUNT_CALLS_A_THREAD: u64 = 2000;
const MOUNT_CALLS_A_RUN: u64 = 8 * MOUNT_CALLS_A_THREAD;

/// Runs a mount under load for the given time, and calls beside the kernel's mount with seeds that
/// count up.
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

/// Runs volumes with seeds that count up: the kernel makes half of them, Buttress the other half.
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

/// The number of operations in a run beside the model, over fourteen volumes. This number keeps
/// each volume small enough for frequent comparisons.
const OPERATIONS_A_RUN: u64 = 140_000;

/// The number of cuts in a run, over the volumes of the crash tests. The kernel and `btrfs check`
/// inspect each cut image.
const CUTS_A_RUN: u64 = 8000;

/// The number of crash-test volumes with an equal number of cuts. Slow volumes have fewer cuts.
const CRASH_VOLUMES: u64 = 12;

/// Runs the writer's tests with more work: runs of a fixed size with seeds that count up. The size
/// bounds the memory of a run, and gives every run commits to inspect.
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

/// The number of histories with syncs in a run, over all kinds of volumes and runs of the crash
/// tests.
const FSYNC_A_RUN: u64 = 60 * FSYNC_KINDS;

/// Runs histories of operations and syncs with seeds that count up, and five cuts of each.
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

/// The number of sync tests that take histories.
const FSYNC_KINDS: u64 = 16;

/// The number of concurrent calls in a run, over three volumes.
const CONCURRENT_A_RUN: u64 = 100_000;

/// Runs threads that call at once.
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
