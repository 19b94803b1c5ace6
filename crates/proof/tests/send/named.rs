//! Situations that are hard to send, by name.
//!
//! Inode numbers increase with the creation of inodes, and a send processes inodes in this order.
//! The difficulty of these cases is mostly which of two inodes is older. Each named case consists
//! of two snapshots (a few have more), the changes between them, and one sentence. The sentence
//! states the error of an implementation that misses the situation. All cases run in every format.

mod attributes;
mod clones;
mod holes;
mod orphans;
mod renames;
mod shapes;

use buttress_oracle::history::operation::Operation;
use buttress_oracle::history::{History, Strictness};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::round_trip::RoundTrip;
use buttress_proof::send::volumes::Flavour;
use buttress_proof::send::{FORMATS, Sender};
use std::time::Duration;

/// One situation.
struct Named {
    name: &'static str,
    /// Error of an implementation that misses the situation.
    why: &'static str,
    history: History,
}

/// Builds a situation of two snapshots: initial operations, and changes.
fn named(name: &'static str, why: &'static str, before: Vec<Operation>, after: Vec<Operation>) -> Named {
    with_history(name, why, History::chain(vec![before, after]))
}

/// Builds a situation of any history.
fn with_history(name: &'static str, why: &'static str, history: History) -> Named {
    Named { name, why, history }
}

/// Returns the cases of one theme, on each kind of volume.
fn cases_of(theme: &str, flavours: &[Flavour], situations: Vec<Named>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, situation) in (0..).zip(situations) {
        let flavours = flavours.to_vec();
        let name = format!("{theme}::{}", situation.name);
        cases.push(Case::new(name.clone(), move || {
            if let Some(reason) = kernel_missing() {
                return Ok(Outcome::Skipped(reason));
            }
            for flavour in &flavours {
                let round_trip = RoundTrip {
                    name: &name,
                    sender: Sender::under_test(),
                    formats: &FORMATS,
                    flavour: *flavour,
                    strictness: Strictness::Strict,
                    received: Some(number),
                };
                let sums = round_trip
                    .check(&situation.history, Duration::from_secs(10))
                    .map_err(|error| error.context(situation.why))?;
                if sums.kernel_wrong > 0 {
                    println!("{name}: the kernel's own streams do not make this snapshot");
                }
            }
            Ok(Outcome::Passed)
        }));
    }
    cases
}

pub fn cases() -> Vec<Case> {
    let plain = [Flavour::Plain];
    let mut cases = cases_of("renames", &plain, renames::situations());
    cases.extend(cases_of("orphans", &plain, orphans::situations()));
    let with_compression = [Flavour::Plain, Flavour::Zstd];
    cases.extend(cases_of("clones", &with_compression, clones::situations()));
    let with_hole_items = [Flavour::Plain, Flavour::HoleItems];
    cases.extend(cases_of("holes", &with_hole_items, holes::situations()));
    cases.extend(cases_of("attributes", &plain, attributes::situations()));
    cases.extend(cases_of("shapes", &plain, shapes::situations()));
    cases
}
