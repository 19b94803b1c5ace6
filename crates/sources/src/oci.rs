//! Container images in the OCI layout on disk: an index, manifests, layers, all named by their
//! digests.
//!
//! `index.json` leads to manifests, possibly through further indexes. A tag or a platform selects
//! one of several images. The reader compares each blob's size and digest with its descriptor, and
//! a layer's unpacked digest with the image's configuration. Compressed layers are unpacked into
//! spools ([`crate::store`]) in the same pass.
//!
//! Left out: layouts inside an archive, which must be unpacked first; layers that are not
//! distributed with the image; encrypted layers; downloads.
//!
//! Source: OCI image specification 1.1: "Image Layout", "Descriptors", "Image Index", "Image
//! Manifest", "Image Configuration".

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use buttress_build::SourceError;
use buttress_format::printable::Printable;
use buttress_fs::Progress;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use sha2::{Digest as _, Sha256, Sha512};

use crate::layers::{Layer, Layers};
use crate::store::{Store, StoreError};

/// The size of the largest JSON document that is accepted. The OCI specification requires
/// registries to accept documents of 4 MiB.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// The maximum number of layers. Each layer of an image is an open file.
const LAYERS_MAX: usize = 500;
/// The maximum depth of nested indexes.
const INDEXES_MAX: usize = 8;

/// The selection of one image of a layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The tag, as in the annotation `org.opencontainers.image.ref.name`.
    pub tag: Option<String>,
    /// The platform of the image: `linux/amd64`, `linux/arm64/v8`.
    pub platform: Option<String>,
}

/// The error of a layout.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A document cannot be read.
    #[error("{file}: {cause}")]
    Read {
        /// The path below the layout.
        file: String,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// A JSON document of the image is not valid.
    #[error("{file}: {cause}")]
    Document {
        /// The path of the file below the layout's directory.
        file: String,
        /// The reason from the JSON parser, with line and column.
        #[source]
        cause: serde_json::Error,
    },
    /// The version of the layout is unknown.
    #[error("oci-layout: unknown version of the layout (found {0:?}, expected 1.0.0)")]
    Version(String),
    /// An image's digest is not valid.
    #[error("{file}: invalid digest {digest:?} (expected sha256 or sha512 and hexadecimal digits)")]
    NoDigest {
        /// The file that holds the digest.
        file: String,
        /// The invalid text in place of a digest.
        digest: String,
    },
    /// The size of a blob differs from its descriptor.
    #[error("{file}: wrong length (found {found} bytes, expected {promised} by its descriptor)")]
    Size {
        /// The blob.
        file: String,
        /// The size of the blob.
        found: u64,
        /// The blob's size according to its descriptor.
        promised: u64,
    },
    /// A document exceeds the size limit.
    #[error("{file}: the document is too long (found {found} bytes, expected at most {DOCUMENT_BYTES_MAX})")]
    Large {
        /// The document.
        file: String,
        /// The size of the document.
        found: u64,
    },
    /// The digest of a blob differs from the digest in its file name.
    #[error("{file}: wrong digest of {what} (found {found}, expected {promised})")]
    Digest {
        /// The blob.
        file: String,
        /// The kind of object whose bytes were digested.
        what: &'static str,
        /// The digest of the bytes.
        found: String,
        /// The digest that the descriptor states.
        promised: String,
    },
    /// The layout has no image, or none that matches the selection.
    #[error("no image{wanted} in this layout (found {there})")]
    None {
        /// The selection.
        wanted: String,
        /// The available images.
        there: String,
    },
    /// More than one image matches the selection.
    #[error("{count} images match; select one by a tag or a platform: {there}")]
    Several {
        /// The number of images that match the selection.
        count: usize,
        /// The images that the layout has.
        there: String,
    },
    /// A blob has an unsupported media type.
    #[error("{file}: media type {media_type:?} {why}")]
    MediaType {
        /// The blob.
        file: String,
        /// The media type of the blob.
        media_type: String,
        /// The reason why the media type is unsupported.
        why: &'static str,
    },
    /// The manifest and the configuration list different numbers of layers.
    #[error("{file}: wrong number of layers (found {layers}, expected {named} by its configuration)")]
    LayerCount {
        /// The manifest.
        file: String,
        /// The number of layers in the manifest.
        layers: usize,
        /// The number of layers in the configuration.
        named: usize,
    },
    /// The image has too many layers.
    #[error("{file}: too many layers (found {layers}, expected at most {LAYERS_MAX})")]
    Layers {
        /// The manifest.
        file: String,
        /// The number of layers.
        layers: usize,
    },
    /// The nesting of indexes exceeds the limit.
    #[error("more than {INDEXES_MAX} nested indexes")]
    Indexes,
    /// A layer cannot be read or unpacked.
    #[error("{file}: {cause}")]
    Layer {
        /// The blob.
        file: String,
        /// The reason.
        #[source]
        cause: StoreError,
    },
}

#[derive(Deserialize)]
struct LayoutFile {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Clone, Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    rootfs: RootFilesystem,
}

#[derive(Deserialize)]
struct RootFilesystem {
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Descriptor {
    fn is_index(&self) -> bool {
        self.media_type.ends_with(".index.v1+json") || self.media_type.ends_with("manifest.list.v2+json")
    }

    fn tag(&self) -> Option<&str> {
        let tag = self.annotations.get("org.opencontainers.image.ref.name");
        tag.map(String::as_str)
    }

    fn platform(&self) -> Option<String> {
        let platform = self.platform.as_ref()?;
        let variant = platform.variant.as_ref();
        let variant = variant.map_or_else(String::new, |variant| format!("/{variant}"));
        Some(format!("{}/{}{variant}", platform.os, platform.architecture))
    }

    fn shown(&self) -> String {
        let words = [self.tag().map(str::to_owned), self.platform()];
        let words: Vec<String> = words.into_iter().flatten().collect();
        let name = if words.is_empty() {
            self.digest.clone()
        } else {
            words.join(" ")
        };
        Printable(name.as_bytes()).to_string()
    }
}

/// A well-formed digest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DigestName {
    algorithm: &'static str,
    hex: String,
}

impl DigestName {
    fn parse(text: &str, file: &str) -> Result<Self, OciError> {
        let wrong = || OciError::NoDigest {
            file: file.to_owned(),
            digest: text.to_owned(),
        };
        let (algorithm, hex) = text.split_once(':').ok_or_else(wrong)?;
        let (algorithm, digits) = match algorithm {
            "sha256" => ("sha256", 64),
            "sha512" => ("sha512", 128),
            _ => return Err(wrong()),
        };
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() != digits || !hex.bytes().all(is_hex) {
            return Err(wrong());
        }
        Ok(Self {
            algorithm,
            hex: hex.to_owned(),
        })
    }

    fn hasher(&self) -> Hasher {
        match self.algorithm {
            "sha512" => Hasher::Sha512(Box::new(Sha512::new())),
            _ => Hasher::Sha256(Box::new(Sha256::new())),
        }
    }

    fn file(&self) -> String {
        format!("blobs/{}/{}", self.algorithm, self.hex)
    }

    fn compare(&self, hasher: Hasher, file: &str, what: &'static str) -> Result<(), OciError> {
        let found = hasher.hex();
        if found == self.hex {
            return Ok(());
        }
        Err(OciError::Digest {
            file: file.to_owned(),
            what,
            found: format!("{}:{found}", self.algorithm),
            promised: format!("{}:{}", self.algorithm, self.hex),
        })
    }
}

#[derive(Clone)]
enum Hasher {
    Sha256(Box<Sha256>),
    Sha512(Box<Sha512>),
}

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn hex(self) -> String {
        let digest = match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        let mut text = String::new();
        for byte in digest {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
            }
        }
        text
    }
}

/// Counts and digests the bytes that are read through this reader.
struct Hashing<R> {
    inner: R,
    hasher: Hasher,
    bytes: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.add(buffer.get(..length).unwrap_or_default());
        self.bytes = self.bytes.saturating_add(length as u64);
        Ok(length)
    }
}

/// Returns the layers of an image in a layout, in order, each compared with its digests.
///
/// # Errors
/// Fails if a file is missing, does not match its descriptor, or cannot be used.
pub fn open(
    layout: &Path,
    wanted: &Wanted,
    spool: &Path,
    progress: &Progress,
) -> Result<Layers, SourceError> {
    let name = layout.display().to_string();
    let opened = Layout(layout.to_owned()).layers(wanted, spool, progress);
    match opened {
        Ok(layers) => Ok(Layers::of_image(name, layers).with_progress(progress)),
        Err(OciError::Layer {
            file,
            cause: cause @ (StoreError::Cancelled | StoreError::Spool { .. }),
        }) => Err(cause.of(format!("{name}/{file}"))),
        Err(error) => Err(SourceError::Invalid {
            place: name,
            problem: Box::new(error),
        }),
    }
}

struct Layout(PathBuf);

impl Layout {
    fn layers(&self, wanted: &Wanted, spool: &Path, progress: &Progress) -> Result<Vec<Layer>, OciError> {
        let layout: LayoutFile = parse("oci-layout", &self.read("oci-layout")?)?;
        if !layout.version.starts_with("1.") {
            return Err(OciError::Version(layout.version));
        }
        let index: Index = parse("index.json", &self.read("index.json")?)?;
        let descriptor = self.choose(index, wanted)?;
        let (file, bytes) = self.blob(&descriptor, "index.json")?;
        let manifest: Manifest = parse(&file, &bytes)?;
        if manifest.layers.len() > LAYERS_MAX {
            return Err(OciError::Layers {
                file,
                layers: manifest.layers.len(),
            });
        }
        let (config_file, bytes) = self.blob(&manifest.config, &file)?;
        let configuration: Configuration = parse(&config_file, &bytes)?;
        let diff_ids = configuration.rootfs.diff_ids;
        if diff_ids.len() != manifest.layers.len() {
            return Err(OciError::LayerCount {
                file,
                layers: manifest.layers.len(),
                named: diff_ids.len(),
            });
        }
        let layers = manifest.layers.iter().zip(&diff_ids);
        layers
            .map(|(layer, diff_id)| {
                let unpacked = DigestName::parse(diff_id, &config_file)?;
                self.layer(layer, &unpacked, &file, spool, progress)
            })
            .collect()
    }

    /// Follows indexes to the one selected manifest.
    fn choose(&self, index: Index, wanted: &Wanted) -> Result<Descriptor, OciError> {
        let mut candidates = index.manifests;
        if let Some(tag) = &wanted.tag {
            let there = list(&candidates);
            candidates.retain(|candidate| candidate.tag() == Some(tag));
            if candidates.is_empty() {
                return Err(OciError::None {
                    wanted: format!(" with the tag {tag:?}"),
                    there,
                });
            }
        }
        for _ in 0..INDEXES_MAX {
            let there = list(&candidates);
            if let Some(platform) = &wanted.platform {
                candidates.retain(|candidate| {
                    candidate.is_index()
                        || candidate
                            .platform()
                            .is_none_or(|found| is_platform(&found, platform))
                });
            }
            // Attachments of images (signatures, attestations) have the platform `unknown/unknown`.
            candidates.retain(|candidate| candidate.platform().as_deref() != Some("unknown/unknown"));
            match candidates.as_slice() {
                [] => {
                    let platform = wanted.platform.as_ref();
                    return Err(OciError::None {
                        wanted: platform.map_or_else(String::new, |platform| format!(" for {platform}")),
                        there,
                    });
                }
                [one] if !one.is_index() => return Ok(one.clone()),
                [one] => {
                    let (file, bytes) = self.blob(one, "index.json")?;
                    candidates = parse::<Index>(&file, &bytes)?.manifests;
                }
                several => {
                    return Err(OciError::Several {
                        count: several.len(),
                        there,
                    });
                }
            }
        }
        Err(OciError::Indexes)
    }

    /// Opens a file of the layout. If the file is a pipe, the call does not wait for a writer of
    /// the pipe.
    fn open(&self, file: &str) -> Result<(File, u64), OciError> {
        let failed = |cause: io::Error| OciError::Read {
            file: file.to_owned(),
            cause,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::open(self.0.join(file), flags, Mode::empty());
        let opened = File::from(opened.map_err(|error| failed(error.into()))?);
        let metadata = opened.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        Ok((opened, metadata.len()))
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, OciError> {
        let (opened, size) = self.open(file)?;
        let large = |found| OciError::Large {
            file: file.to_owned(),
            found,
        };
        if size > DOCUMENT_BYTES_MAX {
            return Err(large(size));
        }
        let mut bytes = Vec::new();
        let read = opened
            .take(DOCUMENT_BYTES_MAX.saturating_add(1))
            .read_to_end(&mut bytes);
        read.map_err(|cause| OciError::Read {
            file: file.to_owned(),
            cause,
        })?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(large(bytes.len() as u64));
        }
        Ok(bytes)
    }

    /// Reads a document that a descriptor names, and compares it.
    fn blob(&self, descriptor: &Descriptor, from: &str) -> Result<(String, Vec<u8>), OciError> {
        let digest = DigestName::parse(&descriptor.digest, from)?;
        let file = digest.file();
        let bytes = self.read(&file)?;
        check_size(&file, bytes.len() as u64, descriptor.size)?;
        let mut hasher = digest.hasher();
        hasher.add(&bytes);
        digest.compare(hasher, &file, "it")?;
        Ok((file, bytes))
    }

    fn layer(
        &self,
        descriptor: &Descriptor,
        unpacked: &DigestName,
        from: &str,
        spool: &Path,
        progress: &Progress,
    ) -> Result<Layer, OciError> {
        let digest = DigestName::parse(&descriptor.digest, from)?;
        let file = digest.file();
        let media_type = descriptor.media_type.as_str();
        let why = if media_type.contains("encrypted") {
            Some("is encrypted")
        } else if !media_type.contains(".tar") {
            Some("is not a tar archive")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(OciError::MediaType {
                file,
                media_type: media_type.to_owned(),
                why,
            });
        }
        let (opened, size) = self.open(&file)?;
        check_size(&file, size, descriptor.size)?;
        let failed = |cause| OciError::Layer {
            file: file.clone(),
            cause,
        };
        let again = opened
            .try_clone()
            .map_err(|cause| failed(StoreError::Open(cause)))?;
        let mut hashing = Hashing {
            inner: opened,
            hasher: digest.hasher(),
            bytes: 0,
        };
        let mut content = unpacked.hasher();
        let store = Store::of_layer(&mut hashing, again, spool, progress, &mut |bytes| {
            content.add(bytes);
        });
        let store = store.map_err(failed)?;
        // In a layer's blob, bytes may follow the end of the compressed stream.
        let rest = io::copy(&mut hashing, &mut io::sink());
        rest.map_err(|cause| OciError::Read {
            file: file.clone(),
            cause,
        })?;
        check_size(&file, hashing.bytes, descriptor.size)?;
        digest.compare(hashing.hasher, &file, "it")?;
        unpacked.compare(content, &file, "its unpacked content")?;
        Ok(Layer {
            name: self.0.join(&file).display().to_string(),
            store,
        })
    }
}

fn parse<T: for<'a> Deserialize<'a>>(file: &str, bytes: &[u8]) -> Result<T, OciError> {
    serde_json::from_slice(bytes).map_err(|cause| OciError::Document {
        file: file.to_owned(),
        cause,
    })
}

fn check_size(file: &str, found: u64, promised: u64) -> Result<(), OciError> {
    if found == promised {
        return Ok(());
    }
    Err(OciError::Size {
        file: file.to_owned(),
        found,
        promised,
    })
}

fn list(candidates: &[Descriptor]) -> String {
    if candidates.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = candidates.iter().take(20).map(Descriptor::shown).collect();
    shown.join(", ")
}

/// The platform `linux/arm64` includes all its variants.
fn is_platform(found: &str, wanted: &str) -> bool {
    found == wanted
        || found
            .strip_prefix(wanted)
            .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
