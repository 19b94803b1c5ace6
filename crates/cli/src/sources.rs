//! The sources that a running command reads, and the guarantee that it does not write to them.
//!
//! [`Sources::add`] registers every opened device of a volume, overlay and stream. Every write
//! target passes [`Sources::refuse`] first: files created by
//! [`OutputFile`](crate::output::file::OutputFile) and files that are extracted from a volume.
//! Registering a source also checks standard output and standard error, which the user may have
//! redirected to it (`tar IMAGE >> IMAGE`). The check for sources does not depend on names: see
//! [`crate::identity`].
//!
//! A volume under change is a source, too: its own image must not be copied into it.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;

use crate::exit::Advice;
use crate::identity::{Identity, of_standard_streams};

/// Role of a source in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A device or image of a volume that the command reads.
    Volume,
    /// A device or image of the volume that the command changes.
    ChangedVolume,
    /// A file with the changes of a volume.
    Overlay,
    /// A send stream.
    Stream,
    /// An index of a scan.
    Index,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volume | Self::ChangedVolume => "an image or device that this command uses",
            Self::Overlay => "an overlay that this command uses",
            Self::Stream => "a stream that this command reads",
            Self::Index => "an index that this command writes",
        })
    }
}

#[derive(Clone, Debug)]
struct Source {
    identity: Identity,
    name: String,
    role: Role,
}

/// The sources of a command. Clones share one register.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    known: Arc<Mutex<Vec<Source>>>,
}

impl Sources {
    /// Registers the file at a path as a target of output.
    ///
    /// # Errors
    /// Fails if standard output or standard error is redirected to the target.
    pub fn add(&self, path: &Path, role: Role) -> Result<()> {
        self.add_identity(Identity::of_path(path), &path.display().to_string(), role)
    }

    /// Registers an open file.
    ///
    /// # Errors
    /// Fails with the errors of [`Sources::add`].
    pub fn add_open(&self, descriptor: impl AsFd, name: &str, role: Role) -> Result<()> {
        self.add_identity(Identity::of_open(descriptor), name, role)
    }

    fn add_identity(&self, identity: Option<Identity>, name: &str, role: Role) -> Result<()> {
        let Some(identity) = identity else { return Ok(()) };
        let [output, messages] =
            of_standard_streams().map(|stream| stream.is_some_and(|it| it.overlaps(&identity)));
        // The order of registration matters: messages go to standard output if it accepts them.
        turn_away(output, messages);
        for (is_source, stream) in [(output, "standard output"), (messages, "standard error")] {
            if is_source {
                return Err(anyhow!(
                    "{stream} is redirected to {name}, {role}; nothing was written"
                ))
                .context_advice("redirect it to another file");
            }
        }
        let mut known = self.known.lock();
        if !known.iter().any(|source| source.identity == identity) {
            known.push(Source {
                identity,
                name: name.to_owned(),
                role,
            });
        }
        Ok(())
    }

    /// Refuses output to a file that the command reads as a source. `shown` is the user's name for
    /// the target.
    ///
    /// # Errors
    /// The target of the output is a source of the command.
    pub fn refuse(&self, identity: Option<&Identity>, shown: impl fmt::Display) -> Result<()> {
        let Some(source) = identity.and_then(|identity| self.find(identity)) else {
            return Ok(());
        };
        let Source { name, role, .. } = &source;
        let shown = shown.to_string();
        let other_name = if *name == shown {
            String::new()
        } else {
            format!(" ({name})")
        };
        let error = Err(anyhow!("{shown} is {role}{other_name}; nothing was written"));
        match role {
            Role::Volume | Role::ChangedVolume => {
                error.context_advice(&format!("write a path inside of it as {name}:/path"))
            }
            Role::Overlay | Role::Stream | Role::Index => error.context_advice("name another file"),
        }
    }

    /// Refuses to write to a source by its path, with links followed.
    ///
    /// # Errors
    /// The errors of [`Sources::refuse`].
    pub fn refuse_path(&self, path: &Path) -> Result<()> {
        self.refuse(Identity::of_path(path).as_ref(), path.display())
    }

    /// Returns whether the identity is a source of the command, or overlaps a source.
    pub fn has(&self, identity: &Identity) -> bool {
        self.find(identity).is_some()
    }

    /// Returns whether a path leads to a complete image or device of the volume under change.
    pub fn is_changed_volume(&self, path: &Path) -> bool {
        let Some(identity) = Identity::of_path(path) else {
            return false;
        };
        let known = self.known.lock();
        known
            .iter()
            .any(|source| source.role == Role::ChangedVolume && source.identity.is_same(&identity))
    }

    /// Returns whether the target of a path overlaps the volume under change.
    pub fn touches_changed_volume(&self, path: &Path) -> bool {
        let Some(identity) = Identity::of_path(path) else {
            return false;
        };
        let known = self.known.lock();
        known
            .iter()
            .any(|source| source.role == Role::ChangedVolume && source.identity.overlaps(&identity))
    }

    fn find(&self, identity: &Identity) -> Option<Source> {
        let known = self.known.lock();
        known
            .iter()
            .find(|source| source.identity.overlaps(identity))
            .cloned()
    }
}

/// Extension to add advice to an error.
trait ContextAdvice {
    fn context_advice(self, advice: &str) -> Self;
}

impl<T> ContextAdvice for Result<T> {
    fn context_advice(self, advice: &str) -> Self {
        self.map_err(|error| error.context(Advice::new(advice)))
    }
}

/// Discards further output to streams that are sources: buffered data, and even the error about it,
/// which goes to standard output if possible.
#[expect(clippy::disallowed_methods, reason = "nothing is printed")]
fn turn_away(output: bool, messages: bool) {
    let nowhere = || std::fs::File::options().write(true).open("/dev/null");
    // If redirecting the descriptor fails, no other method remains, and the command ends with an
    // error anyway.
    if messages {
        let _ = if output {
            nowhere().map(rustix::stdio::dup2_stderr)
        } else {
            let output = std::io::stdout().as_fd().try_clone_to_owned();
            output.map(rustix::stdio::dup2_stderr)
        };
    }
    if output {
        let _ = nowhere().map(rustix::stdio::dup2_stdout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_refused_as_outputs_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["image", "other"] {
            std::fs::write(path(name), b"x").unwrap();
        }
        std::os::unix::fs::symlink("image", path("link")).unwrap();
        let sources = Sources::default();
        sources.refuse_path(&path("image")).unwrap();
        sources.clone().add(&path("image"), Role::ChangedVolume).unwrap();
        sources.refuse_path(&path("other")).unwrap();
        sources.refuse_path(&path("missing")).unwrap();
        for name in ["image", "link"] {
            let error = sources.refuse_path(&path(name)).unwrap_err();
            let text = crate::exit::chain_text(&error);
            assert!(
                text.contains(name) && text.contains("nothing was written"),
                "{text}"
            );
            assert!(sources.is_changed_volume(&path(name)));
        }
        assert!(!sources.is_changed_volume(&path("other")));
    }
}
