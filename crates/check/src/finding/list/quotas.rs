//! Findings about quota groups.

macro_rules! quotas {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A quota group whose counts are wrong.
            QgroupCount = "qgroup-count", Inconsistent, Quotas {
                /// The quota group: level and number.
                group: String,
                /// The recorded referenced bytes of the group.
                stored_referenced: ByteCount,
                /// The counted referenced bytes of the group.
                referenced: ByteCount,
                /// The recorded exclusive bytes of the group.
                stored_exclusive: ByteCount,
                /// The counted exclusive bytes of the group.
                exclusive: ByteCount,
            } "quota group {group}: wrong counts (found referenced {stored_referenced} and exclusive {stored_exclusive}, expected {referenced} and {exclusive})"

            /// A subvolume without a quota group.
            QgroupMissing = "qgroup-missing", Inconsistent, Quotas {
                /// The quota group: level and number.
                group: String,
            } "quota group {group} is missing"

            /// A relation of quota groups that only one side records.
            QgroupRelation = "qgroup-relation", Inconsistent, Quotas {
                /// The quota group whose item records the relation.
                group: String,
                /// The other quota group of the relation.
                other: String,
            } "quota group {group}: its relation to {other} is recorded on one side only"
        }
    };
}

pub(super) use quotas;
