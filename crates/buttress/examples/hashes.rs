//! Prints the SHA-256 of every file, on all cores: `hashes IMAGE`. All threads share an open
//! volume.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "an example counts small things"
)]

use buttress::{FileKind, Volume};
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::sync::Mutex;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: hashes IMAGE")?;
    let volume = Volume::open(image)?;
    let paths = Mutex::new(volume.root().walk("")?);
    let lines = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&volume, &paths, &lines)))
            .collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .map_err(|error| error.to_string())?;
    let mut lines = lines.into_inner()?;
    lines.sort();
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

fn work(
    volume: &Volume,
    paths: &Mutex<buttress::Walk>,
    lines: &Mutex<Vec<String>>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    loop {
        let Some(found) = paths.lock().map_err(|_| "poisoned")?.next() else {
            return Ok(());
        };
        let found = found?;
        if found.metadata.kind != FileKind::Regular {
            continue;
        }
        let mut file = volume.root().open(&found.path)?;
        let mut hash = Sha256::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => hash.update(&piece[..read]),
            }
        }
        let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{digest}  {}", found.shown());
        lines.lock().map_err(|_| "poisoned")?.push(line);
    }
}
