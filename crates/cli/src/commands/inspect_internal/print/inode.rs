//! Items of file trees and log trees: inodes, names, directory entries, extended attributes, file extents.
//!
//! Source: on-disk format documentation, sections INODE_ITEM, INODE_REF, INODE_EXTREF, DIR_ITEM, EXTENT_DATA,
//! DIR_LOG_ITEM.

use super::Options;
use super::fields::{Fields, Short};
use super::flags;
use super::sink::Sink;
use super::value::{Hex, Name, Octal};

/// Size of an inode item in bytes.
pub(super) const INODE_ITEM_BYTES: usize = 160;
/// Size of the reserved fields of an inode item in bytes.
const INODE_RESERVED_BYTES: usize = 32;

/// Prints an INODE_ITEM.
pub(super) fn inode_item(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data).need(INODE_ITEM_BYTES)?;
    sink.begin(2);
    for name in ["generation", "transid", "size", "nbytes"] {
        sink.field(name, fields.u64()?);
    }
    sink.end();
    sink.begin(2);
    sink.field("block group", fields.u64()?);
    let (links, uid, gid, mode) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let (rdev, flags) = (fields.u64()?, fields.u64()?);
    sink.field("mode", Octal(mode));
    sink.field("links", links);
    sink.field("uid", uid);
    sink.field("gid", gid);
    sink.field("rdev", rdev);
    sink.end();
    sink.begin(2);
    sink.field("sequence", fields.u64()?);
    sink.field("flags", Hex(flags));
    parenthesised(sink, "flag names", flags::inode(flags));
    sink.end();
    fields.bytes(INODE_RESERVED_BYTES)?;
    for name in ["atime", "ctime", "mtime", "otime"] {
        sink.begin(2);
        sink.field(name, fields.moment()?);
        sink.end();
    }
    Ok(())
}

/// Prints a text in parentheses without a space before it; JSON gets the text alone.
pub(super) fn parenthesised(sink: &mut impl Sink, name: &str, text: impl AsRef<str>) {
    sink.joined(name, Parenthesised(text.as_ref()));
}

/// A text that the dump prints in parentheses.
pub(super) struct Parenthesised<'a>(pub(super) &'a str);

impl super::value::Value for Parenthesised<'_> {
    fn text(&self, out: &mut super::sink::Text) {
        out.push("(");
        out.push(self.0);
        out.push(")");
    }

    fn json(&self) -> serde_json::Value {
        self.0.into()
    }
}

/// Prints an INODE_REF: one or more names.
pub(super) fn inode_ref(sink: &mut impl Sink, data: &[u8], options: &Options) -> Result<(), Short> {
    names(sink, data, options, false)
}

/// Prints an INODE_EXTREF: one or more names, each with its parent.
pub(super) fn inode_extref(sink: &mut impl Sink, data: &[u8], options: &Options) -> Result<(), Short> {
    names(sink, data, options, true)
}

fn names(sink: &mut impl Sink, data: &[u8], options: &Options, with_parent: bool) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin_list("names");
    while fields.rest_bytes() > 0 {
        let parent = if with_parent { Some(fields.u64()?) } else { None };
        let (index, name_bytes) = (fields.u64()?, fields.u16()?);
        let name = fields.bytes(usize::from(name_bytes))?;
        sink.next_entry();
        sink.begin(2);
        sink.field("index", index);
        if let Some(parent) = parent {
            sink.field("parent", parent);
        }
        sink.field("namelen", name_bytes);
        sink.words("name:");
        sink.bare(
            "name",
            Name {
                bytes: name,
                hide: options.hide_names,
            },
        );
        sink.end();
    }
    sink.end_list();
    Ok(())
}

const KINDS: [&str; 8] = [
    "FILE", "DIR", "CHRDEV", "BLKDEV", "FIFO", "SOCK", "SYMLINK", "XATTR",
];

/// Prints a DIR_ITEM, DIR_INDEX or XATTR_ITEM: one or more entries with equal hashes.
pub(super) fn dir_item(sink: &mut impl Sink, data: &[u8], options: &Options) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    sink.begin_list("entries");
    while fields.rest_bytes() > 0 {
        let (location, transid) = (fields.key()?, fields.u64()?);
        let (value_bytes, name_bytes, kind) = (fields.u16()?, fields.u16()?, fields.u8()?);
        sink.next_entry();
        sink.begin(2);
        sink.field("location", location);
        match usize::from(kind)
            .checked_sub(1)
            .and_then(|index| KINDS.get(index))
        {
            Some(name) => sink.field("type", *name),
            None => sink.field("type", format!("DIR_ITEM.{kind}")),
        }
        sink.end();
        sink.begin(2);
        sink.field("transid", transid);
        sink.field("data_len", value_bytes);
        sink.field("name_len", name_bytes);
        sink.end();
        sink.begin(2);
        sink.words("name:");
        sink.bare(
            "name",
            Name {
                bytes: fields.bytes(usize::from(name_bytes))?,
                hide: options.hide_names,
            },
        );
        sink.end();
        if value_bytes > 0 {
            sink.begin(2);
            let value = fields.bytes(usize::from(value_bytes))?;
            sink.field(
                "data",
                Name {
                    bytes: value,
                    hide: options.hide_names,
                },
            );
            sink.end();
        }
    }
    sink.end_list();
    Ok(())
}

/// Type of file extents with inline content.
const FILE_EXTENT_INLINE: u8 = 0;
/// Type of preallocated file extents.
const FILE_EXTENT_PREALLOC: u8 = 2;
/// Offset of the inline content in a file extent, in bytes.
pub(crate) const FILE_EXTENT_INLINE_OFFSET: usize = 21;

/// Prints an EXTENT_DATA.
pub(super) fn file_extent(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data).need(FILE_EXTENT_INLINE_OFFSET)?;
    let (generation, ram_bytes, compression) = (fields.u64()?, fields.u64()?, fields.u8()?);
    let (encryption, other_encoding, kind) = (fields.u8()?, fields.u16()?, fields.u8()?);
    sink.begin(2);
    sink.field("generation", generation);
    sink.field("type", kind);
    sink.bare(
        "type name",
        Parenthesised(
            ["inline", "regular", "prealloc"]
                .get(usize::from(kind))
                .unwrap_or(&"unknown"),
        ),
    );
    sink.end();
    sink.hidden("encryption", encryption);
    sink.hidden("other encoding", other_encoding);
    if kind == FILE_EXTENT_INLINE {
        sink.begin(2);
        sink.words("inline extent data");
        sink.field("size", fields.rest_bytes() as u64);
        sink.field("ram_bytes", ram_bytes);
        compression_field(sink, compression);
        sink.end();
        return Ok(());
    }
    let what = if kind == FILE_EXTENT_PREALLOC {
        "prealloc data"
    } else {
        "extent data"
    };
    let (disk, disk_bytes, offset, bytes) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.words(what);
    sink.field("disk byte", disk);
    sink.words("nr");
    sink.bare("disk bytes", disk_bytes);
    sink.end();
    sink.begin(2);
    sink.words(what);
    sink.field("offset", offset);
    sink.words("nr");
    sink.bare("bytes", bytes);
    if kind == FILE_EXTENT_PREALLOC {
        sink.hidden("ram", ram_bytes);
        sink.end();
        return Ok(());
    }
    sink.field("ram", ram_bytes);
    sink.end();
    sink.begin(2);
    sink.words("extent");
    compression_field(sink, compression);
    sink.end();
    Ok(())
}

fn compression_field(sink: &mut impl Sink, compression: u8) {
    sink.field("compression", compression);
    match ["none", "zlib", "lzo", "zstd"].get(usize::from(compression)) {
        Some(name) => sink.bare("compression name", Parenthesised(name)),
        None => sink.bare(
            "compression name",
            Parenthesised(&format!("UNKNOWN.{compression}")),
        ),
    }
}

/// Prints a DIR_LOG_ITEM or DIR_LOG_INDEX.
pub(super) fn dir_log(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let end = Fields::new(data).u64()?;
    sink.begin(2);
    sink.words("dir log");
    sink.field("end", end);
    sink.end();
    Ok(())
}
