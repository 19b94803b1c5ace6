//! Structures of a volume in the text of btrfs-progs, or as JSON.
//!
//! Each module prints the items of one group from their bytes into a [`Sink`]: text or JSON. The
//! printer prints the bytes on disk, whether valid or not. An item that ends before its last field
//! is a [`Damage`], as is an item whose data exceeds its block. After damage, the dump still prints
//! the remaining items of the block.
//!
//! - [`sink`]: lines of named fields, as text or JSON; [`value`]: values of fields; [`fields`]:
//!   parsing of fields; [`flags`], [`key`], [`time`]: formats of single values.
//! - [`inode`], [`root`], [`extent`], [`chunk`], [`space`], [`quota`], [`state`]: items.
//! - [`superblock`].
//!
//! Left out: the selection and order of blocks, which `dump_tree` determines.

pub(super) mod chunk;
pub(super) mod extent;
pub(super) mod fields;
pub(super) mod flags;
pub(super) mod inode;
pub(super) mod key;
pub(super) mod quota;
pub(super) mod root;
pub(super) mod sink;
pub(super) mod space;
pub(super) mod state;
pub(super) mod superblock;
pub(super) mod time;
pub(super) mod value;

use buttress::unstable::format::node::{Item, TreeBlock};
use buttress::unstable::format::{ItemType, Key, ObjectId};

use fields::Short;
use sink::Sink;
use value::{Hex, HexBytes, Owner};

/// Options of printing, and the properties of the volume that it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Hides names and values of extended attributes.
    pub(super) hide_names: bool,
    /// Shows the checksum of each block.
    pub(super) checksum_headers: bool,
    /// Shows each data checksum.
    pub(super) checksum_items: bool,
    /// Size of a checksum in bytes.
    pub(super) checksum_bytes: usize,
    /// Size of the data under one checksum in bytes.
    pub(super) sector_bytes: u32,
    /// True if the volume has simple quotas, whose status contains the generation of their start.
    pub(super) simple_quotas: bool,
}

/// An item that could not be printed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("block {block} slot {slot}: {key}: {problem}")]
pub(super) struct Damage {
    block: u64,
    slot: usize,
    key: String,
    problem: ItemDamage,
}

#[derive(Clone, Debug, thiserror::Error)]
enum ItemDamage {
    #[error("{0}")]
    Short(#[from] Short),
    #[error("its data is outside of the block")]
    OutsideBlock,
}

/// Prints a block: its header, then its items or pointers. Returns the unprintable items.
pub(super) fn block(sink: &mut impl Sink, block: &TreeBlock, options: &Options) -> Vec<Damage> {
    header(sink, block, options);
    let mut damages = Vec::new();
    if block.is_leaf() {
        sink.begin_list("items");
        for slot in 0..block.item_count() {
            let problem = match block.item(slot) {
                Some(item) => leaf_item(sink, slot, &item, options).err().map(ItemDamage::Short),
                None => Some(ItemDamage::OutsideBlock),
            };
            if let Some(problem) = problem {
                // The list of items stays open when an item is abandoned.
                sink.abandon(1);
                let key = block.key(slot).map_or_else(String::new, |key| key.to_string());
                damages.push(Damage {
                    block: block.logical().get(),
                    slot,
                    key,
                    problem,
                });
            }
        }
    } else {
        sink.begin_list("pointers");
        for pointer in block.pointers() {
            sink.next_entry();
            sink.begin(1);
            sink.bare("key", pointer.key);
            sink.field("block", pointer.logical.get());
            sink.field("gen", pointer.generation.get());
            sink.end();
        }
    }
    sink.end_list();
    damages
}

fn header(sink: &mut impl Sink, block: &TreeBlock, options: &Options) {
    let header = block.header();
    let kind = if block.is_leaf() { "leaf" } else { "node" };
    sink.hidden("kind", kind);
    sink.begin(0);
    sink.words(kind);
    sink.bare("block", header.logical.get());
    if block.is_leaf() {
        sink.hidden("level", header.level);
    } else {
        sink.field("level", header.level);
    }
    let count_name = if block.is_leaf() {
        "item count"
    } else {
        "pointer count"
    };
    sink.words("items");
    sink.bare(count_name, header.item_count);
    sink.field("free space", block.free_space() as u64);
    sink.field("generation", header.generation.get());
    sink.field("owner", Owner(header.owner.get()));
    sink.end();
    sink.begin(0);
    sink.words(kind);
    sink.words_number(header.logical.get());
    let flags = header.flags.bits();
    sink.field("flags", Hex(flags));
    inode::parenthesised(sink, "flag names", flags::header(flags));
    sink.field("backref revision", header.backref_revision);
    if options.checksum_headers {
        sink.field("csum", HexBytes(header.checksum.as_bytes()));
    }
    sink.end();
    sink.begin(0);
    sink.field("fs uuid", header.fsid);
    sink.end();
    sink.begin(0);
    sink.field("chunk uuid", header.chunk_tree_uuid);
    sink.end();
}

fn leaf_item(sink: &mut impl Sink, slot: usize, item: &Item<'_>, options: &Options) -> Result<(), Short> {
    sink.next_entry();
    sink.begin(1);
    sink.field("item", slot as u64);
    sink.bare("key", item.key);
    sink.field("itemoff", item.offset);
    sink.field("itemsize", item.data.len() as u64);
    sink.end();
    item_body(sink, &item.key, item.data, options)
}

/// Prints the content of an item. Items of types without a known format print nothing.
fn item_body(sink: &mut impl Sink, key: &Key, data: &[u8], options: &Options) -> Result<(), Short> {
    match key.item_type {
        ItemType(0) if key.objectid == ObjectId::FREE_SPACE => space::cache_header(sink, data),
        ItemType::INODE_ITEM => inode::inode_item(sink, data),
        ItemType::INODE_REF => inode::inode_ref(sink, data, options),
        ItemType::INODE_EXTREF => inode::inode_extref(sink, data, options),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            inode::dir_item(sink, data, options)
        }
        ItemType::EXTENT_DATA => inode::file_extent(sink, data),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => inode::dir_log(sink, data),
        ItemType::EXTENT_CSUM => space::checksums(sink, key, data, options),
        ItemType::ROOT_ITEM => root::root_item(sink, data),
        ItemType::ROOT_REF => root::root_ref(sink, data, "ref", options),
        ItemType::ROOT_BACKREF => root::root_ref(sink, data, "backref", options),
        ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => root::uuid_item(sink, data),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent::extent_item(sink, key, data),
        ItemType::EXTENT_DATA_REF => extent::extent_data_ref(sink, data),
        ItemType::SHARED_DATA_REF => extent::shared_data_ref(sink, data),
        ItemType::EXTENT_OWNER_REF => extent::extent_owner_ref(sink, data),
        ItemType::BLOCK_GROUP_ITEM => extent::block_group_item(sink, data),
        ItemType::FREE_SPACE_INFO => space::info(sink, data),
        ItemType::CHUNK_ITEM => chunk::chunk_item(sink, data),
        ItemType::DEV_ITEM => chunk::device_item(sink, data),
        ItemType::DEV_EXTENT => chunk::device_extent(sink, data),
        ItemType::RAID_STRIPE => chunk::raid_stripe(sink, data),
        ItemType::QGROUP_STATUS => quota::status(sink, data, options),
        ItemType::QGROUP_INFO => quota::info(sink, data),
        ItemType::QGROUP_LIMIT => quota::limit(sink, data),
        ItemType::PERSISTENT_ITEM => state::persistent(sink, key, data),
        ItemType::TEMPORARY_ITEM => state::temporary(sink, key, data),
        ItemType::DEV_REPLACE => state::replace(sink, data),
        ItemType::STRING_ITEM => {
            root::string_item(sink, data);
            Ok(())
        }
        _ => {
            named_only(sink, key.item_type);
            Ok(())
        }
    }
}

/// Prints the name of an item type whose items have no content.
fn named_only(sink: &mut impl Sink, item_type: ItemType) {
    let words = match item_type {
        ItemType::ORPHAN_ITEM => "orphan item",
        ItemType::TREE_BLOCK_REF => "tree block backref",
        ItemType::SHARED_BLOCK_REF => "shared block backref",
        ItemType::FREE_SPACE_EXTENT => "free space extent",
        ItemType::FREE_SPACE_BITMAP => "free space bitmap",
        key::EXTENT_REF_V0 => "extent ref v0 (deprecated)",
        key::CSUM_ITEM => "csum item",
        _ => return,
    };
    sink.begin(2);
    sink.words(words);
    sink.end();
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the numbers are the test's own, and small"
)]
mod tests {
    use super::*;
    use buttress::unstable::format::superblock::{SUPERBLOCK_BYTES, Superblock};

    const OPTIONS: Options = Options {
        hide_names: false,
        checksum_headers: true,
        checksum_items: true,
        checksum_bytes: 4,
        sector_bytes: 4096,
        simple_quotas: true,
    };

    /// Returns pseudo-random bytes with some small numbers, so that counts and lengths in them are
    /// sometimes plausible.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..length)
            .map(|_| {
                if next() % 3 == 0 {
                    next() as u8
                } else {
                    (next() % 3) as u8
                }
            })
            .collect()
    }

    #[test]
    fn any_bytes_are_printed_or_refused() {
        let seeds = buttress_oracle::seeds::seeds("print::items", "BUTTRESS_SEED", &Vec::from_iter(0..60));
        let objects = [0, 1, 256, u64::MAX - 3, u64::MAX - 10, u64::MAX - 12];
        for number in 0..=u8::MAX {
            for (index, seed) in seeds.iter().copied().enumerate() {
                let data = noise(seed + 1000 * u64::from(number), index * 9);
                let object = ObjectId::new(objects[index % objects.len()]);
                let key = Key::new(object, ItemType(number), seed);
                let (mut text, mut tree) = (sink::Text::default(), sink::Tree::default());
                let as_text = item_body(&mut text, &key, &data, &OPTIONS);
                let as_json = item_body(&mut tree, &key, &data, &OPTIONS);
                assert_eq!(as_text, as_json);
                // The output is bounded by the input: at most one line of text per few bytes.
                assert!(text.as_bytes().len() < 1000 + data.len() * 120);
            }
        }
    }

    #[test]
    fn an_item_that_is_cut_short_is_refused_at_every_length() {
        let whole = [
            (ItemType::INODE_ITEM, 160),
            (ItemType::ROOT_ITEM, 239),
            (ItemType::DEV_ITEM, 98),
            (ItemType::DEV_EXTENT, 48),
            (ItemType::BLOCK_GROUP_ITEM, 24),
            (ItemType::EXTENT_ITEM, 24),
            (ItemType::QGROUP_LIMIT, 40),
            (ItemType::DEV_REPLACE, 72),
            (ItemType::FREE_SPACE_INFO, 8),
        ];
        for (item_type, bytes) in whole {
            let key = Key::new(ObjectId::new(300), item_type, 0);
            for length in 0..=bytes {
                let mut text = sink::Text::default();
                let result = item_body(&mut text, &key, &vec![0; length], &OPTIONS);
                assert_eq!(result.is_ok(), length == bytes, "{item_type} of {length} bytes");
            }
        }
    }

    #[test]
    fn any_superblock_is_printed() {
        for seed in
            buttress_oracle::seeds::seeds("print::superblocks", "BUTTRESS_SEED", &Vec::from_iter(0..200))
        {
            let bytes = noise(seed, SUPERBLOCK_BYTES);
            let Ok(raw) = Superblock::raw(&bytes) else {
                panic!("it is long enough")
            };
            let (mut text, mut tree) = (sink::Text::default(), sink::Tree::default());
            let as_text = superblock::superblock(&mut text, raw, true);
            assert_eq!(as_text, superblock::superblock(&mut tree, raw, true));
            assert!(text.as_bytes().ends_with(b"\n\n"));
        }
    }
}
