//! Attributes that new inodes inherit from their directory.

use buttress_fs::acl::Acl;
use buttress_fs::property::CompressionProperty;

/// Attributes that new inodes inherit from their directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The default access control list that new inodes inherit.
    pub default_acl: Option<Acl>,
    /// The compression property of the directory.
    pub compression: Option<CompressionProperty>,
}
