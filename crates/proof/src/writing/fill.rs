//! Volumes that are filled until there is no space.

use anyhow::{Result, ensure};
use buttress::unstable::fs::Error;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{FileOffset, Location, NewInode, SetXattr, SubvolumeId};
use buttress_oracle::content::Random;

/// Root directory of the top level.
pub const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Size of the files that fill a volume with data, in bytes.
pub const FILE_BYTES: usize = 256 << 10;

/// Content that fills a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Files of [`FILE_BYTES`].
    Data,
    /// Files with attributes, two per leaf.
    Metadata,
    /// Snapshots of the top level's subvolume `source`. Each round touches all files of the source
    /// before its snapshot, so that every snapshot owns most of its tree exclusively.
    Snapshots,
}

impl Filling {
    /// Returns the name of a piece of the filling.
    #[must_use]
    pub fn name(self, prefix: &str, number: u64) -> Vec<u8> {
        let kind = match self {
            Self::Data => "data",
            Self::Metadata => "metadata",
            Self::Snapshots => "snapshot",
        };
        format!("{prefix}-{kind}-{number}").into_bytes()
    }

    /// Adds pieces to the volume until it has no space, at most `most`; returns their number.
    ///
    /// # Errors
    /// Fails with any error except [`Error::NoSpace`].
    pub fn fill(self, filesystem: &WritableFilesystem, prefix: &str, most: u64) -> Result<u64> {
        let mut random = Random::new(prefix.len() as u64);
        let content = random.bytes(FILE_BYTES, false);
        for number in 0..most {
            match self.add(filesystem, &self.name(prefix, number), &content) {
                Ok(()) => {}
                Err(Error::NoSpace { .. }) => return Ok(number),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(most)
    }

    /// Adds a piece; if there is no space for a file's content, removes the file again.
    fn add(self, filesystem: &WritableFilesystem, name: &[u8], content: &[u8]) -> Result<(), Error> {
        let file = NewInode::of_root(0o600);
        if self == Self::Snapshots {
            return add_snapshot(filesystem, name);
        }
        let made = filesystem.create(TOP, name, &file)?;
        let filled = match self {
            Self::Data => filesystem
                .write_at(made, FileOffset::MIN, content)
                .and_then(|()| filesystem.writeback().write_file(made)),
            _ => filesystem.set_xattr(
                made,
                b"user.filler",
                &vec![b'f'; filler_bytes(filesystem)],
                SetXattr::Create,
            ),
        };
        if filled.is_err() {
            filesystem.unlink(TOP, name)?;
        }
        filled
    }

    /// Removes a piece, which must always succeed.
    ///
    /// # Errors
    /// The removal failed.
    pub fn remove(self, filesystem: &WritableFilesystem, name: &[u8]) -> Result<()> {
        match self {
            Self::Data | Self::Metadata => filesystem.unlink(TOP, name)?,
            Self::Snapshots => {
                let found = filesystem.live().lookup(TOP, name)?;
                ensure!(found.is_some(), "there is no snapshot {}", name.escape_ascii());
                if let Some(entry) = found {
                    filesystem.subvolumes().delete(entry.target.subvolume)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the length of an attribute that fits twice into a leaf, with the other items of both
/// files.
#[must_use]
pub fn filler_bytes(filesystem: &WritableFilesystem) -> usize {
    node_bytes(filesystem) / 8 * 3
}

fn node_bytes(filesystem: &WritableFilesystem) -> usize {
    filesystem.view().superblock().node_bytes as usize
}

/// Name of the subvolume to snapshot.
pub const SOURCE: &[u8] = b"source";

/// Creates the subvolume to snapshot, with files whose items take a leaf each.
///
/// # Errors
/// The errors of creating files.
pub fn make_source(filesystem: &WritableFilesystem, files: u64) -> Result<()> {
    let source = filesystem.subvolumes().create(TOP, SOURCE)?;
    let value = vec![b's'; node_bytes(filesystem) / 4 * 3];
    for number in 0..files {
        let name = format!("file-{number}");
        let made = filesystem.create(
            Location::root_of(source),
            name.as_bytes(),
            &NewInode::of_root(0o600),
        )?;
        filesystem.set_xattr(made, b"user.filler", &value, SetXattr::Create)?;
    }
    Ok(())
}

fn add_snapshot(filesystem: &WritableFilesystem, name: &[u8]) -> Result<(), Error> {
    let Some(source) = filesystem.live().lookup(TOP, SOURCE)? else {
        return Err(Error::Invalid {
            what: "a volume without the subvolume that is snapshot",
        });
    };
    let root = source.target;
    for entry in filesystem.view().read_dir(root)? {
        filesystem.set_xattr(entry?.target, b"user.last", name, SetXattr::CreateOrReplace)?;
    }
    filesystem
        .subvolumes()
        .snapshot(root.subvolume, TOP, name, true)
        .map(drop)
}
