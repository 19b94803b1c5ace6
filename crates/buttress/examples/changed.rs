//! Lists the files of a subvolume that changed since a snapshot of it: `changed IMAGE SNAPSHOT
//! SUBVOLUME`. Each inode records the transaction that last changed it, so the example reads no
//! content.

use buttress::Volume;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(image), Some(snapshot), Some(subvolume)) = (words.next(), words.next(), words.next()) else {
        return Err("usage: changed IMAGE SNAPSHOT SUBVOLUME".into());
    };
    let volume = Volume::open(image)?;
    let since = volume.root().subvolume(&snapshot)?.info()?.created_generation();
    for found in volume.root().subvolume(&subvolume)?.walk("")? {
        let found = found?;
        if found.metadata.transid >= since {
            println!("{}", found.shown());
        }
    }
    Ok(())
}
