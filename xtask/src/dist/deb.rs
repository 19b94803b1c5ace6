//! The Debian package: an `ar` archive of a version, the control data for dpkg, and the files.
//!
//! Source: deb(5), deb-control(5), Debian Policy sections 4.5 and 12 for the places of documents.
//! The program is static, so the package has no dependencies. Members are compressed with gzip,
//! which every dpkg reads.

use super::archive::{Entry, ar, gzip, tar_gz};
use super::{Release, SHELLS, page};
use anyhow::Result;
use md5::{Digest, Md5};

/// Returns Debian's name of an architecture.
fn debian_architecture(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "riscv64gc" => "riscv64",
        other => other,
    }
}

/// Returns the package's maintainer from `DEBFULLNAME` and `DEBEMAIL`, as Debian's own tools do.
fn maintainer() -> String {
    match (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        (Ok(name), Ok(address)) => format!("{name} <{address}>"),
        _ => "The Buttress maintainers <maintainers@buttress.invalid>".to_owned(),
    }
}

const DESCRIPTION: &str = "\
btrfs images and devices, without a mount and without root
 Buttress opens, makes, changes, sends and checks real btrfs volumes, in image
 files and on block devices, in user space: without a mount, without root, and
 without trusting what it reads.
";

/// Returns the package's name and bytes.
pub(super) fn package(release: &Release) -> Result<(String, Vec<u8>)> {
    let architecture = debian_architecture(release.architecture());
    let files = files(release)?;
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        (
            "control.tar.gz",
            tar_gz(&control(release, architecture, &files), release.time)?,
        ),
        ("data.tar.gz", tar_gz(&rooted(&files), release.time)?),
    ];
    let name = format!("buttress_{}_{architecture}.deb", release.version);
    Ok((name, ar(&members, release.time)))
}

/// Returns the entries with `./` before their names, as packages have them.
fn rooted(files: &[Entry]) -> Vec<Entry> {
    let rooted = |entry: &Entry| Entry {
        path: format!("./{}", entry.path),
        ..entry.clone()
    };
    files.iter().map(rooted).collect()
}

fn control(release: &Release, architecture: &str, files: &[Entry]) -> Vec<Entry> {
    let kibibytes: u64 = files
        .iter()
        .map(|entry| (entry.bytes.len() as u64).div_ceil(1024))
        .sum();
    let fields = format!(
        "Package: buttress\nVersion: {}\nArchitecture: {architecture}\nMaintainer: {}\nInstalled-Size: {kibibytes}\n\
         Section: admin\nPriority: optional\nDescription: {DESCRIPTION}",
        release.version,
        maintainer(),
    );
    let sums = files.iter().map(|entry| {
        let digits: String = Md5::digest(&entry.bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{digits}  {}\n", entry.path)
    });
    let sums: String = sums.collect();
    rooted(&[
        Entry::file("control", fields.into_bytes()),
        Entry::file("md5sums", sums.into_bytes()),
    ])
}

/// Returns all installed files.
fn files(release: &Release) -> Result<Vec<Entry>> {
    let mut files = vec![Entry::program("usr/bin/buttress", release.program.clone())];
    for (name, text) in &release.man_pages {
        files.push(Entry::file(format!("usr/share/man/man1/{name}.gz"), gzip(text)?));
    }
    for ((_, folder, name), script) in SHELLS.iter().zip(&release.completions) {
        files.push(Entry::file(format!("usr/share/{folder}/{name}"), script.clone()));
    }
    let document = |name: &str| format!("usr/share/doc/buttress/{name}");
    files.push(Entry::file(document("README.md.gz"), gzip(&page("README.md")?)?));
    files.push(Entry::file(
        document("changelog.gz"),
        gzip(&page("CHANGELOG.md")?)?,
    ));
    files.push(Entry::file(document("copyright"), copyright()?));
    let notices = gzip(release.notices.as_bytes())?;
    files.push(Entry::file(document("THIRD-PARTY-NOTICES.gz"), notices));
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn copyright() -> Result<Vec<u8>> {
    let mut text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
        Upstream-Name: Buttress\n\
        Comment: Licences of the libraries that are linked in are in THIRD-PARTY-NOTICES.gz.\n\n\
        Files: *\n\
        Copyright: The Buttress contributors\n\
        License: Apache-2.0 or Expat\n\n\
        License: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n\n\
        License: Expat\n"
        .to_owned();
    for line in String::from_utf8_lossy(&page("LICENSE-MIT")?).lines() {
        let line = if line.trim().is_empty() { "." } else { line };
        text.push_str(&format!(" {line}\n"));
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_oracle::needs::missing;
    use buttress_oracle::skip::skips;
    use std::io::Read;
    use std::process::Command;

    fn release() -> Release {
        Release {
            version: "1.2.3".to_owned(),
            triple: "x86_64-unknown-linux-gnu".to_owned(),
            time: 86400,
            program: b"a program".to_vec(),
            man_pages: vec![("buttress.1".to_owned(), b".TH".to_vec())],
            completions: vec![b"bash".to_vec(), b"zsh".to_vec(), b"fish".to_vec()],
            notices: "notices".to_owned(),
        }
    }

    /// Returns the names and bytes of a package's members.
    fn members(mut package: &[u8]) -> Vec<(String, Vec<u8>)> {
        package = package.strip_prefix(b"!<arch>\n").unwrap();
        let mut found = Vec::new();
        while !package.is_empty() {
            let (head, rest) = package.split_at(60);
            let head = std::str::from_utf8(head).unwrap();
            let size: usize = head[48..58].trim().parse().unwrap();
            found.push((head[..16].trim().to_owned(), rest[..size].to_vec()));
            package = rest.get(size.next_multiple_of(2)..).unwrap_or_default();
        }
        found
    }

    fn entries(tar_gz: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(tar_gz));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            // The path as stored: `Path` would drop the dot.
            (String::from_utf8(entry.path_bytes().into_owned()).unwrap(), bytes)
        });
        entries.collect()
    }

    #[test]
    fn the_package_has_the_members_that_dpkg_wants_in_its_order() {
        let (name, bytes) = package(&release()).unwrap();
        assert_eq!(name, "buttress_1.2.3_amd64.deb");
        let members = members(&bytes);
        let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
        assert_eq!(members[0].1, b"2.0\n");
        let control = entries(&members[1].1);
        let fields = &control.iter().find(|(name, _)| name == "./control").unwrap().1;
        let fields = std::str::from_utf8(fields).unwrap();
        for field in [
            "Package: buttress\n",
            "Version: 1.2.3\n",
            "Architecture: amd64\n",
            "Maintainer: ",
            "\n Buttress opens",
        ] {
            assert!(fields.contains(field), "{field}: {fields}");
        }
        let data = entries(&members[2].1);
        for wanted in [
            "./usr/bin/buttress",
            "./usr/share/man/man1/buttress.1.gz",
            "./usr/share/bash-completion/completions/buttress",
            "./usr/share/zsh/vendor-completions/_buttress",
            "./usr/share/fish/vendor_completions.d/buttress.fish",
            "./usr/share/doc/buttress/copyright",
            "./usr/share/doc/buttress/changelog.gz",
            "./usr/share/doc/buttress/THIRD-PARTY-NOTICES.gz",
        ] {
            assert!(data.iter().any(|(name, _)| name == wanted), "{wanted}: {data:?}");
        }
        let sums = &control.iter().find(|(name, _)| name == "./md5sums").unwrap().1;
        let sums = std::str::from_utf8(sums).unwrap();
        let files = data.iter().filter(|(name, _)| !name.ends_with('/')).count();
        assert_eq!(sums.lines().count(), files);
        assert!(sums.contains("  usr/bin/buttress\n"));
    }

    #[test]
    fn the_same_release_gives_the_same_package() {
        assert_eq!(package(&release()).unwrap(), package(&release()).unwrap());
    }

    #[test]
    fn dpkg_reads_the_package() {
        // On systems without dpkg-deb, the assertions above inspect the package's members.
        if skips(missing("dpkg-deb")) {
            return;
        }
        let folder = crate::run::target()
            .unwrap()
            .join(format!("deb-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (name, bytes) = package(&release()).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let said = |option: &str| {
            let output = Command::new("dpkg-deb").arg(option).arg(&path).output().unwrap();
            assert!(output.status.success(), "{option}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(said("--info").contains("Package: buttress"));
        let contents = said("--contents");
        assert!(contents.contains("-rwxr-xr-x root/root"), "{contents}");
        assert!(contents.contains("./usr/bin/buttress"), "{contents}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
