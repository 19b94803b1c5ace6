//! Recovery of damaged volumes, beside btrfs-progs: the share of files and bytes that comes back.
//!
//! - `base`: the sound volumes, made with the kernel, with the content of each commit;
//! - `runs`: programs that get a damaged copy: restore, repair, rescue, of ours and of btrfs-progs;
//! - `judging`: comparison of the recovered files with the sound volume;
//! - `table`: the rows, and the page that they make;
//! - `stress`: work on repaired volumes through Linux.
//!
//! The ordinary suite runs a few named seeds. `BUTTRESS_DAMAGES=N` runs N seeds of each kind of
//! damage, and `BUTTRESS_BLESS=1` writes the table to `docs/recovery-comparison.md`.

mod base;
mod judging;
mod runs;
mod stress;
mod table;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    run(table::cases())
}
