//! `buttress filesystem df IMAGE`: space by type and profile, in the format of `btrfs filesystem
//! df`.
//!
//! The last line is the reserve of a mount, computed from the on-disk state.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{profile_name, space_of};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::{ShortUnitFlags, UnitFlags};
use crate::table::{MountView, Subcommand};

/// Show allocated and used space, by type and profile
#[derive(Args, Debug)]
pub struct Df {
    #[command(flatten)]
    units: UnitFlags,
    #[command(flatten)]
    short_units: ShortUnitFlags,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Df {
    const NAME: &'static str = "df";
    const ON_MOUNTS: bool = true;
    // The chunks of the running transaction have no block group items yet.
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress filesystem df backup.img",
        "Shows allocated and used space, by type and profile",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = context.open_volume(&target.image)?.volume().clone();
        let space = space_of(&filesystem, context)?;
        let reserve = ("GlobalReserve", "single", space.global_reserve.get(), 0);
        let rows = space
            .groups
            .iter()
            .map(|group| {
                let flags = group.flags;
                (
                    flags.type_name(),
                    profile_name(flags),
                    group.total.get(),
                    group.used.get(),
                )
            })
            .chain([reserve]);
        if context.json() {
            let values: Vec<Value> = rows
                .map(|(kind, profile, total, used)| {
                    json!({ "bg-type": kind, "bg-profile": profile, "total": total, "used": used })
                })
                .collect();
            context.print_json("filesystem-df", values.into())?;
            return Ok(Outcome::Done);
        }
        let units = self.short_units.units(self.units);
        let mut out = context.stdout();
        for (kind, profile, total, used) in rows {
            writeln!(
                out,
                "{kind}, {profile}: total={}, used={}",
                units.text(total),
                units.text(used)
            )?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
