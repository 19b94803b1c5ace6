//! Paths below a mount of ours as arguments: `buttress subvolume snapshot /mnt/a /mnt/b`.
//!
//! A volume that is mounted is open in its server, and nobody else may open it for changes, or would find its newest state. So the
//! server does the work, with the same code that does it on an image:
//!
//! ```text
//! command:  what is to be opened lies below a mount          [`places`]
//!           asks that mount's server: its own arguments,      [`client`]
//!           the paths in them, and standard output
//! server:   runs the same command in its volume, as a         [`crate::opening::Place`]
//!           session does; results go to that output           [`crate::output::elsewhere`]
//!           messages and the exit code come back              [`protocol`]
//! ```
//!
//! # Who may ask
//!
//! The server's own user, and root: those whose rights the server has. Its socket lies in a directory that nobody else may enter, and
//! the system says who is at the other end. Whoever else may use the mount has system calls and control commands (`ioctl(2)`), for which
//! kernel and server check his rights file by file. A command cannot name files of the host there: none is opened for it.

pub mod client;
pub mod places;
pub mod protocol;
