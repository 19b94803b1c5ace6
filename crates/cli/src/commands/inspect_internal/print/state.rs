//! Persistent state of operations: device statistics, a balance, a replacement, a change of
//! checksums.
//!
//! Source: on-disk format documentation, sections PERSISTENT_ITEM, TEMPORARY_ITEM, DEV_REPLACE.

use buttress::unstable::format::{ItemType, Key, ObjectId};

use super::fields::{Fields, Short};
use super::key;
use super::sink::{Sink, Text};
use super::value::{Moment, Signed, Value};

/// Object id of a change of the checksum type (-13).
const CHECKSUM_CHANGE: ObjectId = ObjectId::new(u64::MAX - 12);

/// An object id, printed under its name for this item type.
struct Object(ObjectId, ItemType);

impl Value for Object {
    fn text(&self, out: &mut Text) {
        key::push_object(out, self.0, self.1);
    }

    fn json(&self) -> serde_json::Value {
        self.0.get().into()
    }
}

fn heading(sink: &mut impl Sink, key: &Key, what: &str) {
    sink.begin(2);
    sink.words(what);
    sink.words("item");
    sink.field("objectid", Object(key.objectid, key.item_type));
    sink.field("offset", key.offset);
    sink.end();
}

fn unknown(sink: &mut impl Sink, key: &Key, what: &str) {
    sink.begin(2);
    sink.words("unknown");
    sink.words(what);
    sink.words("item objectid");
    sink.bare("objectid", key.objectid.get());
    sink.end();
}

fn line(sink: &mut impl Sink, words: &str) {
    sink.begin(2);
    sink.words(words);
    sink.end();
}

/// Prints a PERSISTENT_ITEM.
pub(super) fn persistent(sink: &mut impl Sink, key: &Key, data: &[u8]) -> Result<(), Short> {
    heading(sink, key, "persistent");
    if key.objectid != ObjectId::DEVICE_STATISTICS {
        unknown(sink, key, "persistent");
        return Ok(());
    }
    line(sink, "device stats");
    device_statistics(sink, data)
}

const STATISTICS: [&str; 5] = [
    "write_errs",
    "read_errs",
    "flush_errs",
    "corruption_errs",
    "generation",
];

/// Prints the counters of a device: five; a newer kernel may write more, an older one fewer.
fn device_statistics(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data).need(STATISTICS.len().saturating_mul(size_of::<u64>()))?;
    sink.begin(2);
    for name in STATISTICS {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    if fields.rest_bytes() == 0 {
        return Ok(());
    }
    // btrfs-progs 6.14 ends this line only after the first counter.
    sink.begin(2);
    sink.field("unknown stats item bytes", fields.rest_bytes() as u64);
    sink.begin_list("unknown counters");
    let mut index = STATISTICS.len() as u64;
    while fields.rest_bytes() >= size_of::<u64>() {
        sink.next_entry();
        sink.begin(2);
        sink.words("unknown");
        sink.field("item", index);
        sink.field("offset", fields.position() as u64);
        sink.field("value", fields.u64()?);
        sink.end();
        index = index.saturating_add(1);
    }
    sink.end_list();
    Ok(())
}

/// Prints a TEMPORARY_ITEM.
pub(super) fn temporary(sink: &mut impl Sink, key: &Key, data: &[u8]) -> Result<(), Short> {
    heading(sink, key, "temporary");
    match key.objectid {
        ObjectId::BALANCE => balance(sink, data),
        CHECKSUM_CHANGE => {
            checksum_change(sink, key.offset);
            Ok(())
        }
        _ => {
            unknown(sink, key, "temporary");
            Ok(())
        }
    }
}

fn checksum_change(sink: &mut impl Sink, target: u64) {
    let name = usize::try_from(target)
        .ok()
        .and_then(|index| CHECKSUM_NAMES.get(index));
    sink.begin(2);
    match name {
        Some(name) => {
            sink.field("target csum type", *name);
            sink.bare("target number", super::inode::Parenthesised(&target.to_string()));
        }
        None => sink.field("unknown csum type", target),
    }
    sink.end();
}

/// Names of checksum types by their numbers.
pub(super) const CHECKSUM_NAMES: [&str; 4] = ["crc32c", "xxhash64", "sha256", "blake2b"];

/// Prints a paused or interrupted balance item: its arguments for data, metadata and system chunks.
fn balance(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin(2);
    sink.words("balance status");
    sink.field("flags", fields.u64()?);
    sink.end();
    sink.begin_list("arguments");
    for kind in ["DATA", "METADATA", "SYSTEM"] {
        sink.next_entry();
        sink.hidden("kind", kind);
        line(sink, kind);
        balance_arguments(sink, &mut fields)?;
    }
    sink.end_list();
    Ok(())
}

/// Size of the reserved fields at the end of a balance's arguments, in bytes.
const BALANCE_RESERVED_BYTES: usize = 48;

fn balance_arguments(sink: &mut impl Sink, fields: &mut Fields<'_>) -> Result<(), Short> {
    let profiles = fields.u64()?;
    let (usage_min, usage_max) = (fields.u32()?, fields.u32()?);
    let device = fields.u64()?;
    let (physical_start, physical_end) = (fields.u64()?, fields.u64()?);
    let (logical_start, logical_end) = (fields.u64()?, fields.u64()?);
    let (target, flags) = (fields.u64()?, fields.u64()?);
    let (limit_min, limit_max) = (fields.u32()?, fields.u32()?);
    let (stripes_min, stripes_max) = (fields.u32()?, fields.u32()?);
    fields.bytes(BALANCE_RESERVED_BYTES)?;
    sink.begin(2);
    sink.field("profiles", profiles);
    sink.field("devid", device);
    sink.field("target", target);
    sink.field("flags", flags);
    sink.end();
    sink.begin(2);
    sink.field("usage_min", usage_min);
    sink.field("usage_max", usage_max);
    sink.field("pstart", physical_start);
    sink.field("pend", physical_end);
    sink.end();
    sink.begin(2);
    sink.field("vstart", logical_start);
    sink.field("vend", logical_end);
    sink.field("limit_min", limit_min);
    sink.field("limit_max", limit_max);
    sink.end();
    sink.begin(2);
    sink.field("stripes_min", stripes_min);
    sink.field("stripes_max", stripes_max);
    sink.end();
    Ok(())
}

const REPLACE_MODES: [&str; 2] = ["ALWAYS", "AVOID"];
const REPLACE_STATES: [&str; 5] = ["NEVER_STARTED", "STARTED", "FINISHED", "CANCELED", "SUSPENDED"];

/// Prints a DEV_REPLACE.
pub(super) fn replace(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (source, left, right) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (mode, state) = (fields.u64()?, fields.u64()?);
    let (started, stopped) = (fields.u64()?, fields.u64()?);
    let (write_errors, read_errors) = (fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.words("src");
    sink.field("devid", Signed(source));
    sink.field("cursor left", left);
    sink.field("cursor right", right);
    named(sink, "mode", mode, &REPLACE_MODES);
    sink.end();
    sink.begin(2);
    named(sink, "state", state, &REPLACE_STATES);
    sink.field("write errors", write_errors);
    sink.field("uncorrectable read errors", read_errors);
    sink.end();
    for (name, seconds) in [("start time", started), ("stop time", stopped)] {
        sink.begin(2);
        sink.field(
            name,
            Moment {
                seconds,
                nanoseconds: None,
            },
        );
        sink.end();
    }
    Ok(())
}

fn named(sink: &mut impl Sink, name: &str, number: u64, names: &[&'static str]) {
    match usize::try_from(number).ok().and_then(|index| names.get(index)) {
        Some(text) => sink.field(name, *text),
        None => sink.field(name, format!("unknown({number})")),
    }
}
