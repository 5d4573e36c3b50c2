//! The distribution of observed values: the buckets of a histogram, or the quantiles of a summary.
//!
//! Invariant: a summary's quantiles are those of the last ten minutes, exactly; sum and count are those of the process's life.

use std::{collections::VecDeque, fmt::Write as _, time::Duration};

use tokio::time::Instant;

use super::Kind;

/// Karpenter's quantiles.
const QUANTILES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];
/// The age up to which values count for quantiles: the default of Prometheus's client for Go.
const RECENT: Duration = Duration::from_secs(600);
/// The maximum number of values that count for quantiles; the newest are kept.
const MOST: usize = 10_000;

/// The values of one series.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    /// For each bound of a histogram, how many values are at most that large and larger than the bound before.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
    recent: VecDeque<(Instant, f64)>,
}

impl Distribution {
    /// Counts a value.
    pub(super) fn add(&mut self, kind: Kind, value: f64, now: Instant) {
        self.count += 1;
        self.sum += value;
        match kind {
            Kind::Histogram(bounds) => {
                self.buckets.resize(bounds.len(), 0);
                // A value equal to a bound belongs to its bucket: Prometheus' `le` means at most.
                let bucket = bounds.partition_point(|bound| *bound < value);
                if let Some(bucket) = self.buckets.get_mut(bucket) {
                    *bucket += 1;
                }
            }
            _ => {
                let is_old = |(at, _): &(Instant, f64)| now - *at > RECENT;
                // Trimmed at every value, so that a series that is never read does not grow without end.
                while self.recent.front().is_some_and(is_old) || self.recent.len() >= MOST {
                    self.recent.pop_front();
                }
                self.recent.push_back((now, value));
            }
        }
    }

    /// Writes the series as Prometheus reads it.
    pub(super) fn write(
        &self,
        text: &mut String,
        name: &str,
        kind: Kind,
        series: &str,
        now: Instant,
    ) {
        let comma = if series.is_empty() { "" } else { "," };
        // Writing to a String does not fail.
        if let Kind::Histogram(bounds) = kind {
            let mut below = 0;
            for (bound, bucket) in bounds.iter().zip(&self.buckets) {
                below += bucket;
                let _ = writeln!(
                    text,
                    "{name}_bucket{{{series}{comma}le=\"{bound}\"}} {below}"
                );
            }
            let _ = writeln!(
                text,
                "{name}_bucket{{{series}{comma}le=\"+Inf\"}} {}",
                self.count
            );
        } else {
            let recent = self.recent.iter().filter(|(at, _)| now - *at <= RECENT);
            let mut values: Vec<f64> = recent.map(|(_, value)| *value).collect();
            values.sort_by(f64::total_cmp);
            for quantile in QUANTILES {
                let rank = (quantile * values.len() as f64).ceil() as usize;
                let value = values.get(rank.saturating_sub(1));
                // Prometheus' client reports NaN for the quantiles of nothing.
                let value = value.copied().unwrap_or(f64::NAN);
                let _ = writeln!(
                    text,
                    "{name}{{{series}{comma}quantile=\"{quantile}\"}} {value}"
                );
            }
        }
        let labels = if series.is_empty() {
            String::new()
        } else {
            format!("{{{series}}}")
        };
        let _ = writeln!(
            text,
            "{name}_sum{labels} {}\n{name}_count{labels} {}",
            self.sum, self.count
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_histogram_counts_what_is_at_most_so_large() {
        let kind = Kind::Histogram(&[0.5, 1.0, 2.5]);
        let mut own = Distribution::default();
        for value in [0.5, 0.75, 1.0, 9.0] {
            own.add(kind, value, Instant::now());
        }
        let mut text = String::new();
        own.write(&mut text, "x", kind, "a=\"b\"", Instant::now());
        insta::assert_snapshot!(text, @r#"
        x_bucket{a="b",le="0.5"} 1
        x_bucket{a="b",le="1"} 3
        x_bucket{a="b",le="2.5"} 3
        x_bucket{a="b",le="+Inf"} 4
        x_sum{a="b"} 11.25
        x_count{a="b"} 4
        "#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_summary_has_the_quantiles_of_the_last_ten_minutes() {
        let mut own = Distribution::default();
        own.add(Kind::Summary, 1000.0, Instant::now());
        tokio::time::advance(RECENT + Duration::from_secs(1)).await;
        for value in 1..=100 {
            own.add(Kind::Summary, f64::from(value), Instant::now());
        }
        let mut text = String::new();
        own.write(&mut text, "x", Kind::Summary, "", Instant::now());
        insta::assert_snapshot!(text, @r#"
        x{quantile="0"} 1
        x{quantile="0.5"} 50
        x{quantile="0.9"} 90
        x{quantile="0.99"} 99
        x{quantile="1"} 100
        x_sum 6050
        x_count 101
        "#);
        tokio::time::advance(RECENT * 2).await;
        text.clear();
        own.write(&mut text, "x", Kind::Summary, "", Instant::now());
        assert!(text.starts_with("x{quantile=\"0\"} NaN\n"));
    }
}
