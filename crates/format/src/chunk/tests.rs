//! Tests with one case for each check of a chunk.

use super::*;
use crate::key::ItemType;
use proptest::prelude::*;

const KEY: Key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, 1 << 20);

/// Returns the bytes of a chunk with `stripes` stripes, modified by `change`.
fn bytes(flags: u64, stripes: u16, change: impl Fn(&mut RawChunk)) -> Vec<u8> {
    let mut head = RawChunk {
        length: U64::new(8 << 20),
        owner: U64::new(2),
        stripe_len: U64::new(STRIPE_BYTES),
        chunk_type: U64::new(flags),
        io_align: U32::new(65536),
        io_width: U32::new(65536),
        sector_size: U32::new(4096),
        num_stripes: U16::new(stripes),
        sub_stripes: U16::new(1),
    };
    change(&mut head);
    let mut data = head.as_bytes().to_vec();
    for device in 1..=u64::from(stripes) {
        let stripe = RawStripe {
            devid: U64::new(device),
            offset: U64::new(1 << 20),
            dev_uuid: [9; 16],
        };
        data.extend_from_slice(stripe.as_bytes());
    }
    data
}

fn problem(data: &[u8]) -> ItemProblem {
    Chunk::parse(&KEY, data, 4096).unwrap_err().problem
}

#[test]
fn every_profile_parses_with_its_stripes() {
    for profile in Profile::ALL {
        let sub_stripes = if profile == Profile::Raid10 { 2 } else { 1 };
        let data = bytes(1 | profile.flag().bits(), profile.min_stripes(), |raw| {
            raw.sub_stripes = U16::new(sub_stripes);
        });
        let chunk = Chunk::parse(&KEY, &data, 4096).unwrap();
        assert_eq!(chunk.replication(), profile);
        assert_eq!(chunk.stripes.len(), usize::from(profile.min_stripes()));
        assert_eq!(chunk.end(Logical::new(1 << 20)), Logical::new(9 << 20));
        let few = profile.min_stripes() - 1;
        assert_eq!(
            problem(&bytes(1 | profile.flag().bits(), few, |_| {})),
            ChunkProblem::StripeCount {
                profile,
                stripes: few,
                least: profile.min_stripes()
            }
            .into()
        );
    }
}

#[test]
fn each_check_finds_its_fault() {
    type Change = fn(&mut RawChunk);
    let sector_bytes = 4096;
    let cases: [(Change, ChunkProblem); 10] = [
        (
            |raw| raw.sector_size = U32::new(512),
            ChunkProblem::SectorSize {
                chunk_bytes: 512,
                volume_bytes: 4096,
            },
        ),
        (
            |raw| raw.length = U64::new(0),
            ChunkProblem::Length {
                length_bytes: 0,
                sector_bytes,
            },
        ),
        (
            |raw| raw.length = U64::new(4097),
            ChunkProblem::Length {
                length_bytes: 4097,
                sector_bytes,
            },
        ),
        (
            |raw| raw.length = U64::new(1 << 48),
            ChunkProblem::TooLong {
                length_bytes: 1 << 48,
                limit_bytes: 0xffff_ffff << 16,
            },
        ),
        (
            |raw| raw.stripe_len = U64::new(4096),
            ChunkProblem::StripeLength { stripe_bytes: 4096 },
        ),
        (
            |raw| raw.chunk_type = U64::new(1 | (1 << 40)),
            ChunkProblem::FlagsUnknown { flags: 1 | (1 << 40) },
        ),
        (
            |raw| raw.chunk_type = U64::new(0x19),
            ChunkProblem::SeveralProfiles { flags: 0x19 },
        ),
        (
            |raw| raw.chunk_type = U64::new(0),
            ChunkProblem::TypeMissing { flags: 0 },
        ),
        (
            |raw| raw.chunk_type = U64::new(6),
            ChunkProblem::SystemMixed { flags: 6 },
        ),
        (
            |raw| raw.chunk_type = U64::new(0x41),
            ChunkProblem::StripeCount {
                profile: Profile::Raid10,
                stripes: 1,
                least: 2,
            },
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(problem(&bytes(1, 1, change)), expected.into());
    }
    assert_eq!(
        problem(&bytes(0x41, 3, |raw| raw.sub_stripes = U16::new(2))),
        ChunkProblem::SubStripes {
            sub_stripes: 2,
            stripes: 3
        }
        .into()
    );
    let mixed = Chunk::parse(&KEY, &bytes(5, 1, |_| {}), 4096).unwrap();
    assert_eq!(
        mixed.check_mixed(Incompat::empty()),
        Err(ChunkProblem::MixedWithoutFeature { flags: 5 })
    );
    assert_eq!(mixed.check_mixed(Incompat::MIXED_GROUPS), Ok(()));
}

#[test]
fn keys_and_sizes_are_checked() {
    let data = bytes(1, 1, |_| {});
    assert_eq!(
        problem(&[data.as_slice(), &[0]].concat()),
        ItemProblem::SizeWrong {
            size_bytes: 81,
            expected_bytes: 80
        }
    );
    assert_eq!(
        problem(&data[..79]),
        ItemProblem::SizeTooSmall {
            size_bytes: 79,
            needed_bytes: 80
        }
    );
    assert_eq!(
        problem(&data[..47]),
        ItemProblem::SizeTooSmall {
            size_bytes: 47,
            needed_bytes: 48
        }
    );
    let at = |objectid: u64, offset: u64| {
        let key = Key::new(ObjectId::new(objectid), ItemType::CHUNK_ITEM, offset);
        Chunk::parse(&key, &data, 4096).unwrap_err().problem
    };
    assert_eq!(at(257, 0), ItemProblem::ObjectIdInvalid { objectid: 257 });
    assert_eq!(
        at(256, 1),
        ItemProblem::OffsetUnaligned {
            offset: 1,
            sector_bytes: 4096
        }
    );
    let last_sector = 0u64.wrapping_sub(4096);
    assert_eq!(
        at(256, last_sector),
        ItemProblem::RangeOverflow {
            start: last_sector,
            length_bytes: 8 << 20
        }
    );
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(data in proptest::collection::vec(any::<u8>(), 0..300), offset: u64) {
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, offset);
        let _ = Chunk::parse(&key, &data, 4096);
    }
}
