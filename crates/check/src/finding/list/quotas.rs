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
            } "quota group {group} says referenced {stored_referenced}, exclusive {stored_exclusive}; they are {referenced}, {exclusive}"

            /// A subvolume without a quota group.
            QgroupMissing = "qgroup-missing", Inconsistent, Quotas {
                /// The group: level and number.
                group: String,
            } "there is no quota group {group}"

            /// A relation of quota groups that is recorded from one side only.
            QgroupRelation = "qgroup-relation", Inconsistent, Quotas {
                /// The group that it is recorded under.
                group: String,
                /// The other group.
                other: String,
            } "quota group {group} is related to {other}, but not the other way round"
        }
    };
}

pub(super) use quotas;
