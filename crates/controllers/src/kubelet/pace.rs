//! Durations of simulated work, and the speed factor that divides them.
//!
//! Only simulated work is scaled: sandboxes, pulls, starts, stops, and exits that an annotation asks for. Timers of
//! controllers, such as back-offs, leases and grace periods, run in real time: see [`Pace::of`].

use std::num::NonZeroU64;

use jiff::{SignedDuration, Timestamp};
use mullion_cloud::{Speed, sim::PullSpeed};

/// The divisor of simulated delays; [`Pace::INSTANT`] makes every one of them zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    speed: f64,
}

impl From<Speed> for Pace {
    fn from(speed: Speed) -> Self {
        Self::times(speed.factor())
    }
}

impl Pace {
    /// Real time.
    pub const REAL: Self = Self { speed: 1.0 };
    /// Every simulated delay is zero.
    pub const INSTANT: Self = Self {
        speed: f64::INFINITY,
    };

    /// Returns the pace that divides delays by `speed`; a number that is not above zero counts as 1.
    pub fn times(speed: f64) -> Self {
        if speed > 0.0 {
            Self { speed }
        } else {
            Self::REAL
        }
    }

    /// Returns the duration of `work` at this pace, in whole milliseconds.
    pub fn of(self, work: SignedDuration) -> SignedDuration {
        let ms = work.as_millis() as f64 / self.speed;
        SignedDuration::from_millis(ms.round() as i64)
    }

    /// Returns when `work` that begins at `start` ends.
    pub fn after(self, start: Timestamp, work: SignedDuration) -> Timestamp {
        start
            .saturating_add(self.of(work))
            .unwrap_or(Timestamp::MAX)
    }
}

/// Durations of the steps of a pod's life on one operating system, at pace 1.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Creating the pause container and the pod's network.
    pub sandbox: SignedDuration,
    /// Creating and starting one container whose image is present.
    pub start: SignedDuration,
    /// From the stop signal to the exit of a container that obeys it.
    pub stop: SignedDuration,
    /// The run time of an init container without an exit annotation.
    pub init_run: SignedDuration,
    /// Asking the registry whether the present image is the newest.
    pub pull_check: SignedDuration,
    /// Download speed in compressed bytes per millisecond.
    pub download_bytes_per_ms: u64,
    /// Extraction speed in compressed bytes per millisecond; extraction follows the download layer by layer.
    pub extract_bytes_per_ms: u64,
}

impl Delays {
    /// Typical values for a Linux node.
    pub const LINUX: Self = Self {
        sandbox: SignedDuration::from_millis(800),
        start: SignedDuration::from_millis(150),
        stop: SignedDuration::from_millis(400),
        init_run: SignedDuration::from_millis(1_000),
        pull_check: SignedDuration::from_millis(350),
        download_bytes_per_ms: 120_000,
        extract_bytes_per_ms: 120_000,
    };

    /// Typical values for a Windows node, where extraction takes longer than the download (EKS best practices, windows/ami:
    /// more than eight minutes for 8.24 GB).
    pub const WINDOWS: Self = Self {
        sandbox: SignedDuration::from_millis(5_000),
        start: SignedDuration::from_millis(2_500),
        stop: SignedDuration::from_millis(2_000),
        init_run: SignedDuration::from_millis(2_000),
        pull_check: SignedDuration::from_millis(500),
        download_bytes_per_ms: 120_000,
        extract_bytes_per_ms: 17_000,
    };

    /// Returns the delays of a node that pages its memory: starts take four times as long.
    pub fn while_paging(self) -> Self {
        Self {
            sandbox: self.sandbox * 4,
            start: self.start * 4,
            ..self
        }
    }

    /// Returns the delays with these pull speeds, where they are known.
    pub fn pulling_at(self, speed: PullSpeed) -> Self {
        let of = |known: Option<NonZeroU64>, typical| known.map_or(typical, NonZeroU64::get);
        Self {
            download_bytes_per_ms: of(speed.download, self.download_bytes_per_ms),
            extract_bytes_per_ms: of(speed.extract, self.extract_bytes_per_ms),
            ..self
        }
    }

    /// Returns how long pulling `bytes` takes.
    pub fn pull(&self, bytes: u64) -> SignedDuration {
        let ms = bytes / self.download_bytes_per_ms + bytes / self.extract_bytes_per_ms;
        SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
    }
}

/// Formats a duration in Go's notation, cut to milliseconds, as events show it: `0s`, `412ms`, `1.2s`, `1m0.5s`.
pub fn go_duration(duration: SignedDuration) -> String {
    let ms = duration.as_millis().max(0);
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    let (hours, minutes, rest) = (ms / 3_600_000, ms / 60_000 % 60, ms % 60_000);
    let seconds = format!("{}.{:03}", rest / 1_000, rest % 1_000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_go_prints_them() {
        let cases = [
            (0, "0s"),
            (7, "7ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_200, "1.2s"),
            (60_500, "1m0.5s"),
            (3_600_000, "1h0m0s"),
        ];
        for (ms, text) in cases {
            assert_eq!(go_duration(SignedDuration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_typical_windows_image_is_extracted_for_minutes() {
        let windows = Delays::WINDOWS.pull(8_240_000_000).as_secs();
        assert!((480..600).contains(&windows), "{windows} s");
        let linux = Delays::LINUX.pull(90_000_000).as_millis();
        assert_eq!(linux, 1_500);
    }

    #[test]
    fn what_is_known_of_a_node_s_pulls_replaces_the_typical_figure() {
        let speed = |download, extract| PullSpeed {
            download: NonZeroU64::new(download),
            extract: NonZeroU64::new(extract),
        };
        let took = |speed| {
            Delays::WINDOWS
                .pulling_at(speed)
                .pull(60_000_000)
                .as_millis()
        };
        assert_eq!(took(speed(30_000, 10_000)), 2_000 + 6_000);
        assert_eq!(took(speed(30_000, 0)), 2_000 + 3_529);
        assert_eq!(
            took(speed(0, 0)),
            Delays::WINDOWS.pull(60_000_000).as_millis()
        );
    }

    #[test]
    fn an_instant_pace_leaves_no_delay_and_a_finite_one_divides_it() {
        let work = SignedDuration::from_secs(30);
        assert_eq!(Pace::INSTANT.of(work), SignedDuration::ZERO);
        assert_eq!(Pace::times(10.0).of(work), SignedDuration::from_secs(3));
        assert_eq!(Pace::times(0.0).of(work), work);
    }
}
