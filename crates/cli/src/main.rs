//! The `buttress` command. Everything is in the library `buttress_cli`, so that the command table can also be
//! used by tests and by the tasks that write documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    buttress_cli::main(std::env::args_os())
}
