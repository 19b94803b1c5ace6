//! Fault points: places where a deliberate fault can be switched on, to prove that tests catch it.
//!
//! A fault point is an ordinary condition in the code, `buttress_faults::on("name-of-the-fault")`, with what would go wrong
//! behind it. In every build but one it is the constant `false`, and the compiler drops all of it. In the build of
//! `cargo xtask faults`, with `--cfg buttress_faults`, the environment variable `BUTTRESS_FAULT` names the one fault that
//! is on in a process.
//!
//! Which faults there are, which tests must catch each, and what it would do to a user, is the table in
//! `xtask/src/faults/list`; `docs/internals/faults.md` says how to add one. A name that is not in the table, or that no point
//! has, fails a test of xtask.
#![forbid(unsafe_code)]

/// Whether a fault is on: never, in this build.
#[cfg(not(buttress_faults))]
#[inline(always)]
#[must_use]
pub const fn on(_name: &'static str) -> bool {
    false
}

/// Whether a fault is on. The first time that it is, that is said on standard error: a fault that no test comes to would
/// else look like one that none catches.
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
            // Past the capture of the test harness.
            let _ = writeln!(std::io::stderr(), "buttress-faults: {name} was reached");
        });
    }
    is_on
}
