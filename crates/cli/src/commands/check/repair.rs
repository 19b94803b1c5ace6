//! `buttress check --repair IMAGE`: check, plan, repair, check again, and both verdicts side by side.
//!
//! The repair goes to an overlay beside the image, so the image stays unchanged. `--commit` writes
//! the overlay to the image if the repair made the volume better. `--in-place` first tries the
//! repair in memory, and writes to the image only if this trial made the volume better. `--dry-run`
//! ends after the trial.
//!
//! Exit code 0: no findings are left, and the repair was kept. Exit code 1: findings are left, or the
//! repair was not kept. Exit code 2: the check or the repair could not run.

mod printing;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::check::Report;
use buttress::repair::{self, Kept, Options, Outcome as Repaired, Plan};
use buttress::{Device, DeviceOptions, Progress};

use super::{Check, recovery};
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::opening::{existing_overlays, numbered, open_devices_over, open_for_check_on};
use crate::output::terminal;
use crate::progress::Watch;
use crate::target::Target;

/// The place to which a repair writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Overlays; the file of the first device.
    Overlay(PathBuf),
    /// Memory, for a trial.
    Memory,
    /// The image itself.
    Image,
}

/// A check with a repair.
#[derive(Debug)]
pub(super) struct Job<'a> {
    check: &'a Check,
    context: &'a Context,
    target: Target,
    /// The overlay of the first device. An existing one of `--overlay` is checked and continued.
    overlay: Option<PathBuf>,
}

/// The result of a job, for both forms of output.
struct Shown<'a> {
    before: &'a Report,
    plan: &'a Plan,
    repaired: &'a Repaired,
    overlay: Option<&'a Path>,
    committed: bool,
    uuid: String,
}

impl<'a> Job<'a> {
    pub(super) fn new(check: &'a Check, context: &'a Context, target: Target) -> Self {
        let given = context.globals().overlay.clone();
        let overlay = match given {
            None if check.in_place => None,
            None => Some(beside(&target.image)),
            given => given,
        };
        Self {
            check,
            context,
            target,
            overlay,
        }
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let allowed = self.check.allowed()?;
        if self.check.in_place && self.context.globals().overlay.is_some() {
            anyhow::bail!(
                "--in-place writes to the image, and --overlay keeps the image unchanged: give one of both"
            );
        }
        self.refuse_earlier_repair()?;
        self.check.begin(self.context, &self.target)?;
        let (before, uuid, recovered) = self.open_and_check()?;
        let plan = repair::plan(&before);
        if !self.context.json() {
            let mut out = self.context.stdout();
            super::print(self.context, &mut out, &before)?;
            printing::plan(self.context, &mut out, &plan)?;
            out.flush()?;
        }
        let mut repaired = self.repair(&before, &plan, allowed)?;
        if recovered && repaired.kept == Kept::Unchanged {
            // The volume did not open before.
            repaired.kept = Kept::Better;
        }
        let wrote = !matches!(repaired.kept, Kept::Unchanged) && !self.check.dry_run;
        let committed = wrote && repaired.kept == Kept::Better && self.check.commit;
        if committed {
            self.commit()?;
        }
        let overlay = self.overlay.as_deref();
        self.show(&Shown {
            before: &before,
            plan: &plan,
            repaired: &repaired,
            overlay: overlay.filter(|_| wrote && !committed && !self.check.in_place),
            committed: committed || (wrote && self.check.in_place && repaired.kept == Kept::Better),
            uuid,
        })?;
        let is_kept = matches!(repaired.kept, Kept::Better | Kept::Unchanged);
        let is_clean = repaired.after.is_clean() && is_kept;
        // A dry run leaves the findings where they are.
        let is_done = is_clean && (!self.check.dry_run || before.is_clean());
        Ok(if is_done { Outcome::Done } else { Outcome::Negative })
    }

    /// Returns the image, and those of `--device`.
    fn images(&self) -> Vec<&Path> {
        let others = self.context.globals().devices.iter().map(PathBuf::as_path);
        std::iter::once(self.target.image.as_path())
            .chain(others)
            .collect()
    }

    /// Returns the files of an overlay that exist.
    fn existing(&self, overlay: &Path) -> Vec<PathBuf> {
        existing_overlays(overlay, self.images().len())
    }

    /// Refuses an overlay of an earlier repair, unless `--overlay` names it: an earlier repair may be
    /// one that was not kept. For the same reason, `--commit` needs a new overlay.
    fn refuse_earlier_repair(&self) -> Result<()> {
        let is_named = self.context.globals().overlay.is_some();
        let Some(overlay) = self.overlay.as_deref().filter(|_| !is_named || self.check.commit) else {
            return Ok(());
        };
        let existing = self.existing(overlay);
        let Some(first) = existing.first() else {
            return Ok(());
        };
        let first = first.display();
        let (commit, discard) = (self.commit_command(overlay), discard_command(&existing));
        let overlay = terminal::shown(overlay.display());
        let error = anyhow::anyhow!("{first} exists: it is the overlay of an earlier repair");
        let advice = match is_named {
            true => format!(
                "--commit writes only a repair whose verdict compares with the image. To keep the overlay after you read its verdict, run `{commit}`. To discard it, run `{discard}`. To continue it, omit --commit"
            ),
            false => format!(
                "to keep it, run `{commit}`. To discard it, run `{discard}`. To continue it, give --overlay {overlay}"
            ),
        };
        Err(error).context(Advice(advice))
    }

    /// Returns the command that writes the overlays to all images.
    fn commit_command(&self, overlay: &Path) -> String {
        let images = self.images();
        let paths = std::iter::once(overlay).chain(images);
        format!("buttress overlay commit {}", spaced(paths))
    }

    /// Checks the volume before the repair. If the chunk tree is lost, recovers it first, and returns
    /// true.
    fn open_and_check(&self) -> Result<(Report, String, bool)> {
        let error = match self.first_check() {
            Ok((report, uuid)) => return Ok((report, uuid, false)),
            Err(error) => error,
        };
        let lines = match self.recover() {
            Ok(lines) if lines.is_empty() => return Err(error),
            Ok(lines) => lines,
            Err(reason) => return Err(error.context(format!("no recovery is possible: {reason:#}"))),
        };
        if !self.context.json() {
            let mut out = self.context.stdout();
            for line in &lines {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
        if self.check.dry_run {
            anyhow::bail!("this was a trial; to repair the recovered volume, omit --dry-run");
        }
        let (report, uuid) = self.first_check()?;
        Ok((report, uuid, true))
    }

    /// Recovers the chunk tree at the place of the repair. If nothing was recovered, deletes the overlays
    /// that it made.
    fn recover(&self) -> Result<Vec<String>> {
        let place = match &self.overlay {
            _ if self.check.dry_run => Place::Memory,
            Some(overlay) => Place::Overlay(overlay.clone()),
            None => Place::Image,
        };
        let overlay = self.overlay.as_deref();
        let earlier = overlay.map(|overlay| self.existing(overlay)).unwrap_or_default(); // Clamp: without overlays, none exists.
        let devices = self.devices_at(&place)?;
        let recovered = recovery::recover(self.context, &devices);
        drop(devices);
        if !recovered.as_ref().is_ok_and(|lines| !lines.is_empty()) {
            self.discard_new(&earlier);
        }
        recovered
    }

    /// Deletes the overlays that did not exist earlier.
    fn discard_new(&self, earlier: &[PathBuf]) {
        let Some(overlay) = &self.overlay else { return };
        let made = self.existing(overlay);
        for file in made.iter().filter(|file| !earlier.contains(file)) {
            if let Err(error) = buttress::discard_overlay(file) {
                self.context.warn(format_args!("{}: {error}", file.display()));
            }
        }
    }

    /// Checks the volume before the repair.
    fn first_check(&self) -> Result<(Report, String)> {
        let devices = self.devices(false, self.overlay.as_deref())?;
        let volume = open_for_check_on(self.context, &self.target.image, devices)?;
        let report = self.check.check(self.context, &self.target, &volume)?;
        Ok((report, volume.info().fsid.to_string()))
    }

    fn devices(&self, write: bool, overlay: Option<&Path>) -> Result<Vec<Device>> {
        let options = DeviceOptions {
            write,
            ..self.context.device_options()
        };
        open_devices_over(self.context, &self.target.image, overlay, &options)
    }

    /// Repairs the volume at the place that the options choose.
    fn repair(&self, before: &Report, plan: &Plan, allowed: BTreeSet<String>) -> Result<Repaired> {
        let check = self.check.options(self.context);
        let options = Options {
            yes_to: allowed,
            cache: check.cache,
            check,
            ..Options::default()
        };
        let has_steps = plan.steps.iter().any(|step| options.allows(step));
        let place = match &self.overlay {
            // Without a step, no overlay is made.
            _ if self.check.dry_run || !has_steps => Place::Memory,
            Some(overlay) => Place::Overlay(overlay.clone()),
            None => {
                let trial = self.repair_at(&Place::Memory, before, &options)?;
                if trial.kept != Kept::Better {
                    return Ok(trial);
                }
                Place::Image
            }
        };
        self.repair_at(&place, before, &options)
    }

    /// Repairs the volume at a place. If the repair fails, no verdict exists, and the overlays that it
    /// made are deleted.
    fn repair_at(&self, place: &Place, before: &Report, options: &Options) -> Result<Repaired> {
        let Place::Overlay(overlay) = place else {
            return self.try_repair(place, before, options);
        };
        let earlier = self.existing(overlay);
        let repaired = self.try_repair(place, before, options);
        if repaired.is_err() {
            self.discard_new(&earlier);
        }
        repaired
    }

    fn try_repair(&self, place: &Place, before: &Report, options: &Options) -> Result<Repaired> {
        let devices = self.devices_at(place)?;
        let progress = Progress::new();
        let watch = Watch::start(self.context, "repair", progress.clone());
        let repaired = repair::run(&devices, before, options, &mut |_| false, &progress)
            .with_context(|| format!("repairing {}", self.target.image.display()))?;
        watch.end();
        Ok(repaired)
    }

    /// Opens the devices for changes at a place.
    fn devices_at(&self, place: &Place) -> Result<Vec<Device>> {
        match place {
            Place::Overlay(overlay) => self.devices(true, Some(overlay)),
            Place::Image => self.devices(true, None),
            Place::Memory => {
                let devices = self.devices(false, self.overlay.as_deref())?;
                Ok(devices.iter().map(Device::with_changes_in_memory).collect())
            }
        }
    }

    /// Writes the overlays to their devices.
    fn commit(&self) -> Result<()> {
        let Some(overlay) = &self.overlay else {
            return Ok(());
        };
        let images = self.images().into_iter();
        let pairs: Vec<_> = images
            .enumerate()
            .map(|(number, image)| (numbered(overlay, number), image.to_owned()))
            .collect();
        buttress::apply_overlays(&pairs, &self.context.device_options())?;
        Ok(())
    }

    fn show(&self, shown: &Shown<'_>) -> Result<()> {
        if self.context.json() {
            let document = printing::as_json(&self.target.image.to_string_lossy(), shown);
            return self.context.print_json("check", document);
        }
        let mut out = self.context.stdout();
        printing::outcome(self.context, &mut out, shown)?;
        if let Some(text) = self.advice(shown) {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Returns the closing line: where the repair is, and what to do with it.
    fn advice(&self, shown: &Shown<'_>) -> Option<String> {
        let image = terminal::shown(self.target.image.display());
        let kept = shown.repaired.kept;
        if kept == Kept::Unchanged {
            return None;
        }
        if kept != Kept::Better {
            return Some(match shown.overlay {
                Some(overlay) => format!(
                    "The repair was not kept; {image} is unchanged. To discard the repair, run `{}`",
                    discard_command(&self.existing(overlay))
                ),
                None => format!("The repair was not kept; {image} is unchanged"),
            });
        }
        if shown.committed {
            return Some(format!("The repair was written to {image}"));
        }
        Some(match shown.overlay {
            Some(overlay) => {
                let (commit, discard) = (
                    self.commit_command(overlay),
                    discard_command(&self.existing(overlay)),
                );
                let overlay = terminal::shown(overlay.display());
                format!(
                    "The repair is in {overlay}; {image} is unchanged.\n\
                     To keep the repair, run `{commit}`; to discard it, run `{discard}`"
                )
            }
            None => format!("This was a trial; {image} is unchanged"),
        })
    }
}

/// Returns the command that deletes overlays.
fn discard_command(overlays: &[PathBuf]) -> String {
    let paths = overlays.iter().map(PathBuf::as_path);
    format!("buttress overlay discard {}", spaced(paths))
}

/// Returns paths as they are shown, with spaces between.
fn spaced<'p>(paths: impl Iterator<Item = &'p Path>) -> String {
    let paths: Vec<String> = paths.map(|path| terminal::shown(path.display())).collect();
    paths.join(" ")
}

/// Returns the overlay of an image: `IMAGE.repair` beside a file, and in the current directory for
/// a device, because devices have no directory for files.
fn beside(image: &Path) -> PathBuf {
    let mut name = match image.file_name() {
        Some(name) if !image.is_file() => name.to_owned(),
        _ => image.as_os_str().to_owned(),
    };
    name.push(".repair");
    name.into()
}
