//! Writing the manifest of an existing image, from which the same image can be built.
//!
//! Contents stay in the image: the head names the image, and files state only their length. A
//! manifest names the compression method of a compressed file. The disk stores no compression
//! level, so a user who chose another level than the default must name it ([`Options::levels`]).
//! The manifest names times of access, change and birth if they differ from the time of the
//! content.
//!
//! A snapshot that equals its source is written as a snapshot. A subvolume that is no such snapshot
//! is written with its whole content.
//!
//! Left out: preallocated ranges (they become holes), contents that cannot be read, quota groups
//! and limits, fs-verity. The caller receives a report of everything that was left out.
//!
//! Equal images yield equal manifests.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write};

use buttress_format::compression::CompressionMethod;
use buttress_format::{
    BlockGroupFlags, CompatRo, Compression, FileKind, Incompat, InodeFlags, QgroupStatus, QgroupStatusFlags,
    STRIPE_BYTES, SubvolumeId, Timestamp, TreeId,
};
use buttress_fs::{
    FileRange, Filesystem, Location, Metadata, Progress, RangeKind, SubvolumeInfo, WalkEntry, WalkError,
    WalkItem, WalkOptions, WalkOrder, Xattr,
};
use buttress_mkfs::Feature;

use super::item::FLAGS;
use super::time;
use crate::base64;

/// The options of writing a manifest.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of the image in the head.
    pub image: String,
    /// Levels of compression, instead of the defaults.
    pub levels: Vec<CompressionMethod>,
    /// The progress of the job, to watch and cancel it.
    pub progress: Progress,
}

/// The reason why a manifest could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] buttress_fs::Error),
    /// The text could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A part of the image that is not in the manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// An entry that cannot be read.
    #[error(transparent)]
    Failed(#[from] WalkError),
    /// An entry that can be read, but has no form in a manifest.
    #[error("{path}: {what}")]
    LeftOut {
        /// The path of the part.
        path: String,
        /// The part that was left out.
        what: &'static str,
    },
}

/// Writes the manifest of a volume, from its top level on. Passes everything that the manifest
/// leaves out to `lost`.
///
/// # Errors
/// Fails if the volume's own trees cannot be read, or if writing fails.
pub fn write(
    filesystem: &Filesystem,
    options: &Options,
    out: &mut dyn Write,
    lost: &mut dyn FnMut(Lost),
) -> Result<(), WriteError> {
    out.write_all(head(filesystem, options).as_bytes())?;
    let subvolumes = filesystem.subvolumes()?;
    let default = filesystem.default_subvolume()?;
    let snapshots = unchanged_snapshots(filesystem, &subvolumes, options)?;
    let subvolumes: HashMap<SubvolumeId, SubvolumeInfo> =
        subvolumes.into_iter().map(|info| (info.id, info)).collect();
    let writer = Writer {
        subvolumes,
        default,
        snapshots,
        levels: &options.levels,
    };
    let start = filesystem.root_directory(SubvolumeId::TOP_LEVEL);
    let walk = WalkOptions {
        order: WalkOrder::Depth,
        progress: options.progress.clone(),
        ..WalkOptions::without_content()
    };
    // If set, all entries below this directory belong to a snapshot that is written as one.
    let mut inside: Option<Vec<u8>> = None;
    let mut text = String::new();
    for item in filesystem.walk(start, walk) {
        let mut entry = match item {
            WalkItem::Entry(entry) => *entry,
            WalkItem::Failed(error) => {
                lost(error.into());
                continue;
            }
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
        };
        let path = entry.path();
        if let Some(directory) = &inside {
            if path
                .strip_prefix(directory.as_slice())
                .is_some_and(|rest| rest.first() == Some(&b'/'))
            {
                continue;
            }
            inside = None;
        }
        text.clear();
        if writer.entry(&mut text, &mut entry, &path, lost) {
            inside = Some(path);
        }
        out.write_all(text.as_bytes())?;
    }
    options.progress.check()?;
    Ok(())
}

/// Returns the snapshots, by their id, that share all content with their source, which precedes
/// them in the walk.
fn unchanged_snapshots(
    filesystem: &Filesystem,
    all: &[SubvolumeInfo],
    options: &Options,
) -> Result<HashMap<SubvolumeId, Vec<u8>>, WriteError> {
    let mut found = HashMap::new();
    let by_uuid: BTreeMap<_, &SubvolumeInfo> =
        all.iter().filter_map(|info| Some((info.uuid()?, info))).collect();
    for info in all {
        let source = info.parent_uuid().and_then(|uuid| by_uuid.get(&uuid));
        let (Some(source), Some(_)) = (source, &info.path) else {
            continue;
        };
        let Some(path) = source.path.as_ref().filter(|path| !path.is_empty()) else {
            continue;
        };
        if source.id == info.id {
            continue;
        }
        let changed = filesystem.changed_inodes(source.id, info.id, &options.progress)?;
        if changed.is_some_and(|changed| changed.is_empty()) {
            found.insert(info.id, path.clone());
        }
    }
    Ok(found)
}

/// Whether the volume has unallocated space after its last device extent, as an image of the smallest
/// size has not.
fn has_unallocated_end(filesystem: &Filesystem) -> bool {
    let chunks = filesystem.volume().chunk_map();
    let ends = chunks.chunks().iter().flat_map(|chunk| {
        let length = chunk.layout().device_extent_bytes().get();
        let stripes = chunk.chunk().stripes.iter();
        // Clamp: an end past the last address is past every device.
        stripes.map(move |stripe| stripe.physical.get().saturating_add(length))
    });
    let size = filesystem.superblock().total_bytes.get();
    let unallocated = ends.max().and_then(|end| size.checked_sub(end));
    unallocated.is_some_and(|bytes| bytes >= STRIPE_BYTES)
}

/// Returns the head, which describes the volume.
fn head(filesystem: &Filesystem, options: &Options) -> String {
    let superblock = filesystem.superblock();
    let mut text = String::from("manifest = 1\n\n[volume]\n");
    if !superblock.label.is_empty() {
        key(&mut text, "label", &String::from_utf8_lossy(&superblock.label));
    }
    key(&mut text, "uuid", &superblock.fsid.hyphenated().to_string());
    key(&mut text, "checksum", checksum_name(&superblock));
    let _ = writeln!(text, "node-size = {}", superblock.node_bytes);
    let _ = writeln!(text, "sector-size = {}", superblock.sector_bytes);
    if superblock.num_devices == 1 {
        let _ = writeln!(text, "size = {}", superblock.total_bytes.get());
        if !has_unallocated_end(filesystem) {
            text.push_str("# If the image was made with --shrink, give --shrink again for the same bytes.\n");
        }
    }
    let mixed = superblock.incompat.contains(Incompat::MIXED_GROUPS);
    let chunks = filesystem.volume().chunk_map();
    let profile = |kind: BlockGroupFlags| {
        let chunk = chunks.chunks().iter().find(|chunk| chunk.flags().contains(kind));
        chunk.and_then(|chunk| chunk.flags().profile())
    };
    if let Some(profile) = profile(BlockGroupFlags::DATA) {
        key(&mut text, "data", &profile.name().to_lowercase());
    }
    if let Some(profile) = profile(BlockGroupFlags::METADATA) {
        key(&mut text, "metadata", &profile.name().to_lowercase());
    }
    if mixed {
        text.push_str("mixed = true\n");
    }
    let unusual = Feature::ALL.into_iter().filter_map(|feature| {
        let has = match feature {
            Feature::ExtendedReferences => superblock.incompat.contains(Incompat::EXTENDED_IREF),
            Feature::SkinnyMetadata => superblock.incompat.contains(Incompat::SKINNY_METADATA),
            Feature::NoHoles => superblock.incompat.contains(Incompat::NO_HOLES),
            Feature::FreeSpaceTree => superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE),
            Feature::BlockGroupTree => superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE),
            // In a manifest, the keys of profiles and `mixed` express these features.
            _ => return None,
        };
        match (has, feature.is_default()) {
            (true, false) => Some(format!("\"{}\"", feature.name())),
            (false, true) => Some(format!("\"^{}\"", feature.name())),
            _ => None,
        }
    });
    if let Some(quotas) = quotas(filesystem) {
        key(&mut text, "quotas", quotas);
    }
    let unusual: Vec<String> = unusual.collect();
    if !unusual.is_empty() {
        let _ = writeln!(text, "features = [{}]", unusual.join(", "));
    }
    text.push_str("\n[contents]\n");
    key(&mut text, "image", &options.image);
    text
}

/// Returns the enabled quotas.
fn quotas(filesystem: &Filesystem) -> Option<&'static str> {
    let tree = filesystem.tree(TreeId::QUOTA).ok()?;
    let item = tree.get(&QgroupStatus::KEY).ok()??;
    let status = QgroupStatus::parse(&QgroupStatus::KEY, item.data()).ok()?;
    let is = |flag| status.flags.contains(flag);
    match (is(QgroupStatusFlags::ON), is(QgroupStatusFlags::SIMPLE_MODE)) {
        (false, _) => None,
        (true, false) => Some("full"),
        (true, true) => Some("simple"),
    }
}

fn checksum_name(superblock: &buttress_format::Superblock) -> &'static str {
    match superblock.checksum_type {
        buttress_format::ChecksumType::Crc32c => "crc32c",
        buttress_format::ChecksumType::Xxhash64 => "xxhash",
        buttress_format::ChecksumType::Sha256 => "sha256",
        buttress_format::ChecksumType::Blake2b => "blake2",
    }
}

struct Writer<'a> {
    subvolumes: HashMap<SubvolumeId, SubvolumeInfo>,
    default: SubvolumeId,
    snapshots: HashMap<SubvolumeId, Vec<u8>>,
    levels: &'a [CompressionMethod],
}

impl Writer<'_> {
    /// Writes the table of an entry to the manifest. Returns true if the table already covers
    /// everything below.
    fn entry(
        &self,
        text: &mut String,
        entry: &mut WalkEntry,
        path: &[u8],
        lost: &mut dyn FnMut(Lost),
    ) -> bool {
        let metadata = entry.metadata().clone();
        let mut left_out = |what| {
            lost(Lost::LeftOut {
                path: format!("/{}", String::from_utf8_lossy(path)),
                what,
            });
        };
        if let Some(first) = &entry.hard_link {
            text.push_str("\n[[hard-link]]\n");
            bytes_key(text, "path", &[b"/", path].concat());
            bytes_key(text, "to", &[b"/", &**first].concat());
            return false;
        }
        match metadata.kind {
            FileKind::Directory => return self.directory(text, entry, &metadata, path),
            FileKind::Regular => {
                table(text, "file", path);
                let ranges = entry.record.extents.as_deref();
                if ranges.is_some_and(|ranges| {
                    ranges
                        .iter()
                        .any(|range| matches!(range.kind, RangeKind::Preallocated(_)))
                }) {
                    left_out("its preallocated ranges become holes");
                }
                let _ = writeln!(text, "size = {}", metadata.size.get());
                if let Some(method) = ranges.and_then(compression) {
                    let method = self
                        .levels
                        .iter()
                        .find(|known| known.compression() == method)
                        .copied();
                    let method = method.or_else(|| ranges.and_then(compression).map(CompressionMethod::new));
                    if let Some(method) = method {
                        let name = method.compression().name();
                        let level = match method.level() {
                            0 => String::new(),
                            level => format!(":{level}"),
                        };
                        key(text, "compression", &format!("{name}{level}"));
                    }
                }
            }
            FileKind::Symlink => {
                let Ok(target) = entry.link_target() else {
                    left_out("its target is unreadable");
                    return false;
                };
                table(text, "symlink", path);
                bytes_key(text, "target", &target);
            }
            FileKind::CharacterDevice | FileKind::BlockDevice => {
                table(text, "device", path);
                let is_block = metadata.kind == FileKind::BlockDevice;
                key(text, "kind", if is_block { "block" } else { "character" });
                if let Some(device) = metadata.device {
                    let _ = writeln!(text, "major = {}\nminor = {}", device.major, device.minor);
                }
            }
            FileKind::Fifo => table(text, "fifo", path),
            FileKind::Socket => table(text, "socket", path),
            FileKind::Unknown | FileKind::Xattr => {
                left_out("its mode has no valid file type");
                return false;
            }
        }
        attributes(text, &metadata, entry.xattrs());
        false
    }

    fn directory(&self, text: &mut String, entry: &WalkEntry, metadata: &Metadata, path: &[u8]) -> bool {
        let Location { subvolume, inode, .. } = metadata.location;
        let info = self.subvolumes.get(&subvolume);
        let root = info.filter(|info| metadata.created.is_some() && info.root_item.root_directory == inode);
        let Some(info) = root else {
            table(text, "directory", path);
            attributes(text, metadata, entry.xattrs());
            return false;
        };
        let snapshot = self.snapshots.get(&subvolume);
        if let Some(source) = snapshot {
            table(text, "snapshot", path);
            bytes_key(text, "of", &[b"/", source.as_slice()].concat());
        } else {
            table(text, "subvolume", path);
        }
        if info.is_read_only() {
            text.push_str("read-only = true\n");
        }
        if subvolume == self.default && subvolume != SubvolumeId::TOP_LEVEL {
            text.push_str("default = true\n");
        }
        if snapshot.is_none() {
            attributes(text, metadata, entry.xattrs());
        }
        snapshot.is_some()
    }
}

/// Returns the method of the first compressed range.
fn compression(ranges: &[FileRange]) -> Option<Compression> {
    ranges.iter().find_map(|range| {
        let compression = match &range.kind {
            RangeKind::Inline(content) => content.compression,
            RangeKind::Data(extent) => extent.compression,
            _ => return None,
        };
        (compression != Compression::None).then_some(compression)
    })
}

fn table(text: &mut String, name: &str, path: &[u8]) {
    let _ = writeln!(text, "\n[[{name}]]");
    bytes_key(text, "path", &[b"/", path].concat());
}

fn attributes(text: &mut String, metadata: &Metadata, xattrs: &[Xattr]) {
    if metadata.kind != FileKind::Symlink || metadata.permissions() != 0o777 {
        let _ = writeln!(text, "mode = \"{:04o}\"", metadata.permissions());
    }
    if metadata.uid != 0 {
        let _ = writeln!(text, "owner = {}", metadata.uid);
    }
    if metadata.gid != 0 {
        let _ = writeln!(text, "group = {}", metadata.gid);
    }
    let _ = writeln!(text, "time = {}", time::write(metadata.modified));
    let further: [(&str, Option<Timestamp>); 3] = [
        ("accessed", Some(metadata.accessed)),
        ("changed", Some(metadata.changed)),
        ("created", metadata.created),
    ];
    for (key, moment) in further {
        if let Some(moment) = moment.filter(|moment| *moment != metadata.modified) {
            let _ = writeln!(text, "{key} = {}", time::write(moment));
        }
    }
    let known = FLAGS
        .into_iter()
        .filter(|(_, flag)| metadata.flags.contains(*flag));
    let names: Vec<String> = known.map(|(name, _)| format!("\"{name}\"")).collect();
    if !names.is_empty() && !metadata.flags.contains(InodeFlags::ROOT_ITEM_INIT) {
        let _ = writeln!(text, "flags = [{}]", names.join(", "));
    }
    let mut sorted: Vec<&Xattr> = xattrs.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let (named, others): (Vec<&Xattr>, Vec<&Xattr>) = sorted
        .into_iter()
        .partition(|xattr| std::str::from_utf8(&xattr.name).is_ok());
    if !named.is_empty() {
        let pairs: Vec<String> = named.into_iter().map(pair).collect();
        let _ = writeln!(text, "xattrs = {{ {} }}", pairs.join(", "));
    }
    if !others.is_empty() {
        let both = |xattr: &Xattr| {
            format!(
                "[\"{}\", \"{}\"]",
                base64::encode(&xattr.name),
                base64::encode(&xattr.value)
            )
        };
        let pairs: Vec<String> = others.into_iter().map(both).collect();
        let _ = writeln!(text, "xattrs-base64 = [{}]", pairs.join(", "));
    }
}

fn pair(xattr: &Xattr) -> String {
    let name = quoted(&String::from_utf8_lossy(&xattr.name));
    match std::str::from_utf8(&xattr.value) {
        Ok(value) if !value.contains(|character: char| character.is_control()) => {
            format!("{name} = {}", quoted(value))
        }
        _ => format!("{name} = {{ base64 = \"{}\" }}", base64::encode(&xattr.value)),
    }
}

fn key(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name} = {}", quoted(value));
}

/// Writes a key with bytes: as text, or as base64 if they are no text.
fn bytes_key(text: &mut String, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(value) => key(text, name, value),
        Err(_) => {
            let _ = writeln!(text, "{name}-base64 = \"{}\"", base64::encode(bytes));
        }
    }
}

/// Returns a basic string of TOML. Escapes also the characters that could control a terminal.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len().saturating_add(2));
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            _ if buttress_format::printable::is_printable(character) => text.push(character),
            _ => {
                let _ = write!(text, "\\U{:08X}", u32::from(character));
            }
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// TOML reads back the written text, whatever a name is.
        #[test]
        fn quoted_text_is_read_back_by_toml(value in proptest::prelude::any::<String>()) {
            let table: toml::Table = toml::from_str(&format!("a = {}", quoted(&value))).unwrap();
            proptest::prop_assert_eq!(table["a"].as_str(), Some(value.as_str()));
        }
    }
}
