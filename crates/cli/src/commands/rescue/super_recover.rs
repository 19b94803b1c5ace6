//! `buttress rescue super-recover IMAGE`: writes good superblocks over bad copies.

use std::ffi::OsString;
use std::io::{BufRead as _, Write};

use anyhow::{Context as _, Result};
use buttress::{DeviceOptions, DeviceSuperblocks, Physical, recover_superblocks, survey_superblocks};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;

/// The exit code of btrfs-progs after a recovery.
const RECOVERED: u8 = 2;
/// The exit code of btrfs-progs if the user declined.
const ABORTED: u8 = 4;

const QUESTION: &str =
    "Make sure this is a btrfs disk otherwise the tool will destroy other fs, Are you sure? [y/N]: ";

/// Write the good superblock of each device over its bad copies
///
/// The newest valid copy is good. Before it writes, the command tries in memory that the volume
/// opens. The exit codes are those of btrfs-progs. -v lists all copies.
#[derive(Args, Debug)]
pub struct SuperRecover {
    /// Assume the answer yes
    #[arg(short = 'y')]
    yes: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for SuperRecover {
    const NAME: &'static str = "super-recover";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue super-recover -y backup.img",
        "Repairs a damaged primary superblock from a copy",
    )];

    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "All superblocks are good"),
        (1, "The recovery failed"),
        (
            RECOVERED,
            "Bad superblocks were recovered, or the command line is wrong",
        ),
        (ABORTED, "The answer was not yes"),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let options = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        let devices = context.open_devices_with(core::slice::from_ref(&target.image), &options)?;
        let name = || target.image.display().to_string();
        let survey = survey_superblocks(&devices).with_context(name)?;
        let is_whole = survey.iter().all(|device| device.bad.is_empty());
        let mut out = context.stdout();
        if context.globals().verbose > 0 && !context.json() {
            list(&mut out, &survey)?;
        }
        if !is_whole && !self.yes && !confirmed()? {
            let line = "Aborted to recover bad superblocks";
            return print(context, &target, &survey, (line, false), ABORTED);
        }
        if is_whole {
            let line = "All supers are valid, no need to recover";
            return print(context, &target, &survey, (line, false), 0);
        }
        recover_superblocks(&devices, &survey).with_context(name)?;
        let line = "Recovered bad superblocks successful";
        print(context, &target, &survey, (line, true), RECOVERED)
    }
}

/// Asks the question of btrfs-progs. Anything except yes, or no answer, means no.
fn confirmed() -> Result<bool> {
    terminal::prompt(&QUESTION);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim_start().as_bytes().first(),
        Some(b'y' | b'Y')
    ))
}

/// Lists all superblocks, in the words of btrfs-progs.
fn list(out: &mut impl Write, survey: &[DeviceSuperblocks]) -> Result<()> {
    writeln!(out, "All Devices:")?;
    for device in survey {
        let name = terminal::shown(device.name());
        writeln!(out, "\tDevice: id = {}, name = {name}", device.id())?;
    }
    writeln!(out, "\nBefore Recovering:")?;
    for (kind, is_good) in [("good", true), ("bad", false)] {
        writeln!(out, "\t[All {kind} supers]:")?;
        for device in survey {
            let places = if is_good { &device.good } else { &device.bad };
            for at in places {
                let name = terminal::shown(device.name());
                writeln!(
                    out,
                    "\t\tdevice name = {name}\n\t\tsuperblock bytenr = {}\n",
                    at.get()
                )?;
            }
        }
    }
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

fn print(
    context: &Context,
    target: &Target,
    survey: &[DeviceSuperblocks],
    (line, recovered): (&str, bool),
    code: u8,
) -> Result<Outcome> {
    if context.json() {
        let addresses = |places: &[Physical]| places.iter().map(|at| at.get()).collect::<Vec<_>>();
        let devices = survey.iter().map(|device| {
            json!({
                "devid": device.id().get(),
                "device": device.name(),
                "good": addresses(&device.good),
                "bad": addresses(&device.bad),
            })
        });
        let mut object = target.as_json();
        object.insert("devices".to_owned(), devices.collect());
        object.insert("recovered".to_owned(), json!(recovered));
        context.print_json("rescue-super-recover", Value::Object(object))?;
    } else if !context.globals().quiet {
        let mut out = context.stdout();
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    Ok(match code {
        0 => Outcome::Done,
        code => Outcome::Code(code),
    })
}
