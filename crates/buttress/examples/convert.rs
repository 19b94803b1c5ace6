//! Converts ext2, ext3 or ext4 to btrfs in place: `convert IMAGE`. With `--back`, brings the old file
//! system back: `convert --back IMAGE`.

use buttress::convert::{self, Options, Resumed, RollBack, Source, Without};
use buttress::mkfs::Identity;
use buttress::{Device, DeviceOptions, Environment, Progress, SystemEnvironment};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let image = words.pop().ok_or("usage: convert [--back] IMAGE")?;
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let device = Device::open(&image, &options)?;
    match convert::resume(&device)? {
        Resumed::Nothing => {}
        Resumed::Finished => println!("an interrupted conversion is finished"),
        Resumed::PutBack => println!("the old file system is back after an interruption"),
    }
    if words.iter().any(|word| word == "--back") {
        let found = RollBack::find(&device)?;
        println!("commits since the conversion: {}", found.commits());
        found.verify(&Progress::new())?.run()?;
        return Ok(());
    }
    let source = Source::read(&device)?;
    println!("{} of {} bytes", source.kind, source.bytes());
    let new_uuid = || SystemEnvironment.new_uuid();
    let options = Options {
        make: buttress::mkfs::Options::default(),
        identity: Identity {
            fsid: new_uuid(),
            chunk_tree: new_uuid(),
            top_level: new_uuid(),
            devices: vec![new_uuid()],
            time: SystemEnvironment.now(),
        },
        saved: new_uuid(),
        folder: None,
        without: Without::default(),
    };
    convert::prepare(&device, &options, &Progress::new())?.publish()?;
    println!("converted");
    Ok(())
}
