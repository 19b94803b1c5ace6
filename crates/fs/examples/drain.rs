//! Reads everything below the default subvolume of a volume and prints how much that was.
//!
//! `cargo run --release -p buttress-fs --example drain -- IMAGE…`

use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_fs::{Content, Location, OpenOptions, WalkItem, WalkOptions};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices: Result<Vec<_>, _> = std::env::args_os()
        .skip(1)
        .map(|path| Device::open(path, &DeviceOptions::default()))
        .collect();
    let began = Instant::now();
    let filesystem = OpenOptions::new(devices?).open()?;
    let root = Location::root_of(filesystem.default_subvolume()?);
    let (mut entries, mut bytes, mut failures) = (0_u64, 0_u64, 0_u64);
    for item in filesystem.walk(root, WalkOptions::default()) {
        let mut entry = match item {
            WalkItem::Entry(entry) => entry,
            WalkItem::Failed(error) => {
                eprintln!("{error}");
                failures = failures.saturating_add(1);
                continue;
            }
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
        };
        entries = entries.saturating_add(1);
        if let Ok(mut reader) = entry.reader() {
            while let Some(chunk) = reader.next_chunk()? {
                match chunk.content {
                    Content::Data(data) => bytes = bytes.saturating_add(u64::try_from(data.len())?),
                    Content::Damaged(error) => {
                        eprintln!("{error}");
                        failures = failures.saturating_add(1);
                    }
                    Content::Hole => {}
                }
            }
        }
    }
    println!(
        "{entries} entries, {bytes} bytes, {failures} failures in {:.3?}",
        began.elapsed()
    );
    Ok(())
}
