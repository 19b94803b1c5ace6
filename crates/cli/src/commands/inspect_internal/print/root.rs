//! Items of the root and uuid trees: roots, locations of subvolumes, uuids; and strings.
//!
//! Source: on-disk format documentation, sections ROOT_ITEM, ROOT_REF, ROOT_BACKREF; "UUID tree".

use super::Options;
use super::fields::{Fields, Short};
use super::flags;
use super::inode::{INODE_ITEM_BYTES, parenthesised};
use super::sink::Sink;
use super::value::{Hex, Name, Verbatim};

/// Size of a root item in bytes before uuids and times were added.
const ROOT_ITEM_OLD_BYTES: usize = 239;
/// Size of a root item in bytes.
const ROOT_ITEM_BYTES: usize = 439;

/// Prints a ROOT_ITEM.
///
/// Old kernels write the short form, or the long form without updating its second half. The second
/// half of a root item is valid only if its two generations are equal.
pub(super) fn root_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut padded = [0; ROOT_ITEM_BYTES];
    let whole = match data.get(..ROOT_ITEM_BYTES) {
        Some(whole) => whole,
        None => {
            Fields::new(data).need(ROOT_ITEM_OLD_BYTES)?;
            for (to, from) in padded.iter_mut().zip(data) {
                *to = *from;
            }
            &padded
        }
    };
    let mut fields = Fields::new(whole);
    fields.bytes(INODE_ITEM_BYTES)?;
    let generation = fields.u64()?;
    sink.begin(2);
    sink.field("generation", generation);
    for name in ["root_dirid", "bytenr", "byte_limit", "bytes_used"] {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    sink.begin(2);
    sink.field("last_snapshot", fields.u64()?);
    let flags = fields.u64()?;
    sink.field("flags", Hex(flags));
    parenthesised(sink, "flag names", flags::root(flags));
    sink.field("refs", fields.u32()?);
    sink.end();
    sink.begin(2);
    sink.field("drop_progress", fields.key()?);
    sink.field("drop_level", fields.u8()?);
    sink.end();
    sink.begin(2);
    sink.field("level", fields.u8()?);
    let generation_again = fields.u64()?;
    sink.field("generation_v2", generation_again);
    sink.end();
    if generation == generation_again {
        second_half(sink, fields)
    } else {
        Ok(())
    }
}

fn second_half(sink: &mut impl Sink, mut fields: Fields<'_>) -> Result<(), Short> {
    for name in ["uuid", "parent_uuid", "received_uuid"] {
        sink.begin(2);
        sink.field(name, fields.uuid()?);
        sink.end();
    }
    sink.begin(2);
    for name in ["ctransid", "otransid", "stransid", "rtransid"] {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    for name in ["ctime", "otime", "stime", "rtime"] {
        sink.begin(2);
        sink.field(name, fields.moment()?);
        sink.end();
    }
    Ok(())
}

/// Prints a ROOT_REF or ROOT_BACKREF; `which` is `ref` or `backref`.
pub(super) fn root_ref(
    sink: &mut impl Sink,
    data: &[u8],
    which: &str,
    options: &Options,
) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (directory, sequence, name_bytes) = (fields.u64()?, fields.u64()?, fields.u16()?);
    let name = fields.bytes(usize::from(name_bytes))?;
    sink.begin(2);
    sink.words("root");
    sink.words(which);
    sink.words("key");
    sink.field("dirid", directory);
    sink.field("sequence", sequence);
    if options.hide_names {
        sink.field(
            "name",
            Name {
                bytes: name,
                hide: true,
            },
        );
    } else {
        sink.field("name", Verbatim(name));
    }
    sink.end();
    Ok(())
}

/// Prints a UUID_KEY_SUBVOL or UUID_KEY_RECEIVED_SUBVOL: ids of subvolumes.
pub(super) fn uuid_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin_list("subvolumes");
    while fields.rest_bytes() > 0 {
        let subvolume = fields.u64()?;
        sink.next_entry();
        sink.begin(2);
        sink.field("subvol_id", subvolume);
        sink.end();
    }
    sink.end_list();
    Ok(())
}

/// Prints a STRING_ITEM.
pub(super) fn string_item(sink: &mut impl Sink, data: &[u8]) {
    sink.begin(2);
    sink.words("item");
    sink.field("data", Verbatim(data));
    sink.end();
}
