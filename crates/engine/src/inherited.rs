//! What a directory gives to new inodes, as its attributes say.

use buttress_fs::acl::Acl;
use buttress_fs::property::CompressionProperty;

/// What the attributes of a directory give to new inodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The default access control list.
    pub default_acl: Option<Acl>,
    /// How content is compressed.
    pub compression: Option<CompressionProperty>,
}
