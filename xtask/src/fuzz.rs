//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer, and prints the coverage that each
//! target reached.
//!
//! The chore builds the targets once, with coverage, in a separate target directory. It then runs
//! several targets at a time, each for its share of the seconds. Whole images and commands get the
//! largest shares, because they contain all structures. The working corpora stay in the target
//! directory; `--keep` reduces them to inputs that add coverage, and moves these to `fuzz/corpus`.
//!
//! A finding ends its target's run. The chore moves the input to `fuzz/regressions/TARGET`, where
//! `cargo test` also runs it, and fails at the end.

use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// LLVM's coverage instrumentation for libFuzzer. Comparisons are not traced: tracing would take
/// half of the time, and targets repair the values that it would help to guess (checksums, hashes,
/// fixed numbers).
const RUST_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     --cfg fuzzing -Cforce-frame-pointers=yes";

/// The name of the target of whole images.
const IMAGE: &str = "image";
/// The name of the target of whole commands.
const COMMAND: &str = "command";
/// The name of the target of log replay.
const LOG: &str = "log";
/// The name of the target of received streams.
const RECEIVING: &str = "receiving";
/// The name of the target of repairs.
const REPAIR: &str = "repair";
/// The longest time of an input, in seconds.
const TIMEOUT_SECONDS: u64 = 30;

/// Returns the memory limit of a target's process, in MiB. The limit covers caches of 8 or 16 MiB,
/// requests in flight, and the fuzzer itself. For `log` and `receiving` it also covers the volumes
/// of 128 MiB that the target makes in memory before the first input, one after the other, and
/// their copies.
fn memory_mib(name: &str) -> u64 {
    match name {
        LOG | RECEIVING => 768,
        _ => 256,
    }
}

struct Options {
    seconds: u64,
    jobs: usize,
    keep: bool,
    names: Vec<String>,
}

#[derive(Clone)]
struct Target {
    name: String,
    input_bytes_max: u64,
    seconds: u64,
}

/// The result of a target's run.
struct Reached {
    name: String,
    executions: u64,
    passed: u64,
    cpu_seconds: f64,
    coverage: u64,
    features: u64,
    corpus: usize,
    peak_mib: u64,
    finding: Option<String>,
}

/// Runs the chore: `[--seconds N] [--jobs N] [--keep] [TARGET…]`. Seconds are wall-clock seconds,
/// added over all targets; on an idle machine they equal the CPU time.
pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let root = root();
    let folder = root.join("target/fuzz");
    let program = build(&root, &folder)?;
    let targets = plan(&program, &options)?;
    let queue = Mutex::new(VecDeque::from(targets));
    let results = Mutex::new(Vec::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let Some(target) = queue.lock().ok().and_then(|mut queue| queue.pop_front()) else {
                        return;
                    };
                    let result = fuzz(&root, &folder, &program, &target)
                        .with_context(|| format!("fuzzing {}", target.name));
                    if let Ok(reached) = &result {
                        eprintln!("{}", row(reached));
                    }
                    if let Ok(mut results) = results.lock() {
                        results.push(result);
                    }
                }
            });
        }
    });
    let results = results
        .into_inner()
        .map_err(|_| anyhow::anyhow!("a thread failed"))?;
    let mut reached = results.into_iter().collect::<Result<Vec<_>>>()?;
    reached.sort_by(|left, right| left.name.cmp(&right.name));
    report(&reached, began);
    if options.keep {
        for reached in &reached {
            fold(&folder, &program, &reached.name)?;
        }
    }
    let findings: Vec<_> = reached
        .iter()
        .filter_map(|reached| reached.finding.clone())
        .collect();
    if !findings.is_empty() {
        bail!("{} findings:\n{}", findings.len(), findings.join("\n"));
    }
    Ok(())
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

fn parse(args: &[String]) -> Result<Options> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        seconds: 60,
        jobs: processors,
        keep: false,
        names: Vec::new(),
    };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64> {
            let value = words.next().with_context(|| format!("{word} wants a number"))?;
            value.parse().with_context(|| format!("{word} {value}"))
        };
        match word.as_str() {
            "--seconds" => options.seconds = number()?,
            "--jobs" => options.jobs = usize::try_from(number()?)?.max(1),
            "--keep" => options.keep = true,
            name if !name.starts_with('-') => options.names.push(name.to_owned()),
            _ => bail!("{word} is unknown: cargo xtask fuzz [--seconds N] [--jobs N] [--keep] [TARGET…]"),
        }
    }
    Ok(options)
}

fn build(root: &Path, folder: &Path) -> Result<PathBuf> {
    let triple = host()?;
    let mut build = Command::new("cargo");
    build
        .args(["build", "--release", "--manifest-path"])
        .arg(root.join("fuzz/Cargo.toml"))
        .args(["--target", &triple, "--bin", "fuzz", "--target-dir"])
        .arg(folder.join("build"))
        .env("RUSTFLAGS", RUST_FLAGS);
    run_to_end(&mut build)?;
    Ok(folder.join("build").join(triple).join("release/fuzz"))
}

/// Returns the machine's target triple. Flags for a named target do not apply to build scripts.
fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not name its host")?.to_owned())
}

fn run_to_end(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Returns a target's share of the seconds, as a multiple of the smallest share.
fn weight(name: &str) -> u64 {
    match name {
        IMAGE => 100,
        COMMAND | LOG | RECEIVING | REPAIR => 40,
        "assemble" => 10,
        "superblock" | "tree_block" | "leaf" | "zlib" | "lzo" | "zstd" => 5,
        _ => 1,
    }
}

/// Returns the targets with their seconds, the longest first. Every job runs whole images and
/// commands at once, so that none of them runs alone at the end.
fn plan(program: &Path, options: &Options) -> Result<Vec<Target>> {
    let output = Command::new(program)
        .env("BUTTRESS_FUZZ_CHORE", "list")
        .output()
        .context("listing the targets")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut wanted = Vec::new();
    for line in text.lines() {
        let (name, bytes) = line.split_once(' ').context("a line of the list of targets")?;
        if options.names.is_empty() || options.names.iter().any(|wanted| wanted == name) {
            wanted.push((name.to_owned(), bytes.parse()?));
        }
    }
    if wanted.is_empty() {
        bail!("no target of that name; the names are:\n{text}");
    }
    let sum: u64 = wanted.iter().map(|(name, _)| weight(name)).sum();
    let mut targets = Vec::new();
    for (name, input_bytes_max) in wanted {
        let runs = if weight(&name) > 5 { options.jobs } else { 1 };
        let seconds = (options.seconds * weight(&name) / sum / runs as u64).max(1);
        let target = Target {
            name,
            input_bytes_max,
            seconds,
        };
        targets.extend(std::iter::repeat_n(target, runs));
    }
    targets.sort_by_key(|target| std::cmp::Reverse(target.seconds));
    Ok(targets)
}

fn fuzz(root: &Path, folder: &Path, program: &Path, target: &Target) -> Result<Reached> {
    let name = &target.name;
    let corpus = folder.join("corpus").join(name);
    chore(program, "unpack", name, &corpus)?;
    let found = folder.join("found").join(name);
    fs::create_dir_all(&found)?;
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let number = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let share = folder.join(format!("share-{name}-{number}"));
    let output = Command::new(program)
        .arg(format!("-max_total_time={}", target.seconds))
        .arg(format!("-max_len={}", target.input_bytes_max))
        .arg(format!("-timeout={TIMEOUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={}", memory_mib(name)))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(["-print_final_stats=1", "-len_control=20", "-reload=1"])
        .arg(&corpus)
        // Commands print on standard output and standard error.
        .arg(format!("-close_fd_mask={}", if name == COMMAND { 3 } else { 1 }))
        .env("BUTTRESS_FUZZ_TARGET", name)
        .env("BUTTRESS_FUZZ_SHARE", &share)
        .stdin(Stdio::null())
        .output()
        .context("starting the fuzzer")?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    fs::write(folder.join(format!("log-{name}-{number}")), &log)?;
    let counted = fs::read_to_string(&share).unwrap_or_default();
    let mut counts = counted.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let mut count = || counts.next().unwrap_or(0);
    let (counted, passed, cpu_milliseconds) = (count(), count(), count());
    let executions = stat(&log, "stat::number_of_executed_units:").unwrap_or(counted);
    let finding = if output.status.success() {
        None
    } else {
        Some(keep_finding(root, &found, name, &log)?)
    };
    Ok(Reached {
        name: name.clone(),
        executions,
        passed: if counted == 0 {
            0
        } else {
            (passed as f64 / counted as f64 * executions as f64) as u64
        },
        cpu_seconds: cpu_milliseconds as f64 / 1000.0,
        coverage: last(&log, " cov: ").unwrap_or(0),
        features: last(&log, " ft: ").unwrap_or(0),
        corpus: fs::read_dir(&corpus)?.count(),
        peak_mib: stat(&log, "stat::peak_rss_mb:").unwrap_or(0),
        finding,
    })
}

/// Moves inputs of a target between the repository and a directory.
fn chore(program: &Path, chore: &str, name: &str, folder: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command
        .env("BUTTRESS_FUZZ_CHORE", chore)
        .env("BUTTRESS_FUZZ_TARGET", name);
    let output = command
        .env("BUTTRESS_FUZZ_FOLDER", folder)
        .output()
        .context("starting the fuzzer")?;
    if !output.status.success() {
        bail!(
            "{chore} of {name} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Moves the input of a finding to the regressions, and returns its path.
fn keep_finding(root: &Path, found: &Path, name: &str, log: &str) -> Result<String> {
    let said = log
        .lines()
        .find(|line| line.contains("panicked at") || line.contains("ERROR: libFuzzer"));
    let folder = root.join("fuzz/regressions").join(name);
    fs::create_dir_all(&folder)?;
    let mut kept = Vec::new();
    for file in fs::read_dir(found)? {
        let file = file?;
        let to = folder.join(file.file_name());
        fs::rename(file.path(), &to)?;
        kept.push(to.display().to_string());
    }
    Ok(format!(
        "{name}: {} ({})",
        said.unwrap_or("ended early"),
        kept.join(", ")
    ))
}

/// Returns the number after a label in libFuzzer's final statistics.
fn stat(log: &str, label: &str) -> Option<u64> {
    log.lines()
        .find_map(|line| line.strip_prefix(label)?.trim().parse().ok())
}

/// Returns the number after the last occurrence of a label in libFuzzer's progress lines.
fn last(log: &str, label: &str) -> Option<u64> {
    log.lines()
        .rev()
        .find_map(|line| line.split_once(label)?.1.split_whitespace().next()?.parse().ok())
}

/// Reduces a working corpus to the inputs that add coverage, and packs them as the committed
/// corpus.
fn fold(folder: &Path, program: &Path, name: &str) -> Result<()> {
    let reduced = folder.join("reduced").join(name);
    if reduced.exists() {
        fs::remove_dir_all(&reduced)?;
    }
    fs::create_dir_all(&reduced)?;
    let output = Command::new(program)
        .arg("-merge=1")
        .arg(&reduced)
        .arg(folder.join("corpus").join(name))
        .env("BUTTRESS_FUZZ_TARGET", name)
        .stdin(Stdio::null())
        .output()
        .context("starting the fuzzer")?;
    if !output.status.success() {
        bail!("reducing the corpus of {name} ended with {}", output.status);
    }
    chore(program, "pack", name, &reduced)
}

fn row(reached: &Reached) -> String {
    let share = 100.0 * reached.passed as f64 / reached.executions.max(1) as f64;
    format!(
        "{:24} {:>12} {:>8.0} {:>7.1} {:>7} {:>8} {:>7} {:>6}",
        reached.name,
        reached.executions,
        reached.cpu_seconds,
        share,
        reached.coverage,
        reached.features,
        reached.corpus,
        reached.peak_mib
    )
}

fn report(reached: &[Reached], began: Instant) {
    println!(
        "{:24} {:>12} {:>8} {:>7} {:>7} {:>8} {:>7} {:>6}",
        "target", "executions", "CPU s", "past %", "edges", "features", "corpus", "MiB"
    );
    for reached in reached {
        println!("{}", row(reached));
    }
    let executions: u64 = reached.iter().map(|reached| reached.executions).sum();
    let seconds: f64 = reached.iter().map(|reached| reached.cpu_seconds).sum();
    println!(
        "{executions} inputs in {:.2} CPU hours ({:.2} hours on the clock); past %: got past the first checks",
        seconds / 3600.0,
        began.elapsed().as_secs_f64() / 3600.0
    );
}
