//! A model of LZO1X: it writes random instructions and their content, and the decoder must yield
//! that content.

use super::push_extension;
use crate::compression::Lzo1xError;
use crate::compression::lzo1x;
use proptest::prelude::*;

/// One LZO1X instruction of a random stream.
#[derive(Clone, Debug)]
enum Step {
    Run(Vec<u8>),
    Match {
        form: u8,
        distance: u32,
        length: u16,
        literals: Vec<u8>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let literals = proptest::collection::vec(any::<u8>(), 0..4);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 4..400).prop_map(Step::Run),
        (0_u8..5, any::<u32>(), any::<u16>(), literals).prop_map(|(form, distance, length, literals)| {
            Step::Match {
                form,
                distance,
                length,
                literals,
            }
        }),
    ]
}

/// Writes the steps as an LZO1X stream, by the table in the documentation of the decoder, and the
/// content. Skips steps that are invalid at their position.
fn encode_steps(first: &[u8], steps: &[Step]) -> (Vec<u8>, Vec<u8>) {
    #[derive(PartialEq)]
    enum Before {
        Match,
        Few,
        Run,
    }
    let low = |number: usize| u8::try_from(number & 0xff).unwrap();
    let mut stream = vec![17 + low(first.len())];
    stream.extend_from_slice(first);
    let mut content = first.to_vec();
    let mut before = if first.len() < 4 { Before::Few } else { Before::Run };
    for step in steps {
        match step {
            Step::Run(literals) if before == Before::Match => {
                if literals.len() <= 18 {
                    stream.push(low(literals.len() - 3));
                } else {
                    stream.push(0);
                    push_extension(&mut stream, literals.len() - 18);
                }
                stream.extend_from_slice(literals);
                content.extend_from_slice(literals);
                before = Before::Run;
            }
            Step::Run(_) => {}
            Step::Match {
                form,
                distance,
                length,
                literals,
            } => {
                let any_distance = usize::try_from(*distance).unwrap();
                let any_length = usize::from(*length);
                let state = literals.len();
                let within = |least: usize, most: usize| least + any_distance % (most - least + 1);
                let (distance, length, head) = match form {
                    0 if before == Before::Few => {
                        let distance = within(1, 1024);
                        (
                            distance,
                            2,
                            vec![low(((distance - 1) & 3) << 2 | state), low((distance - 1) >> 2)],
                        )
                    }
                    0 if before == Before::Run => {
                        let distance = within(2049, 3072);
                        let code = distance - 2049;
                        (distance, 3, vec![low((code & 3) << 2 | state), low(code >> 2)])
                    }
                    1 => {
                        let (distance, length) = (within(1, 2048), 3 + any_length % 2);
                        let code = distance - 1;
                        let head = 0x40 | (length - 3) << 5 | (code & 7) << 2 | state;
                        (distance, length, vec![low(head), low(code >> 3)])
                    }
                    2 => {
                        let (distance, length) = (within(1, 2048), 5 + any_length % 4);
                        let code = distance - 1;
                        let head = 0x80 | (length - 5) << 5 | (code & 7) << 2 | state;
                        (distance, length, vec![low(head), low(code >> 3)])
                    }
                    3 => {
                        let (distance, length) = (within(1, 16_384), 3 + any_length % 700);
                        (distance, length, far(0x20, 33, length, distance - 1, state))
                    }
                    _ => {
                        let (distance, length) = (within(16_385, 49_151), 3 + any_length % 700);
                        let code = distance - 16_384;
                        let head = 0x10 | low((code >> 14) << 3);
                        (distance, length, far(head, 9, length, code & 0x3fff, state))
                    }
                };
                if distance > content.len() {
                    continue;
                }
                stream.extend_from_slice(&head);
                stream.extend_from_slice(literals);
                for _ in 0..length {
                    content.push(content[content.len() - distance]);
                }
                content.extend_from_slice(literals);
                before = if state == 0 { Before::Match } else { Before::Few };
            }
        }
    }
    stream.extend_from_slice(&[17, 0, 0]);
    (stream, content)
}

/// Returns the instruction of a match with a 16-bit distance. `base` is the match length to which
/// an extension is added.
fn far(head: u8, base: usize, length: usize, code: usize, state: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if length <= base {
        bytes.push(head | u8::try_from(length - 2).unwrap());
    } else {
        bytes.push(head);
        push_extension(&mut bytes, length - base);
    }
    bytes.extend_from_slice(&u16::try_from(code << 2 | state).unwrap().to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn lzo1x_instructions_mean_what_the_table_says(
        first in proptest::collection::vec(any::<u8>(), 1..238),
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let (stream, content) = encode_steps(&first, &steps);
        let mut out = vec![0; content.len()];
        prop_assert_eq!(lzo1x::decompress(&stream, &mut out), Ok(content.len()));
        prop_assert_eq!(&out, &content);
        // The decoder refuses a buffer that is one byte too small, and an input that is one byte
        // too long.
        let mut small = vec![0; content.len() - 1];
        let full = matches!(lzo1x::decompress(&stream, &mut small), Err(Lzo1xError::OutputFull { .. }));
        prop_assert!(full);
        let longer = [&stream[..], &[0]].concat();
        let offset = stream.len();
        prop_assert_eq!(
            lzo1x::decompress(&longer, &mut out),
            Err(Lzo1xError::InputAfterEnd { offset, rest_bytes: 1 })
        );
        let shorter = lzo1x::decompress(&stream[..offset - 1], &mut out);
        prop_assert_eq!(shorter, Err(Lzo1xError::InputCut { offset: offset - 1 }));
    }
}

#[test]
fn each_fault_of_lzo1x_has_its_error() {
    let cases: [(&[u8], Lzo1xError); 7] = [
        (&[], Lzo1xError::InputCut { offset: 0 }),
        (&[18], Lzo1xError::InputCut { offset: 1 }),
        (
            &[18, 1, 0x40, 1],
            Lzo1xError::DistanceTooFar {
                offset: 4,
                distance: 9,
                content_bytes: 1,
            },
        ),
        (&[17, 0], Lzo1xError::InputCut { offset: 2 }),
        (
            &[18, 1, 18, 0, 0],
            Lzo1xError::EndMarkInvalid { offset: 5, length: 4 },
        ),
        (
            &[17, 0, 0, 9],
            Lzo1xError::InputAfterEnd {
                offset: 3,
                rest_bytes: 1,
            },
        ),
        (
            &[18, 1, 0x20, 0, 0, 0, 9, 0, 0],
            Lzo1xError::OutputFull {
                offset: 9,
                copy_bytes: 33 + 3 * 255 + 9,
                content_bytes: 1,
                limit_bytes: 64,
            },
        ),
    ];
    for (stream, error) in cases {
        assert_eq!(lzo1x::decompress(stream, &mut [0; 64]), Err(error), "{stream:?}");
    }
}
