//! Backs up a subvolume of an unmounted image: `backup IMAGE SUBVOLUME NAME STREAM [PARENT]` makes
//! the snapshot NAME of SUBVOLUME and writes a stream for `btrfs receive`. With PARENT, an earlier
//! snapshot, the stream has only changes.

use buttress::{SnapshotMode, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, source, name, stream, parent @ ..] = words.as_slice() else {
        return Err("usage: backup IMAGE SUBVOLUME NAME STREAM [PARENT]".into());
    };
    let volume = Volume::open_writable(image)?;
    let root = volume.root();
    let snapshot = root.create_snapshot(&root.subvolume(source)?, name, SnapshotMode::ReadOnly)?;
    volume.sync()?;

    let mut send = snapshot.send()?;
    if let [parent, ..] = parent {
        send = send.parent(&root.subvolume(parent)?)?;
    }
    // An incomplete stream must not look like a complete one.
    let partial = format!("{stream}.partial");
    let mut output = std::fs::File::create(&partial)?;
    let sent = send.to(&mut output)?;
    output.sync_all()?;
    std::fs::rename(&partial, stream)?;
    println!(
        "{name}: {} bytes, {} commands",
        sent.stream_bytes.get(),
        sent.commands
    );
    Ok(())
}
