//! Copies a file of a volume to standard output: `cat IMAGE PATH`.

use buttress::Volume;
use std::io::Write as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(image), Some(path)) = (words.next(), words.next()) else {
        return Err("usage: cat IMAGE PATH".into());
    };
    let mut file = Volume::open(image)?.root().open(&path)?;
    let mut output = std::io::stdout().lock();
    // Content is verified against its checksums, and read ahead.
    std::io::copy(&mut file, &mut output)?;
    output.flush()?;
    Ok(())
}
