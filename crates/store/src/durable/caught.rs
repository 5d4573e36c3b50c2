//! Runs work that may panic without letting the panic be reported: redb panics on some damaged pages, and the caller
//! reports the damage as an ordinary error instead.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

thread_local! {
    /// True while a panic of this thread is expected, which keeps the panic hook quiet.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and returns its result, or `None` if it panics. Panics of other threads are reported by the previous hook.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            if !EXPECTED.get() {
                tell(panic);
            }
        }));
    });
    // The hook is global but the flag is the thread's, so that panics of other threads are still reported.
    EXPECTED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_nothing_and_the_next_one_is_expected_only_if_it_is_said() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| -> u8 { panic!("not heard") }), None);
        assert!(!EXPECTED.get());
    }
}
