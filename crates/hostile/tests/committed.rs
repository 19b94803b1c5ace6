//! Runs every target over its seeds and over the inputs in the repository.

use buttress_hostile::{Depth, seeds, targets};
use rustix::io::dup;
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use std::fmt::Write;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn targets_withstand_committed_inputs_and_accept_some() {
    let mut faults = Vec::new();
    let mut table = String::new();
    // Commands print directly, so the test harness does not capture their output.
    let nowhere = File::options().write(true).open("/dev/null").unwrap();
    let (stdout, stderr) = (dup(stdout()).unwrap(), dup(stderr()).unwrap());
    dup2_stdout(&nowhere).unwrap();
    dup2_stderr(&nowhere).unwrap();
    for target in targets() {
        let own = seeds::of_target(target.name)
            .into_iter()
            .map(|input| ("seed".to_owned(), input));
        let inputs: Vec<_> = own.chain(seeds::committed(target.name)).collect();
        let mut passed = 0_usize;
        for (name, input) in &inputs {
            match catch_unwind(AssertUnwindSafe(|| (target.body)(input))) {
                Ok(Depth::Passed) => passed += 1,
                Ok(Depth::Refused) => {}
                Err(_) => faults.push(format!("{}: {name} panics", target.name)),
            }
        }
        writeln!(
            table,
            "{:24} {:5} inputs, {passed:5} passed the first checks",
            target.name,
            inputs.len()
        )
        .unwrap();
        if passed == 0 {
            faults.push(format!(
                "{}: none of {} inputs passes the first checks",
                target.name,
                inputs.len()
            ));
        }
    }
    dup2_stdout(&stdout).unwrap();
    dup2_stderr(&stderr).unwrap();
    println!("{table}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
