//! What a volume holds, as one sorted text: every path of every subvolume with what `stat` says, attributes and content.

use anyhow::{Result, bail};
use buttress::{Filesystem, Location, SubvolumeId, WalkItem, WalkOptions};
use std::fmt::Write as _;
use std::io::Read as _;

/// The state of a volume. Two volumes with the same text hold the same.
///
/// # Errors
/// Anything in it that cannot be read.
pub fn describe(filesystem: &Filesystem) -> Result<String> {
    let mut lines = Vec::new();
    for subvolume in filesystem.subvolumes()? {
        if subvolume.is_deleted() {
            continue;
        }
        lines.push(format!(
            "subvolume {} {:?} read-only {} parent {:?}",
            subvolume.id,
            subvolume
                .path
                .as_deref()
                .map(<[u8]>::escape_ascii)
                .map(|path| path.to_string()),
            subvolume.is_read_only(),
            subvolume.parent_uuid(),
        ));
        describe_subvolume(filesystem, subvolume.id, &mut lines)?;
    }
    lines.sort();
    Ok(lines.join("\n"))
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
            " inode {} mode {:o} owner {}:{} links {} size {} changed {}.{}",
            metadata.location.inode,
            metadata.mode,
            metadata.uid,
            metadata.gid,
            metadata.nlink,
            metadata.size,
            metadata.modified.seconds,
            metadata.modified.nanoseconds,
        )?;
        for xattr in entry.xattrs() {
            // Values that fill leaves would make a text as long as the volume.
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
