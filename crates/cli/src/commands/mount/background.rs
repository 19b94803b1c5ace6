//! A server in a process of its own: started, waited for until the mount is there, and left.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::exit::Outcome;

/// Says that this process is to serve.
const VARIABLE: &str = "BUTTRESS_SERVES_MOUNT";

/// Whether this process was started to serve.
pub(super) fn is_server() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts the same command line as a server, and waits until it has mounted or said why not.
pub(super) fn start() -> Result<Outcome> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut child = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server")?;
    let mut word = [0];
    let is_ready = match &mut child.stdout {
        Some(output) => matches!(output.read(&mut word), Ok(1)),
        None => false,
    };
    if is_ready {
        return Ok(Outcome::Done);
    }
    // It said why.
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Outcome::Code(code.filter(|code| *code != 0).unwrap_or(1)))
}

/// From here on the terminal's signals are for others.
pub(super) fn leave_session() {
    // A process that leads a group already is not started by a shell.
    let _ = rustix::process::setsid();
}

/// Tells who waits that the mount is there, and lets go of his streams.
pub(super) fn say_ready() -> Result<()> {
    rustix::io::write(rustix::stdio::stdout(), b"r")?;
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // A directory that others may want to unmount.
    std::env::set_current_dir("/")?;
    Ok(())
}
