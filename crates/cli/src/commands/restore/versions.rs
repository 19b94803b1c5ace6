//! Versions of files from several states, written to a directory.
//!
//! Each state is opened once, the newest first. The extraction is that of `restore`, so that files get
//! verdicts, temporary names and attributes in the same way. Directories get their attributes after the
//! files of all states.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use buttress::salvage::{Identity, Version, VersionDirectories, ViewOptions, open_state, version_entries};
use buttress::{Device, Generation, Logical, Progress, WalkItem};

use super::report::{Judging, LeftOut};
use crate::context::Context;
use crate::ending::ends_the_job;
use crate::extract::{Extractor, Preserve, Review};
use crate::replacing::{DirectoryFinish, Replacing};

/// The way to write versions.
pub(crate) struct VersionWriter<'a> {
    pub(crate) devices: &'a [Device],
    pub(crate) identity: &'a Identity,
    pub(crate) options: &'a ViewOptions,
    pub(crate) directory: &'a Path,
    pub(crate) preserve: Preserve,
    pub(crate) replacing: Replacing,
    /// True if names get the generation of the version: `NAME.g12`.
    pub(crate) numbered: bool,
}

impl VersionWriter<'_> {
    /// Writes versions, state by state. Returns whether the destination can take no more.
    pub(crate) fn write<'v>(
        &self,
        context: &Context,
        versions: impl IntoIterator<Item = &'v Version>,
        judging: &Arc<Judging>,
        progress: &Progress,
    ) -> Result<bool> {
        // The newest state comes first.
        let mut by_state: BTreeMap<core::cmp::Reverse<(Generation, Logical)>, Vec<&Version>> =
            BTreeMap::new();
        for version in versions {
            let root = version.state.root;
            let group = by_state.entry(core::cmp::Reverse((root.generation, root.logical)));
            group.or_default().push(version);
        }
        let mut directories = VersionDirectories::default();
        let (mut last, mut is_cut) = (None, false);
        for versions in by_state.into_values() {
            let Some(first) = versions.first() else { continue };
            let view = open_state(self.devices, self.identity, &first.state, self.options)?;
            judging.read_from(first.judge(&view), first.state.generation().get());
            let name_of = |version: &Version| self.name_of(version);
            let items = version_entries(&view, versions, name_of).inspect(|item| match item {
                WalkItem::Entry(entry) if entry.metadata().is_directory() => directories.take(entry),
                _ => {}
            });
            is_cut = self.extract(context, judging, items, DirectoryFinish::Later, progress)?;
            last = Some(view);
            if is_cut {
                break;
            }
        }
        let Some(view) = last else { return Ok(is_cut) };
        let items = directories.into_items(&view).into_iter();
        Ok(self.extract(context, judging, items, DirectoryFinish::Now, progress)? || is_cut)
    }

    fn name_of(&self, version: &Version) -> Vec<u8> {
        let name = version.path.rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default(); // Clamp: a path has a last name.
        match self.numbered {
            true => [name, format!(".g{}", version.generation).as_bytes()].concat(),
            false => name.to_vec(),
        }
    }

    fn extract(
        &self,
        context: &Context,
        judging: &Arc<Judging>,
        items: impl Iterator<Item = WalkItem>,
        directories: DirectoryFinish,
        progress: &Progress,
    ) -> Result<bool> {
        let review: Arc<dyn Review> = Arc::<Judging>::clone(judging);
        let mut extractor = Extractor::new(
            self.directory,
            None,
            self.preserve,
            Replacing {
                directories,
                ..self.replacing
            },
            context.sources(),
            progress.clone(),
            Some(review),
        )?;
        for item in items {
            progress.check()?;
            if let WalkItem::Failed(failed) = &item {
                judging.lost(&failed.path, &failed.error.to_string());
                continue;
            }
            extractor.take(item);
            report_errors(context, extractor.errors());
            if extractor.has_ended() {
                break;
            }
        }
        let was_cut = extractor.has_ended();
        let (_, errors, refusals) = extractor.finish();
        let is_cut = was_cut || errors.iter().any(ends_the_job);
        report_errors(context, errors);
        for refusal in refusals {
            context.warn(refusal.text);
        }
        Ok(is_cut)
    }
}

/// Prints errors of the destination. The report has the errors of the volume.
fn report_errors(context: &Context, errors: Vec<anyhow::Error>) {
    for error in errors {
        match error.downcast_ref::<LeftOut>() {
            Some(_) => context.warn(format_args!("{error:#}")),
            None => context.lost(&error),
        }
    }
}
