//! Items of the extent tree: extents with inline references, separate references, and block groups.
//!
//! Source: on-disk format documentation, sections EXTENT_ITEM, METADATA_ITEM and the references
//! after them.

use buttress::unstable::format::checksum::extent_data_reference_hash;
use buttress::unstable::format::{ItemType, Key};
use buttress::{InodeNumber, TreeId};

use super::fields::{Fields, Short};
use super::flags;
use super::sink::Sink;
use super::value::{Hex, Owner};

const TREE_BLOCK: u64 = 1 << 1;

/// Prints an EXTENT_ITEM or METADATA_ITEM.
pub(super) fn extent_item(sink: &mut impl Sink, key: &Key, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (references, generation, flags) = (fields.u64()?, fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.field("refs", references);
    sink.field("gen", generation);
    sink.field("flags", flags::extent(flags));
    sink.end();
    if key.item_type == ItemType::METADATA_ITEM {
        sink.begin(2);
        sink.words("tree block skinny");
        // In a METADATA_ITEM's key, the offset is the level.
        sink.field("level", key.offset);
        sink.end();
    } else if flags & TREE_BLOCK != 0 {
        let (first_key, level) = (fields.key()?, fields.u8()?);
        sink.begin(2);
        sink.words("tree block");
        sink.bare("first key", first_key);
        sink.field("level", level);
        sink.end();
    }
    sink.begin_list("inline refs");
    while fields.rest_bytes() > 0 {
        if !inline_reference(sink, &mut fields)? {
            break;
        }
    }
    sink.end_list();
    Ok(())
}

/// Prints one inline reference. Returns false for an unknown type, because the rest then has no
/// known format.
fn inline_reference(sink: &mut impl Sink, fields: &mut Fields<'_>) -> Result<bool, Short> {
    let item_type = ItemType(fields.u8()?);
    match item_type {
        ItemType::TREE_BLOCK_REF => {
            let root = fields.u64()?;
            begin_reference(sink, 2, item_type, root);
            sink.words("tree block backref");
            sink.field("root", Owner(root));
        }
        ItemType::SHARED_BLOCK_REF => {
            let parent = fields.u64()?;
            begin_reference(sink, 2, item_type, parent);
            sink.words("shared block backref");
            sink.field("parent", parent);
        }
        ItemType::EXTENT_DATA_REF => {
            let (root, inode) = (fields.u64()?, fields.u64()?);
            let (offset, count) = (fields.u64()?, fields.u32()?);
            begin_reference(
                sink,
                2,
                item_type,
                extent_data_reference_hash(TreeId::new(root), InodeNumber::new(inode), offset),
            );
            sink.words("extent data backref");
            data_reference(sink, root, inode, offset, count);
        }
        ItemType::SHARED_DATA_REF => {
            let (parent, count) = (fields.u64()?, fields.u32()?);
            begin_reference(sink, 2, item_type, parent);
            sink.words("shared data backref");
            sink.field("parent", parent);
            sink.field("count", count);
        }
        ItemType::EXTENT_OWNER_REF => {
            let root = fields.u64()?;
            // btrfs-progs 6.14 prints one tab and "textent" here, and scripts expect it.
            begin_reference(sink, 1, item_type, root);
            sink.words("textent owner");
            sink.field("root", root);
        }
        _ => return Ok(false),
    }
    sink.end();
    Ok(true)
}

fn begin_reference(sink: &mut impl Sink, indent_tabs: usize, item_type: ItemType, order: u64) {
    sink.next_entry();
    sink.begin(indent_tabs);
    sink.words("(");
    sink.joined("type", item_type.0);
    sink.bare("order", Hex(order));
    sink.punctuation(")");
    sink.hidden("type name", item_type.name().unwrap_or("UNKNOWN"));
}

fn data_reference(sink: &mut impl Sink, root: u64, inode: u64, offset: u64, count: u32) {
    sink.field("root", Owner(root));
    sink.field("objectid", inode);
    sink.field("offset", offset);
    sink.field("count", count);
}

/// Prints a separate EXTENT_DATA_REF item.
pub(super) fn extent_data_ref(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (root, inode) = (fields.u64()?, fields.u64()?);
    let (offset, count) = (fields.u64()?, fields.u32()?);
    sink.begin(2);
    sink.words("extent data backref");
    data_reference(sink, root, inode, offset, count);
    sink.end();
    Ok(())
}

/// Prints a separate SHARED_DATA_REF item.
pub(super) fn shared_data_ref(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let count = Fields::new(data).u32()?;
    sink.begin(2);
    sink.words("shared data backref");
    sink.field("count", count);
    sink.end();
    Ok(())
}

/// Prints a separate EXTENT_OWNER_REF item.
pub(super) fn extent_owner_ref(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let root = Fields::new(data).u64()?;
    sink.begin(2);
    sink.words("extent owner");
    sink.field("root", root);
    sink.end();
    Ok(())
}

/// Prints a BLOCK_GROUP_ITEM.
pub(super) fn block_group_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (used, chunk_object, flags) = (fields.u64()?, fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.words("block group");
    sink.field("used", used);
    sink.field("chunk_objectid", chunk_object);
    sink.field("flags", flags::block_group(flags));
    sink.end();
    Ok(())
}
