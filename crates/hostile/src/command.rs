//! The target of whole commands: a changed seed volume, as files in memory, and one command line
//! over it.
//!
//! The command must also print everything that the library accepts: names, times, flags, trees,
//! tables. An input is an input of [`crate::image`], after a byte that chooses the command. Output
//! goes to standard output, which the fuzzer closes and tests redirect.

use crate::input::Input;
use crate::seed_volume::{BLOCK_BYTES, Overlay};
use crate::{Depth, mutation, seeds};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::ffi::OsString;

/// The commands; `%` stands for the first image. `cat` is left out: a file may validly have 8 EiB
/// of zeros, and take as long.
const COMMANDS: &[&str] = &[
    "inspect-internal dump-tree %",
    "inspect-internal dump-super -a -f %",
    "inspect-internal tree-stats %",
    "inspect-internal list-chunks %",
    "inspect-internal logical-resolve 13631488 %",
    "inspect-internal inode-resolve 257 %",
    "ls -l -R %:/",
    "tree %:/",
    "stat %:/links/first",
    "tar %:/",
    "stat %:/preallocated",
    "subvolume list %",
    "subvolume show %:/subvolume",
    "subvolume get-default %",
    "filesystem df %",
    "filesystem usage %",
    "filesystem du %:/",
    "filesystem show %",
];

/// The target of a command over a changed volume.
pub fn command(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let volumes = seeds::volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    input.byte();
    let overlays = mutation::apply(aims, &mut input);
    let Ok(images) = overlays
        .iter()
        .map(file_in_memory)
        .collect::<std::io::Result<Vec<_>>>()
    else {
        return Depth::Refused;
    };
    let paths: Vec<_> = images
        .iter()
        .map(|image| format!("/proc/self/fd/{}", image.as_raw_fd()))
        .collect();
    let line = COMMANDS[usize::from(choice & 0x3f) % COMMANDS.len()];
    let mut words: Vec<OsString> = ["buttress", "--cache", "8M", "--progress", "never"]
        .map(Into::into)
        .into();
    for path in &paths[1..] {
        words.extend(["--device".into(), path.into()]);
    }
    if choice & 0x80 != 0 {
        words.extend(["--format".into(), "json".into()]);
    }
    words.extend(line.split(' ').map(|word| word.replace('%', &paths[0]).into()));
    let done = buttress_cli::main(words);
    Depth::passed(done == std::process::ExitCode::SUCCESS)
}

/// Returns the device as a file in memory.
fn file_in_memory(overlay: &Overlay) -> std::io::Result<OwnedFd> {
    let file = memfd_create("device", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, overlay.size_bytes())?;
    for number in overlay.block_numbers() {
        let at = number * BLOCK_BYTES as u64;
        rustix::io::pwrite(&file, &overlay.read(at, BLOCK_BYTES), at)?;
    }
    Ok(file)
}
