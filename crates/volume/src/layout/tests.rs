//! Tests of the layout against a naive model, which deals the chunk's bytes out to the stripes one
//! by one.

use super::*;
use proptest::prelude::*;

/// Returns the expected content of each byte of each stripe, computed by dealing out units one
/// after another.
fn deal(profile: Profile, length: u64, stripes: usize, stripe_bytes: u64) -> Vec<Vec<Content>> {
    let mut dealt = vec![Vec::new(); stripes];
    let unit = |start: u64, dealt: &mut Vec<Content>| {
        for offset in start..start + stripe_bytes {
            dealt.push(if offset < length {
                Content::Data(ChunkOffset(offset))
            } else {
                Content::Unused
            });
        }
    };
    let mut next = 0;
    let mut row = 0;
    while next < length {
        match profile {
            Profile::Raid0 if stripes > 1 => {
                for stripe in &mut dealt {
                    unit(next, stripe);
                    next += stripe_bytes;
                }
            }
            Profile::Raid10 if stripes > 2 => {
                for pair in dealt.chunks_mut(2) {
                    for stripe in pair {
                        unit(next, stripe);
                    }
                    next += stripe_bytes;
                }
            }
            Profile::Raid5 | Profile::Raid6 => {
                let parities = if profile == Profile::Raid5 { 1 } else { 2 };
                let start = usize::try_from(row).unwrap() % stripes;
                for column in 0..stripes {
                    let stripe = &mut dealt[(start + column) % stripes];
                    if column < stripes - parities {
                        unit(next, stripe);
                        next += stripe_bytes;
                    } else if column == stripes - parities {
                        stripe.extend((0..stripe_bytes).map(|_| Content::P { row }));
                    } else {
                        stripe.extend((0..stripe_bytes).map(|_| Content::Q { row }));
                    }
                }
            }
            _ => {
                for stripe in &mut dealt {
                    stripe.push(Content::Data(ChunkOffset(next)));
                }
                next += 1;
            }
        }
        row += 1;
    }
    dealt
}

fn shapes() -> impl Strategy<Value = (Profile, usize)> {
    prop_oneof![
        Just((Profile::Single, 1)),
        Just((Profile::Dup, 2)),
        Just((Profile::Raid1, 2)),
        Just((Profile::Raid1C3, 3)),
        Just((Profile::Raid1C4, 4)),
        (1usize..6).prop_map(|stripes| (Profile::Raid0, stripes)),
        (1usize..4).prop_map(|pairs| (Profile::Raid10, pairs * 2)),
        (2usize..7).prop_map(|stripes| (Profile::Raid5, stripes)),
        (3usize..8).prop_map(|stripes| (Profile::Raid6, stripes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn both_directions_agree_with_dealing_bytes_out(
        (profile, stripes) in shapes(), stripe_bytes in 1u64..9, length in 1u64..150,
    ) {
        let layout = Layout::new(profile, ByteCount::new(length), stripes, 2, stripe_bytes).unwrap();
        let dealt = deal(profile, length, stripes, stripe_bytes);
        for (index, stripe) in dealt.iter().enumerate() {
            prop_assert_eq!(layout.device_extent_bytes().get(), stripe.len() as u64);
            for (offset, content) in stripe.iter().enumerate() {
                prop_assert_eq!(layout.content(index, StripeOffset(offset as u64)), Some(*content));
            }
            prop_assert_eq!(layout.content(index, StripeOffset(stripe.len() as u64)), None);
        }
        prop_assert_eq!(layout.content(stripes, StripeOffset(0)), None);
        for offset in 0..length {
            let place = layout.place(ChunkOffset(offset)).unwrap();
            prop_assert!(place.length.get() >= 1 && offset + place.length.get() <= length);
            let expected = dealt.iter().flatten().filter(|content| **content == Content::Data(ChunkOffset(offset)));
            prop_assert_eq!(place.copies, expected.count());
            for copy in 0..place.copies {
                let start = usize::try_from(place.stripe_offset.get()).unwrap();
                for step in 0..place.length.get() {
                    prop_assert_eq!(
                        dealt[place.stripe_index + copy][start + usize::try_from(step).unwrap()],
                        Content::Data(ChunkOffset(offset + step))
                    );
                }
            }
            if let Some(Column { row, column }) = place.parity {
                prop_assert_eq!(layout.stripe_of_column(row, column), Some(place.stripe_index));
                let start = usize::try_from(row * stripe_bytes).unwrap();
                let p = layout.stripe_of_column(row, layout.data_columns()).unwrap();
                prop_assert_eq!(dealt[p][start], Content::P { row });
                if profile == Profile::Raid6 {
                    let q = layout.stripe_of_column(row, layout.data_columns() + 1).unwrap();
                    prop_assert_eq!(dealt[q][start], Content::Q { row });
                }
                prop_assert_eq!(layout.stripe_of_column(row, stripes), None);
            }
        }
        prop_assert_eq!(layout.place(ChunkOffset(length)), None);
    }

    #[test]
    fn no_numbers_from_a_disk_make_it_overflow(
        (profile, stripes) in shapes(),
        length in prop_oneof![1u64.., Just(u64::MAX)],
        stripe_bytes in prop_oneof![0u64.., Just(u64::MAX), Just(65536)],
        offset in any::<u64>(),
    ) {
        if let Ok(layout) = Layout::new(profile, ByteCount::new(length), stripes, 2, stripe_bytes) {
            let _ = layout.device_extent_bytes();
            if let Some(place) = layout.place(ChunkOffset(offset)) {
                prop_assert!(offset.checked_add(place.length.get()).is_some_and(|end| end <= length));
                let content = layout.content(place.stripe_index, place.stripe_offset);
                prop_assert!(content.is_none() || content == Some(Content::Data(ChunkOffset(offset))));
            }
            let _ = layout.content(stripes - 1, StripeOffset(offset));
        }
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let length = ByteCount::new(1 << 20);
    let refused = |profile, stripes, sub_stripes| {
        Layout::new(profile, length, stripes, sub_stripes, 65536).unwrap_err()
    };
    for (profile, stripes) in [
        (Profile::Single, 0),
        (Profile::Single, 2),
        (Profile::Dup, 1),
        (Profile::Raid1, 3),
        (Profile::Raid1C3, 2),
        (Profile::Raid1C4, 5),
        (Profile::Raid0, 0),
        (Profile::Raid5, 1),
        (Profile::Raid6, 2),
        (Profile::Raid6, 258),
    ] {
        assert!(
            matches!(refused(profile, stripes, 1), LayoutError::StripeCount { .. }),
            "{profile:?} {stripes}"
        );
    }
    for (stripes, sub_stripes) in [(0, 2), (3, 2), (4, 0), (4, 1), (4, 4)] {
        assert_eq!(
            refused(Profile::Raid10, stripes, sub_stripes),
            LayoutError::SubStripes { stripes, sub_stripes }
        );
    }
    assert_eq!(
        Layout::new(Profile::Raid0, length, 2, 1, 0),
        Err(LayoutError::StripeBytes)
    );
    assert_eq!(
        Layout::new(Profile::Raid0, ByteCount::ZERO, 2, 1, 1),
        Err(LayoutError::Empty)
    );
}
