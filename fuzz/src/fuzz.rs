//! libFuzzer over one target of `buttress_hostile`, named by `BUTTRESS_FUZZ_TARGET`.
//!
//! Once a second the number of inputs, and of those that got past the first checks, is written to the file in
//! `BUTTRESS_FUZZ_SHARE`.
#![no_main]

use buttress_hostile::{Depth, Target, target};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Share {
    target: Target,
    file: Option<std::path::PathBuf>,
    began: Instant,
    written_seconds: AtomicU64,
    inputs: AtomicU64,
    passed: AtomicU64,
}

fn share() -> &'static Share {
    static SHARE: OnceLock<Share> = OnceLock::new();
    SHARE.get_or_init(|| {
        let name = std::env::var("BUTTRESS_FUZZ_TARGET").unwrap_or_default();
        let Some(target) = target(&name) else {
            eprintln!("BUTTRESS_FUZZ_TARGET is {name:?}, which is no target");
            std::process::exit(2);
        };
        Share {
            target,
            file: std::env::var_os("BUTTRESS_FUZZ_SHARE").map(Into::into),
            began: Instant::now(),
            written_seconds: AtomicU64::new(0),
            inputs: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        }
    })
}

fuzz_target!(|bytes: &[u8]| {
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
        let _ = std::fs::write(file, format!("{inputs} {passed}\n"));
    }
});
