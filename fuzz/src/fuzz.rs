//! libFuzzer over one target of `buttress_hostile`, and the ways of inputs between the repository and the
//! directories that libFuzzer works in. All in one program, because building it with coverage takes minutes.
//!
//! It is told what to do by its environment, as its arguments belong to libFuzzer:
//!
//! - `BUTTRESS_FUZZ_TARGET` names the target;
//! - `BUTTRESS_FUZZ_SHARE` names a file into which once a second the number of inputs is written, the number of those
//!   that got past the first checks, and the CPU time in milliseconds;
//! - `BUTTRESS_FUZZ_CHORE` asks for something else than fuzzing: `list` prints the names of all targets and their
//!   longest inputs, `unpack` writes seeds and committed inputs into the directory `BUTTRESS_FUZZ_FOLDER`, `pack` makes
//!   what is there the committed corpus.
#![no_main]

use buttress_hostile::{Depth, Target, corpus, seeds, target, targets};
use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Share {
    target: Target,
    file: Option<PathBuf>,
    began: Instant,
    written_seconds: AtomicU64,
    inputs: AtomicU64,
    passed: AtomicU64,
}

fn named_target() -> Result<Target> {
    let name = std::env::var("BUTTRESS_FUZZ_TARGET").unwrap_or_default();
    target(&name).ok_or_else(|| Error::other(format!("BUTTRESS_FUZZ_TARGET is {name:?}, which is no target")))
}

fn share() -> &'static Share {
    static SHARE: OnceLock<Share> = OnceLock::new();
    SHARE.get_or_init(|| Share {
        target: or_exit(named_target()),
        file: std::env::var_os("BUTTRESS_FUZZ_SHARE").map(Into::into),
        began: Instant::now(),
        written_seconds: AtomicU64::new(0),
        inputs: AtomicU64::new(0),
        passed: AtomicU64::new(0),
    })
}

fn or_exit<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("fuzz: {error}");
        std::process::exit(2)
    })
}

fn chore(chore: &str) -> Result<()> {
    if chore == "list" {
        for target in targets() {
            println!("{} {}", target.name, target.input_bytes_max);
        }
        return Ok(());
    }
    let name = named_target()?.name;
    let folder = std::env::var_os("BUTTRESS_FUZZ_FOLDER").map(PathBuf::from);
    let folder = folder.ok_or_else(|| Error::other("BUTTRESS_FUZZ_FOLDER is not set"))?;
    match chore {
        "unpack" => unpack(name, &folder),
        "pack" => pack(name, &folder),
        _ => Err(Error::other(format!(
            "BUTTRESS_FUZZ_CHORE is {chore:?}, not list, unpack or pack"
        ))),
    }
}

fn unpack(name: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let committed = seeds::committed(name).into_iter().map(|(_, input)| input);
    for (number, input) in seeds::of_target(name).into_iter().chain(committed).enumerate() {
        std::fs::write(folder.join(format!("seed-{number:05}")), input)?;
    }
    Ok(())
}

fn pack(name: &str, folder: &Path) -> Result<()> {
    let mut inputs = Vec::new();
    for file in std::fs::read_dir(folder)? {
        inputs.push(std::fs::read(file?.path())?);
    }
    let packed = corpus::pack(inputs)?;
    let folder = seeds::folder().join("corpus");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{name}.zst")), packed)
}

fuzz_target!(
    init: {
        if let Ok(name) = std::env::var("BUTTRESS_FUZZ_CHORE") {
            or_exit(chore(&name));
            std::process::exit(0);
        }
        share();
    },
    |bytes: &[u8]| {
        let share = share();
        let depth = (share.target.body)(bytes);
        let inputs = share.inputs.fetch_add(1, Ordering::Relaxed) + 1;
        if depth == Depth::Passed {
            share.passed.fetch_add(1, Ordering::Relaxed);
        }
        let Some(file) = &share.file else { return };
        let seconds = (share.began.elapsed() + Duration::from_secs(1)).as_secs();
        if share.written_seconds.swap(seconds, Ordering::Relaxed) != seconds {
            let passed = share.passed.load(Ordering::Relaxed);
            let cpu = clock_gettime(ClockId::ProcessCPUTime);
            let milliseconds = cpu.tv_sec * 1000 + cpu.tv_nsec / 1_000_000;
            let _ = std::fs::write(file, format!("{inputs} {passed} {milliseconds}\n"));
        }
    }
);
