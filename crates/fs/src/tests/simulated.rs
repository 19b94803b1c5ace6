//! Tests that on simulated devices all work runs on the caller's thread, and two runs yield the
//! same numbers.

use crate::open::OpenOptions;
use crate::testing::{World, at};
use crate::walk::{WalkItem, WalkOptions};
use buttress_device::{MemoryBackend, VirtualClock};
use buttress_lab::Model;
use std::sync::Arc;
use std::time::Duration;

fn run() -> (u64, Duration) {
    let mut world = World::new();
    for number in 0..100_u64 {
        world.file(256, format!("file-{number}").as_bytes(), 257 + number, 8192);
        let extent = world.data(&[u8::try_from(number).unwrap(); 8192], 2);
        world.range(257 + number, 0, extent, 0, 8192);
    }
    let clock = VirtualClock::new();
    let backend = Arc::new(MemoryBackend::new("memory", world.image()));
    let device = buttress_lab::simulated(backend, &Model::spinning_7200(), &clock);
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    let mut bytes = 0;
    for item in filesystem.walk(at(256), WalkOptions::default()) {
        let WalkItem::Entry(mut entry) = item else {
            continue;
        };
        if let Ok(mut reader) = entry.reader() {
            bytes += std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        }
    }
    (bytes, clock.now())
}

#[test]
fn two_runs_agree_to_the_nanosecond() {
    let (bytes, time) = run();
    assert_eq!(bytes, 100 * 8192);
    assert!(time > Duration::from_millis(1));
    assert_eq!(run(), (bytes, time));
}
