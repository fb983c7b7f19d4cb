use super::*;
use std::sync::Arc;
use std::time::Instant;

/// The end of the tracer thread ends the wait: a wait that it does not end takes minutes.
#[test]
fn the_end_of_the_tracer_thread_is_noticed_at_once() {
    const TIMEOUT: Duration = Duration::from_secs(300);
    for waits_first in [true, false] {
        let control = Arc::new(Control::new(false));
        control.register_waiter().unwrap();
        let tracer = std::thread::spawn({
            let (control, waiter) = (Arc::clone(&control), thread_id());
            move || {
                let own = i32::try_from(std::process::id()).unwrap();
                while waits_first && procfs::state(own, waiter) != Some(b'S') {
                    std::thread::yield_now();
                }
                control.finish();
            }
        });
        if !waits_first {
            tracer.join().unwrap();
            assert!(control.is_finished());
        }
        let begin = Instant::now();
        assert_eq!(control.next_signal_or_end(TIMEOUT), None);
        assert!(begin.elapsed() < TIMEOUT);
        assert!(control.is_finished());
    }
}
