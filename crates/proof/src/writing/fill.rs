//! Volumes that are filled until there is no space.

use anyhow::{Result, ensure};
use buttress::unstable::fs::Error;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{FileOffset, Location, NewInode, SetXattr, SubvolumeId};
use buttress_oracle::content::Random;

/// The root of a volume.
pub const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Bytes of the files that fill a volume with data.
pub const FILE_BYTES: usize = 256 << 10;

/// What a volume is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Files of [`FILE_BYTES`].
    Data,
    /// Files with attributes, two of them to a leaf.
    Metadata,
    /// Snapshots of the top level's subvolume `source`, in which all files are touched before each, so that every one has
    /// most of its tree to itself.
    Snapshots,
}

impl Filling {
    /// The name of a piece.
    #[must_use]
    pub fn name(self, prefix: &str, number: u64) -> Vec<u8> {
        let kind = match self {
            Self::Data => "data",
            Self::Metadata => "metadata",
            Self::Snapshots => "snapshot",
        };
        format!("{prefix}-{kind}-{number}").into_bytes()
    }

    /// Adds pieces until there is no space, or at most so many; gives how many are there.
    ///
    /// # Errors
    /// Any but [`Error::NoSpace`].
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

    /// Adds a piece, or what there is space for of it: a file without its content is taken away again.
    fn add(self, filesystem: &WritableFilesystem, name: &[u8], content: &[u8]) -> Result<(), Error> {
        let file = NewInode::of_root(0o600);
        if self == Self::Snapshots {
            return add_snapshot(filesystem, name);
        }
        let made = filesystem.create(TOP, name, &file)?;
        let filled = match self {
            Self::Data => filesystem
                .write_at(made, FileOffset::MIN, content)
                .and_then(|()| filesystem.write_back_file(made)),
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

    /// Takes a piece away, which must always work.
    ///
    /// # Errors
    /// That it does not.
    pub fn remove(self, filesystem: &WritableFilesystem, name: &[u8]) -> Result<()> {
        match self {
            Self::Data | Self::Metadata => filesystem.unlink(TOP, name)?,
            Self::Snapshots => {
                let found = filesystem.lookup(TOP, name)?;
                ensure!(found.is_some(), "there is no snapshot {}", name.escape_ascii());
                if let Some(entry) = found {
                    filesystem.delete_subvolume(entry.target.subvolume)?;
                }
            }
        }
        Ok(())
    }
}

/// Length of an attribute of which two fit into a leaf, with the other items of their files.
#[must_use]
pub fn filler_bytes(filesystem: &WritableFilesystem) -> usize {
    node_bytes(filesystem) / 8 * 3
}

fn node_bytes(filesystem: &WritableFilesystem) -> usize {
    filesystem.view().superblock().node_bytes as usize
}

/// The subvolume that is snapshot.
pub const SOURCE: &[u8] = b"source";

/// Makes the subvolume that is snapshot, with files whose items take a leaf each.
///
/// # Errors
/// As for making files.
pub fn make_source(filesystem: &WritableFilesystem, files: u64) -> Result<()> {
    let source = filesystem.create_subvolume(TOP, SOURCE)?;
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
    let Some(source) = filesystem.lookup(TOP, SOURCE)? else {
        return Err(Error::Invalid {
            what: "a volume without the subvolume that is snapshot",
        });
    };
    let root = source.target;
    for entry in filesystem.view().read_dir(root)? {
        filesystem.set_xattr(entry?.target, b"user.last", name, SetXattr::CreateOrReplace)?;
    }
    filesystem.snapshot(root.subvolume, TOP, name, true).map(drop)
}
