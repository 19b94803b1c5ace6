//! `cargo xtask dist`: the files of a release, below `target/dist`.
//!
//! - `buttress`: the command, static and stripped (profile `dist`);
//! - `buttress-VERSION-ARCH-linux.tar.gz`: the command with its man pages, completions and
//!   licences;
//! - `buttress_VERSION_ARCH.deb`: the same files as a Debian package ([`deb`]);
//! - `SHA256SUMS`.
//!
//! The release is reproducible: equal sources, toolchain and `SOURCE_DATE_EPOCH` (by default the
//! time of the last commit) give equal bytes in any folder. The command itself writes the man pages
//! and completions.

mod archive;
mod deb;
mod elf;
mod notices;

use crate::run::{cargo, root, run as run_command, target};
use anyhow::{Context, Result, bail, ensure};
use archive::Entry;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

const USAGE: &str = "usage: cargo xtask dist [--target TRIPLE]";

/// Shells with a completion script: the shell's name, and the installed file's name.
const SHELLS: [(&str, &str, &str); 3] = [
    ("bash", "bash-completion/completions", "buttress"),
    ("zsh", "zsh/vendor-completions", "_buttress"),
    ("fish", "fish/vendor_completions.d", "buttress.fish"),
];

/// A build of the command, with the files of its release.
struct Release {
    version: String,
    triple: String,
    /// The time of every file in archives, in seconds since 1970.
    time: u64,
    program: Vec<u8>,
    /// The name and text of each man page.
    man_pages: Vec<(String, Vec<u8>)>,
    /// The completion scripts, in the order of [`SHELLS`].
    completions: Vec<Vec<u8>>,
    /// Licences of all crates that the program links.
    notices: String,
}

/// Builds all files of the release and prints their sizes.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let triple = match words {
        [] => host()?,
        [word, triple] if word == "--target" => triple.clone(),
        _ => bail!(USAGE),
    };
    let time = time()?;
    let path = build(&triple, time)?;
    let program = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    elf::require_static(&program).with_context(|| format!("{}", path.display()))?;
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        man_pages: man_pages(&path)?,
        completions: SHELLS
            .iter()
            .map(|(shell, ..)| said(&path, &["completions", shell]))
            .collect::<Result<_>>()?,
        notices: notices::of("buttress-cli", &triple)?,
        triple,
        time,
        program,
    };
    let folder = target()?.join("dist");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in release.files()? {
        std::fs::write(folder.join(&name), &bytes)?;
        println!("{:>12}  {name}", bytes.len());
    }
    set_executable(&folder.join("buttress"))?;
    println!("in {}", folder.display());
    Ok(())
}

/// Returns rustc's default target.
fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("asking rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names a host")?.to_owned())
}

/// Returns `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn time() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().context("SOURCE_DATE_EPOCH is no number of seconds");
    }
    let mut git = Command::new("git");
    let output = git
        .current_dir(root()?)
        .args(["log", "-1", "--format=%ct"])
        .output();
    let text = output
        .ok()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.and_then(|text| text.parse().ok())
        .context("this is no git repository: set SOURCE_DATE_EPOCH to the time that files are to have")
}

/// Builds the static command, and returns its path.
fn build(triple: &str, time: u64) -> Result<PathBuf> {
    // The program must not contain paths of the building machine.
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let flags = [
        "-C target-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/buttress", root()?.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home.display()),
    ];
    let variable = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        triple.to_uppercase().replace('-', "_")
    );
    // With a named target, the flags apply to the program only, not to build scripts and macros.
    run_command(
        cargo()?
            .args([
                "build",
                "--profile",
                "dist",
                "--locked",
                "-p",
                "buttress-cli",
                "--target",
                triple,
            ])
            .env(variable, flags.join(" "))
            .env("SOURCE_DATE_EPOCH", time.to_string())
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )?;
    Ok(target()?.join(triple).join("dist/buttress"))
}

/// Runs the released program and returns its output.
fn said(program: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(words)
        .env_clear()
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {} ended with {}: {}",
        program.display(),
        words.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Returns the man pages that the program writes, by name.
fn man_pages(program: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = target()?.join(format!("man-{}", std::process::id()));
    said(program, &["man", folder.to_str().context("a path of letters")?])?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .context("a name of letters")?;
        pages.push((name, std::fs::read(entry.path())?));
    }
    std::fs::remove_dir_all(&folder)?;
    pages.sort();
    Ok(pages)
}

fn set_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(
        path,
        std::fs::Permissions::from_mode(0o755),
    )?)
}

/// Returns a page of the repository for the release.
fn page(name: &str) -> Result<Vec<u8>> {
    let path = root()?.join(name);
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

impl Release {
    fn architecture(&self) -> &str {
        self.triple.split('-').next().unwrap_or_default()
    }

    /// Returns all files of the release with their names, the checksums last.
    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let name = format!("buttress-{}-{}-linux", self.version, self.architecture());
        let mut files = vec![
            ("buttress".to_owned(), self.program.clone()),
            (
                format!("{name}.tar.gz"),
                archive::tar_gz(&self.portable(&name)?, self.time)?,
            ),
            deb::package(self)?,
        ];
        let sums = files.iter().map(|(name, bytes)| {
            let sum = Sha256::digest(bytes);
            let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits}  {name}\n")
        });
        let sums: String = sums.collect();
        files.push(("SHA256SUMS".to_owned(), sums.into_bytes()));
        Ok(files)
    }

    /// Returns the entries of the archive for any Linux.
    fn portable(&self, top: &str) -> Result<Vec<Entry>> {
        let mut entries = vec![Entry::program(format!("{top}/buttress"), self.program.clone())];
        for (name, text) in &self.man_pages {
            entries.push(Entry::file(format!("{top}/man/{name}"), text.clone()));
        }
        for ((_, _, file), script) in SHELLS.iter().zip(&self.completions) {
            entries.push(Entry::file(format!("{top}/completions/{file}"), script.clone()));
        }
        for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            entries.push(Entry::file(format!("{top}/{name}"), page(name)?));
        }
        let notices = self.notices.clone().into_bytes();
        entries.push(Entry::file(format!("{top}/THIRD-PARTY-NOTICES"), notices));
        Ok(entries)
    }
}
