//! One entry of a listing.

use buttress::{FileKind, InodeRecord};
use serde_json::{Map, Value, json};

use crate::commands::stat::kind_name;
use crate::output::json::insert_name;
use crate::output::mode::permissions;

/// Values of a line; texts of aligned columns are already formatted.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) inode: String,
    pub(super) mode: String,
    pub(super) links: String,
    pub(super) uid: String,
    pub(super) gid: String,
    pub(super) size: Size,
    pub(super) time: (i64, u32),
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) allocated_bytes: u64,
}

/// Value of the size column.
#[derive(Debug)]
pub(super) enum Size {
    Bytes(String),
    Device { major: String, minor: String },
}

impl Line {
    /// Creates the line of an entry. `size` formats sizes.
    pub(super) fn new(name: Vec<u8>, record: &InodeRecord, link: &[u8], size: fn(u64) -> String) -> Self {
        let metadata = &record.metadata;
        let mut mode = permissions(metadata.mode);
        if has_acl(record) {
            mode.push('+');
        }
        Self {
            inode: metadata.location.inode.to_string(),
            mode,
            links: metadata.nlink.to_string(),
            uid: metadata.uid.to_string(),
            gid: metadata.gid.to_string(),
            size: match metadata.device {
                Some(device) => Size::Device {
                    major: device.major.to_string(),
                    minor: device.minor.to_string(),
                },
                None => Size::Bytes(size(metadata.size.get())),
            },
            time: (metadata.modified.seconds, metadata.modified.nanoseconds),
            name,
            link: link.to_vec(),
            allocated_bytes: metadata.allocated.get(),
        }
    }
}

/// Returns whether `ls` marks the file with `+` for an access list.
fn has_acl(record: &InodeRecord) -> bool {
    record
        .xattrs
        .iter()
        .any(|xattr| xattr.name.starts_with(b"system.posix_acl_"))
}

/// Returns an entry as JSON.
pub(in crate::commands) fn as_json(name: &[u8], path: &[u8], record: &InodeRecord, link: &[u8]) -> Value {
    let metadata = &record.metadata;
    let mut object = Map::new();
    insert_name(&mut object, "name", name);
    insert_name(&mut object, "path", path);
    object.insert("type".into(), kind_name(metadata.kind).into());
    object.insert("subvolume".into(), metadata.location.subvolume.get().into());
    object.insert("inode".into(), metadata.location.inode.get().into());
    object.insert("mode".into(), format!("{:o}", metadata.mode).into());
    object.insert("links".into(), metadata.nlink.into());
    object.insert("uid".into(), metadata.uid.into());
    object.insert("gid".into(), metadata.gid.into());
    object.insert("size".into(), metadata.size.get().into());
    object.insert("allocated".into(), metadata.allocated.get().into());
    if let Some(device) = metadata.device {
        object.insert(
            "device".into(),
            json!({ "major": device.major, "minor": device.minor }),
        );
    }
    object.insert(
        "mtime".into(),
        json!({ "seconds": metadata.modified.seconds, "nanoseconds": metadata.modified.nanoseconds }),
    );
    if metadata.kind == FileKind::Symlink {
        insert_name(&mut object, "target", link);
    }
    Value::Object(object)
}
