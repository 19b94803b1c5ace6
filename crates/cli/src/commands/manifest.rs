//! `buttress manifest IMAGE`: a plan that recreates the image, in the format of `mkfs --manifest`.
//!
//! The manifest does not contain file contents: it names the image by the path given here, and mkfs
//! reads them from there. A relative path is relative to the manifest.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::Result;
use buttress::sources::manifest::write::{Lost, Options, write};
use buttress::unstable::filesystem_of;
use buttress::{CompressionMethod, Progress};
use clap::Args;

use crate::compression::Method;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::destination::{Destination, named};
use crate::output::json::written_file;
use crate::output::writer_thread::WriterThread;
use crate::progress::Watch;
use crate::table::Subcommand;

/// Write a plan from which mkfs makes the same volume again
#[derive(Args, Debug)]
pub struct Manifest {
    /// Write to this file, not to standard output
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Path of the image with the file contents, relative to the manifest [default: as on the
    /// command line]
    #[arg(long, value_name = "PATH")]
    contents: Option<OsString>,
    /// Compression level of files with this algorithm, which the volume does not record: zstd:9,
    /// zlib:6
    #[arg(long, value_name = "METHOD:LEVEL")]
    compressed_with: Vec<Method>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Manifest {
    const NAME: &'static str = "manifest";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress manifest -f plan.toml root.img",
            "Writes the plan that makes root.img again",
        ),
        example("buttress manifest root.img | less", "Shows the plan"),
    ];

    fn writes_contents(&self) -> bool {
        named(self.file.as_deref()).is_none()
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let opened = context.open_volume(&target.image)?;
        let image = match &self.contents {
            Some(path) => path.to_string_lossy().into_owned(),
            None => target.image.display().to_string(),
        };
        let levels: Vec<CompressionMethod> = self
            .compressed_with
            .iter()
            .map(|Method(method)| *method)
            .collect();
        let progress = Progress::new();
        let options = Options {
            image,
            levels,
            progress: progress.clone(),
        };
        let watch = Watch::start(context, "manifest", progress.clone());
        let destination = Destination::open(context, self.file.as_deref())?;
        let mut out = BufWriter::with_capacity(1 << 16, WriterThread::new(destination));
        write(
            &filesystem_of(opened.volume()),
            &options,
            &mut out,
            &mut |lost| match lost {
                Lost::Failed(error) => context.lost(&target.name_in(error)),
                left_out => context.warn(left_out),
            },
        )?;
        out.flush()?;
        let writer = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        writer.finish()?.finish()?;
        watch.end();
        if let Some(file) = named(self.file.as_deref()).filter(|_| context.json()) {
            context.print_json("manifest", written_file(file, &progress.snapshot()))?;
        }
        Ok(Outcome::Done)
    }
}
