//! Into a volume: from the host, from another volume, or within it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, bail};
use buttress_fs::{Location, Progress};

use super::{How, last_name};
use crate::context::Context;
use crate::extract::Totals;
use crate::insert::Inserter;
use crate::insert::host::{self, HostOptions};
use crate::insert::volume::{self, VolumeOptions};
use crate::opening::Images;
use crate::progress::Watch;
use crate::target::Target;
use crate::writing::Writing;

/// What the sources' words mean.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceKind<'a> {
    /// `IMAGE:/path` is in a volume, anything else on the host. The image that is being changed is this one.
    Named(&'a Path),
    /// All are on the host.
    Host,
    /// All are in the volume that is being changed.
    Within,
}

/// Where one source is.
enum Place {
    Host,
    /// In this volume, at the target's path.
    Volume(Target, bool),
}

/// Copies what the sources name to a path of the volume. What was copied for each that could be.
pub(crate) fn copy(
    context: &Context,
    how: How,
    writing: &Writing,
    sources: &[OsString],
    kind: SourceKind<'_>,
    destination: &[u8],
) -> Result<Vec<(String, Totals)>> {
    let into = writing.directory_at(destination);
    let into_directory = into.is_some() && !how.no_target_directory;
    if sources.len() > 1 && !into_directory {
        bail!(
            "{} is not a directory, and there are several sources",
            destination.escape_ascii()
        );
    }
    let mut copying = Copying {
        context,
        how,
        writing,
        images: Images::new(context),
        destination,
        into,
        into_directory,
    };
    let progress = Progress::new();
    let watch = Watch::start(context, "cp", progress.clone());
    let mut totals = Vec::new();
    for source in sources {
        let place = place_of(context, source, kind);
        let shown = match &place {
            Place::Host => source.to_string_lossy().into_owned(),
            Place::Volume(target, _) => target.display(),
        };
        match copying.copy(source, place, &shown, &progress) {
            Ok(copied) => totals.push((shown, copied)),
            Err(error) => context.lost(&error.context(shown)),
        }
    }
    watch.end();
    Ok(totals)
}

fn place_of(context: &Context, source: &OsStr, kind: SourceKind<'_>) -> Place {
    match kind {
        SourceKind::Host => Place::Host,
        SourceKind::Within => Place::Volume(context.target(source), true),
        SourceKind::Named(image) => {
            let target = Target::parse(source);
            if !target.has_path {
                return Place::Host;
            }
            let same = match (target.image.canonicalize(), image.canonicalize()) {
                (Ok(one), Ok(other)) => one == other,
                _ => false,
            };
            Place::Volume(target, same)
        }
    }
}

/// Copies that have a destination in common.
struct Copying<'a> {
    context: &'a Context,
    how: How,
    writing: &'a Writing,
    images: Images<'a>,
    destination: &'a [u8],
    /// The destination, if it is a directory.
    into: Option<Location>,
    into_directory: bool,
}

impl Copying<'_> {
    fn copy(&mut self, source: &OsStr, place: Place, shown: &str, progress: &Progress) -> Result<Totals> {
        let how = self.how;
        let path = match &place {
            Place::Host => source.as_bytes(),
            Place::Volume(target, _) => &target.path,
        };
        let (base, name) = self.base(path)?;
        let mut inserter = Inserter::new(self.context, self.writing, base, how.preserve, progress.clone());
        let context = self.context;
        let mut failed = |error: anyhow::Error| context.lost(&error.context(shown.to_owned()));
        let done = match &place {
            Place::Host => {
                let options = HostOptions {
                    recursive: how.recursive,
                    one_file_system: how.one_file_system,
                    without: &[],
                };
                host::insert(
                    &mut inserter,
                    Path::new(source),
                    name.as_deref(),
                    options,
                    &mut failed,
                )
            }
            Place::Volume(target, same_volume) => {
                let options = VolumeOptions {
                    recursive: how.recursive,
                    one_file_system: how.one_file_system,
                    same_volume: *same_volume,
                };
                let opened = if *same_volume {
                    self.writing.filesystem.write_back()?;
                    self.writing.view()
                } else {
                    self.images.open(&target.image)?
                };
                volume::insert(
                    &mut inserter,
                    &opened,
                    &target.path,
                    name.as_deref(),
                    options,
                    &mut failed,
                )
            }
        };
        done?;
        Ok(inserter.totals())
    }

    /// The directory in which the copy is made, and its name there; without a name, the directory is the copy.
    fn base(&self, source: &[u8]) -> Result<(Location, Option<Vec<u8>>)> {
        if let Some(into) = self.into {
            if self.into_directory {
                return Ok((into, last_name(source).map(<[u8]>::to_vec)));
            }
            return Ok((into, None));
        }
        let (directory, name) = self.writing.place(self.destination)?;
        Ok((directory, Some(name)))
    }
}
