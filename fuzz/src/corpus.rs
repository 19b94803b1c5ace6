//! Seeds and corpora between the repository and the directories that libFuzzer works in.
//!
//! ```text
//! corpus list                  names of all targets, and their longest inputs
//! corpus unpack TARGET DIR     writes seeds and committed inputs into DIR
//! corpus pack TARGET DIR       packs what is in DIR as the committed corpus
//! corpus run TARGET FILE…      runs inputs, without coverage
//! ```

use buttress_hostile::{corpus, seeds, target, targets};
use std::io::{Error, Result};
use std::path::Path;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for target in targets() {
                println!("{} {}", target.name, target.input_bytes_max);
            }
            Ok(())
        }
        ["unpack", name, folder] => {
            std::fs::create_dir_all(folder)?;
            let committed = seeds::committed(name).into_iter().map(|(_, input)| input);
            for (number, input) in seeds::of_target(name).into_iter().chain(committed).enumerate() {
                std::fs::write(Path::new(folder).join(format!("seed-{number:05}")), input)?;
            }
            Ok(())
        }
        ["pack", name, folder] => {
            let mut inputs = Vec::new();
            for file in std::fs::read_dir(folder)? {
                inputs.push(std::fs::read(file?.path())?);
            }
            let packed = corpus::pack(inputs)?;
            let folder = seeds::folder().join("corpus");
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(format!("{name}.zst")), packed)
        }
        ["run", name, files @ ..] => {
            let target = target(name).ok_or_else(|| Error::other(format!("no target {name}")))?;
            for file in files {
                let depth = (target.body)(&std::fs::read(file)?);
                println!("{file}: {depth:?}");
            }
            Ok(())
        }
        _ => Err(Error::other(
            "corpus list | unpack TARGET DIR | pack TARGET DIR | run TARGET FILE…",
        )),
    }
}
