use super::*;
use buttress_device::MemoryBackend;

fn faulty(faults: &[Fault]) -> (Arc<FaultyBackend>, Arc<MemoryBackend>) {
    let memory = Arc::new(MemoryBackend::new("m", vec![0; 1 << 16]));
    let backend = FaultyBackend::new(Arc::clone(&memory) as Arc<dyn Backend>, 7);
    faults.iter().for_each(|fault| backend.inject(fault.clone()));
    (backend, memory)
}

fn read(backend: &FaultyBackend, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let (first, second) = bytes.split_at_mut(length / 3);
    backend.read_vectored_at(offset, &mut [first, second])?;
    Ok(bytes)
}

#[test]
fn failing_ranges_fail_what_touches_them() {
    let (backend, _) = faulty(&[Fault::FailReads(100..101), Fault::FailWrites(200..300)]);
    for (offset, length, fails) in [(0, 100, false), (0, 101, true), (100, 1, true), (101, 9, false)] {
        assert_eq!(
            read(&backend, offset, length).is_err(),
            fails,
            "{offset} {length}"
        );
    }
    assert!(backend.write_at(190, &[0; 10]).is_ok());
    assert_eq!(
        backend.write_at(299, &[0; 1]).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    backend.heal();
    assert!(read(&backend, 100, 1).is_ok());
}

#[test]
fn numbered_faults_strike_once() {
    let (backend, _) = faulty(&[
        Fault::FailReadNumber(1),
        Fault::FailWriteNumber(0),
        Fault::FailFlushNumber(1),
    ]);
    assert_eq!(
        [0, 1, 2].map(|_| read(&backend, 0, 9).is_ok()),
        [true, false, true]
    );
    assert_eq!([0, 1].map(|_| backend.write_at(0, &[1]).is_ok()), [false, true]);
    assert_eq!([0, 1, 2].map(|_| backend.flush().is_ok()), [true, false, true]);
    assert_eq!(backend.request_counts(), (3, 2, 3));
}

#[test]
fn a_device_that_broke_writes_nothing_more_until_it_heals() {
    let (backend, _) = faulty(&[Fault::FailWritesFrom(2)]);
    let write = || backend.write_at(0, &[1]).is_ok();
    assert_eq!([0, 1, 2, 3].map(|_| write()), [true, true, false, false]);
    backend.heal();
    assert!(write());
}

#[test]
fn device_removed_at_a_write_fails_all_later_requests() {
    let (backend, _) = faulty(&[Fault::MissingFromWrite(1), Fault::FailFlushesFrom(1)]);
    assert!(read(&backend, 0, 1).is_ok());
    assert!(backend.write_at(0, &[1]).is_ok());
    assert!(backend.flush().is_ok());
    assert!(read(&backend, 0, 1).is_ok() && backend.flush().is_err() && backend.flush().is_err());
    assert!(backend.write_at(0, &[1]).is_err());
    assert!(read(&backend, 0, 1).is_err());
    backend.heal();
    assert!(read(&backend, 0, 1).is_ok() && backend.flush().is_ok());
}

#[test]
fn rot_flips_one_bit_in_each_block_until_it_is_written_again() {
    let range = 4096..20_480;
    let (backend, memory) = faulty(&[Fault::RotBits {
        range: range.clone(),
        every_bytes: 1024,
    }]);
    let bytes = read(&backend, 0, 1 << 16).unwrap();
    let rotten: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
    assert_eq!(rotten.len(), 16);
    assert!(
        rotten
            .iter()
            .all(|i| range.contains(&(*i as u64)) && bytes[*i].count_ones() == 1)
    );
    assert_eq!(read(&backend, 0, 1 << 16).unwrap(), bytes, "the same each time");
    let parts: Vec<u8> = (0..64)
        .flat_map(|i| read(&backend, i * 1024, 1024).unwrap())
        .collect();
    assert_eq!(parts, bytes, "however it is read");
    backend.write_at(rotten[3] as u64, &[0]).unwrap();
    let after = read(&backend, 0, 1 << 16).unwrap();
    assert_eq!(after.iter().filter(|byte| **byte != 0).count(), 15);
    assert_eq!(after[rotten[3]], 0);
    assert!(
        memory.snapshot().iter().all(|byte| *byte == 0),
        "the medium below is whole"
    );
}

#[test]
fn torn_and_misdirected_writes_say_nothing() {
    let (backend, memory) = faulty(&[
        Fault::TearWriteNumber {
            number: 0,
            kept_bytes: 3,
        },
        Fault::MisdirectWriteNumber {
            number: 1,
            to_bytes: 50,
        },
        Fault::MisdirectWriteNumber {
            number: 2,
            to_bytes: u64::MAX,
        },
    ]);
    for _ in 0..3 {
        backend.write_at(10, &[9; 5]).unwrap();
    }
    let bytes = memory.snapshot();
    assert_eq!(bytes[10..15], [9, 9, 9, 0, 0]);
    assert_eq!(bytes[50..55], [9; 5]);
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 8);
}

#[test]
fn missing_and_full_devices_say_so() {
    let (backend, _) = faulty(&[Fault::FullAfter(8)]);
    assert!(backend.write_at(0, &[1; 8]).is_ok());
    assert_eq!(
        backend.write_at(0, &[1]).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    backend.inject(Fault::Missing);
    assert!(read(&backend, 0, 1).is_err());
    assert!(backend.flush().is_err());
    assert!(backend.write_at(0, &[]).is_err());
}

#[test]
fn share_of_failing_reads_matches_the_request_and_replays() {
    let failures = || {
        let (backend, _) = faulty(&[Fault::FailSomeReads { one_in: 10 }]);
        (0..5000)
            .filter(|_| read(&backend, 0, 3).is_err())
            .collect::<Vec<_>>()
    };
    let first = failures();
    assert!((400..600).contains(&first.len()), "{}", first.len());
    assert_eq!(first, failures());
}
