//! Commits of overlays, cut at each write and flush: the images have the old or the new state, and
//! the same call finishes the commit.

use super::*;
use buttress::unstable::device::overlay::apply_all;
use buttress::{DeviceOptions, superblocks_last};
use std::path::PathBuf;

/// Images in a folder, with the overlays of one commit over them.
struct Overlaid {
    base: Base,
    overlays: Vec<PathBuf>,
    /// The state that the commit leaves.
    new: String,
    folder: tempfile::TempDir,
}

impl Overlaid {
    fn new(sizes: &[usize], options: &Options) -> Result<Self> {
        let base = Base::new(sizes, options)?;
        let folder = scratch()?;
        let images = write_images(&base.backends, folder.path())?;
        let overlays: Vec<PathBuf> = images
            .iter()
            .map(|image| image.with_extension("overlay"))
            .collect();
        let opened = images.iter().zip(&overlays).map(|(image, overlay)| {
            let options = DeviceOptions {
                write: true,
                overlay: Some(overlay.clone()),
                ..DeviceOptions::default()
            };
            Device::open(image, &options)
        });
        let opened = OpenOptions::new(opened.collect::<Result<_, _>>()?).open()?;
        let options = WriteOptions {
            environment: Arc::new(Ticking::default()),
            ..WriteOptions::default()
        };
        let filesystem = WritableFilesystem::new(opened, options)?;
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let file = filesystem.create(root, b"from the overlay", &NewInode::of_root(0o600))?;
        filesystem.write_at(file, FileOffset::MIN, &vec![7; 300_000])?;
        filesystem.commit()?;
        let new = describe(&filesystem.view())?;
        ensure!(new != base.state, "the overlay changes nothing");
        filesystem.close()?;
        Ok(Self {
            base,
            overlays,
            new,
            folder,
        })
    }

    /// Commits the overlays to these devices. The overlays stay under their first names.
    fn commit(&self, backends: &Backends) -> Result<()> {
        let copies = self.overlays.iter().map(|overlay| {
            let copy = self
                .folder
                .path()
                .join(overlay.file_name().unwrap())
                .with_extension("copy");
            std::fs::hard_link(overlay, &copy)?;
            Ok(copy)
        });
        let copies: Vec<PathBuf> = copies.collect::<Result<_>>()?;
        let parts = copies.iter().zip(devices(backends)).map(|(copy, device)| {
            let open: Box<dyn FnOnce() -> _> = Box::new(move || Ok(device));
            (copy.clone(), open)
        });
        apply_all(parts.collect(), &superblocks_last)?;
        ensure!(copies.iter().all(|copy| !copy.exists()), "an overlay is left");
        Ok(())
    }

    fn at_each_cut(&self) -> Result<()> {
        let lab = CrashLab::new();
        let recorded: Backends = self
            .base
            .backends
            .iter()
            .map(|base| lab.device(Arc::clone(base)))
            .collect();
        self.commit(&recorded)?;
        let history = lab.history();
        let (mut old, mut new) = (0, 0);
        for cut in 0..=history.len() {
            for outcome in [
                Outcome::AllKept,
                Outcome::NoneKept,
                Outcome::Drawn { seed: cut as u64 },
            ] {
                let place = || format!("cut {cut} of {}, {outcome:?}", history.len());
                let images = history.images_at(cut, outcome);
                let found = open_after_crash(&images).with_context(place)?;
                let state = describe(&found)?;
                drop(found);
                ensure!(
                    state == self.base.state || state == self.new,
                    "another state: {}",
                    place()
                );
                old += usize::from(state == self.base.state);
                new += usize::from(state == self.new);
                self.commit(&images).with_context(place)?;
                let found = open_after_crash(&images).with_context(place)?;
                ensure!(describe(&found)? == self.new, "not finished: {}", place());
            }
        }
        eprintln!(
            "overlay commit: {} events, {old} cuts leave the old state, {new} the new",
            history.len()
        );
        ensure!(old > 3 && new > 3, "{old} and {new} cuts");
        Ok(())
    }
}

#[test]
fn cut_overlay_commit_leaves_the_old_or_new_state() {
    let overlaid = Overlaid::new(&[128 * MIB], &Options::default()).unwrap();
    overlaid.at_each_cut().unwrap();
}

#[test]
fn cut_commit_of_two_overlays_leaves_the_old_or_new_state() {
    let overlaid = Overlaid::new(&[160 * MIB, 160 * MIB], &mirror()).unwrap();
    overlaid.at_each_cut().unwrap();
}
