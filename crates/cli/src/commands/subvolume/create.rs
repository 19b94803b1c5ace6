//! `buttress subvolume create IMAGE:/path …`.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::quota::QgroupId;
use clap::Args;

use crate::commands::qgroup::parse_group;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;

/// Create empty subvolumes
#[derive(Args, Debug)]
pub struct Create {
    /// Create missing parent directories, too
    #[arg(short, long)]
    parents: bool,
    /// Make the quota group of each new subvolume a member of this group; repeatable
    #[arg(short = 'i', value_name = "QGROUPID", value_parser = parse_group)]
    groups: Vec<QgroupId>,
    /// Paths of the new subvolumes, all in one volume
    #[arg(value_name = "IMAGE:/PATH", required = true)]
    targets: Vec<OsString>,
}

impl Subcommand for Create {
    const NAME: &'static str = "create";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress subvolume create new.img:/home",
            "Creates an empty subvolume",
        ),
        example(
            "buttress subvolume create -p new.img:/a/b/c",
            "Creates a subvolume and its parent directories",
        ),
        example(
            "buttress subvolume create -i 1/100 new.img:/home",
            "Creates a subvolume whose quota group is a member of group 1/100",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let targets: Vec<Target> = self.targets.iter().map(|target| context.target(target)).collect();
        let volume = super::open_one_volume(context, &targets)?;
        let mut made = Vec::new();
        for target in &targets {
            if self.parents {
                volume
                    .make_parents(&target.path)
                    .with_context(|| target.display())?;
            }
            let (directory, name) = volume.place(&target.path).with_context(|| target.display())?;
            let created = volume
                .volume()
                .create_subvolume_in_groups(directory, &name, &self.groups);
            let id = created.with_context(|| target.display())?;
            if context.is_on_mount() {
                volume.give_to_caller(id).with_context(|| target.display())?;
            }
            made.push((id, target));
        }
        volume.commit()?;
        if context.json() {
            let made = made.iter().map(|(id, target)| target.with_id(*id));
            context.print_json("subvolume-create", made.collect())?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            for (_, target) in &made {
                writeln!(out, "Create subvolume '{}'", terminal::shown(target.display()))?;
            }
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
