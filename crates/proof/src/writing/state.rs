//! The content of a volume as one sorted text: label, default subvolume, everything in the root
//! items of subvolumes, and every path of each with all attributes and the content of its inode.

use anyhow::{Result, bail};
use buttress::unstable::fs::Filesystem;
use buttress::{Location, SubvolumeId, SubvolumeInfo, Timestamp, WalkItem, WalkOptions};
use std::fmt::Write as _;
use std::io::Read as _;

/// Returns the state of a volume. Volumes with equal texts have equal content.
///
/// # Errors
/// A part of the volume is unreadable.
pub fn describe(filesystem: &Filesystem) -> Result<String> {
    let mut lines = vec![format!(
        "volume labelled {:?}, default subvolume {}",
        filesystem.superblock().label.escape_ascii().to_string(),
        filesystem.default_subvolume()?
    )];
    for subvolume in filesystem.subvolumes()? {
        if subvolume.is_deleted() {
            lines.push(format!("deleted subvolume {}", subvolume.id));
            continue;
        }
        lines.push(line_of(&subvolume));
        describe_subvolume(filesystem, subvolume.id, &mut lines)?;
    }
    lines.sort();
    Ok(lines.join("\n"))
}

/// Returns the first line, on either side, that two states do not share.
#[must_use]
pub fn first_difference(expected: &str, found: &str) -> String {
    let lack = |these: &str, those: &str| {
        let others: std::collections::HashSet<&str> = those.lines().collect();
        let line = these.lines().find(|line| !others.contains(line));
        line.unwrap_or("nothing").to_owned()
    };
    format!(
        "expected\n    {}\nfound\n    {}",
        lack(expected, found),
        lack(found, expected)
    )
}

/// Describes the root item of a subvolume without the location of its blocks.
fn line_of(subvolume: &SubvolumeInfo) -> String {
    let root = &subvolume.root_item;
    let path = subvolume.path.as_deref().map(<[u8]>::escape_ascii);
    format!(
        "subvolume {} {:?} flags {:?} uuid {} parent {} received {} made {} {} changed {} {} sent {} {} received {} {} \
         snapshot {}",
        subvolume.id,
        path.map(|path| path.to_string()),
        root.flags,
        root.uuid,
        root.parent_uuid,
        root.received_uuid,
        root.otransid,
        shown(root.otime),
        root.ctransid,
        shown(root.ctime),
        root.stransid,
        shown(root.stime),
        root.rtransid,
        shown(root.rtime),
        root.last_snapshot,
    )
}

fn shown(time: Timestamp) -> String {
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

fn describe_subvolume(filesystem: &Filesystem, id: SubvolumeId, lines: &mut Vec<String>) -> Result<()> {
    let options = WalkOptions {
        one_file_system: true,
        ..WalkOptions::default()
    };
    for item in filesystem.walk(Location::root_of(id), options) {
        let mut entry = match item {
            WalkItem::Entry(entry) => entry,
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
            WalkItem::Failed(failure) => bail!("subvolume {id}: {failure:?}"),
        };
        let metadata = entry.metadata().clone();
        let mut line = format!("{id} {}", entry.path().escape_ascii());
        write!(
            line,
            " inode {} mode {:o} owner {}:{} links {} device {:?} size {} takes {} flags {:?} accessed {} modified {} \
             changed {} created {:?} transactions {} {} sequence {}",
            metadata.location.inode,
            metadata.mode,
            metadata.uid,
            metadata.gid,
            metadata.nlink,
            metadata.device,
            metadata.size,
            metadata.allocated,
            metadata.flags,
            shown(metadata.accessed),
            shown(metadata.modified),
            shown(metadata.changed),
            metadata.created.map(shown),
            metadata.generation,
            metadata.transid,
            metadata.sequence,
        )?;
        for xattr in entry.xattrs() {
            // Values that fill leaves would make the text as long as the volume.
            let (name, value) = (xattr.name.escape_ascii(), &xattr.value);
            write!(
                line,
                " {name}={} bytes {:08x}",
                value.len(),
                crc32c::crc32c(value)
            )?;
        }
        match metadata.kind {
            buttress::FileKind::Symlink => write!(line, " -> {}", entry.link_target()?.escape_ascii())?,
            buttress::FileKind::Regular => {
                let mut content = Vec::new();
                entry.reader()?.read_to_end(&mut content)?;
                write!(line, " content {:08x}", crc32c::crc32c(&content))?;
            }
            _ => {}
        }
        lines.push(line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writing::volume::{empty, open_for_writing};
    use buttress::unstable::writer::WritableFilesystem;
    use buttress::{
        AttributeChanges, ByteCount, DeviceNumber, FileAttributes, FileOffset, NewInode, NodeKind,
        ReceivedUuid, SetXattr, Timestamp,
    };

    const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
    const LATER: Timestamp = Timestamp {
        seconds: 77,
        nanoseconds: 8,
    };

    /// A change that the description of a volume must show; arguments are the volume, a file and a
    /// subvolume.
    type Change = fn(&WritableFilesystem, Location, SubvolumeId);

    fn attributes(filesystem: &WritableFilesystem, file: Location, changes: &AttributeChanges) {
        // Restore the change time, so that only the change itself is visible.
        let changes = AttributeChanges {
            changed: Some(
                changes
                    .changed
                    .unwrap_or(filesystem.live().metadata(file).unwrap().changed),
            ),
            ..*changes
        };
        filesystem.set_attributes(file, &changes).unwrap();
    }

    const CHANGES: [(&str, Change); 16] = [
        ("label", |filesystem, _, _| {
            filesystem.set_label(b"other").unwrap()
        }),
        ("default", |filesystem, _, id| {
            filesystem.subvolumes().set_default(id).unwrap()
        }),
        ("read-only", |filesystem, _, id| {
            filesystem
                .subvolumes()
                .set_read_only(id, true, ReceivedUuid::Clear)
                .unwrap();
        }),
        ("deleted", |filesystem, _, id| {
            filesystem.subvolumes().delete(id).unwrap()
        }),
        ("snapshot", |filesystem, _, id| {
            filesystem
                .subvolumes()
                .snapshot(id, TOP, b"snapshot", false)
                .unwrap();
        }),
        ("flags", |filesystem, file, _| {
            filesystem.set_flags(file, FileAttributes::NODUMP).unwrap();
        }),
        ("xattr", |filesystem, file, _| {
            filesystem
                .set_xattr(file, b"user.x", b"2", SetXattr::CreateOrReplace)
                .unwrap();
        }),
        ("property", |filesystem, file, _| {
            filesystem
                .set_xattr(file, b"btrfs.compression", b"zstd", SetXattr::Create)
                .unwrap();
        }),
        ("accessed", |filesystem, file, _| {
            attributes(
                filesystem,
                file,
                &AttributeChanges {
                    accessed: Some(LATER),
                    ..AttributeChanges::default()
                },
            );
        }),
        ("modified", |filesystem, file, _| {
            attributes(
                filesystem,
                file,
                &AttributeChanges {
                    modified: Some(LATER),
                    ..AttributeChanges::default()
                },
            );
        }),
        ("changed", |filesystem, file, _| {
            attributes(
                filesystem,
                file,
                &AttributeChanges {
                    changed: Some(LATER),
                    ..AttributeChanges::default()
                },
            );
        }),
        ("created", |filesystem, file, _| {
            attributes(
                filesystem,
                file,
                &AttributeChanges {
                    created: Some(LATER),
                    ..AttributeChanges::default()
                },
            );
        }),
        ("owner", |filesystem, file, _| {
            attributes(
                filesystem,
                file,
                &AttributeChanges {
                    uid: Some(5),
                    ..AttributeChanges::default()
                },
            );
        }),
        ("content", |filesystem, file, _| {
            filesystem.write_at(file, FileOffset::MIN, b"other").unwrap();
        }),
        ("size", |filesystem, file, _| {
            filesystem.truncate(file, ByteCount::new(3)).unwrap()
        }),
        ("device", |filesystem, _, _| {
            filesystem.unlink(TOP, b"node").unwrap();
            make_device(filesystem, 4);
        }),
    ];

    fn make_device(filesystem: &WritableFilesystem, minor: u32) {
        let device = NodeKind::BlockDevice(DeviceNumber { major: 8, minor });
        filesystem
            .make_node(TOP, b"node", &NewInode::of_root(0o600), device)
            .unwrap();
    }

    #[test]
    fn every_change_shows() {
        for (name, change) in CHANGES {
            let backends = empty(&[128 << 20], &buttress::mkfs::Options::default()).unwrap();
            let filesystem = open_for_writing(&backends).unwrap();
            let file = filesystem
                .create(TOP, b"file", &NewInode::of_root(0o600))
                .unwrap();
            filesystem
                .set_xattr(file, b"user.x", b"1", SetXattr::Create)
                .unwrap();
            filesystem.write_at(file, FileOffset::MIN, b"content").unwrap();
            make_device(&filesystem, 3);
            let id = filesystem.subvolumes().create(TOP, b"subvolume").unwrap();
            filesystem.commit().unwrap();
            let before = describe(&filesystem.view()).unwrap();
            change(&filesystem, file, id);
            filesystem.commit().unwrap();
            let after = describe(&filesystem.view()).unwrap();
            assert_ne!(before, after, "{name} does not show");
            // The line must show the change of the inode itself, not only its count of changes.
            let without_counts = |text: &str| {
                let line = text
                    .lines()
                    .find(|line| line.contains(" file inode"))
                    .unwrap_or_default();
                line.split(" transactions").next().unwrap_or_default().to_owned()
            };
            if ["accessed", "modified", "created", "flags", "owner"].contains(&name) {
                assert_ne!(without_counts(&before), without_counts(&after), "{name}");
            }
        }
    }
}
