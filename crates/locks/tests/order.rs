//! Tests of the lock order checks in builds with debug assertions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use buttress_locks::{Condvar, Excused, Mutex, Rank, RwLock, lock_class, waits_for_device};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

lock_class!(Low, "low", Rank::new(10).over_device().several());
lock_class!(Middle, "middle", Rank::new(20).over_device_when_shared());
lock_class!(Other, "other", Rank::new(20));
lock_class!(High, "high", Rank::new(30));
lock_class!(Leaf, "leaf", Rank::LEAF);

/// Returns the assertion message of `body`, or `None` if the lock order allows its locks.
fn said(body: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(body)).err()?;
    Some(panic.downcast_ref::<String>().unwrap().clone())
}

#[track_caller]
fn refused(because: &str, names: [&str; 2], body: impl FnOnce()) {
    let said = said(body);
    if cfg!(debug_assertions) {
        let said = said.unwrap();
        assert!(said.contains(because), "{said}");
        let [taken, held] = names;
        let (before, after) = said.split_once(" is held").unwrap();
        assert!(after.contains("tests/order.rs") || taken.is_empty(), "{said}");
        assert!(before.contains(taken) && before.contains(held), "{said}");
    } else {
        assert_eq!(said, None, "nothing is checked in this build");
    }
    // A panic also clears the list of held locks.
    assert_eq!(said_of_all(), None);
}

fn said_of_all() -> Option<String> {
    said(|| {
        let low = Mutex::<_, Low>::new(());
        let _low = low.lock();
        waits_for_device();
    })
}

#[test]
fn locks_are_acquired_in_ascending_rank() {
    let (low, middle, high) = (
        Mutex::<_, Low>::new(()),
        RwLock::<_, Middle>::new(()),
        Mutex::<_, High>::new(()),
    );
    assert_eq!(
        said(|| {
            let _low = low.lock();
            let middle = middle.read();
            let _high = high.lock();
            drop(middle);
        }),
        None
    );
    refused("in rising rank", ["`low` of", "`high` of"], || {
        let _high = high.lock();
        let _low = low.lock();
    });
    refused("in rising rank", ["`middle` of", "(rank 30)"], || {
        let _high = high.lock();
        let _middle = middle.write();
    });
    refused("in rising rank", ["(rank 10)", "(rank 20)"], || {
        let _middle = middle.read();
        let _low = low.try_lock_for(Duration::from_secs(1));
    });
}

#[test]
fn of_one_rank_one_is_held_and_the_same_lock_once() {
    let (middle, other) = (RwLock::<_, Middle>::new(()), Mutex::<_, Other>::new(()));
    refused("of locks of one rank", ["`other`", "`middle`"], || {
        let _middle = middle.read();
        let _other = other.lock();
    });
    // If a writer arrives between two readers of one thread, these wait for each other.
    refused("the same lock", ["`middle`", "`middle`"], || {
        let _first = middle.read();
        let _second = middle.read();
    });
}

#[test]
fn several_of_a_class_are_taken_in_order_of_place() {
    let (first, second) = (
        Mutex::<_, Low>::with_place((), 1),
        Mutex::<_, Low>::with_place((), 2),
    );
    assert_eq!(
        said(|| {
            let _first = first.lock();
            let _second = second.lock();
        }),
        None
    );
    refused("in order of place", ["`low`", "`low`"], || {
        let _second = second.lock();
        let _first = first.lock();
    });
}

#[test]
fn leaf_lock_is_acquired_last() {
    let (high, leaf, leaf_too) = (
        Mutex::<_, High>::new(()),
        Mutex::<_, Leaf>::new(()),
        RwLock::<_, Leaf>::new(()),
    );
    assert_eq!(
        said(|| {
            let _high = high.lock();
            drop(leaf.lock());
            drop(leaf_too.write());
        }),
        None
    );
    refused("under a leaf", ["`high`", "`leaf`"], || {
        let _leaf = leaf.lock();
        let _high = high.lock();
    });
    refused("under a leaf", ["`leaf`", "`leaf`"], || {
        let _leaf = leaf.lock();
        let _leaf_too = leaf_too.read();
    });
}

#[test]
fn a_lock_that_was_only_tried_is_held_as_any_other() {
    let (low, high) = (Mutex::<_, Low>::new(()), Mutex::<_, High>::new(()));
    assert_eq!(
        said(|| {
            let _high = high.lock();
            drop(low.try_lock());
        }),
        None
    );
    refused("in rising rank", ["`low`", "`high`"], || {
        let _high = high.try_lock().unwrap();
        let _low = low.lock();
    });
}

#[test]
fn devices_are_waited_for_only_under_locks_that_allow_it() {
    let (low, middle, high, leaf) = (
        Mutex::<_, Low>::new(()),
        RwLock::<_, Middle>::new(()),
        Mutex::<_, High>::new(()),
        Mutex::<_, Leaf>::new(()),
    );
    assert_eq!(
        said(|| {
            let _low = low.lock();
            let _middle = middle.read();
            waits_for_device();
        }),
        None
    );
    refused("a device is waited for", ["", "`middle`"], || {
        let _middle = middle.write();
        waits_for_device();
    });
    refused("a device is waited for", ["", "`leaf`"], || {
        let _leaf = leaf.lock();
        waits_for_device();
    });
    let excused = || {
        let _high = high.lock();
        let excused = Excused::from_device_rule();
        waits_for_device();
        drop(excused);
        waits_for_device();
    };
    refused("a device is waited for", ["", "`high`"], excused);
}

#[test]
fn each_thread_has_a_list_of_its_own() {
    let (low, high) = (Mutex::<_, Low>::new(()), Mutex::<_, High>::new(()));
    let _high = high.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _low = low.lock();
            waits_for_device();
        });
    });
}

#[test]
fn a_condition_is_waited_for_with_the_lock() {
    let (ready, changed) = (Mutex::<_, Leaf>::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *ready.lock() = true;
            changed.notify_all();
        });
        let mut is_ready = ready.lock();
        while !*is_ready {
            changed.wait(&mut is_ready);
        }
    });
}
