//! Fault points: places where a deliberate fault can be switched on, to prove that tests catch it.
//!
//! A fault point is a condition in the code, `buttress_faults::on("name-of-the-fault")`, that
//! guards faulty code. In all builds except the fault-testing one, a fault point is the constant
//! `false`, and the compiler removes it. In the build of `cargo xtask faults`, with `--cfg
//! buttress_faults`, the environment variable `BUTTRESS_FAULT` names the one fault that is on in a
//! process.
//!
//! The table in `xtask/src/faults/list` lists the faults, the tests that must catch each, and the
//! harm that each would do to a user. `docs/internals/faults.md` explains how to add one. A test of xtask
//! fails for a name that is not in the table, and for a name without a fault point.
#![forbid(unsafe_code)]

/// Returns whether a fault is on: always false in this build.
#[cfg(not(buttress_faults))]
#[inline(always)]
#[must_use]
pub const fn on(_name: &'static str) -> bool {
    false
}

/// Returns true if a fault is on. At the first call for a fault, prints a message on standard
/// error. Without this message, a fault that no test reaches would look like a fault that no test
/// catches.
#[cfg(buttress_faults)]
#[must_use]
pub fn on(name: &'static str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    static REACHED: std::sync::Once = std::sync::Once::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("BUTTRESS_FAULT").ok());
    let is_on = chosen.as_deref() == Some(name);
    if is_on {
        REACHED.call_once(|| {
            use std::io::Write as _;
            // The message bypasses the capture of the test harness.
            let _ = writeln!(std::io::stderr(), "buttress-faults: {name} was reached");
        });
    }
    is_on
}
