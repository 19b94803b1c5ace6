//! Copies from and to the host, and within the volume.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::Args;

use crate::commands::cp::{Flags, SourceKind, copy_into, copy_out, split_places};
use crate::shell::Session;
use crate::shell::table::Word;

/// Copy files of the volume to the host
#[derive(Args, Debug)]
pub struct Get {
    #[command(flatten)]
    flags: Flags,
    /// Sources in the volume, then the destination on the host [default: current directory]
    #[arg(value_name = "FILE… HOST_PATH", required = true)]
    places: Vec<OsString>,
}

impl Word for Get {
    const NAME: &'static str = "get";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.enter_view()?;
        let here = OsString::from(".");
        let (destination, sources) = match self.places.as_slice() {
            [_] => (&here, self.places.as_slice()),
            places => split_places(places)?,
        };
        copy_out(
            session.context(),
            self.flags.how(),
            sources,
            Path::new(destination),
        )?;
        Ok(())
    }
}

/// Copy files of the host into the volume
#[derive(Args, Debug)]
pub struct Put {
    #[command(flatten)]
    flags: Flags,
    /// What to copy, then where to in the volume; without that, to the session's directory
    #[arg(value_name = "HOST_PATH… FILE", required = true)]
    places: Vec<OsString>,
}

impl Word for Put {
    const NAME: &'static str = "put";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let here = OsString::from(".");
        let (destination, sources) = match self.places.as_slice() {
            [_] => (&here, self.places.as_slice()),
            places => split_places(places)?,
        };
        let writing = session.require_writing()?;
        let path = session.path(destination);
        copy_into(
            session.context(),
            self.flags.how(),
            &writing,
            sources,
            SourceKind::Host,
            &path,
        )?;
        Ok(())
    }
}

/// Copy files within the volume; source and copy share their extents
#[derive(Args, Debug)]
pub struct Cp {
    #[command(flatten)]
    flags: Flags,
    /// What to copy, then where to
    #[arg(value_name = "SOURCE… DESTINATION", required = true, num_args = 2..)]
    places: Vec<OsString>,
}

impl Word for Cp {
    const NAME: &'static str = "cp";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.enter_view()?;
        let (destination, sources) = split_places(&self.places)?;
        let writing = session.require_writing()?;
        let path = session.path(destination);
        copy_into(
            session.context(),
            self.flags.how(),
            &writing,
            sources,
            SourceKind::Within,
            &path,
        )?;
        Ok(())
    }
}
