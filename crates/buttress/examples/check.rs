//! Checks a volume: `check IMAGE`. Exits 1 if the check finds any damage.

use buttress::{CheckOptions, Progress, Volume};
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: check IMAGE")?;
    let options = CheckOptions {
        data_checksums: true,
        ..CheckOptions::default()
    };
    let report = Volume::open(image)?.check(&options, &Progress::new())?;
    for reported in &report.findings {
        println!("{}: {}", reported.finding.code(), reported.finding);
    }
    if report.is_clean() {
        println!("no error found");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
