//! The error type of this crate: the operation, the path, and the cause of the failure.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result type of this crate's calls.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The kind of a failure, for callers to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A path, a name or an id leads nowhere.
    NotFound,
    /// Something with this name exists.
    Exists,
    /// The volume, or the host that holds its image, has no space.
    NoSpace,
    /// The volume or the subvolume is read-only.
    ReadOnly,
    /// Writing stopped after a failure. After this error the volume can still be read.
    WritingStopped,
    /// Bytes on disk, or of a stream, are wrong.
    Corrupt,
    /// A feature is not supported.
    Unsupported,
    /// A [`Progress`](crate::Progress) cancelled the call.
    Cancelled,
    /// A device or a file of the host failed.
    Io,
    /// A directory is where a file is needed.
    IsADirectory,
    /// The caller's request is invalid.
    Invalid,
}

/// Why a call failed.
///
/// [`Error::kind`] returns the kind for callers to match on. [`Error::errno`] returns the number
/// with which a system call would have failed. This error converts to [`std::io::Error`], so `?`
/// works in functions that return that type.
#[derive(Debug)]
pub struct Error {
    path: Option<PathBuf>,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    #[cfg(feature = "write")]
    #[error(transparent)]
    Make(#[from] buttress_mkfs::Error),
    #[cfg(feature = "stream")]
    #[error(transparent)]
    Send(#[from] buttress_stream::send::Error),
    #[cfg(feature = "stream")]
    #[error(transparent)]
    Receive(#[from] buttress_stream::receive::Error),
    #[cfg(feature = "scrub")]
    #[error(transparent)]
    Scrub(#[from] buttress_scrub::Error),
    #[cfg(feature = "salvage")]
    #[error(transparent)]
    Salvage(#[from] buttress_salvage::Error),
    #[cfg(feature = "salvage")]
    #[error("an older state can only be read: open it without options for writing")]
    OlderState,
    #[error(transparent)]
    Host(#[from] io::Error),
    #[cfg(feature = "write")]
    #[error("is the root of the subvolume, which has no name to change")]
    NoName,
}

impl Error {
    /// Returns the kind of the failure.
    ///
    /// ```
    /// use buttress::{Device, ErrorKind, Volume};
    ///
    /// let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// volume.root().create_dir("home")?;
    /// assert_eq!(volume.root().create_dir("home").unwrap_err().kind(), ErrorKind::Exists);
    /// assert_eq!(volume.root().read("none").unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        const ENOENT: i32 = 2;
        const EEXIST: i32 = 17;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        match self.filesystem_error() {
            Some(buttress_fs::Error::Cancelled) => return ErrorKind::Cancelled,
            Some(buttress_fs::Error::WritingStopped { .. }) => return ErrorKind::WritingStopped,
            Some(buttress_fs::Error::IsADirectory { .. }) => return ErrorKind::IsADirectory,
            Some(buttress_fs::Error::Invalid { .. }) => return ErrorKind::Invalid,
            Some(buttress_fs::Error::OutOfHostSpace(_)) => return ErrorKind::NoSpace,
            _ => {}
        }
        match self.errno() {
            ENOENT => ErrorKind::NotFound,
            EEXIST => ErrorKind::Exists,
            ENOSPC | EDQUOT => ErrorKind::NoSpace,
            EROFS => ErrorKind::ReadOnly,
            _ => match self.layer_kind() {
                buttress_format::ErrorKind::Corrupt => ErrorKind::Corrupt,
                buttress_format::ErrorKind::Unsupported => ErrorKind::Unsupported,
                buttress_format::ErrorKind::Io => ErrorKind::Io,
                buttress_format::ErrorKind::Caller => ErrorKind::Invalid,
            },
        }
    }

    /// Returns whether a [`Progress`](crate::Progress) cancelled the call.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.filesystem_error(), Some(buttress_fs::Error::Cancelled))
    }

    /// Returns whether a volume cannot be opened because some of its devices are missing. With more
    /// devices, or with [`VolumeOptions::degraded`](crate::VolumeOptions::degraded), it may open.
    #[must_use]
    pub fn lacks_devices(&self) -> bool {
        use buttress_volume::{DevicesError, Error as VolumeError};
        match self.filesystem_error() {
            Some(buttress_fs::Error::Volume(VolumeError::Devices(error))) => {
                matches!(**error, DevicesError::Missing(_))
            }
            _ => false,
        }
    }

    /// Returns the file system's error if that error is the cause.
    pub(crate) const fn filesystem_error(&self) -> Option<&buttress_fs::Error> {
        match &self.cause {
            Cause::Filesystem(error) => Some(error),
            #[cfg(feature = "salvage")]
            Cause::Salvage(buttress_salvage::Error::State { cause, .. }) => Some(cause),
            #[cfg(feature = "stream")]
            Cause::Send(buttress_stream::send::Error::Filesystem(error)) => Some(error),
            #[cfg(feature = "stream")]
            Cause::Receive(buttress_stream::receive::Error::Filesystem(error)) => Some(error),
            #[cfg(feature = "scrub")]
            Cause::Scrub(buttress_scrub::Error::Filesystem(error)) => Some(error),
            _ => None,
        }
    }

    /// Returns the error kind that the lower layers report.
    fn layer_kind(&self) -> buttress_format::ErrorKind {
        match &self.cause {
            Cause::Filesystem(error) => error.kind(),
            #[cfg(feature = "write")]
            Cause::Make(error) => error.kind(),
            #[cfg(feature = "stream")]
            Cause::Send(error) => error.kind(),
            #[cfg(feature = "stream")]
            Cause::Receive(error) => error.kind(),
            #[cfg(feature = "scrub")]
            Cause::Scrub(error) => error.kind(),
            #[cfg(feature = "salvage")]
            Cause::Salvage(error) => error.kind(),
            #[cfg(feature = "salvage")]
            Cause::OlderState => buttress_format::ErrorKind::Caller,
            Cause::Host(_) => buttress_format::ErrorKind::Io,
            #[cfg(feature = "write")]
            Cause::NoName => buttress_format::ErrorKind::Caller,
        }
    }

    /// Returns the errno with which a system call would have failed.
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
        #[cfg(feature = "write")]
        const EBUSY: i32 = 16;
        #[cfg(feature = "salvage")]
        const EROFS: i32 = 30;
        #[cfg(feature = "salvage")]
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        match &self.cause {
            Cause::Filesystem(error) => error.errno(),
            #[cfg(feature = "stream")]
            Cause::Send(buttress_stream::send::Error::Filesystem(error)) => error.errno(),
            #[cfg(feature = "write")]
            Cause::Make(error) => errno_of(error.kind()),
            #[cfg(feature = "stream")]
            Cause::Send(error) => errno_of(error.kind()),
            #[cfg(feature = "stream")]
            Cause::Receive(buttress_stream::receive::Error::Filesystem(error)) => error.errno(),
            #[cfg(feature = "stream")]
            Cause::Receive(error) => errno_of(error.kind()),
            #[cfg(feature = "scrub")]
            Cause::Scrub(buttress_scrub::Error::Filesystem(error)) => error.errno(),
            #[cfg(feature = "scrub")]
            Cause::Scrub(error) => errno_of(error.kind()),
            #[cfg(feature = "salvage")]
            Cause::Salvage(buttress_salvage::Error::State { cause, .. }) => cause.errno(),
            #[cfg(feature = "salvage")]
            Cause::Salvage(buttress_salvage::Error::NoState { .. }) => ENOENT,
            #[cfg(feature = "salvage")]
            Cause::Salvage(error) => errno_of(error.kind()),
            #[cfg(feature = "salvage")]
            Cause::OlderState => EROFS,
            Cause::Host(error) => error.raw_os_error().unwrap_or(EIO),
            #[cfg(feature = "write")]
            Cause::NoName => EBUSY,
        }
    }

    /// Returns the path that the failure concerns, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        self.path.as_deref()
    }

    /// Returns whether a path leads nowhere.
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

    /// Adds the path, unless the error names one already.
    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        if self.path.is_none() {
            self.path = Some(buttress_fs::lookup::display_path(path));
        }
        self
    }

    /// Returns whether the cause's own message contains the path.
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

/// Returns the number for an error of a layer that defines none.
#[cfg(feature = "write")]
const fn errno_of(kind: buttress_format::ErrorKind) -> i32 {
    const EIO: i32 = 5;
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    const EUCLEAN: i32 = 117;
    match kind {
        buttress_format::ErrorKind::Corrupt => EUCLEAN,
        buttress_format::ErrorKind::Unsupported => EOPNOTSUPP,
        buttress_format::ErrorKind::Io => EIO,
        buttress_format::ErrorKind::Caller => EINVAL,
    }
}

/// Converts any possible cause.
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
                let name = buttress_fs::Name::from(path.as_os_str().as_encoded_bytes());
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
