//! Makes a volume as the tests do, for inspection by hand: `make_volume FOLDER [KEY=VALUE]…`.
//!
//! Keys are `csum`, `node` (KiB), `profile`, `devices`, `mount`, `fill` (`empty`, `kinds`, `full`),
//! `seed`.

use anyhow::{Context, Result, bail};
use buttress_oracle::volumes::{Fill, Specification, make};

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().context("usage: make_volume FOLDER [KEY=VALUE]…")?;
    let mut specification = Specification {
        device_mib: 1024,
        ..Specification::default()
    };
    for word in words {
        let (key, value) = word.split_once('=').context("KEY=VALUE")?;
        let value: &'static str = Box::leak(value.to_owned().into_boxed_str());
        match key {
            "csum" => specification.checksum = value,
            "node" => specification.node_kib = value.parse()?,
            "profile" => (specification.data, specification.metadata) = (value, value),
            "devices" => specification.devices = value.parse()?,
            "mount" => specification.mount = value,
            "seed" => specification.seed = value.parse()?,
            "fill" => {
                specification.fill = match value {
                    "empty" => Fill::Empty,
                    "kinds" => Fill::Kinds,
                    "full" => Fill::Full,
                    _ => bail!("no fill {value}"),
                }
            }
            _ => bail!("no key {key}"),
        }
    }
    let start = std::time::Instant::now();
    let volume = make(&specification)?;
    std::fs::create_dir_all(&folder)?;
    for image in &volume.images {
        let name = image.file_name().context("a file name")?;
        let target = std::path::Path::new(&folder).join(name);
        let status = std::process::Command::new("cp")
            .arg("--sparse=always")
            .arg(image)
            .arg(&target)
            .status()?;
        if !status.success() {
            bail!("copying to {}", target.display());
        }
        println!("{}", target.display());
    }
    println!(
        "{} paths, {:.1} s",
        volume.manifest.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
