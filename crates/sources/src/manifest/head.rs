//! The head of a manifest: the version, the volume, and the place of contents.

use buttress_format::printable::Printable;
use serde::Deserialize;

use super::error::{ManifestError, Problem};
use super::tables::Table;
use super::{at, toml_error};

/// The volume options of a manifest, which apply if the command line does not set them. The values
/// are those of the flags of mkfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct VolumeWishes {
    /// The label.
    pub label: Option<String>,
    /// The volume's uuid.
    pub uuid: Option<String>,
    /// The checksum: `crc32c`, `xxhash`, `sha256`, `blake2`.
    pub checksum: Option<String>,
    /// The size of tree blocks.
    pub node_size: Option<u64>,
    /// The sector size in bytes.
    pub sector_size: Option<u64>,
    /// The number of bytes to use of each device.
    pub size: Option<u64>,
    /// The profile of data block groups.
    pub data: Option<String>,
    /// The profile of metadata.
    pub metadata: Option<String>,
    /// True if data and metadata share block groups.
    pub mixed: Option<bool>,
    /// The features to set, or to clear after `^`.
    #[serde(default)]
    pub features: Vec<String>,
    /// The quotas: `none`, `full` or `simple`.
    pub quotas: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    manifest: Option<i64>,
    #[serde(default)]
    volume: VolumeWishes,
    contents: Option<ContentsTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContentsTable {
    image: Option<String>,
    directory: Option<String>,
}

/// The location of file contents that no table of the manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Image(String),
    Directory(String),
}

/// Reads the head of a manifest.
pub(super) fn read(table: &Table) -> Result<(VolumeWishes, Option<Contents>), ManifestError> {
    let head: Head = toml::from_str(&table.text).map_err(|error| toml_error(table, &error))?;
    match head.manifest {
        Some(1) => {}
        None => return at(table, Err(Problem::NoVersion)),
        Some(other) => return at(table, Err(Problem::Version(other))),
    }
    if let Some(quotas) = &head.volume.quotas
        && !["none", "full", "simple"].contains(&quotas.as_str())
    {
        let problem = Problem::Value {
            key: "quotas",
            found: format!("\"{}\"", Printable(quotas.as_bytes())),
            wanted: "expected none, full or simple",
        };
        return at(table, Err(problem));
    }
    let contents = match head.contents {
        None => None,
        Some(ContentsTable {
            image: Some(image),
            directory: None,
        }) => Some(Contents::Image(image)),
        Some(ContentsTable {
            image: None,
            directory: Some(directory),
        }) => Some(Contents::Directory(directory)),
        Some(ContentsTable { image: Some(_), .. }) => {
            return at(table, Err(Problem::Both("image", "directory")));
        }
        Some(_) => {
            return at(
                table,
                Err(Problem::Missing {
                    table: "contents".to_owned(),
                    key: "image",
                }),
            );
        }
    };
    Ok((head.volume, contents))
}
