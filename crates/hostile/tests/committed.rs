//! Every target over its seeds and over the inputs that are kept in the repository.

use buttress_hostile::{Depth, seeds, targets};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn every_target_withstands_its_committed_inputs_and_lets_some_pass() {
    let mut faults = Vec::new();
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
        println!(
            "{:24} {:5} inputs, {passed:5} passed the first checks",
            target.name,
            inputs.len()
        );
        if passed == 0 {
            faults.push(format!(
                "{}: none of {} inputs passes the first checks",
                target.name,
                inputs.len()
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
