//! Tests of global options: each command honours or refuses each of them, and ignores none
//! silently.

use buttress_cli::table;
use std::panic::catch_unwind;

use crate::running::How;
use crate::world::World;
use crate::{each_case, run_in};

/// Method of testing a global option.
enum Probe {
    /// With this value, no command that honours the option succeeds.
    Fails(&'static [&'static str]),
    /// The option changes the command's speed or verbosity, but not its results.
    Manner,
    /// Another test covers the option.
    Elsewhere,
}

/// Every global option, by its long name.
const PROBES: [(&str, Probe); 15] = [
    ("quiet", Probe::Manner),
    ("verbose", Probe::Manner),
    ("format", Probe::Elsewhere),
    ("progress", Probe::Manner),
    ("device", Probe::Fails(&["--device", "{absent}"])),
    ("overlay", Probe::Fails(&["--overlay", "{stream}"])),
    ("offset", Probe::Fails(&["--offset", "3M"])),
    ("cache", Probe::Manner),
    ("subvol", Probe::Fails(&["--subvol", "no/such/subvolume"])),
    ("subvolid", Probe::Fails(&["--subvolid", "999999"])),
    ("generation", Probe::Fails(&["--generation", "999999"])),
    // The test `options_of_volumes_are_refused_together` covers these two options.
    ("degraded", Probe::Elsewhere),
    ("rescue", Probe::Elsewhere),
    ("direct", Probe::Manner),
    ("engine", Probe::Manner),
];

#[test]
fn every_global_option_has_a_probe() {
    let command = table::command();
    let is_global = |argument: &&clap::Arg| argument.get_id().as_str().starts_with("global-");
    let mut options: Vec<&str> = command
        .get_arguments()
        .filter(is_global)
        .filter_map(clap::Arg::get_long)
        .collect();
    let mut probes: Vec<&str> = PROBES.iter().map(|(name, _)| *name).collect();
    options.sort_unstable();
    probes.sort_unstable();
    assert_eq!(probes, options);
}

#[test]
fn no_global_option_is_passed_over() {
    let mut failed = 0;
    for (name, probe) in PROBES {
        let Probe::Fails(words) = probe else { continue };
        let looked = catch_unwind(|| {
            each_case(&format!("--{name}"), |case, world: &World, condition| {
                let own = [
                    ("mkfs", "subvol"),
                    ("mkfs", "overlay"),
                    ("mkfs", "device"),
                    ("mkfs", "offset"),
                    ("rescue scan", "offset"),
                ];
                if own.contains(&(case.command, name)) {
                    // The command has its own option of this name, or the option names a new
                    // overlay file, a further device, or the start of a new volume. A scan finds
                    // blocks from any offset on.
                    return;
                }
                let mut all = case.words(world);
                all.extend(words.iter().map(|word| world.fill(word)));
                let ended = run_in(case, world, condition, How::Plain, &all);
                assert!(
                    ended.code.is_some_and(|code| code > 0 && code != case.sound())
                        || ended.stderr.contains("error:"),
                    "{case}, {condition}: {:?} {}",
                    ended.code,
                    ended.stderr
                );
            })
        });
        failed += u32::from(looked.is_err());
    }
    assert_eq!(failed, 0, "options that are passed over, see above");
}

/// A command that refuses `--device` as unused also refuses `--degraded` and `--rescue`, for which
/// no probe exists.
#[test]
fn options_of_volumes_are_refused_together() {
    each_case("options of volumes", |case, world, condition| {
        let says = |option: &[&str]| {
            let mut words = case.words(world);
            words.extend(option.iter().map(|word| world.fill(word)));
            let ended = run_in(case, world, condition, How::Plain, &words);
            ended.stderr.contains("means nothing to")
        };
        if case.command == "mkfs" || !says(&["--device", "{absent}"]) {
            return;
        }
        for option in [&["--degraded"][..], &["--rescue", "all"], &["--subvol", "/"]] {
            assert!(says(option), "{case}: {option:?}");
        }
    });
}
