//! The one error of this crate: what was being done, with which path, and why it failed.

use buttress_format::ErrorKind;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of a call of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a call failed.
///
/// [`Error::kind`] tells the four kinds apart: bytes on disk are wrong, a feature is not supported, a device failed, or the
/// caller asked for what is not there or cannot be done. [`Error::errno`] gives the number that a system call would have
/// failed with. It turns into [`std::io::Error`], so `?` works in functions that return one.
#[derive(Debug)]
pub struct Error {
    path: Option<PathBuf>,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    #[error(transparent)]
    Make(#[from] buttress_mkfs::Error),
    #[error(transparent)]
    Send(#[from] buttress_stream::send::Error),
    #[error(transparent)]
    Receive(#[from] buttress_stream::receive::Error),
    #[error(transparent)]
    Scrub(#[from] buttress_scrub::Error),
    #[error(transparent)]
    Host(#[from] io::Error),
    #[error("the volume is open for reading only: open it with `Volume::options().write(true)`")]
    ReadOnly,
    #[error("is the root of the subvolume, which has no name that could be changed")]
    NoName,
}

impl Error {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &self.cause {
            Cause::Filesystem(error) => error.kind(),
            Cause::Make(error) => error.kind(),
            Cause::Send(error) => error.kind(),
            Cause::Receive(error) => error.kind(),
            Cause::Scrub(error) => error.kind(),
            Cause::Host(_) => ErrorKind::Io,
            Cause::ReadOnly | Cause::NoName => ErrorKind::Caller,
        }
    }

    /// The number that a system call would have failed with.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let error = root.remove_dir("missing").unwrap_err();
    /// assert_eq!(error.errno(), 2); // ENOENT
    /// assert_eq!(error.path(), Some("missing".as_ref()));
    /// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn errno(&self) -> i32 {
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const EROFS: i32 = 30;
        const EIO: i32 = 5;
        const EUCLEAN: i32 = 117;
        const EOPNOTSUPP: i32 = 95;
        let by_kind = |kind| match kind {
            ErrorKind::Corrupt => EUCLEAN,
            ErrorKind::Unsupported => EOPNOTSUPP,
            ErrorKind::Io => EIO,
            ErrorKind::Caller => EINVAL,
        };
        match &self.cause {
            Cause::Filesystem(error) => error.errno(),
            Cause::Send(buttress_stream::send::Error::Filesystem(error)) => error.errno(),
            Cause::Make(error) => by_kind(error.kind()),
            Cause::Send(error) => by_kind(error.kind()),
            Cause::Receive(buttress_stream::receive::Error::Filesystem(error)) => error.errno(),
            Cause::Receive(error) => by_kind(error.kind()),
            Cause::Scrub(buttress_scrub::Error::Filesystem(error)) => error.errno(),
            Cause::Scrub(error) => by_kind(error.kind()),
            Cause::Host(error) => error.raw_os_error().unwrap_or(EIO),
            Cause::ReadOnly => EROFS,
            Cause::NoName => EBUSY,
        }
    }

    /// The path that the failure is about, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        self.path.as_deref()
    }

    /// Whether a path leads nowhere.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let hosts = match root.read_to_string("etc/hosts") {
    ///     Err(error) if error.is_not_found() => String::new(),
    ///     read => read?,
    /// };
    /// assert_eq!(hosts, "");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        const ENOENT: i32 = 2;
        self.errno() == ENOENT
    }

    pub(crate) fn read_only() -> Self {
        Cause::ReadOnly.into()
    }

    /// Adds the path, unless the error names one already.
    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        if self.path.is_none() {
            self.path = Some(crate::path::shown(path));
        }
        self
    }

    /// Whether the cause's own words hold the path.
    fn names_its_path(&self) -> bool {
        matches!(
            &self.cause,
            Cause::Filesystem(
                buttress_fs::Error::NotFound { .. }
                    | buttress_fs::Error::NotADirectory { .. }
                    | buttress_fs::Error::Io(_)
            )
        )
    }
}

/// Anything that can be the cause.
impl<T: Into<Cause>> From<T> for Error {
    fn from(cause: T) -> Self {
        Self {
            path: None,
            cause: cause.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) if !self.names_its_path() => {
                let name = buttress_fs::Name::from(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
                write!(f, "{name}: {}", self.cause)
            }
            _ => self.cause.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
