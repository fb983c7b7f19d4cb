//! Work on several threads at once, for what the end of a run waits for. Where there is no thread to be had, the caller
//! does all of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle, available_parallelism, scope};

const NAME: &str = "names beside";

/// How many threads can work at once.
pub(super) fn processors() -> usize {
    available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Does the work on each of the items, and returns what comes of them, in their order.
pub(super) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = processors().min(items.len());
    let next = AtomicUsize::new(0);
    let do_some = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return done };
            done.push((number, work(item)));
        }
    };
    let mut all = scope(|scope| {
        let others: Vec<_> = (1..threads)
            .filter_map(|_| Builder::new().name(NAME.to_owned()).spawn_scoped(scope, do_some).ok())
            .collect();
        let mut all = do_some();
        all.extend(others.into_iter().filter_map(|other| other.join().ok()).flatten());
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Does both at once, the first one on a thread of its own.
pub(super) fn both<A: Send + Default, B>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B) -> (A, B) {
    let waiting = Mutex::new(Some(first));
    let begin = || waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    scope(|scope| {
        let other = Builder::new().name(NAME.to_owned()).spawn_scoped(scope, || begin().map(|first| first())).ok();
        let done = second();
        let of_other = other.map(ScopedJoinHandle::join).and_then(Result::ok).flatten();
        // no thread has taken it
        let first = of_other.or_else(|| begin().map(|first| first()));
        (first.unwrap_or_default(), done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let results = each(&items, |item| (item * item, std::thread::current().id()));
        assert!(results.iter().zip(&items).all(|((square, _), item)| *square == item * item));
        assert_eq!(results.len(), 1000);
        assert!(each(&[], |item: &u64| *item).is_empty());
    }

    #[test]
    fn both_are_done() {
        let mut own = 0;
        let (first, second) = both(
            || std::thread::current().name().map(str::to_owned),
            || {
                own = 7;
                std::thread::current().id()
            },
        );
        assert_eq!((first.as_deref(), second, own), (Some(NAME), std::thread::current().id(), 7));
    }
}
