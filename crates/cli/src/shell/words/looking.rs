//! Commands of the program that are shell commands unchanged, with their path arguments.

use crate::commands::cat::Cat;
use crate::commands::filesystem::{df::Df, du::Du};
use crate::commands::ls::Ls;
use crate::commands::stat::Stat;
use crate::commands::subvolume::{get_default::GetDefault, list::List, show::Show};
use crate::commands::tree::Tree;
use crate::shell::table::Looking;

macro_rules! looking {
    ($($command:ty: $paths:literal, $optional:literal;)*) => {
        $(impl Looking for $command {
            const PATHS: &'static str = $paths;
            const OPTIONAL: bool = $optional;
        })*
    };
}

looking! {
    Ls: "targets", true;
    Tree: "target", true;
    Cat: "files", false;
    Stat: "files", false;
    Df: "image", true;
    Du: "targets", true;
    List: "image", true;
    Show: "image", true;
    GetDefault: "image", true;
}
