//! `buttress tune IMAGE`: changes of a whole volume, with the options of btrfstune.
//!
//! A call makes one kind of change, as btrfstune does. A call that is interrupted leaves the
//! volume as before or as after it, or in a state that a second call finishes. Left out: the remap
//! tree.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result, bail};
use buttress::mkfs::Feature;
use buttress::quota::QuotaKind;
use buttress::{ChecksumType, DeviceOptions, Uuid, Volume, WholeVolume, WritableVolume};
use clap::Args;
use serde_json::{Value, json};

use super::mkfs::checksum;
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::environment;

/// Change features, the uuid, checksums, simple quotas or the seed flag of an unmounted volume
///
/// A call makes one kind of change. After an interruption of -u, -U, -m, -M or --csum, no program
/// uses the volume until the same command has finished the change. This command also finishes
/// changes that btrfstune began. If a device was lost meanwhile, --degraded finishes the change
/// without it.
#[derive(Args, Debug)]
pub struct Tune {
    /// Allow more hard links in one directory (extref)
    #[arg(short = 'r')]
    extref: bool,
    /// Use short extent items for new tree blocks (skinny-metadata)
    #[arg(short = 'x')]
    skinny_metadata: bool,
    /// Store no items for holes in new files (no-holes)
    #[arg(short = 'n')]
    no_holes: bool,
    /// 1 makes the volume a read-only seed, on which other volumes can be based; 0 clears the seed flag
    #[arg(short = 'S', value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    seed: Option<u8>,
    /// Move block group items to a tree of their own, which mounts faster
    #[arg(long, conflicts_with = "convert_from_block_group_tree")]
    convert_to_block_group_tree: bool,
    /// Move block group items back to the extent tree
    #[arg(long)]
    convert_from_block_group_tree: bool,
    /// Make the free-space tree, and remove the v1 cache
    #[arg(long)]
    convert_to_free_space_tree: bool,
    /// Enable simple quotas, which count from now on
    #[arg(long, conflicts_with = "remove_simple_quota")]
    enable_simple_quota: bool,
    /// Disable simple quotas, and remove all that they left on the volume
    #[arg(long)]
    remove_simple_quota: bool,
    /// Give the volume and all its tree blocks a new random uuid
    #[arg(short = 'u', conflicts_with = "rewritten_fsid")]
    rewrites_fsid: bool,
    /// Give the volume and all its tree blocks this uuid
    #[arg(short = 'U', value_name = "UUID")]
    rewritten_fsid: Option<Uuid>,
    /// Give the volume a new random uuid; tree blocks keep the old one
    #[arg(short = 'm', conflicts_with = "fsid")]
    random_fsid: bool,
    /// Give the volume this uuid; tree blocks keep the old one
    #[arg(short = 'M', value_name = "UUID")]
    fsid: Option<Uuid>,
    /// Replace all checksums by: crc32c, xxhash, sha256 or blake2
    #[arg(long, value_name = "TYPE", value_parser = checksum)]
    csum: Option<ChecksumType>,
    /// Clear the seed flag; no other change needs it
    #[arg(short = 'f', long)]
    force: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// The change of one call.
#[derive(Clone, Debug)]
enum Change {
    Features(Vec<Feature>),
    Seed(bool),
    BlockGroupTree(bool),
    FreeSpaceTree,
    SimpleQuota(bool),
    RewrittenFsid(Option<Uuid>),
    Fsid(Option<Uuid>),
    Checksums(ChecksumType),
}

/// The facts of a finished change.
#[derive(Debug, Default)]
struct Done {
    fsid: Option<Uuid>,
    checksums: Option<(ChecksumType, ChecksumType)>,
    line: Option<&'static str>,
}

impl Tune {
    fn features(&self) -> Vec<Feature> {
        let wanted = [
            (self.extref, Feature::ExtendedReferences),
            (self.skinny_metadata, Feature::SkinnyMetadata),
            (self.no_holes, Feature::NoHoles),
        ];
        wanted
            .into_iter()
            .filter_map(|(is_wanted, feature)| is_wanted.then_some(feature))
            .collect()
    }

    /// Returns the one change that the options ask for.
    fn change(&self) -> Result<Change> {
        let features = self.features();
        let to_tree = self.convert_to_block_group_tree;
        let moves_groups = to_tree || self.convert_from_block_group_tree;
        let changes_quota = self.enable_simple_quota || self.remove_simple_quota;
        let rewrites = self.rewrites_fsid || self.rewritten_fsid.is_some();
        let has_fsid = self.random_fsid || self.fsid.is_some();
        let wanted = [
            (!features.is_empty()).then_some(Change::Features(features)),
            self.seed.map(|seed| Change::Seed(seed == 1)),
            moves_groups.then_some(Change::BlockGroupTree(to_tree)),
            self.convert_to_free_space_tree.then_some(Change::FreeSpaceTree),
            changes_quota.then_some(Change::SimpleQuota(self.enable_simple_quota)),
            rewrites.then_some(Change::RewrittenFsid(self.rewritten_fsid)),
            has_fsid.then_some(Change::Fsid(self.fsid)),
            self.csum.map(Change::Checksums),
        ];
        let mut wanted = wanted.into_iter().flatten();
        match (wanted.next(), wanted.next()) {
            (Some(change), None) => Ok(change),
            (None, _) => Err(usage("at least one option should be specified")),
            (Some(_), Some(_)) => Err(usage("too many conflicting options specified")),
        }
    }
}

impl Subcommand for Tune {
    const NAME: &'static str = "tune";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress tune -rxn old.img",
            "Adds the features that old volumes lack",
        ),
        example(
            "buttress tune -m copy.img",
            "Gives a copy of an image a uuid of its own",
        ),
        example(
            "buttress tune --csum xxhash disk.img",
            "Verifies all data, and replaces all checksums",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let change = self.change()?;
        let target = context.target(&self.image);
        if let Change::Seed(false) = change
            && !self.force
        {
            let warning = "clearing the seeding flag may cause the derived device not to be mountable";
            return Err(anyhow::anyhow!("{}: {warning}", target.image.display()))
                .context(Advice::new("give -f to clear it nevertheless"));
        }
        let done = match &change {
            Change::Features(_) | Change::Seed(true) | Change::FreeSpaceTree | Change::SimpleQuota(_) => {
                by_commit(context, &target, &change)?
            }
            _ => as_a_whole(context, &target, &change)?,
        };
        print(context, &target, &done)
    }
}

/// Makes a change that a commit of an open volume makes.
fn by_commit(context: &Context, target: &Target, change: &Change) -> Result<Done> {
    let writing = context.open_for_writing(&target.image)?;
    let volume = writing.volume();
    let mut done = Done::default();
    match change {
        Change::Features(features) => features
            .iter()
            .try_for_each(|feature| volume.add_feature(*feature))?,
        Change::FreeSpaceTree => {
            let made = volume.make_free_space_tree();
            made.with_context(|| target.image.display().to_string())?;
            done.line = Some("Converted to free space tree feature");
        }
        Change::SimpleQuota(true) => enable_simple_quota(volume, target)?,
        Change::SimpleQuota(false) => remove_simple_quota(context, volume, target)?,
        _ => volume.make_seed()?,
    }
    writing.commit()?;
    Ok(done)
}

fn enable_simple_quota(volume: &WritableVolume, target: &Target) -> Result<()> {
    let name = || target.image.display().to_string();
    match volume.enable_quotas(QuotaKind::Simple).with_context(name)? {
        true => Ok(()),
        false => Err(anyhow::anyhow!("{}: the volume has quotas already", name())).context(Advice::new(
            "`buttress quota status IMAGE` shows their kind; `buttress quota disable IMAGE` removes them",
        )),
    }
}

fn remove_simple_quota(context: &Context, volume: &WritableVolume, target: &Target) -> Result<()> {
    let progress = context.progress();
    let cancelling = Cancelling::start(&progress)?;
    let removed = volume.remove_simple_quotas(&progress);
    drop(cancelling);
    removed.with_context(|| target.image.display().to_string())
}

/// Makes a change that needs the volume for itself.
fn as_a_whole(context: &Context, target: &Target, change: &Change) -> Result<Done> {
    let image = &target.image;
    if context.place().is_some() {
        bail!("tune: a session has the volume open; leave the session to make this change");
    }
    let options = DeviceOptions {
        write: true,
        ..context.device_options()
    };
    let devices = context.open_devices_with(core::slice::from_ref(image), &options)?;
    let opening = || format!("opening {} for writing", image.display());
    let info = Volume::options().open_whole_devices(devices.clone()).info();
    let info = info.with_context(opening)?;
    let environment = environment(&format!("tune {} {}", info.fsid, info.generation))?;
    let options = context.volume_options().environment(environment);
    let whole = options.open_whole_devices(devices);
    let progress = context.progress();
    let cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "tune", progress.clone());
    let mut done = Done::default();
    let ended = make(&whole, change, &progress, &mut done);
    watch.end_as(ended.is_ok());
    drop(cancelling);
    if let Err(error) = ended {
        let error = anyhow::Error::new(error).context(image.display().to_string());
        let is_unfinished = whole.info().is_ok_and(|info| info.is_unfinished);
        return Err(match is_unfinished {
            true => error.context(Advice::new(
                "run the same command again to finish the change; until then, no other command writes to the volume. If a device is lost for good, leave it out and give --degraded",
            )),
            false => error,
        });
    }
    if let Change::Checksums(to) = change {
        done.checksums = Some((info.checksum_type, *to));
    }
    Ok(done)
}

fn make(
    whole: &WholeVolume,
    change: &Change,
    progress: &buttress::Progress,
    done: &mut Done,
) -> buttress::Result<()> {
    match change {
        Change::RewrittenFsid(fsid) => done.fsid = Some(whole.rewrite_fsid(*fsid, progress)?),
        Change::Fsid(fsid) => done.fsid = Some(whole.set_fsid(*fsid)?),
        Change::Checksums(to) => whole.change_checksums(*to, progress)?,
        Change::BlockGroupTree(true) => {
            whole.make_block_group_tree()?;
            done.line = Some("Converted the filesystem to block group tree feature");
        }
        Change::BlockGroupTree(false) => {
            whole.remove_block_group_tree()?;
            done.line = Some("Converted filesystem with block-group-tree to extent tree feature");
        }
        _ => whole.clear_seed()?,
    }
    Ok(())
}

fn print(context: &Context, target: &Target, done: &Done) -> Result<Outcome> {
    if context.json() {
        let mut object = target.as_json();
        let fsid = done.fsid.map(|fsid| fsid.to_string());
        object.insert("fsid".to_owned(), json!(fsid));
        let checksums = done.checksums.map(|(_, to)| to.name());
        object.insert("csum".to_owned(), json!(checksums));
        context.print_json("tune", Value::Object(object))?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    if let Some(fsid) = done.fsid {
        writeln!(out, "new uuid: {fsid}")?;
    }
    if let Some((from, to)) = done.checksums {
        let shown = |checksum: ChecksumType| format!("{} ({})", checksum.name(), checksum.to_raw());
        writeln!(out, "converted csum type from {} to {}", shown(from), shown(to))?;
    }
    if let Some(line) = done.line.filter(|_| !context.globals().quiet) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}
