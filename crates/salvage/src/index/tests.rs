//! Tests of headers and pages as bytes.

use super::layout::{HEADER_BYTES, Header, PageKind, check_page, encode_page};
use crate::error::IndexProblem;
use crate::identity::{FoundDevice, Identity};
use crate::scan::Scanned;
use buttress_format::superblock::{CompatRo, Incompat};
use buttress_format::{ByteCount, ChecksumType, DeviceId, Generation};
use uuid::Uuid;

fn header() -> Header {
    let device = |number: u64| FoundDevice {
        size: ByteCount::new(number << 30),
        changed_at: (number > 1).then_some((-3, 7)),
        member: (number > 1).then(|| (Uuid::max(), DeviceId::new(number), Generation::new(9))),
    };
    Header {
        sequence: 3,
        is_complete: true,
        identity: Identity {
            fsid: Uuid::from_u128(1),
            metadata_uuid: Uuid::from_u128(2),
            former_uuid: Some(Uuid::from_u128(3)),
            node_bytes: 16 << 10,
            sector_bytes: 4096,
            checksum_type: ChecksumType::Blake2b,
            incompat: Incompat::NO_HOLES,
            compat_ro: CompatRo::FREE_SPACE_TREE,
            devices: vec![device(1), device(2), device(3)],
        },
        positions: vec![0, 1 << 20, 2 << 20],
        found: Scanned {
            read: ByteCount::new(5),
            unreadable: ByteCount::new(6),
            blocks: 7,
            damaged: 8,
            others: [(Uuid::from_u128(4), 9)].into(),
        },
        pages: 2,
        records: 820,
    }
}

#[test]
fn headers_survive_encoding() {
    assert_eq!(Header::decode(&header().encode()), Ok(header()));
}

#[test]
fn every_changed_byte_of_a_header_is_noticed() {
    let bytes = header().encode();
    for place in 0..HEADER_BYTES {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        let problem = Header::decode(&damaged).unwrap_err();
        let expected = match place {
            0..8 => IndexProblem::NoIndex,
            _ => IndexProblem::Header,
        };
        assert_eq!(problem, expected, "byte {place}");
    }
}

/// Values that no scan writes are refused, even below a correct checksum.
#[test]
fn headers_with_impossible_values_are_refused() {
    let refused = |change: &dyn Fn(&mut Header)| {
        let mut header = header();
        change(&mut header);
        Header::decode(&header.encode()).unwrap_err()
    };
    let fields = [
        refused(&|header| header.identity.node_bytes = 12_288),
        refused(&|header| header.identity.sector_bytes = 32 << 10),
        refused(&|header| header.identity.devices.clear()),
        refused(&|header| header.records = 819 * 2 + 1),
        refused(&|header| header.pages = u64::MAX),
    ];
    let names = fields.map(|problem| match problem {
        IndexProblem::Field { field, .. } => field,
        other => panic!("{other}"),
    });
    let records = "number of records";
    assert_eq!(
        names,
        ["node size", "sector size", "number of devices", records, records]
    );
}

#[test]
fn pages_know_their_kind_and_place() {
    let entries = [7; 160];
    let page = encode_page(PageKind::Records, 5, &entries);
    assert_eq!(check_page(&page, PageKind::Records, 5), Ok(&entries[..]));
    let wrong = |found: Result<&[u8], IndexProblem>, expected| {
        assert_eq!(
            found,
            Err(IndexProblem::Page {
                page: 5,
                what: expected
            })
        );
    };
    wrong(check_page(&page, PageKind::Order, 5), "its kind");
    let other = encode_page(PageKind::Records, 6, &entries);
    wrong(check_page(&other, PageKind::Records, 5), "its number");
    wrong(check_page(&page[..100], PageKind::Records, 5), "its length");
    let mut damaged = page.clone();
    damaged[100] ^= 1;
    wrong(check_page(&damaged, PageKind::Records, 5), "its checksum");
}
