//! The one clock: stamps follow the machine's wall clock, waits follow tokio's time.
//!
//! The two part when the wall clock jumps: the machine slept, or somebody set its time. [`Clock::now`] is what objects are stamped with;
//! [`Clock::steady`] is for what is waited for, so that a machine that slept for a night does not find every node silent in the morning.
//!
//! Invariant: a clock without a wall clock, as tests have it, reads the same both ways. Under `tokio::time::pause` an hour of cluster life
//! costs no time and is the same on every run.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A change of the wall clock against tokio's time that is no drift.
const JUMP: SignedDuration = SignedDuration::from_secs(2);

/// Wall-clock time, and time that only goes on. Cheap to clone; all clones tell the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Arc<(Timestamp, Instant)>,
    wall: Option<Arc<Wall>>,
}

/// A wall clock, and how far it is ahead of tokio's time.
struct Wall {
    read: Box<dyn Fn() -> Timestamp + Send + Sync>,
    ahead: Mutex<SignedDuration>,
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

impl Clock {
    /// A clock that reads `epoch` now and then follows tokio's time alone.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self {
            start: Arc::new((epoch, Instant::now())),
            wall: None,
        }
    }

    /// A clock that follows the machine's. The one place that asks the machine.
    pub fn system() -> Self {
        Self::following(Timestamp::now)
    }

    /// A clock that follows a wall clock, and logs each jump of it once.
    pub fn following(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            start: Arc::new((wall(), Instant::now())),
            wall: Some(Arc::new(Wall {
                read: Box::new(wall),
                ahead: Mutex::default(),
            })),
        }
    }

    /// The present moment, to stamp objects with. It goes back if the wall clock does.
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

    /// The moment at which the clock was made, and the time that has passed since without any jump: for what is waited for. The time in
    /// which the machine sleeps does not pass.
    pub fn steady(&self) -> Timestamp {
        let (epoch, start) = *self.start;
        let elapsed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// What the wall clock reads, and how far it has jumped since it was asked last, if it has.
    fn observe(&self, wall: &Wall) -> (Timestamp, Option<SignedDuration>) {
        // Held while both clocks are read, so that no other thread sees the jump too.
        let mut ahead = wall.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.steady();
        let now = (wall.read)();
        let after = self.steady();
        // This thread may have rested between any two of the readings.
        let (least, most) = (now.duration_since(after), now.duration_since(before));
        let jump = match *ahead {
            known if most < known - JUMP => Some(most - known),
            known if least > known + JUMP => Some(least - known),
            _ => None,
        };
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
        // Somebody sets it back.
        jump(seconds(-3600));
        assert_eq!(
            clock.observe(&wall),
            (epoch + seconds(7_206), Some(seconds(-3_600)))
        );
        assert_eq!(clock.steady(), epoch + seconds(6));
        // A clock that is a little fast is followed, and no jump.
        for _ in 0..1000 {
            jump(SignedDuration::from_millis(100));
            assert_eq!(clock.observe(&wall).1, None);
        }
        assert_eq!(clock.now(), epoch + seconds(7_306));
    }
}
