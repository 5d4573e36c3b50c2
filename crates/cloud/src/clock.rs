//! The clock of the program: timestamps follow the machine's wall clock, and waiting follows tokio's time.
//!
//! The two differ after the wall clock jumps, because the machine slept or a user set the time. Objects get the time of [`Clock::now`].
//! Timeouts use [`Clock::steady`], so that a machine that slept for a night does not consider every node silent in the morning.
//!
//! Invariant: without a wall clock, as in tests, both times are equal. Under `tokio::time::pause` an hour of cluster life takes no real
//! time, and every run is the same.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The smallest difference between the wall clock and tokio's time that counts as a jump instead of drift.
const JUMP: SignedDuration = SignedDuration::from_secs(2);

/// A wall clock and a steady clock. Clones are cheap and show the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Arc<(Timestamp, Instant)>,
    wall: Option<Arc<WallClock>>,
}

/// A wall clock, and its lead over tokio's time.
struct WallClock {
    read: Box<dyn Fn() -> Timestamp + Send + Sync>,
    offset: Mutex<SignedDuration>,
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

impl Clock {
    /// Creates a clock that shows `epoch` now and then follows tokio's time alone.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self {
            start: Arc::new((epoch, Instant::now())),
            wall: None,
        }
    }

    /// Creates a clock that follows the machine's. Only this function reads the machine's clock.
    pub fn system() -> Self {
        Self::following(Timestamp::now)
    }

    /// Creates a clock that follows a wall clock, and that logs each of its jumps once.
    pub fn following(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            start: Arc::new((wall(), Instant::now())),
            wall: Some(Arc::new(WallClock {
                read: Box::new(wall),
                offset: Mutex::default(),
            })),
        }
    }

    /// Returns the current time, for timestamps of objects. It goes back if the wall clock does.
    pub fn now(&self) -> Timestamp {
        let Some(wall) = &self.wall else {
            return self.steady();
        };
        let (now, jump) = self.observe(wall);
        if let Some(jump) = jump {
            tracing::warn!(
                "the machine's clock jumped by {jump:#}: stamps follow it, and what waits goes on waiting as long as before"
            );
        }
        now
    }

    /// Returns the time at which the clock was created plus the time that has passed since then, without any jumps, for timeouts. Time in
    /// which the machine sleeps does not count.
    pub fn steady(&self) -> Timestamp {
        let (epoch, start) = *self.start;
        let elapsed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// Returns the time of the wall clock, and its jump since the last call, if there was one.
    fn observe(&self, wall: &WallClock) -> (Timestamp, Option<SignedDuration>) {
        // The lock is held while both clocks are read, so that no other thread sees the same jump.
        let mut ahead = wall.offset.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.steady();
        let now = (wall.read)();
        let after = self.steady();
        // The thread may have been suspended between any two readings, so the jump is known only within bounds.
        let (least, most) = (now.duration_since(after), now.duration_since(before));
        let jump = match *ahead {
            known if most < known - JUMP => Some(most - known),
            known if least > known + JUMP => Some(least - known),
            _ => None,
        };
        // Small differences are drift; following them keeps them from adding up to an apparent jump.
        *ahead = least;
        (now, jump)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stamps_follow_paused_time() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::starting_at(epoch);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), "2026-01-01T01:00:00Z".parse().unwrap());
        assert_eq!(clock.steady(), clock.now());
    }

    #[tokio::test(start_paused = true)]
    async fn stamps_follow_a_wall_clock_that_jumps_and_waits_do_not() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let skew = Arc::new(Mutex::new(SignedDuration::ZERO));
        let machine = Clock::starting_at(epoch);
        let clock = Clock::following({
            let (machine, skew) = (machine.clone(), skew.clone());
            move || machine.now() + *skew.lock().unwrap()
        });
        let wall = clock.wall.clone().unwrap();
        let jump = |by: SignedDuration| *skew.lock().unwrap() += by;
        let seconds = SignedDuration::from_secs;

        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), epoch + seconds(5));
        assert_eq!(clock.steady(), epoch + seconds(5));
        // The machine sleeps for three hours.
        jump(seconds(3 * 3600));
        assert_eq!(
            clock.observe(&wall),
            (epoch + seconds(10_805), Some(seconds(10_800)))
        );
        assert_eq!(clock.observe(&wall).1, None, "it is told once");
        assert_eq!(clock.steady(), epoch + seconds(5));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(clock.clone().now(), epoch + seconds(10_806));
        // A user sets the clock back.
        jump(seconds(-3600));
        assert_eq!(
            clock.observe(&wall),
            (epoch + seconds(7_206), Some(seconds(-3_600)))
        );
        assert_eq!(clock.steady(), epoch + seconds(6));
        // A clock that runs slightly fast is followed without a jump.
        for _ in 0..1000 {
            jump(SignedDuration::from_millis(100));
            assert_eq!(clock.observe(&wall).1, None);
        }
        assert_eq!(clock.now(), epoch + seconds(7_306));
    }
}
