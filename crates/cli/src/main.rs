//! The `buttress` command. The library `buttress_cli` contains everything, so that tests and
//! documentation tasks can use the command table as well.

use std::process::ExitCode;

fn main() -> ExitCode {
    buttress_cli::main(std::env::args_os())
}
