//! Makes equal files of a volume share their extents: `dedupe IMAGE`. The dedupe call compares the
//! two files again while no other call can change them.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "an example counts small things"
)]

use buttress::{ByteCount, FileKind, FileOffset, Volume};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: dedupe IMAGE")?;
    let volume = Volume::open_writable(image)?;
    let root = volume.root();
    let mut first_of: HashMap<(ByteCount, Vec<u8>), Vec<u8>> = HashMap::new();
    let mut shared = 0;
    for found in root.walk("")? {
        let found = found?;
        let size = found.metadata.size;
        if found.metadata.kind != FileKind::Regular || found.hard_link.is_some() || size == ByteCount::ZERO {
            continue;
        }
        let mut hash = Sha256::new();
        let mut file = root.open(&found.path)?;
        let mut piece = vec![0; 1 << 20];
        loop {
            match std::io::Read::read(&mut file, &mut piece)? {
                0 => break,
                read => hash.update(&piece[..read]),
            }
        }
        let content = (size, hash.finalize().to_vec());
        if let Some(first) = first_of.get(&content) {
            let range = FileOffset::new(0)..FileOffset::new(size.get());
            if file.dedupe_range(&root.open(first)?, range, FileOffset::new(0))? {
                shared += size.get();
            }
        } else {
            first_of.insert(content, found.path);
        }
    }
    volume.sync()?;
    println!("{shared} bytes are shared");
    Ok(())
}
