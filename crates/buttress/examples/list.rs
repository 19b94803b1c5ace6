//! Lists a directory of a volume, as `ls -l` does: `list IMAGE [PATH]`.

use buttress::Volume;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let image = words.next().ok_or("usage: list IMAGE [PATH]")?;
    let path = words.next().unwrap_or_default();

    let volume = Volume::open(image)?;
    for notice in volume.notices() {
        eprintln!("{notice}");
    }
    for entry in volume.root().read_dir(&path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        println!(
            "{:06o} {:>12} {}",
            metadata.mode,
            metadata.size.get(),
            entry.shown()
        );
    }
    Ok(())
}
