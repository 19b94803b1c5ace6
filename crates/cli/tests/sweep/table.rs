//! The table: command lines for each command, and the effects of its options. Each module covers a
//! group of commands.

mod jobs;
mod listings;
mod streams;
mod structures;
mod subvolumes;
mod volumes;

use crate::rows::{Covered, Sweep, Units};

const PLAIN: Sweep = Sweep {
    command: "",
    base: "",
    code: 0,
    own: &[],
    units: Units::No,
    pairs: true,
    covered: &[],
};

const fn covered(by: &'static str, options: &'static [&'static str], why: &'static str) -> Covered {
    Covered { by, options, why }
}

pub(crate) fn sweeps() -> Vec<Sweep> {
    [
        listings::LISTINGS,
        listings::COPIES,
        volumes::VOLUMES,
        volumes::REPORTS,
        streams::STREAMS,
        subvolumes::SUBVOLUMES,
        subvolumes::FILESYSTEMS,
        jobs::JOBS,
        structures::STRUCTURES,
        jobs::OTHERS,
    ]
    .concat()
}
