//! Test of the hold times of locks while measuring is on. This test file has a single test, because
//! measuring hold times is process-wide.
#![allow(clippy::unwrap_used, reason = "tests")]

use buttress_locks::figures::{self, LockFigures};
use buttress_locks::{Mutex, Rank, RwLock, lock_class};
use std::sync::Barrier;
use std::time::Duration;

lock_class!(First, "first", Rank::new(10));
lock_class!(Second, "second", Rank::new(20));
lock_class!(Leaf, "leaf", Rank::LEAF);

fn of(name: &str) -> Option<LockFigures> {
    figures::read()
        .into_iter()
        .find(|figures| figures.class.name == name)
}

#[test]
fn holds_and_waits_are_counted_while_they_are_measured() {
    let (first, second, leaf) = (
        Mutex::<_, First>::new(()),
        RwLock::<_, Second>::new(()),
        Mutex::<_, Leaf>::new(()),
    );
    drop(first.lock());
    assert_eq!(figures::read(), [], "nothing was measured yet");

    figures::measure(true);
    for _ in 0..3 {
        drop(first.lock());
    }
    let held = Duration::from_millis(20);
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _first = first.lock();
            both.wait();
            std::thread::sleep(held);
        });
        both.wait();
        drop(first.lock());
    });
    drop(second.read());
    drop(second.write());
    drop(leaf.lock());
    figures::measure(false);
    drop(first.lock());

    let found = of("first").unwrap();
    assert_eq!((found.exclusive.count, found.shared.count), (5, 0));
    assert!(found.exclusive.longest >= held && found.exclusive.total >= found.exclusive.longest);
    assert_eq!(found.waits.count, 1);
    let found = of("second").unwrap();
    assert_eq!(
        (found.exclusive.count, found.shared.count, found.waits.count),
        (1, 1, 0)
    );
    assert_eq!(of("leaf"), None, "leaves are not measured");
    let names = figures::read().into_iter().map(|figures| figures.class.name);
    assert_eq!(names.collect::<Vec<_>>(), ["first", "second"], "by rank");

    figures::reset();
    assert_eq!(of("first").unwrap().exclusive.count, 0);
}
