//! Superblocks, field by field, whether valid or not.
//!
//! Source: on-disk format documentation, section "Superblock".

use buttress::ChecksumType;
use buttress::unstable::format::superblock::{
    RawBackupRoot, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC,
};
use buttress::unstable::format::{ItemType, Key};
use buttress_exact::Exact as _;
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::chunk;
use super::fields::Fields;
use super::flags;
use super::inode::Parenthesised;
use super::sink::{Sink, Text};
use super::value::{Hex, HexBytes, Value};

/// Size of the checksum field in bytes.
const CHECKSUM_FIELD_BYTES: usize = 32;
/// Feature flag: tree blocks contain a separate metadata uuid.
const METADATA_UUID: u64 = 1 << 10;
/// Feature flag: the backup roots contain the block group tree instead of the extent tree.
const EXTENT_TREE_V2: u64 = 1 << 13;

/// Damage in the array of system chunks; printing stops at the damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArrayDamage {
    /// The array is longer than its field.
    #[error("sys_array_size is too large (found {size_bytes} bytes, expected at most {most_bytes})")]
    Size {
        /// Length that the superblock states, in bytes.
        size_bytes: usize,
        /// Size of the field in bytes.
        most_bytes: usize,
    },
    /// The system chunk array ends inside an entry.
    #[error("sys_array is too short for {need_bytes} bytes at offset {offset_bytes}")]
    Short {
        /// Size of the entry in bytes.
        need_bytes: usize,
        /// Offset of the entry in the array.
        offset_bytes: usize,
    },
    /// An entry is not a chunk.
    #[error("unexpected item type {item_type} in sys_array at offset {offset_bytes}")]
    ItemType {
        /// Item type of the entry.
        item_type: u8,
        /// Offset of the entry in the array.
        offset_bytes: usize,
    },
    /// A chunk has no stripes.
    #[error("the chunk in sys_array at offset {offset_bytes} has no stripes")]
    NoStripes {
        /// Offset of the chunk in the array.
        offset_bytes: usize,
    },
}

/// Prints a superblock; `full` adds system chunks and backup roots.
pub(crate) fn superblock(sink: &mut impl Sink, raw: &RawSuperblock, full: bool) -> Result<(), ArrayDamage> {
    checksum(sink, raw);
    identity(sink, raw);
    trees_and_sizes(sink, raw);
    features(sink, raw);
    device(sink, raw);
    if !full {
        return Ok(());
    }
    let array = system_chunks(sink, raw);
    line(sink, "backup_roots[4]:");
    sink.begin_list("backup_roots");
    for (index, backup) in raw.super_roots.iter().enumerate() {
        sink.next_entry();
        backup_root(
            sink,
            index,
            backup,
            raw.incompat_flags.get() & EXTENT_TREE_V2 != 0,
        );
    }
    sink.end_list();
    array
}

fn line(sink: &mut impl Sink, words: &str) {
    sink.begin(0);
    sink.words(words);
    sink.end();
}

/// Prints `name`, tabs up to column 24, and the value.
fn column(sink: &mut impl Sink, name: &str, value: impl Value) {
    open_column(sink, name);
    sink.joined(name, value);
    sink.end();
}

fn open_column(sink: &mut impl Sink, name: &str) {
    const TAB_COLUMNS: usize = 8;
    const VALUE_COLUMN: usize = 24;
    let tabs = VALUE_COLUMN
        .saturating_sub(name.len())
        .div_ceil(TAB_COLUMNS)
        .max(1);
    sink.begin(0);
    sink.punctuation(name);
    for _ in 0..tabs {
        sink.punctuation("\t");
    }
}

fn verdict(sink: &mut impl Sink, name: &str, matches: bool) {
    sink.punctuation(if matches { " [match]" } else { " [DON'T MATCH]" });
    sink.hidden(name, Flag(matches));
}

/// A flag, printed as yes or no.
struct Flag(bool);

impl Value for Flag {
    fn text(&self, out: &mut Text) {
        out.push(if self.0 { "true" } else { "false" });
    }

    fn json(&self) -> serde_json::Value {
        self.0.into()
    }
}

/// Bytes, printed with a dot for each unprintable one.
struct Dotted<'a>(&'a [u8]);

impl Value for Dotted<'_> {
    fn text(&self, out: &mut Text) {
        for byte in self.0 {
            out.push_bytes(if matches!(byte, b' '..=b'~') {
                std::slice::from_ref(byte)
            } else {
                b"."
            });
        }
    }

    fn json(&self) -> serde_json::Value {
        String::from_utf8_lossy(self.0).into_owned().into()
    }
}

fn checksum(sink: &mut impl Sink, raw: &RawSuperblock) {
    let number = raw.csum_type.get();
    let known = ChecksumType::from_raw(number);
    open_column(sink, "csum_type");
    sink.joined("csum_type", number);
    sink.bare(
        "csum_type_name",
        Parenthesised(known.map_or("INVALID", ChecksumType::name)),
    );
    sink.end();
    let size = known.map_or(CHECKSUM_FIELD_BYTES, ChecksumType::size_bytes);
    column(sink, "csum_size", size as u64);
    open_column(sink, "csum");
    sink.joined("csum", HexBytes(raw.csum.get(..size).unwrap_or(&raw.csum)));
    match known {
        Some(checksum_type) => {
            let covered = raw
                .as_bytes()
                .get(CHECKSUM_FIELD_BYTES..SUPERBLOCK_BYTES)
                .unwrap_or_default();
            let computed = checksum_type.compute(covered);
            verdict(sink, "csum_match", raw.csum.starts_with(computed.as_bytes()));
        }
        None => sink.punctuation(" [UNKNOWN CSUM TYPE OR SIZE]"),
    }
    sink.end();
}

fn identity(sink: &mut impl Sink, raw: &RawSuperblock) {
    column(sink, "bytenr", raw.bytenr.get());
    flag_lines(sink, "flags", raw.flags.get(), flags::SUPERBLOCK_FLAGS);
    open_column(sink, "magic");
    sink.joined("magic", Dotted(&raw.magic));
    verdict(sink, "magic_match", raw.magic == SUPERBLOCK_MAGIC);
    sink.end();
    column(sink, "fsid", Uuid::from_bytes(raw.fsid));
    column(sink, "metadata_uuid", Uuid::from_bytes(raw.metadata_uuid));
    column(
        sink,
        "label",
        Dotted(raw.label.split(|byte| *byte == 0).next().unwrap_or_default()),
    );
}

fn trees_and_sizes(sink: &mut impl Sink, raw: &RawSuperblock) {
    column(sink, "generation", raw.generation.get());
    column(sink, "root", raw.root.get());
    column(sink, "sys_array_size", raw.sys_chunk_array_size.get());
    column(sink, "chunk_root_generation", raw.chunk_root_generation.get());
    column(sink, "root_level", raw.root_level);
    column(sink, "chunk_root", raw.chunk_root.get());
    column(sink, "chunk_root_level", raw.chunk_root_level);
    column(sink, "log_root", raw.log_root.get());
    column(sink, "log_root_transid (deprecated)", raw.log_root_transid.get());
    column(sink, "log_root_level", raw.log_root_level);
    column(sink, "total_bytes", raw.total_bytes.get());
    column(sink, "bytes_used", raw.bytes_used.get());
    column(sink, "sectorsize", raw.sectorsize.get());
    column(sink, "nodesize", raw.nodesize.get());
    column(sink, "leafsize (deprecated)", raw.leafsize.get());
    column(sink, "stripesize", raw.stripesize.get());
    column(sink, "root_dir", raw.root_dir_objectid.get());
    column(sink, "num_devices", raw.num_devices.get());
}

fn features(sink: &mut impl Sink, raw: &RawSuperblock) {
    column(sink, "compat_flags", Hex(raw.compat_flags.get()));
    flag_lines(
        sink,
        "compat_ro_flags",
        raw.compat_ro_flags.get(),
        flags::COMPAT_RO_FEATURES,
    );
    flag_lines(
        sink,
        "incompat_flags",
        raw.incompat_flags.get(),
        flags::INCOMPAT_FEATURES,
    );
    column(sink, "cache_generation", raw.cache_generation.get());
    column(sink, "uuid_tree_generation", raw.uuid_tree_generation.get());
}

/// Prints a bit set: the number, a line for each name, and a line for all bits without a name.
fn flag_lines(sink: &mut impl Sink, name: &str, bits: u64, names: &[(u64, &str)]) {
    column(sink, name, Hex(bits));
    let mut lines: Vec<String> = names
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let unknown = bits & !names.iter().fold(0, |known, (bit, _)| known | bit);
    if unknown != 0 {
        lines.push(format!("unknown flag: {unknown:#x}"));
    }
    sink.hidden(&format!("{name}_names"), Strings(&lines));
    if lines.is_empty() {
        return;
    }
    sink.begin(3);
    sink.words("(");
    sink.words(&lines.join(" |\n\t\t\t  "));
    sink.words(")");
    sink.end();
}

/// A list of words.
struct Strings<'a>(&'a [String]);

impl Value for Strings<'_> {
    fn text(&self, out: &mut Text) {
        out.push(&self.0.join(" "));
    }

    fn json(&self) -> serde_json::Value {
        self.0.into()
    }
}

fn device(sink: &mut impl Sink, raw: &RawSuperblock) {
    let item = &raw.dev_item;
    let blocks_carry = if raw.incompat_flags.get() & METADATA_UUID != 0 {
        raw.metadata_uuid
    } else {
        raw.fsid
    };
    column(sink, "dev_item.uuid", Uuid::from_bytes(item.uuid));
    open_column(sink, "dev_item.fsid");
    sink.joined("dev_item.fsid", Uuid::from_bytes(item.fsid));
    verdict(sink, "dev_item.fsid_match", item.fsid == blocks_carry);
    sink.end();
    column(sink, "dev_item.type", item.device_type.get());
    column(sink, "dev_item.total_bytes", item.total_bytes.get());
    column(sink, "dev_item.bytes_used", item.bytes_used.get());
    column(sink, "dev_item.io_align", item.io_align.get());
    column(sink, "dev_item.io_width", item.io_width.get());
    column(sink, "dev_item.sector_size", item.sector_size.get());
    column(sink, "dev_item.devid", item.devid.get());
    column(sink, "dev_item.dev_group", item.dev_group.get());
    column(sink, "dev_item.seek_speed", item.seek_speed);
    column(sink, "dev_item.bandwidth", item.bandwidth);
    column(sink, "dev_item.generation", item.generation.get());
}

/// Sizes in bytes of a key, of a chunk without its stripes, and of a stripe; and the offset of a
/// chunk's stripe count.
const KEY_BYTES: usize = 17;
const CHUNK_BYTES: usize = 48;
const STRIPE_BYTES: usize = 32;
const STRIPE_COUNT_OFFSET: usize = 44;

fn system_chunks(sink: &mut impl Sink, raw: &RawSuperblock) -> Result<(), ArrayDamage> {
    let most_bytes = raw.sys_chunk_array.len();
    line(sink, &format!("sys_chunk_array[{most_bytes}]:"));
    sink.begin_list("sys_chunk_array");
    let size_bytes = raw.sys_chunk_array_size.get().narrow::<usize>();
    let result = match raw.sys_chunk_array.get(..size_bytes) {
        Some(array) => system_chunk_entries(sink, array),
        None => Err(ArrayDamage::Size {
            size_bytes,
            most_bytes,
        }),
    };
    sink.end_list();
    result
}

fn system_chunk_entries(sink: &mut impl Sink, array: &[u8]) -> Result<(), ArrayDamage> {
    let mut fields = Fields::new(array);
    let mut index = 0u64;
    while fields.rest_bytes() > 0 {
        let offset_bytes = fields.position();
        let key = fields.key().map_err(|_| ArrayDamage::Short {
            need_bytes: KEY_BYTES,
            offset_bytes,
        })?;
        sink.next_entry();
        sink.begin(1);
        sink.field("item", index);
        sink.bare("key", key);
        sink.end();
        let data = chunk_bytes(&mut fields, &key)?;
        // The length of the data follows from its own stripe count, so this cannot fail.
        let _ = chunk::chunk_item(sink, data);
        index = index.saturating_add(1);
    }
    Ok(())
}

/// Returns the bytes of the next chunk.
fn chunk_bytes<'a>(fields: &mut Fields<'a>, key: &Key) -> Result<&'a [u8], ArrayDamage> {
    let offset_bytes = fields.position();
    if key.item_type != ItemType::CHUNK_ITEM {
        return Err(ArrayDamage::ItemType {
            item_type: key.item_type.0,
            offset_bytes,
        });
    }
    let short = |need_bytes| ArrayDamage::Short {
        need_bytes,
        offset_bytes,
    };
    let mut head = Fields::new(fields.rest());
    head.bytes(STRIPE_COUNT_OFFSET)
        .map_err(|_| short(CHUNK_BYTES.saturating_add(STRIPE_BYTES)))?;
    let stripes = head
        .u16()
        .map_err(|_| short(CHUNK_BYTES.saturating_add(STRIPE_BYTES)))?;
    if stripes == 0 {
        return Err(ArrayDamage::NoStripes { offset_bytes });
    }
    let need_bytes = CHUNK_BYTES.saturating_add(usize::from(stripes).saturating_mul(STRIPE_BYTES));
    fields.bytes(need_bytes).map_err(|_| short(need_bytes))
}

fn backup_root(sink: &mut impl Sink, index: usize, backup: &RawBackupRoot, block_groups: bool) {
    sink.begin(1);
    sink.field("backup", index as u64);
    sink.punctuation(":");
    sink.end();
    let extent_name = if block_groups {
        "backup_block_group_root"
    } else {
        "backup_extent_root"
    };
    let trees = [
        (
            "backup_tree_root",
            backup.tree_root,
            backup.tree_root_gen,
            backup.tree_root_level,
        ),
        (
            "backup_chunk_root",
            backup.chunk_root,
            backup.chunk_root_gen,
            backup.chunk_root_level,
        ),
        (
            extent_name,
            backup.extent_root,
            backup.extent_root_gen,
            backup.extent_root_level,
        ),
        (
            "backup_fs_root",
            backup.fs_root,
            backup.fs_root_gen,
            backup.fs_root_level,
        ),
        (
            "backup_dev_root",
            backup.dev_root,
            backup.dev_root_gen,
            backup.dev_root_level,
        ),
        (
            "csum_root",
            backup.csum_root,
            backup.csum_root_gen,
            backup.csum_root_level,
        ),
    ];
    for (name, logical, generation, level) in trees {
        sink.begin(2);
        sink.punctuation(name);
        sink.punctuation(":\t");
        if name == "backup_fs_root" {
            sink.punctuation("\t");
        }
        sink.joined(name, logical.get());
        sink.punctuation("\tgen:");
        sink.bare(&format!("{name}_gen"), generation.get());
        sink.punctuation("\tlevel:");
        sink.bare(&format!("{name}_level"), level);
        sink.end();
    }
    for (name, number) in [
        ("backup_total_bytes", backup.total_bytes.get()),
        ("backup_bytes_used", backup.bytes_used.get()),
        ("backup_num_devices", backup.num_devices.get()),
    ] {
        sink.begin(2);
        sink.punctuation(name);
        sink.punctuation(":\t");
        sink.joined(name, number);
        sink.end();
    }
    sink.begin(0);
    sink.end();
}
