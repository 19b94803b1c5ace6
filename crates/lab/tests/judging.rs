//! Judges over histories, also of several threads, and programs of which each request fails in
//! turn.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use buttress_lab::crash::{CrashLab, Cuts, History, Outcome};
use buttress_lab::gate::{GatedBackend, Request};
use buttress_lab::{Backend, Device, Engine, Fault, IoError, MemoryBackend, strike_each};

const SECTOR: usize = 512;

fn memory(bytes: usize) -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new("disk", vec![0; bytes]))
}

/// Records a counter in one sector. Without the flush, a promised count can be lost.
fn count_to(last: u8, flushes: bool) -> History {
    CrashLab::record([memory(8192)], |lab, devices| {
        for count in 1..=last {
            devices[0].write(0, &[count; SECTOR])?;
            if flushes {
                devices[0].flush()?;
            }
            lab.mark(count.into());
        }
        Ok::<(), IoError>(())
    })
    .unwrap()
}

fn found(device: &Device) -> u64 {
    device.read(0, 1).unwrap()[0].into()
}

#[test]
fn judge_accepts_program_that_flushes() {
    let history = count_to(5, true);
    let verdict = history.judge(&Cuts::every(), |state| {
        let promised = state.last_mark().unwrap_or(0);
        let found = found(&state.devices()[0]);
        match (promised..=promised + 1).contains(&found) {
            true => Ok(()),
            false => Err(format!("{found} of {promised}")),
        }
    });
    // In this history, five cuts have a write in doubt, and each of them has four outcomes. The
    // other eleven cuts have one state each.
    assert_eq!(verdict.accepted().unwrap(), 5 * 4 + 11);
}

#[test]
fn judge_finds_missing_flush_and_repeats_it() {
    let history = count_to(5, false);
    let judge = |state: &buttress_lab::crash::CutState<'_>| {
        let promised = state.last_mark().unwrap_or(0);
        match found(&state.devices()[0]) {
            found if found < promised => Err(format!("{found} after {promised}")),
            _ => Ok(()),
        }
    };
    let verdict = history.judge(&Cuts::every().complaints(100), judge);
    let complaint = verdict
        .complaints
        .iter()
        .find(|complaint| complaint.outcome == Outcome::NoneKept)
        .unwrap();
    assert_eq!(complaint.last_mark, Some(1));
    assert_eq!(complaint.problem, "0 after 1");
    let again = history.judge(&Cuts::only(complaint.cut, complaint.outcome), judge);
    assert_eq!((again.states, &again.complaints), (1, &vec![complaint.clone()]));
    let message = verdict.accepted().unwrap_err().to_string();
    assert!(
        message.contains("cut 2, NoneKept, after mark 1: 0 after 1"),
        "{message}"
    );
    // The judging ends early, unless the limit of complaints is higher than their number.
    let few = history.judge(&Cuts::every().complaints(1), judge);
    assert_eq!(
        few.complaints.len(),
        2,
        "both outcomes of the first cut that lose the count"
    );
}

#[test]
fn judge_that_panics_complains_with_message() {
    let history = count_to(1, true);
    let verdict = history.judge(&Cuts::only(1, Outcome::NoneKept), |state| {
        assert_eq!(found(&state.devices()[0]), 1, "the counter");
        Ok::<(), String>(())
    });
    let problem = &verdict.complaints[0].problem;
    assert!(problem.starts_with("the judge panicked: "), "{problem}");
    assert!(problem.contains("the counter"), "{problem}");
}

#[test]
fn verdict_is_equal_on_any_number_of_threads() {
    let history = count_to(200, false);
    let judge = |state: &buttress_lab::crash::CutState<'_>| match found(&state.devices()[0]) {
        found if found % 7 == 3 => Err(found.to_string()),
        _ => Ok(()),
    };
    let all = Cuts::every().step(3).complaints(usize::MAX);
    let alone = history.judge(&all, judge);
    assert!(!alone.complaints.is_empty());
    assert_eq!(history.judge(&all.clone().threads(4), judge), alone);
}

#[test]
fn a_recovery_is_cut_in_turn() {
    let history = count_to(2, true);
    let states = AtomicU64::new(0);
    let verdict = history.judge(&Cuts::every(), |state| {
        let recovery = CrashLab::record(state.backends(), |_, devices| {
            devices[0].write(4096, &[1; SECTOR])?;
            devices[0].flush()
        })?;
        let inner = recovery.judge(&Cuts::every(), |again| {
            states.fetch_add(1, Ordering::Relaxed);
            match found(&again.devices()[0]) >= state.last_mark().unwrap_or(0) {
                true => Ok(()),
                false => Err("the recovery lost the counter"),
            }
        });
        inner
            .accepted()
            .map(drop)
            .map_err(|error| error.to_string().into()) as Result<(), Box<dyn std::error::Error>>
    });
    assert_eq!(verdict.accepted().unwrap(), 2 * 4 + 5);
    assert!(states.into_inner() > 13);
}

/// Threads write to the same bytes at once, in many rounds. After each round the history equals the
/// device.
#[test]
fn history_of_threads_ends_as_the_device() {
    const THREADS: u8 = 4;
    const BYTES: usize = 256 << 10;
    for round in 0..150_u32 {
        let lab = CrashLab::new();
        let device = Device::with_backend(lab.device(memory(BYTES)), Engine::Inline);
        let start = Barrier::new(THREADS.into());
        thread::scope(|scope| {
            for number in 1..=THREADS {
                let (device, start) = (&device, &start);
                scope.spawn(move || {
                    start.wait();
                    device.write(0, &vec![number; BYTES]).unwrap();
                    device.write(0, &vec![number | 0x80; BYTES]).unwrap();
                    device.flush().unwrap();
                });
            }
        });
        let live = device.read(0, BYTES).unwrap();
        let history = lab.history();
        let image = history.images_at(history.len(), Outcome::NoneKept).remove(0);
        let kept = Device::with_backend(image, Engine::Inline)
            .read(0, BYTES)
            .unwrap();
        assert_eq!(
            kept[0], live[0],
            "round {round}: all is flushed, and what was last differs"
        );
        assert!(kept[..] == live[..], "round {round}");
    }
}

/// A thread's flush does not cover a write of another thread that has not returned.
#[test]
fn flush_leaves_write_of_another_thread_in_doubt() {
    let gate = GatedBackend::new(memory(8192));
    let lab = CrashLab::new();
    let device = Device::with_backend(lab.device(Arc::clone(&gate) as Arc<dyn Backend>), Engine::Inline);
    // The write covers a part of a page, so it reads the rest from the base, and waits at the gate.
    gate.close(|request| matches!(request, Request::Read { .. }));
    thread::scope(|scope| {
        let writing = scope.spawn(|| device.write(0, &[1; SECTOR]));
        gate.wait_for_arrivals(1);
        device.flush().unwrap();
        gate.open();
        writing.join().unwrap().unwrap();
    });
    device.flush().unwrap();
    let history = lab.history();
    assert_eq!(history.len(), 3);
    assert_eq!((history.in_doubt(2), history.in_doubt(3)), (1, 0));
}

/// Each of several threads marks its own promises, and finds them among the marks of a crash state.
#[test]
fn marks_of_threads_keep_their_order() {
    let history = CrashLab::record([memory(64 * SECTOR)], |lab, devices| {
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let device = &devices[0];
                scope.spawn(move || {
                    for count in 1..=20_u8 {
                        device
                            .write(number * 8 * SECTOR as u64, &[count; SECTOR])
                            .unwrap();
                        device.flush().unwrap();
                        lab.mark(number << 8 | u64::from(count));
                    }
                });
            }
        });
        Ok::<(), IoError>(())
    })
    .unwrap();
    let verdict = history.judge(&Cuts::every().draws(1).threads(2), |state| {
        let device = &state.devices()[0];
        for number in 0..4_u64 {
            let mut own = state.marks().filter(|mark| mark >> 8 == number);
            let promised = own.next_back().map_or(0, |mark| mark & 0xff);
            let found = device.read(number * 8 * SECTOR as u64, 1).unwrap()[0];
            if !(promised..=promised + 1).contains(&found.into()) {
                return Err(format!("thread {number}: {found} after {promised}"));
            }
        }
        Ok(())
    });
    verdict.accepted().unwrap();
}

#[test]
fn each_request_is_struck_once() {
    for (fault, requests) in [
        (Fault::FailWriteNumber as fn(u64) -> Fault, 5),
        (Fault::FullFromWrite, 5),
        (Fault::FailFlushNumber, 1),
        (Fault::FailReadNumber, 0),
    ] {
        let mut failures = Vec::new();
        let struck = strike_each(
            || memory(8192),
            fault,
            |number, backend| {
                for write in 0..5_u64 {
                    if let Err(error) = backend.write_at(write * 512, &[1; SECTOR]) {
                        failures.push((number, write, error.raw_os_error()));
                        break;
                    }
                }
                let _fails_in_one_run = backend.flush();
                Ok::<(), ()>(())
            },
        );
        assert_eq!(struck, Ok(requests));
        if requests == 5 {
            let expected = if matches!(fault(0), Fault::FullFromWrite(_)) {
                libc::ENOSPC
            } else {
                libc::EIO
            };
            let all: Vec<_> = (0..5).map(|number| (number, number, Some(expected))).collect();
            assert_eq!(failures, all);
        }
    }
    let failed = strike_each(
        || memory(8192),
        Fault::FailWriteNumber,
        |number, backend| match backend.write_at(0, &[1]).and(backend.write_at(0, &[2])) {
            Ok(()) => Ok(()),
            Err(_) if number == 0 => Ok(()),
            Err(error) => Err(error.raw_os_error()),
        },
    );
    assert_eq!(
        failed,
        Err((1, Some(libc::EIO))),
        "the number of the request comes with the error"
    );
}
