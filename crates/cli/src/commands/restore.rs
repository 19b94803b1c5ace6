//! `buttress restore IMAGE DIR`: files out of a volume that may be damaged.
//!
//! Options and their meaning are those of `btrfs restore`. The command finds a state that can be
//! read by itself (`roots`), and judges each file (`report`).
//!
//! # Left out
//!
//! Content of older generations in place of lost content.

mod filter;
pub(crate) mod report;
pub(crate) mod roots;
pub(crate) mod versions;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use buttress::salvage::{first_directory, judge_of, tree_roots};
use buttress::{Follow, Location, Progress, SubvolumeId, Volume, WalkItem, WalkOptions};
use clap::Args;
use serde_json::{Value, json};

use crate::commands::inspect_internal::object_name;
use crate::context::Context;
use crate::ending::ends_the_job;
use crate::exit::{self, Outcome, usage};
use crate::extract::{Chosen, Extractor, Preserve, Review};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::progress::Watch;
use crate::replacing::Replacing;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;
use filter::Filter;
use report::{Judging, LeftOut};
use roots::{Chosen as ChosenState, Wanted};

/// Copy files out of a volume that may be damaged, and tell which of them are whole
///
/// The command reads the newest state whose root tree and subvolumes can be read. Superblocks name
/// the last commits; a scan of all blocks finds older ones. It writes nothing to
/// the image. Every file gets a verdict. `verified`: all content matches its checksums. `unverified`:
/// the content is complete, but checksums are missing. `partial`: lost ranges are zeros. `lost`:
/// nothing could be read.
///
/// Exit codes: 0 if all files are verified, 1 if some are not, 2 if nothing could be restored.
#[derive(Args, Debug)]
pub struct Restore {
    /// Restore nested snapshots, too
    #[arg(short = 's', long)]
    snapshots: bool,
    /// Restore extended attributes
    #[arg(short = 'x', long = "xattr")]
    xattrs: bool,
    /// Restore owners, modes and times
    #[arg(short = 'm', long)]
    metadata: bool,
    /// Restore symbolic links
    #[arg(short = 'S', long)]
    symlink: bool,
    /// For compatibility: errors never end the job
    #[arg(short = 'i', long)]
    ignore_errors: bool,
    /// Replace existing files
    #[arg(short = 'o', long)]
    overwrite: bool,
    /// Use the state whose root tree is at this address
    #[arg(short = 't', value_name = "BYTENR")]
    tree_root: Option<u64>,
    /// Use the state that this superblock copy names: 0, 1 or 2
    #[arg(short = 'u', long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..3))]
    mirror: Option<u8>,
    /// Restore the subvolume with this id
    #[arg(short = 'r', long = "root", value_name = "ROOTID", default_value_t = SubvolumeId::TOP_LEVEL.get())]
    root: u64,
    /// Begin at the first directory in the tree, if the root directory is lost
    #[arg(short = 'd')]
    find_dir: bool,
    /// List the roots of all trees, and restore nothing
    #[arg(short = 'l', long)]
    list_roots: bool,
    /// List the files that would be restored, and restore nothing
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Restore paths that match this expression only, as in ^/(|home(|/user(|/.*)))$
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// Ignore case in --path-regex
    #[arg(short = 'c', requires = "path_regex")]
    ignore_case: bool,
    /// Keep verified files only
    #[arg(long)]
    verified_only: bool,
    /// Write the verdict on each file to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The index of a scan [default: the image's name with .scan appended, if the file exists]
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The directory for the files; it is made if it does not exist
    #[arg(value_name = "DIR", required_unless_present = "list_roots")]
    directory: Option<PathBuf>,
}

impl Subcommand for Restore {
    const NAME: &'static str = "restore";
    const TROUBLE: u8 = exit::USAGE;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress restore -x -m -S --report report.json broken.img rescued",
            "Copies everything that can be read, and writes a verdict on each file",
        ),
        example(
            "buttress restore --path-regex '^/(|home(|/anna(|/.*)))$' broken.img rescued",
            "Copies the directory /home/anna",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            root: false,
            root_id: false,
            ..Uses::PATHS
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let filter = Filter::new(self.path_regex.as_deref(), self.ignore_case)
            .map_err(|error| usage(format_args!("--path-regex: {error}")))?;
        let devices = context.open_devices(std::slice::from_ref(&target.image))?;
        let progress = context.progress();
        let cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "restore", progress.clone());
        let wanted = Wanted {
            image: &target.image,
            index: self.index.as_deref(),
            generation: context.globals().generation,
            tree_root: self.tree_root,
            mirror: self.mirror,
        };
        let chosen = roots::choose(context, &devices, &wanted, &progress)?;
        // The user did not ask for an older state, so files of the newest one may be missing.
        let is_older = !wanted.is_named() && chosen.is_older();
        if is_older {
            context.warn(format_args!(
                "generation {}: this older state is read, because the newest one (generation {}) is damaged; newer files may be missing. To read the newest one, give --generation {}",
                chosen.generation(), chosen.newest, chosen.newest
            ));
        }
        if self.list_roots {
            watch.end_as(true);
            return list_roots(context, &chosen.volume, &progress);
        }
        self.report_snapshots(context, &chosen.volume);
        let start = self.start(&chosen.volume)?;
        let done = match (&self.directory, self.dry_run) {
            (Some(directory), false) => {
                self.restore(context, &target, &chosen, start, directory, &filter, &progress)
            }
            _ => self.list_files(context, &chosen.volume, start, &filter, &progress),
        };
        watch.end_as(done.is_ok());
        drop(cancelling);
        if done.is_ok() && is_older {
            return done.map(|outcome| match outcome {
                Outcome::Done => Outcome::Negative,
                worse => worse,
            });
        }
        if done.is_ok() && filter.is_in_vain() {
            context.warn("--path-regex: no path matches, so nothing was restored");
            return Ok(Outcome::Negative);
        }
        done
    }
}

impl Restore {
    /// Returns the directory at which the restoration begins.
    fn start(&self, volume: &Volume) -> Result<Location> {
        let id = SubvolumeId::new(self.root);
        let subvolume = volume.subvolume_by_id(id)?;
        if self.find_dir {
            let found = first_directory(volume, id)?;
            return found.with_context(|| format!("subvolume {id}: no directory can be read"));
        }
        Ok(subvolume.locate("", Follow::All)?)
    }

    /// Reports how many snapshots are left out without `-s`.
    fn report_snapshots(&self, context: &Context, volume: &Volume) {
        // If subvolumes cannot be listed, the walk reports each one that it cannot read.
        let Ok(all) = volume.subvolumes() else { return };
        let is_left_out = |id: u64, is_snapshot: bool| is_snapshot && id != self.root && !self.snapshots;
        let left_out = all
            .iter()
            .filter(|one| is_left_out(one.id.get(), !one.root_item.parent_uuid.is_nil()));
        let count = left_out.count();
        if count > 0 {
            context.notice(format_args!(
                "{count} snapshots are left out; to restore them, give -s"
            ));
        }
    }

    fn walk_options(&self, progress: &Progress) -> WalkOptions {
        WalkOptions {
            without_snapshots: !self.snapshots,
            salvage: true,
            progress: progress.clone(),
            ..WalkOptions::default()
        }
    }

    /// Returns whether an item is restored. Links need `-S`. Device
    /// nodes, pipes and sockets are left out.
    fn includes(&self, item: &WalkItem, filter: &Filter) -> bool {
        use buttress::FileKind;
        let WalkItem::Entry(entry) = item else {
            return true;
        };
        let kind = match entry.metadata().kind {
            FileKind::Directory | FileKind::Regular => true,
            FileKind::Symlink => self.symlink,
            _ => false,
        };
        kind && filter.accepts(&entry.path())
    }

    fn extractor(
        &self,
        context: &Context,
        directory: &Path,
        review: Arc<dyn Review>,
        progress: &Progress,
    ) -> Result<Extractor> {
        let preserve = Preserve::Some(Chosen {
            metadata: self.metadata,
            xattrs: self.xattrs,
        });
        let replacing = Replacing {
            no_clobber: !self.overwrite,
            remove: self.overwrite,
            by_others: true,
            keep_links: true,
            ..Replacing::default()
        };
        Extractor::new(
            directory,
            None,
            preserve,
            replacing,
            context.sources(),
            progress.clone(),
            Some(review),
        )
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one job")]
    fn restore(
        &self,
        context: &Context,
        target: &Target,
        chosen: &ChosenState,
        start: Location,
        directory: &Path,
        filter: &Filter,
        progress: &Progress,
    ) -> Result<Outcome> {
        if !directory.exists() {
            std::fs::create_dir(directory).with_context(|| format!("making {}", directory.display()))?;
        }
        let judging = Arc::new(Judging::start(
            context,
            Self::NAME,
            (judge_of(&chosen.volume), chosen.generation()),
            Some(chosen.described()),
            (self.report.as_deref(), self.verified_only),
        )?);
        let mut extractor = self.extractor(context, directory, Arc::<Judging>::clone(&judging), progress)?;
        let mut out = context.stdout();
        for item in chosen.volume.walk(start, self.walk_options(progress)) {
            if let WalkItem::Failed(failed) = &item {
                // An error of a cancelled walk concerns no file.
                progress.check()?;
                judging.lost(&failed.path, &failed.error.to_string());
                continue;
            }
            if self.includes(&item, filter) {
                if let WalkItem::Entry(entry) = &item
                    && context.globals().verbose > 0
                    && !context.json()
                {
                    let path = directory.join(OsStr::from_bytes(&entry.path()));
                    writeln!(out, "Restoring {}", terminal::shown(path.display()))?;
                }
                extractor.take(item);
            }
            report_errors(context, target, extractor.errors());
            if extractor.has_ended() {
                break;
            }
        }
        // A full destination ends the job, so files are missing that the report does not name.
        let was_cut = extractor.has_ended();
        let (_, errors, refusals) = extractor.finish();
        let is_cut = was_cut || errors.iter().any(ends_the_job);
        report_errors(context, target, errors);
        for refusal in refusals {
            context.warn(refusal.text);
        }
        let judging = Arc::into_inner(judging).context("a thread still restores files")?;
        let verdicts = judging.finish(context)?;
        Ok(match is_cut {
            true => Outcome::Code(Self::TROUBLE),
            false => verdicts,
        })
    }

    /// Lists the files that would be restored.
    fn list_files(
        &self,
        context: &Context,
        volume: &Volume,
        start: Location,
        filter: &Filter,
        progress: &Progress,
    ) -> Result<Outcome> {
        let mut out = context.stdout();
        let mut paths = Vec::new();
        if !context.json() {
            writeln!(out, "This is a dry-run, no files are going to be restored")?;
        }
        let base = self.directory.clone().unwrap_or_default(); // Clamp: without a directory, paths begin at the root.
        let options = WalkOptions {
            read_ahead: buttress::ByteCount::ZERO,
            ..self.walk_options(progress)
        };
        for item in volume.walk(start, options) {
            if !self.includes(&item, filter) {
                continue;
            }
            match item {
                WalkItem::Entry(entry) if context.json() => {
                    paths.push(json!(String::from_utf8_lossy(&entry.path())));
                }
                WalkItem::Entry(entry) if !entry.name.is_empty() => {
                    let path = base.join(OsStr::from_bytes(&entry.path()));
                    writeln!(out, "{}", terminal::shown(path.display()))?;
                }
                WalkItem::Failed(error) => context.lost(&anyhow!(error)),
                WalkItem::Entry(_) | WalkItem::Enter(_) | WalkItem::Leave(_) => {}
            }
        }
        out.flush()?;
        if context.json() {
            context.print_json(Self::NAME, json!({ "files": paths }))?;
        }
        Ok(Outcome::Done)
    }
}

/// Prints errors of the destination. The report has the errors of the volume.
fn report_errors(context: &Context, target: &Target, errors: Vec<anyhow::Error>) {
    for error in errors {
        match error.downcast_ref::<LeftOut>() {
            Some(_) => context.warn(format_args!("{error:#}")),
            None => context.lost(&target.name_in(error)),
        }
    }
}

/// Lists the roots of all trees, as `btrfs restore -l` does.
fn list_roots(context: &Context, volume: &Volume, progress: &Progress) -> Result<Outcome> {
    let roots = tree_roots(volume, progress)?;
    if context.json() {
        let values = roots.iter().map(|(key, logical, level)| {
            json!({
                "tree": key.objectid.get(),
                "offset": key.offset,
                "bytenr": logical.get(),
                "level": level,
            })
        });
        return context
            .print_json(Restore::NAME, json!({ "roots": values.collect::<Vec<Value>>() }))
            .map(|()| Outcome::Done);
    }
    let mut out = context.stdout();
    for (key, logical, level) in roots {
        let name = object_name(key.objectid, key.item_type);
        let name = name.map_or_else(|| key.objectid.to_string(), str::to_owned);
        writeln!(
            out,
            " tree key ({name} ROOT_ITEM {}) {logical} level {level}",
            key.offset
        )?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}
