//! Tests of hand-made archives that no program writes. `tests/archives.rs` covers the archives of
//! programs.

use super::*;

/// Returns a header with a correct checksum.
fn header(name: &[u8], letter: u8, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0001750\0");
    block[116..124].copy_from_slice(b"0000144\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000017\0");
    block[156] = letter;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8; 512]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n")
}

fn extended(letter: u8, records: &[(&str, &str)]) -> Vec<u8> {
    let body: String = records.iter().map(|(key, value)| record(key, value)).collect();
    [
        header(b"pax", letter, body.len() as u64).to_vec(),
        padded(body.as_bytes()),
    ]
    .concat()
}

fn read(archive: &[u8]) -> Result<Vec<Member>, TarError> {
    let mut reader = Reader::new(Store::of_bytes(archive));
    let mut members = Vec::new();
    while let Some(member) = reader.next_member()? {
        members.push(member);
    }
    Ok(members)
}

fn problem(archive: &[u8]) -> (u64, Problem) {
    let error = read(archive).unwrap_err();
    (error.offset, error.problem)
}

#[test]
fn extended_header_applies_to_one_member_global_to_all() {
    let archive = [
        header(b"first", b'0', 0).to_vec(),
        extended(b'g', &[("uid", "7"), ("mtime", "1.5")]),
        header(b"second", b'0', 0).to_vec(),
        extended(b'x', &[("uid", "8"), ("path", "named")]),
        header(b"third", b'0', 0).to_vec(),
        header(b"fourth", b'0', 0).to_vec(),
    ]
    .concat();
    let members = read(&archive).unwrap();
    let seen: Vec<(&[u8], u32)> = members
        .iter()
        .map(|member| (member.path.as_slice(), member.uid))
        .collect();
    let wanted: [(&[u8], u32); 4] = [(b"first", 1000), (b"second", 7), (b"named", 8), (b"fourth", 7)];
    assert_eq!(seen, wanted);
    assert_eq!(members[0].modified.seconds, 15);
    assert_eq!(members[3].modified.nanoseconds, 500_000_000);
    assert_eq!(members[0].gid, 100);
    assert_eq!(members[0].permissions, 0o644);
    // A member begins at its first header.
    assert_eq!(members[2].offset, 512 * 4);
}

#[test]
fn a_member_can_be_read_again_from_where_it_begins() {
    let archive = [
        header(b"first", b'0', 700).to_vec(),
        padded(&[1; 700]),
        extended(b'x', &[("path", "named")]),
        header(b"second", b'0', 3).to_vec(),
        padded(b"abc"),
    ]
    .concat();
    let members = read(&archive).unwrap();
    for member in &members {
        let mut again = Reader::at(Store::of_bytes(archive.as_slice()), member.offset);
        assert_eq!(again.next_member().unwrap().as_ref(), Some(member));
    }
}

#[test]
fn wrong_sizes_are_reported_at_their_header() {
    let first = [header(b"first", b'0', 3).to_vec(), padded(b"abc")].concat();
    let lying = [first.as_slice(), &header(b"lies", b'0', 1 << 32)].concat();
    assert!(matches!(
        problem(&lying),
        (
            1024,
            Problem::Ends {
                needed: 0x1_0000_0000,
                left: 0,
                ..
            }
        )
    ));
    let huge = [
        first.as_slice(),
        &extended(b'x', &[("size", "9223372036854775808")]),
        &header(b"lies", b'0', 0),
    ]
    .concat();
    assert!(matches!(problem(&huge), (2048, Problem::Ends { .. })));
    let name = [first.as_slice(), &header(b"long", b'L', 1 << 30)].concat();
    assert!(matches!(
        problem(&name),
        (
            1024,
            Problem::TooLong {
                bytes: 0x4000_0000,
                ..
            }
        )
    ));
    let mut negative = header(b"less", b'0', 0);
    negative[124..136].copy_from_slice(&[0xff; 12]);
    seal(&mut negative);
    assert!(matches!(
        problem(&negative),
        (
            0,
            Problem::Negative {
                field: "size",
                number: -1
            }
        )
    ));
}

#[test]
fn truncated_archives_are_reported() {
    let whole = [header(b"file", b'0', 600).to_vec(), padded(&[1; 600])].concat();
    // The padding of an archive's last member and the two blocks of zeros may be missing.
    assert_eq!(read(&whole).unwrap().len(), 1);
    assert_eq!(read(&whole[..512 + 600]).unwrap().len(), 1);
    for length in [1, 511, 512 + 1, 512 + 599] {
        let (offset, problem) = problem(&whole[..length]);
        assert!(matches!(problem, Problem::Ends { .. }), "{length}: {problem}");
        assert_eq!(offset, 0);
    }
    let dangling = extended(b'x', &[("path", "nothing")]);
    assert!(matches!(problem(&dangling), (1024, Problem::NoMember)));
    // Bytes after the end are ignored.
    let ended = [whole.as_slice(), &[0; 512], b"anything"].concat();
    assert_eq!(read(&ended).unwrap().len(), 1);
}

#[test]
fn one_wrong_bit_in_a_header_is_found() {
    let good = header(b"file", b'0', 0);
    for at in 0..512 * 8 {
        let mut bad = good;
        bad[at / 8] ^= 1 << (at % 8);
        // The checksum's own digits have several valid forms in a header.
        if !(148 * 8..156 * 8).contains(&at) {
            assert!(read(&bad).is_err(), "bit {at}");
        }
    }
}

#[test]
fn kinds_that_cannot_be_made_are_refused_by_name() {
    for (letter, word) in [(b'M', "multi-volume"), (b'N', "1990"), (b'Z', "'Z'")] {
        let (offset, problem) = problem(&header(b"x", letter, 0));
        assert_eq!(offset, 0);
        assert!(problem.to_string().contains(word), "{problem}");
    }
    assert!(matches!(
        problem(&header(b"x", b'1', 0)).1,
        Problem::NoTarget("hard")
    ));
    assert!(matches!(
        problem(&header(b"x", b'2', 0)).1,
        Problem::NoTarget("symbolic")
    ));
    // The label of an archive does not count as a member.
    let labelled = [header(b"label", b'V', 0), header(b"file", b'0', 0)].concat();
    assert_eq!(read(&labelled).unwrap().len(), 1);
}

#[test]
fn size_of_extended_headers_is_bounded() {
    let one = extended(b'x', &[("comment", &"c".repeat(9 << 20))]);
    let two = [one.as_slice(), &one, &header(b"file", b'0', 0)].concat();
    assert!(matches!(problem(&two).1, Problem::TooLong { .. }));
    let global = extended(b'g', &[("comment", &"c".repeat(40 << 10))]);
    let two = [global.as_slice(), &global].concat();
    assert!(matches!(problem(&two).1, Problem::TooLong { .. }));
    let many: Vec<(String, &str)> = (0..5000)
        .map(|n| (format!("SCHILY.xattr.user.{n}"), ""))
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let many = [extended(b'x', &many), header(b"file", b'0', 0).to_vec()].concat();
    assert!(matches!(problem(&many).1, Problem::Record { .. }));
    let path = "p/".repeat(20_000);
    let long = [
        extended(b'x', &[("path", &path)]),
        header(b"file", b'0', 0).to_vec(),
    ]
    .concat();
    assert!(matches!(
        problem(&long).1,
        Problem::TooLong { what: "a path", .. }
    ));
}

#[test]
fn depth_of_paths_is_bounded() {
    let archive = |depth: usize| {
        let path = vec!["a"; 16_384].get(..depth).unwrap().join("/");
        [extended(b'x', &[("path", &path)]), header(b"", b'0', 0).to_vec()].concat()
    };
    assert_eq!(read(&archive(2048)).unwrap().len(), 1);
    for depth in [2049, 16_384] {
        let (_, found) = problem(&archive(depth));
        assert!(matches!(found, Problem::TooDeep { most: 2048, .. }), "{found}");
    }
}

#[test]
fn invalid_maps_of_sparse_files_are_refused() {
    let file = |records: &[(&str, &str)], stored: usize| {
        [
            extended(b'x', records),
            header(b"sparse", b'0', stored as u64).to_vec(),
            padded(&vec![1; stored]),
        ]
        .concat()
    };
    let good = file(
        &[
            ("GNU.sparse.map", "0,512,4096,512"),
            ("GNU.sparse.size", "8192"),
            ("GNU.sparse.name", "real"),
        ],
        1024,
    );
    let members = read(&good).unwrap();
    assert_eq!(members[0].path, b"real");
    assert!(matches!(&members[0].kind, Kind::File { size: 8192, segments } if segments.len() == 2));
    for records in [
        &[("GNU.sparse.map", "0,512,100,512"), ("GNU.sparse.size", "8192")][..],
        &[("GNU.sparse.map", "0,512,4096,513"), ("GNU.sparse.size", "8192")],
        &[("GNU.sparse.map", "0,512,4096,512"), ("GNU.sparse.size", "4100")],
        &[("GNU.sparse.map", "0,512,4096"), ("GNU.sparse.size", "8192")],
        &[("GNU.sparse.numbytes", "512"), ("GNU.sparse.size", "8192")],
        &[
            ("GNU.sparse.numblocks", "99999999999"),
            ("GNU.sparse.size", "8192"),
        ],
        &[
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.realsize", "8192"),
        ],
        &[
            ("GNU.sparse.map", "0,512,18446744073709551615,512"),
            ("GNU.sparse.size", "8192"),
        ],
    ] {
        let (offset, problem) = problem(&file(records, 1024));
        assert!(matches!(problem, Problem::Sparse(_)), "{records:?}: {problem}");
        // A record's error names the record's place, and the error of its meaning names the place
        // of its use.
        assert!(offset == 0 || offset == 1024);
    }
}

proptest::proptest! {
    /// For any damage, the reader returns an error or members that lie within the archive.
    #[test]
    fn damaged_archives_give_members_or_an_error(
        changes in proptest::collection::vec((0..5120_usize, proptest::num::u8::ANY), 0..20),
        length in 0..5120_usize,
    ) {
        let mut archive = [
            extended(b'x', &[("path", "some/where"), ("SCHILY.xattr.user.a", "b")]),
            header(b"x", b'0', 600).to_vec(),
            padded(&[1; 600]),
            extended(b'g', &[("GNU.sparse.map", "0,512"), ("GNU.sparse.size", "8192")]),
            header(b"y", b'0', 512).to_vec(),
            padded(&[1; 512]),
            header(b"z", b'5', 0).to_vec(),
        ].concat();
        proptest::prop_assume!(archive.len() == 5120);
        for (at, byte) in changes {
            archive[at] = byte;
        }
        for at in (0..archive.len()).step_by(512) {
            // Half of the damaged archives have correct checksums.
            if archive[at] % 2 == 0 {
                let block: &mut [u8; 512] = (&mut archive[at..at + 512]).try_into().unwrap();
                if block[257] == b'u' {
                    seal(block);
                }
            }
        }
        archive.truncate(length);
        let mut reader = Reader::new(Store::of_bytes(archive.as_slice()));
        while let Ok(Some(member)) = reader.next_member() {
            if let Kind::File { segments, .. } = &member.kind {
                for segment in segments {
                    assert!(segment.at + segment.length <= archive.len() as u64);
                }
            }
            proptest::prop_assert!(reader.position() <= archive.len() as u64);
        }
    }
}
