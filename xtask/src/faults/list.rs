//! The deliberate faults: each fault's effect on a user, and the tests that must catch it.
//!
//! A fault that loses data needs two tests. `docs/internals/faults.md` describes how to add a
//! fault. The modules below hold the faults by subject, from the devices up; this file holds their
//! types.

mod commits;
mod files;
mod ledgers;
mod live;
mod locks;
mod log_tree;
mod lower;
mod programs;
mod relocation;
mod trees;

use std::fmt;
use std::sync::LazyLock;

/// A deliberate fault. A fault's point in the code is `buttress_faults::on("name")`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Whether stored data can be lost or changed without an error.
    pub(crate) loses_data: bool,
    /// The effect on a user.
    pub(crate) harm: &'static str,
    pub(crate) tests: &'static [Test],
}

/// A test that must fail with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: &'static str,
    /// The target of the test: `lib` for unit tests, otherwise the name of a test target.
    pub(crate) target: &'static str,
    pub(crate) name: &'static str,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = self.package.trim_start_matches("buttress-");
        write!(f, "{package} {} {}", self.target, self.name)
    }
}

const fn loses(name: &'static str, harm: &'static str, tests: &'static [Test]) -> Fault {
    Fault {
        name,
        loses_data: true,
        harm,
        tests,
    }
}

const fn harms(name: &'static str, harm: &'static str, tests: &'static [Test]) -> Fault {
    Fault {
        name,
        loses_data: false,
        harm,
        tests,
    }
}

const fn test(package: &'static str, target: &'static str, name: &'static str) -> Test {
    Test {
        package,
        target,
        name,
    }
}

const fn device(target: &'static str, name: &'static str) -> Test {
    test("buttress-device", target, name)
}

const fn format(name: &'static str) -> Test {
    test("buttress-format", "lib", name)
}

const fn volume(target: &'static str, name: &'static str) -> Test {
    test("buttress-volume", target, name)
}

const fn tree(name: &'static str) -> Test {
    test("buttress-tree", "lib", name)
}

const fn salvage(target: &'static str, name: &'static str) -> Test {
    test("buttress-salvage", target, name)
}

const fn engine(name: &'static str) -> Test {
    test("buttress-engine", "lib", name)
}

const fn writer(name: &'static str) -> Test {
    test("buttress-writer", "lib", name)
}

const fn repair(name: &'static str) -> Test {
    test("buttress-repair", "lib", name)
}

const fn rebuild(name: &'static str) -> Test {
    test("buttress-repair", "plants", name)
}

const fn in_place(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

const fn in_flight(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

const fn in_order(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

const fn live(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

const fn whole_calls(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

/// Returns a test under the model checker of `cargo xtask schedules`.
const fn schedules(name: &'static str) -> Test {
    test("buttress-proof", "schedules", name)
}

const fn concurrent(name: &'static str) -> Test {
    test("buttress-proof", "concurrent", name)
}

const fn fsync_crash(name: &'static str) -> Test {
    test("buttress-proof", "fsync_crash", name)
}

const fn log_tree(name: &'static str) -> Test {
    test("buttress-proof", "log_tree", name)
}

const fn crash(name: &'static str) -> Test {
    test("buttress-proof", "crash", name)
}

const fn commits(name: &'static str) -> Test {
    test("buttress-proof", "commits", name)
}

const fn device_changes(name: &'static str) -> Test {
    test("buttress-proof", "device_changes", name)
}

const fn writing(name: &'static str) -> Test {
    test("buttress-proof", "writing", name)
}

const fn send(name: &'static str) -> Test {
    test("buttress-proof", "send", name)
}

const fn planted(name: &'static str) -> Test {
    test("buttress-check", "planted", name)
}

const fn scrub(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn beside(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn crash_of_scrub(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn lost_by_replace(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn unwalked(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn resync(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn resync_cuts(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn resync_kernel(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn damage_beside_writes(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn resync_reads(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn replace(name: &'static str) -> Test {
    test("buttress-scrub", "scrub", name)
}

const fn cli(name: &'static str) -> Test {
    test("buttress-cli", "commands", name)
}

const THREADS: Test = commits("order::by_threads");
const TWO_DEVICES: Test = commits("order::by_threads_on_two_devices");
const RING: Test = commits("order::by_io_uring");
const MIRROR_IN_ORDER: Test = in_order("commit_order::each_step_ends_on_both_devices_of_a_mirror");
const STRIPES_IN_ORDER: Test = in_order("commit_order::each_step_ends_on_all_devices_with_striped_data");
const STEPS_OF_FILES: Test = commits("steps::of_files");
const STEPS_OF_SUBVOLUMES: Test = commits("steps::of_subvolumes");
const BYTE_VECTORS: Test = writer("data::tests::model::files_agree_with_byte_vectors");
const TO_THE_KERNEL: Test = writer("data::tests::model::files_go_to_the_kernel_and_come_back");
const EDITS: Test = tree("edit::tests::model::random_edits_agree_with_a_map_for_every_node_size");
const HIGH_TREES: Test = tree("edit::tests::model::high_trees_agree_with_a_map");
const FILES_COME_AND_GO: Test = writer("transaction_tests::files_come_and_go");
const DROPPING: Test = writer("operations::tests::subvolumes::dropping_goes_on_where_it_was_cancelled");
const SUBVOLUMES: Test = writer("operations::tests::subvolumes::subvolumes_live_and_die");
const RANDOM_OPERATIONS: Test =
    writer("operations::tests::against_kernel::random_operations_end_as_the_kernels_do");
const PIECE_CHANGED: Test = writer("data::defragment::tests::piece_that_changed_is_not_replaced");
const SHARED: Test = writer("data::tests::extents::what_is_shared_takes_no_room_and_stays_apart");

/// All faults.
pub(crate) static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
    let parts = [
        lower::FAULTS,
        trees::FAULTS,
        commits::FAULTS,
        ledgers::FAULTS,
        live::FAULTS,
        locks::FAULTS,
        log_tree::FAULTS,
        files::FAULTS,
        programs::FAULTS,
        relocation::FAULTS,
    ];
    parts.concat()
});
