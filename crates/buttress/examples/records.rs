//! Keeps counters in a file of a volume, as a small database would: `records IMAGE NAME` adds one
//! to the counter NAME. A counter is a record of 64 bytes. A synced record survives a crash.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "an example counts small things"
)]

use buttress::{FileOffset, Volume};

const RECORD_BYTES: usize = 64;
const NAME_BYTES: usize = 56;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(image), Some(name)) = (words.next(), words.next()) else {
        return Err("usage: records IMAGE NAME".into());
    };
    let mut wanted = [0; NAME_BYTES];
    wanted
        .get_mut(..name.len())
        .ok_or("a name has at most 56 bytes")?
        .copy_from_slice(name.as_bytes());

    let volume = Volume::open_writable(image)?;
    let root = volume.root();
    let file = if root.exists("counters")? {
        root.open("counters")?
    } else {
        root.create_new("counters")?
    };
    let mut place = FileOffset::new(file.size()?.get());
    let mut count = 0;
    for offset in (0..file.size()?.get()).step_by(RECORD_BYTES) {
        let mut record = [0; RECORD_BYTES];
        file.read_at(FileOffset::new(offset), &mut record)?;
        let (name, value) = record.split_at(NAME_BYTES);
        if name == wanted {
            place = FileOffset::new(offset);
            count = u64::from_le_bytes(value.try_into()?);
        }
    }
    count += 1;
    let mut record = wanted.to_vec();
    record.extend(count.to_le_bytes());
    file.write_at(place, &record)?;
    file.sync()?;
    println!("{name}: {count}");
    Ok(())
}
