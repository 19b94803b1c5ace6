//! `buttress mkfs --tar FILE --manifest FILE --oci LAYOUT`: sources of a volume other than
//! directories, in the order of the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::build::{DirectorySource, EntryPath, ImageBuilder, Source};
use buttress::sources::adapters::{Exclude, FileContexts, IdMap, Mapped};
use buttress::sources::manifest::VolumeWishes;
use buttress::sources::{Layers, Manifest, oci};
use buttress::unstable::filesystem_of;
use buttress::{Progress, Timestamp};
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::context::Context;
use crate::exit::Advice;

/// The flags.
#[derive(Args, Debug)]
struct Flags {
    /// Add the content of this tar archive, compressed or not; - is standard input. Sources can be
    /// combined and repeated, and a later source replaces entries of an earlier one
    #[arg(long, value_name = "FILE|-")]
    tar: Vec<PathBuf>,
    /// Add the entries of this plan, and use its volume settings; - is standard input
    #[arg(long, value_name = "FILE|-")]
    manifest: Vec<PathBuf>,
    /// Add the layers of a container image from an OCI layout directory; :TAG selects one of
    /// several images
    #[arg(long, value_name = "LAYOUT[:TAG]")]
    oci: Vec<OsString>,
    /// Platform of the container image, if there are several: linux/amd64, linux/arm64/v8
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", requires = "oci")]
    platform: Option<String>,
    /// Make a read-only subvolume of the state after each layer, in this directory of the volume:
    /// DIR/1, DIR/2, ...
    #[arg(long, value_name = "DIR", requires = "oci")]
    layer_snapshots: Option<OsString>,
    /// Map user ids: the first id in the volume, the first id in the sources, and the number of ids
    #[arg(long, value_name = "TO:FROM:COUNT,...", conflicts_with = "all_root")]
    uid_map: Option<IdMap>,
    /// Map group ids, in the form of --uid-map [default: the map of user ids]
    #[arg(
        long,
        value_name = "TO:FROM:COUNT,...",
        requires = "uid_map",
        conflicts_with = "force_gid"
    )]
    gid_map: Option<IdMap>,
    /// Leave out entries that match this pattern, and everything below them: *.o at any level,
    /// /var/cache/* from the root, ** across directories
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Set SELinux contexts by the rules of this file_contexts file
    #[arg(long, value_name = "FILE")]
    file_contexts: Option<PathBuf>,
}

/// A source on the command line.
#[derive(Clone, Debug)]
enum Given {
    Directory(PathBuf),
    Tar(PathBuf),
    Manifest(PathBuf),
    Oci(OsString),
}

/// The flags of mkfs, and all sources in the given order.
#[derive(Debug)]
pub(super) struct SourceArguments {
    flags: Flags,
    order: Vec<Given>,
}

impl Args for SourceArguments {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

impl FromArgMatches for SourceArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let mut order: Vec<(usize, Given)> = Vec::new();
        for (id, given) in [
            ("rootdir", Given::Directory as fn(PathBuf) -> Given),
            ("tar", Given::Tar),
            ("manifest", Given::Manifest),
        ] {
            let places = matches.indices_of(id).into_iter().flatten();
            let values = matches.get_many::<PathBuf>(id).into_iter().flatten();
            order.extend(places.zip(values.cloned().map(given)));
        }
        let places = matches.indices_of("oci").into_iter().flatten();
        let values = matches.get_many::<OsString>("oci").into_iter().flatten();
        order.extend(places.zip(values.cloned().map(Given::Oci)));
        order.sort_by_key(|(place, _)| *place);
        Ok(Self {
            flags: Flags::from_arg_matches_mut(matches)?,
            order: order.into_iter().map(|(_, given)| given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An opened source, or a directory.
enum Opened {
    Directory(PathBuf),
    Other(Box<dyn Source>),
}

/// All opened sources.
pub(super) struct OpenedSources {
    sources: Vec<Opened>,
    manifests: Vec<buttress::sources::adapters::Rules>,
    /// Settings of the volume in the manifests.
    pub(super) wishes: Vec<VolumeWishes>,
}

impl SourceArguments {
    /// Returns whether any source other than directories is given.
    pub(super) fn has_source(&self) -> bool {
        self.order
            .iter()
            .any(|given| !matches!(given, Given::Directory(_)))
    }

    /// Returns a flag that changes entries of the sources, if one is given.
    pub(super) fn changes_sources(&self) -> Option<&'static str> {
        let flags = &self.flags;
        let given = [
            (flags.uid_map.is_some(), "--uid-map"),
            (!flags.exclude.is_empty(), "--exclude"),
            (flags.file_contexts.is_some(), "--file-contexts"),
        ];
        given.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
    }

    /// Opens all sources. No source may be one of `images`, which the command writes.
    pub(super) fn open(
        &self,
        context: &Context,
        images: &[PathBuf],
        time: Timestamp,
        progress: &Progress,
    ) -> Result<OpenedSources> {
        let standard_input = self.order.iter().filter(|given| match given {
            Given::Tar(path) | Given::Manifest(path) => path.as_os_str() == "-",
            _ => false,
        });
        if standard_input.count() > 1 {
            return Err(anyhow::anyhow!("standard input can be used by only one source"));
        }
        let spool = std::env::temp_dir();
        let mut opened = OpenedSources {
            sources: Vec::new(),
            manifests: Vec::new(),
            wishes: Vec::new(),
        };
        for given in &self.order {
            let source: Box<dyn Source> = match given {
                Given::Directory(path) => {
                    opened.sources.push(Opened::Directory(path.clone()));
                    continue;
                }
                Given::Tar(path) => {
                    refuse_same(path, images)?;
                    Box::new(Layers::tar(path, &spool, progress)?)
                }
                Given::Oci(layout) => Box::new(self.open_oci(layout, &spool, progress)?),
                Given::Manifest(path) => {
                    let manifest = Manifest::open(path, time, &|image| {
                        refuse_same(image, images).map_err(|error| format!("{error:#}"))?;
                        let volume = context.open_volume(image).map_err(|error| format!("{error:#}"))?;
                        Ok(filesystem_of(volume.volume()))
                    })?;
                    opened.manifests.push(manifest.rules());
                    opened.wishes.push(manifest.volume().clone());
                    Box::new(manifest)
                }
            };
            opened.sources.push(Opened::Other(source));
        }
        Ok(opened)
    }

    fn open_oci(&self, layout: &OsString, spool: &Path, progress: &Progress) -> Result<Layers> {
        let bytes = layout.as_bytes();
        let colon = bytes.iter().rposition(|byte| *byte == b':');
        // If a directory has the whole name, the colon is part of the name.
        let split = colon.filter(|_| !Path::new(layout).is_dir()).and_then(|at| {
            let (path, tag) = bytes.split_at_checked(at)?;
            let tag = std::str::from_utf8(tag.get(1..)?).ok()?;
            Some((std::ffi::OsStr::from_bytes(path), tag.to_owned()))
        });
        let (path, tag) = match split {
            Some((path, tag)) => (path, Some(tag)),
            None => (layout.as_os_str(), None),
        };
        let wanted = oci::Wanted {
            tag,
            platform: self.flags.platform.clone(),
        };
        let layers = oci::open(Path::new(path), &wanted, spool, progress)?;
        match &self.flags.layer_snapshots {
            None => Ok(layers),
            Some(directory) => {
                let path = EntryPath::new(directory.as_bytes())
                    .with_context(|| format!("--layer-snapshots {}", directory.display()))?;
                Ok(layers.with_snapshots(path))
            }
        }
    }

    /// Passes the sources, and the changes to their entries, to a builder.
    pub(super) fn add(
        &self,
        mut builder: ImageBuilder,
        opened: OpenedSources,
        directory: impl Fn(&Path) -> DirectorySource,
    ) -> Result<ImageBuilder> {
        let flags = &self.flags;
        for source in opened.sources {
            let source: Box<dyn Source> = match source {
                Opened::Directory(path) => Box::new(directory(&path)),
                Opened::Other(source) => source,
            };
            builder = match &flags.uid_map {
                None => builder.source(source),
                Some(users) => {
                    let groups = flags.gid_map.as_ref().unwrap_or(users);
                    builder.source(Mapped::new(source, users.clone(), groups.clone()))
                }
            };
        }
        let mut exclude = Exclude::default();
        for pattern in &flags.exclude {
            exclude.add(pattern.as_bytes()).context("--exclude")?;
        }
        if !exclude.is_empty() {
            builder = builder.adapt(move |entry| exclude.verdict(entry));
        }
        for rules in opened.manifests {
            if !rules.is_empty() {
                builder = builder.adapt(move |entry| rules.apply(entry));
            }
        }
        if let Some(path) = &flags.file_contexts {
            let named = || format!("--file-contexts {}", path.display());
            let text = std::fs::read_to_string(path).with_context(named)?;
            let contexts = FileContexts::parse(&text).with_context(named)?;
            builder = builder.adapt(move |entry| contexts.apply(entry));
        }
        Ok(builder)
    }
}

/// Refuses a source that is one of the images to write.
fn refuse_same(source: &Path, images: &[PathBuf]) -> Result<()> {
    let Ok(metadata) = source.metadata() else {
        return Ok(());
    };
    let same = images.iter().find(|image| {
        image
            .metadata()
            .is_ok_and(|image| (image.dev(), image.ino()) == (metadata.dev(), metadata.ino()))
    });
    match same {
        None => Ok(()),
        Some(image) => Err(anyhow::anyhow!(
            "{} is both a source and the output",
            image.display()
        ))
        .context(Advice::new("write to another image, and rename it afterwards")),
    }
}
