//! The examples, run as a user would run them. Each ends with an error if its judge complains.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

/// Runs an example and returns its output.
fn run(name: &str) -> String {
    let folder = std::env::current_exe().unwrap();
    let folder = folder.parent().unwrap().parent().unwrap();
    let program = folder.join("examples").join(name);
    let output = Command::new(program).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn power_cuts_example_finds_nothing_wrong() {
    assert!(run("power_cuts").ends_with("all right\n"));
}

#[test]
fn failing_device_example_strikes_every_write() {
    let printed = run("failing_device");
    assert_eq!(printed.lines().count(), 3, "{printed}");
    assert!(!printed.contains(": 0 writes"), "{printed}");
}

#[test]
fn threads_example_finds_nothing_wrong() {
    assert!(run("threads").ends_with("all right\n"));
}
