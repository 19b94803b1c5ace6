//! Quota groups.

macro_rules! quotas {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A quota group that counts wrongly.
            QgroupCount = "qgroup-count", Inconsistent, Quotas {
                /// The group: level and number.
                group: String,
                /// Bytes that it says it refers to.
                stored_referenced: ByteCount,
                /// Bytes that it refers to.
                referenced: ByteCount,
                /// Bytes that it says are its own.
                stored_exclusive: ByteCount,
                /// Bytes that are its own.
                exclusive: ByteCount,
            } "quota group {group}: wrong counts (found referenced {stored_referenced} and exclusive {stored_exclusive}, expected {referenced} and {exclusive})"

            /// A subvolume without a quota group.
            QgroupMissing = "qgroup-missing", Inconsistent, Quotas {
                /// The group: level and number.
                group: String,
            } "quota group {group} is missing"

            /// A relation of quota groups that is recorded from one side only.
            QgroupRelation = "qgroup-relation", Inconsistent, Quotas {
                /// The group that it is recorded under.
                group: String,
                /// The other group.
                other: String,
            } "quota group {group}: its relation to {other} is recorded on one side only"
        }
    };
}

pub(super) use quotas;
