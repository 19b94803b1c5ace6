//! The errors of a rebuild.

use buttress_device::{IoError, Operation};
use buttress_exact::Defect;
use buttress_fs::Error;
use std::sync::Arc;

/// Returns the error of a volume whose records do not suffice for a rebuild. The repair reports the
/// reason and changes nothing.
pub(super) const fn refused(what: &'static str) -> Error {
    Error::Invalid { what }
}

/// Returns an error of sorting or packing as an error of the repair.
pub(super) fn failed(error: buttress_packing::Error) -> Error {
    match error {
        buttress_packing::Error::Spool { folder, cause } => {
            let name: Arc<str> = folder.to_string_lossy().into();
            IoError::new(&name, Operation::Write, 0, 0, &cause).into()
        }
        buttress_packing::Error::Caller(error) => match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(_) => Defect::new("packing failed with an unknown error").into(),
        },
        _ => Defect::new("the packed items fit no tree").into(),
    }
}

/// Returns an error of the repair as the error of a caller of the packer.
pub(super) fn of_caller(error: Error) -> buttress_packing::Error {
    buttress_packing::Error::Caller(Box::new(error))
}
