//! Prints how a volume uses its space, as `btrfs filesystem df` does: `space IMAGE`.

use buttress::Volume;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: space IMAGE")?;
    let space = Volume::open(image)?.space()?;
    for group in &space.groups {
        let profile = group.flags.profile().map_or("unknown", |profile| profile.name());
        println!(
            "{}, {profile}: total={}, used={}",
            group.flags.type_name(),
            group.total.get(),
            group.used.get()
        );
    }
    for device in &space.devices {
        println!(
            "device {}: {} of {} bytes not allocated",
            device.id,
            device.unallocated().get(),
            device.size.get()
        );
    }
    Ok(())
}
