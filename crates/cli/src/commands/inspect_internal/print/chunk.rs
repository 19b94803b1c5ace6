//! Items of the chunk, device and stripe trees.
//!
//! Source: on-disk format documentation, sections CHUNK_ITEM, DEV_ITEM, DEV_EXTENT; "RAID stripe tree".

use super::fields::{Fields, Short};
use super::flags;
use super::sink::Sink;

/// Prints a CHUNK_ITEM, also from the superblock.
pub(super) fn chunk_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (length, owner, stripe_bytes, kind) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let (io_align, io_width, sector_bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (stripes, sub_stripes) = (fields.u16()?, fields.u16()?);
    sink.begin(2);
    sink.field("length", length);
    sink.field("owner", owner);
    sink.field("stripe_len", stripe_bytes);
    sink.field("type", flags::block_group(kind));
    sink.end();
    sink.begin(2);
    sink.field("io_align", io_align);
    sink.field("io_width", io_width);
    sink.field("sector_size", sector_bytes);
    sink.end();
    sink.begin(2);
    sink.field("num_stripes", stripes);
    sink.field("sub_stripes", sub_stripes);
    sink.end();
    sink.begin_list("stripes");
    for index in 0..stripes {
        let (device, offset, uuid) = (fields.u64()?, fields.u64()?, fields.uuid()?);
        sink.next_entry();
        sink.begin(3);
        sink.field("stripe", index);
        sink.field("devid", device);
        sink.field("offset", offset);
        sink.end();
        sink.begin(3);
        sink.field("dev_uuid", uuid);
        sink.end();
    }
    sink.end_list();
    Ok(())
}

/// Prints a DEV_ITEM.
pub(super) fn device_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin(2);
    for name in ["devid", "total_bytes", "bytes_used"] {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    sink.begin(2);
    for name in ["io_align", "io_width", "sector_size"] {
        sink.field(name, fields.u32()?);
    }
    sink.field("type", fields.u64()?);
    sink.end();
    sink.begin(2);
    sink.field("generation", fields.u64()?);
    sink.field("start_offset", fields.u64()?);
    sink.field("dev_group", fields.u32()?);
    sink.end();
    sink.begin(2);
    sink.field("seek_speed", fields.u8()?);
    sink.field("bandwidth", fields.u8()?);
    sink.end();
    for name in ["uuid", "fsid"] {
        sink.begin(2);
        sink.field(name, fields.uuid()?);
        sink.end();
    }
    Ok(())
}

/// Prints a DEV_EXTENT.
pub(super) fn device_extent(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin(2);
    sink.words("dev extent");
    sink.field("chunk_tree", fields.u64()?);
    sink.end();
    sink.begin(2);
    for name in ["chunk_objectid", "chunk_offset", "length"] {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    sink.begin(2);
    sink.field("chunk_tree_uuid", fields.uuid()?);
    sink.end();
    Ok(())
}

/// Prints a RAID_STRIPE: the stripes of an extent.
pub(super) fn raid_stripe(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let mut index = 0u32;
    sink.begin_list("stripes");
    while fields.rest_bytes() > 0 {
        let (device, physical) = (fields.u64()?, fields.u64()?);
        sink.next_entry();
        sink.begin(3);
        sink.field("stripe", index);
        sink.field("devid", device);
        sink.field("physical", physical);
        sink.end();
        index = index.saturating_add(1);
    }
    sink.end_list();
    Ok(())
}
