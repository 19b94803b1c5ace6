//! Paths in older states: `IMAGE:/.generations/N/path`.
//!
//! No volume has this directory. A path in it names the state of generation N, and a path inside the
//! state. The image of such a target is `IMAGE:/.generations/N`, and its path is the rest. No file has this
//! name, so devices cannot be opened by it: only the functions that open a volume for reading split it.
//!
//! If the top level of the newest state has an entry `.generations`, such paths mean this entry, and only
//! `--generation` opens a state.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::salvage::{State, devices_of};
use buttress::{Follow, Generation, Subvolume};

use super::{Place, states};
use crate::context::Context;
use crate::exit::Advice;
use crate::target::Target;

/// The directory of states.
const DIRECTORY: &[u8] = b".generations";

/// The state that an image's name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The newest state.
    Newest,
    /// The directory of all states.
    List,
    /// The state with this generation.
    Older(Generation),
}

/// Splits a path in the directory of states into the state and the path inside it.
fn split(path: &[u8]) -> Option<(Wanted, Vec<u8>)> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    if names.next() != Some(DIRECTORY) {
        return None;
    }
    let Some(number) = names.next() else {
        return Some((Wanted::List, b"/".to_vec()));
    };
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let rest: Vec<&[u8]> = names.collect();
    let mut rest = [b"/", rest.join(&b'/').as_slice()].concat();
    // A slash at the end follows a link.
    if path.ends_with(b"/") && rest != b"/" {
        rest.push(b'/');
    }
    Some((Wanted::Older(Generation::new(number)), rest))
}

/// Returns whether a path is in the directory of states.
pub(crate) fn names_state(path: &[u8]) -> bool {
    split(path).is_some()
}

/// Splits the name of an image in two: the image itself, and the state that the name asks for.
pub(crate) fn bare(image: &Path) -> (&Path, Wanted) {
    let bytes = image.as_os_str().as_bytes();
    let marker = [b":/", DIRECTORY].concat();
    let at = bytes.windows(marker.len()).rposition(|window| window == marker);
    let parts = at.and_then(|at| bytes.split_at_checked(at));
    let Some((before, below)) = parts.filter(|_| image.symlink_metadata().is_err()) else {
        return (image, Wanted::Newest);
    };
    // Clamp: the marker begins with a colon.
    match split(below.get(1..).unwrap_or_default()) {
        Some((wanted, rest)) if rest == b"/" => (Path::new(OsStr::from_bytes(before)), wanted),
        _ => (image, Wanted::Newest),
    }
}

impl Target {
    /// Returns the state that the target asks for.
    pub(crate) fn state(&self) -> Wanted {
        bare(&self.image).1
    }

    /// Moves the state in the target's path to its image.
    fn with_state(self, wanted: Wanted, path: Vec<u8>) -> Self {
        let mut image = self.image.into_os_string();
        image.push(OsStr::from_bytes(&[b":/", DIRECTORY].concat()));
        if let Wanted::Older(generation) = wanted {
            image.push(format!("/{generation}"));
        }
        Self {
            image: PathBuf::from(image),
            path,
            ..self
        }
    }
}

/// Parses an argument like [`Target::parse`]. A path in an older state becomes a target in this state.
pub(crate) fn parsed(context: &Context, argument: &OsStr) -> Target {
    in_state(context, Target::parse(argument), None)
}

/// Returns the target in an older state, if its path names one. `opened` is the volume, if it is open.
pub(super) fn in_state(context: &Context, target: Target, opened: Option<&Subvolume>) -> Target {
    let Some((wanted, path)) = split(&target.path).filter(|_| target.has_path) else {
        return target;
    };
    let has_entry = |opened: &Subvolume| opened.locate(DIRECTORY, Follow::NotLast).is_ok();
    let is_entry = match opened {
        Some(opened) => has_entry(opened),
        // A newest state that cannot be opened has no such entry.
        None => quietly_opened(context, &target.image).is_ok_and(|opened| has_entry(&opened)),
    };
    match is_entry {
        true => target,
        false => target.with_state(wanted, path),
    }
}

/// Returns the generations of the known states of a volume, the newest first.
pub(crate) fn generations_at(context: &Context, image: &Path) -> Result<Vec<Generation>> {
    let (image, _) = bare(image);
    let devices = match context.present(image)? {
        Some(present) => devices_of(present.volume()),
        None => context.open_devices(&[image.to_owned()])?,
    };
    let index = states::index_of(context, image, None, &devices)?;
    let identity = states::identity_of(image, &devices, index.as_ref(), &context.progress())?;
    let found = buttress::salvage::states(&devices, identity.fsid, index.as_ref())?;
    let mut generations: Vec<Generation> = found.iter().map(State::generation).collect();
    generations.dedup();
    Ok(generations)
}

/// Opens the newest state of a volume, without notices.
fn quietly_opened(context: &Context, image: &Path) -> Result<Subvolume> {
    let devices = context.open_devices(&[image.to_owned()])?;
    let volume = buttress::Volume::options()
        .degraded(true)
        .on_disk()
        .open_devices(devices)?;
    context.root_of(&volume)
}

/// Opens a state of the volume of a place.
pub(super) fn state_in(context: &Context, place: &Place, wanted: Wanted) -> Result<Subvolume> {
    let Some(generation) = generation_of(context, wanted)? else {
        return Ok(place.opened.clone());
    };
    let devices = devices_of(place.opened.volume());
    let options = context.volume_options().generation(generation);
    let options = states::with_index(context, &place.image, &devices, options, true)?;
    let opened = options.open_devices(devices);
    let volume = opened.map_err(|error| states::advised(true, error.into()))?;
    context.root_of(&volume)
}

/// Returns the generation that the user asks for: by the name of an image, or by `--generation`.
pub(super) fn generation_of(context: &Context, wanted: Wanted) -> Result<Option<Generation>> {
    let given = context.globals().generation.map(Generation::new);
    match wanted {
        Wanted::Newest => Ok(given),
        Wanted::Older(_) if given.is_some() => {
            let twice = "--generation and a path in /.generations name a state twice";
            Err(anyhow!(twice)).context(Advice::new("give only one of them"))
        }
        Wanted::Older(generation) => Ok(Some(generation)),
        Wanted::List => None.context("/.generations holds states, not files").context(Advice::new(
            "give the generation of a state, as in IMAGE:/.generations/12/path; `buttress generations IMAGE` lists them",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_generations_name_a_state() {
        let older = |number| Wanted::Older(Generation::new(number));
        type Case = (&'static [u8], Option<(Wanted, &'static [u8])>);
        let cases: [Case; 9] = [
            (b"/.generations", Some((Wanted::List, b"/"))),
            (b"/.generations/", Some((Wanted::List, b"/"))),
            (b"/.generations/12", Some((older(12), b"/"))),
            (b"/.generations/12/a/b", Some((older(12), b"/a/b"))),
            (b"//.generations//12//a/", Some((older(12), b"/a/"))),
            (b"/.generations/x/a", None),
            (b"/.generations/+7/a", None),
            (b"/a/.generations/12", None),
            (b"/", None),
        ];
        for (path, expected) in cases {
            let expected = expected.map(|(wanted, rest)| (wanted, rest.to_vec()));
            assert_eq!(split(path), expected, "{}", path.escape_ascii());
        }
    }

    #[test]
    fn names_of_images_hold_the_state() {
        let (image, wanted) = bare(Path::new("a:/b.img:/.generations/7"));
        assert_eq!(
            (image, wanted),
            (Path::new("a:/b.img"), Wanted::Older(Generation::new(7)))
        );
        assert_eq!(bare(Path::new("a.img")), (Path::new("a.img"), Wanted::Newest));
        let target = Target::parse(OsStr::new("none.img:/.generations/7/x"));
        let moved = target.with_state(wanted, b"/x".to_vec());
        assert_eq!(moved.state(), Wanted::Older(Generation::new(7)));
        assert_eq!(moved.display(), "none.img:/.generations/7/x");
    }
}
