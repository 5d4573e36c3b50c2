//! The speed of simulated delays.
//!
//! Invariant: only simulated work is scaled (launches, boots, shutdowns); the timers of controllers are real.

use std::time::Duration;

/// The divisor of simulated delays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(f64);

impl Speed {
    /// Realistic delays.
    pub const REAL: Self = Self(1.0);
    /// No simulated delays.
    pub const INSTANT: Self = Self(f64::INFINITY);

    /// Returns a speed that is `factor` times the real one; infinity means no delays. `None` unless the factor is above zero.
    pub fn times(factor: f64) -> Option<Self> {
        (factor > 0.0).then_some(Self(factor))
    }

    /// Returns the duration of `work` at this speed.
    pub fn scale(self, work: Duration) -> Duration {
        if self.0.is_infinite() {
            Duration::ZERO
        } else {
            // Very small factors would overflow, so a delay is at most a century.
            Duration::try_from_secs_f64(work.as_secs_f64() / self.0)
                .unwrap_or(Duration::from_secs(3_155_760_000))
        }
    }

    /// Returns the factor.
    pub fn factor(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_divided() {
        let boot = Duration::from_secs(300);
        assert_eq!(Speed::REAL.scale(boot), boot);
        let ten = Speed::times(10.0).unwrap();
        assert_eq!(ten.scale(boot), Duration::from_secs(30));
        assert_eq!(Speed::INSTANT.scale(boot), Duration::ZERO);
    }

    #[test]
    fn a_speed_is_above_zero() {
        assert_eq!(Speed::times(0.0), None);
        assert_eq!(Speed::times(-1.0), None);
        assert_eq!(Speed::times(f64::NAN), None);
    }
}
