//! Paths below a mount of this program as arguments: `buttress subvolume snapshot /mnt/a /mnt/b`.
//!
//! The server of a mount has the volume open. No other process may open the volume for changes, and
//! none would see its newest state. The server of the mount therefore executes the command, with
//! the same code as on an image:
//!
//! ```text
//! command:  finds that the argument lies below a mount        [`places`]
//!           sends that mount's server its own arguments,      [`client`]
//!           the paths in them, and standard output
//! server:   runs the same command in its volume, as a         [`crate::opening::Place`]
//!           session does; results go to that output           [`crate::output::elsewhere`]
//!           messages and the exit code return                 [`protocol`]
//! ```
//!
//! # Permission
//!
//! Only the server's own user and root may send commands, because they have the server's rights.
//! The server's socket is in a directory that no other user may enter, and the system identifies
//! the peer. Other users of the mount have system calls and control commands (`ioctl(2)`), for
//! which kernel and server check permissions file by file. The server opens no files of the host.
//! If a command needs a further image or device, the client opens it and passes its descriptors
//! ([`passed`]).

pub mod client;
pub mod passed;
pub mod places;
pub mod protocol;
