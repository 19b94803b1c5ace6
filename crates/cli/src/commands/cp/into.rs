//! Copying into a volume: from the host, from another volume, or within the same volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::{Follow, Location, Progress, Subvolume};

use super::total::{self, Counting};
use super::{How, JustMade, TargetDirectory, last_name};
use crate::context::Context;
use crate::exit::Advice;
use crate::extract::Totals;
use crate::insert::Inserter;
use crate::insert::host::{self, HostOptions};
use crate::insert::volume::{self, VolumeOptions};
use crate::opening::generation::{self, Wanted, bare};
use crate::opening::{Images, absolute};
use crate::progress::Watch;
use crate::replacing::{into_itself, same_file};
use crate::target::Target;
use crate::writing::{Writing, split};

/// Interpretation of the source arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceKind {
    /// `IMAGE:/path` is in a volume, possibly the target volume; any other source is on the host.
    Named,
    /// All sources are on the host.
    Host,
    /// All sources are in the target volume.
    Within,
}

/// Result of the copying.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// Totals of each source that was copied.
    pub(crate) totals: Vec<(String, Totals)>,
    /// Number of reported errors.
    pub(crate) failures: u64,
    /// True if the copying ended early because the volume is full.
    pub(crate) is_full: bool,
}

/// The place in which a source of the copy is.
enum Place {
    Host,
    /// Target in a volume; the flag states whether it is the target volume of the copy.
    Volume(Target, bool),
}

/// Copies the sources to a path of the volume.
pub(crate) fn copy(
    context: &Context,
    how: How,
    writing: &Writing,
    sources: &[OsString],
    kind: SourceKind,
    destination: &[u8],
) -> Result<Copied> {
    let how = how.for_sources(sources.len());
    let into = writing.directory_at(destination);
    if into.is_none() && how.target == TargetDirectory::Always {
        let reason = match writing.resolve(destination, Follow::All) {
            Ok(_) => "Not a directory",
            Err(_) => "No such file or directory",
        };
        return Err(anyhow!("target '{}': {reason}", destination.escape_ascii()));
    }
    let mut copying = Copying {
        context,
        how,
        writing,
        images: Images::new(context),
        destination,
        into,
        made: JustMade::default(),
    };
    let losses = context.losses();
    let progress = context.progress();
    let counting = Counting::start(context, &progress, how.one_file_system, || {
        let found = sources.iter().filter_map(|source| copying.found(source, kind));
        found.collect()
    });
    let watch = Watch::start(context, "cp", progress.clone());
    let mut copied = Copied::default();
    for source in sources {
        if copying.made.is_repeated(context, source) {
            continue;
        }
        let place = place_of(context, source, kind);
        let shown = match &place {
            Place::Host => source.to_string_lossy().into_owned(),
            Place::Volume(target, _) => target.display(),
        };
        match copying.copy(source, place, &shown, &progress) {
            Ok((totals, is_full)) => {
                copied.totals.push((shown, totals));
                copied.is_full = is_full;
            }
            Err(error) => context.lost(&error.context(shown)),
        }
        if copied.is_full {
            break;
        }
    }
    drop(counting);
    watch.end_as(context.losses() == losses);
    copied.failures = context.losses().saturating_sub(losses);
    Ok(copied)
}

fn place_of(context: &Context, source: &OsStr, kind: SourceKind) -> Place {
    match kind {
        SourceKind::Host => Place::Host,
        SourceKind::Within => Place::Volume(context.target(source), true),
        SourceKind::Named => {
            let target = generation::parsed(context, source);
            if !target.has_path {
                return Place::Host;
            }
            // At this point, only the target volume and other volumes are open.
            let same = context.sources().is_changed_volume(bare(&target.image).0);
            Place::Volume(target, same)
        }
    }
}

/// Copies with a common destination.
struct Copying<'a> {
    context: &'a Context,
    how: How,
    writing: &'a Writing,
    images: Images<'a>,
    destination: &'a [u8],
    /// Destination, if it is a directory.
    into: Option<Location>,
    made: JustMade,
}

/// Target directory and name of a copy.
struct Spot {
    directory: Location,
    path: Vec<u8>,
    /// Name in the directory; without a name, the directory itself is the copy.
    name: Option<Vec<u8>>,
}

impl Spot {
    /// Returns the path of the copy.
    fn whole(&self) -> Vec<u8> {
        match &self.name {
            Some(name) => absolute(&self.path, name),
            None => self.path.clone(),
        }
    }
}

impl Copying<'_> {
    /// Returns a source for the count; `None` if it is unreachable, which the copying reports.
    fn found(&mut self, source: &OsStr, kind: SourceKind) -> Option<total::Source> {
        match place_of(self.context, source, kind) {
            Place::Host => total::Source::host(Path::new(source)),
            Place::Volume(target, true) if target.state() != Wanted::Newest => None,
            Place::Volume(target, true) => {
                let opened = self.writing.view();
                let start = opened.locate(&target.path, Follow::NotLast).ok()?;
                Some(total::Source::Volume(opened.volume().clone(), start))
            }
            Place::Volume(target, false) => {
                let opened = self.images.open(&target.image).ok()?;
                let start = opened.locate(&target.path, Follow::NotLast).ok()?;
                Some(total::Source::Volume(opened.volume().clone(), start))
            }
        }
    }

    /// Copies a source. Returns the totals of the copy, and whether the volume is full.
    fn copy(
        &mut self,
        source: &OsStr,
        place: Place,
        shown: &str,
        progress: &Progress,
    ) -> Result<(Totals, bool)> {
        let how = self.how;
        let path = match &place {
            Place::Host => source.as_bytes(),
            Place::Volume(target, _) => &target.path,
        };
        let spot = self.spot(path)?;
        let context = self.context;
        let base = spot.directory;
        let mut inserter = Inserter::new(context, self.writing, base, how.preserve, progress.clone())
            .replacing(how.replacing, spot.path.clone());
        let mut failed = |error: anyhow::Error| context.lost(&error.context(shown.to_owned()));
        match &place {
            Place::Host => {
                let is_directory = std::fs::metadata(Path::new(source)).is_ok_and(|source| source.is_dir());
                self.look_at(&spot, is_directory, shown)?;
                inserter = inserter.source(shown, None);
                let options = HostOptions {
                    recursive: how.recursive,
                    as_links: how.follow == Follow::NotLast,
                    one_file_system: how.one_file_system,
                    without: &[],
                };
                let name = spot.name.as_deref();
                host::insert(&mut inserter, Path::new(source), name, options, &mut failed)?;
            }
            Place::Volume(target, true) if target.state() != Wanted::Newest => {
                // The copy could overwrite content of the state before it is read.
                return Err(anyhow!("an older state of the volume that is being changed"))
                    .context(Advice::new("copy it to a directory of the host first"));
            }
            Place::Volume(target, same_volume) => {
                let opened = if *same_volume {
                    self.writing.volume().write_back()?;
                    self.writing.view()
                } else {
                    if context.sources().touches_changed_volume(bare(&target.image).0) {
                        let image = target.image.display();
                        return Err(anyhow!("{image} is on the volume that is being changed"))
                            .context(Advice::new("name the volume by its own image or device"));
                    }
                    self.images.open(&target.image)?
                };
                let start = opened.locate(&target.path, how.follow)?;
                let is_directory = opened.volume().metadata(start)?.is_directory();
                self.look_at(&spot, is_directory, shown)?;
                let mut own_entry = None;
                if *same_volume {
                    own_entry = self.writing.place(&target.path).ok();
                    if is_directory && how.recursive {
                        self.refuse_into_itself(&opened, start, &spot, shown)?;
                    }
                }
                inserter = inserter.source(shown, own_entry);
                let options = VolumeOptions {
                    recursive: how.recursive,
                    follow: how.follow,
                    one_file_system: how.one_file_system,
                    same_volume: *same_volume,
                };
                let (path, name) = (&target.path, spot.name.as_deref());
                volume::insert(&mut inserter, &opened, path, name, options, &mut failed)?;
            }
        }
        Ok((inserter.totals(), inserter.is_over() && !progress.is_cancelled()))
    }

    /// Refuses an invalid target before the copy reads its source.
    fn look_at(&mut self, spot: &Spot, is_directory: bool, shown: &str) -> Result<()> {
        if is_directory {
            return Ok(());
        }
        let whole = spot.whole();
        if self.into.is_none() && self.destination.ends_with(b"/") {
            let whole = whole.escape_ascii();
            return Err(anyhow!("cannot create regular file '{whole}/': Not a directory"));
        }
        let whole = whole.escape_ascii().to_string();
        self.made.refuse(spot.name.as_deref(), &whole, shown)
    }

    /// Refuses to copy a directory onto itself or below itself.
    fn refuse_into_itself(
        &self,
        opened: &Subvolume,
        start: Location,
        spot: &Spot,
        shown: &str,
    ) -> Result<()> {
        let whole = spot.whole();
        let shown_whole = whole.escape_ascii().to_string();
        let there = match &spot.name {
            Some(name) => {
                let entry = self.writing.volume().lookup(spot.directory, name)?;
                entry.map(|entry| entry.target)
            }
            None => Some(spot.directory),
        };
        if there == Some(start) || self.writing.resolve(&whole, Follow::All).ok() == Some(start) {
            return Err(same_file(shown, &shown_whole));
        }
        let (Some(above), Some(below)) = (path_of(opened, start), path_of(opened, spot.directory)) else {
            return Ok(());
        };
        let is_below = below == above || above.is_empty() || below.starts_with(&[&above[..], b"/"].concat());
        // If the walk stays in one file system, it does not enter other subvolumes.
        let is_reached = !self.how.one_file_system || start.subvolume == spot.directory.subvolume;
        if is_below && is_reached {
            return Err(into_itself(shown, &shown_whole));
        }
        Ok(())
    }

    /// Returns the target directory and name of a source's copy.
    fn spot(&self, source: &[u8]) -> Result<Spot> {
        let is_link = || {
            let itself = self.writing.resolve(self.destination, Follow::NotLast);
            itself.ok() != self.into
        };
        if let Some(directory) = self.into
            && !(self.how.target == TargetDirectory::Never && is_link())
        {
            let name = if self.how.target == TargetDirectory::Never {
                None
            } else {
                last_name(source).map(<[u8]>::to_vec)
            };
            return Ok(Spot {
                directory,
                path: self.destination.to_vec(),
                name,
            });
        }
        let (directory, name) = self.writing.place(self.destination)?;
        Ok(Spot {
            directory,
            path: split(self.destination).0.to_vec(),
            name: Some(name),
        })
    }
}

/// Returns the path of a directory from the top level, without a leading slash. Each directory has
/// only one path.
fn path_of(opened: &Subvolume, directory: Location) -> Option<Vec<u8>> {
    let filesystem = opened.volume();
    let subvolume = filesystem.subvolume_path(directory.subvolume).ok()?;
    let below = filesystem.directory_path(directory).ok()?;
    let parts = [subvolume, below].into_iter().filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join(&b'/'))
}
