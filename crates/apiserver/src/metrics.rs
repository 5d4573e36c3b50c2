//! Metrics of requests from the network, with the names and labels of kube-apiserver's metrics.
//!
//! A request takes one short lock; the text is generated at each GET of `/metrics`.

use std::{
    fmt::Write as _,
    hash::{Hash, Hasher},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::registry::Table;

/// The upper bounds of a latency's buckets, in seconds (kube-apiserver: apiserver_request_duration_seconds).
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The labels of one request.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Labels<'a> {
    /// For example `LIST`.
    pub verb: &'static str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    /// `resource`, `namespace` or `cluster`.
    pub scope: &'static str,
    /// `All`, or empty.
    pub dry_run: &'static str,
}

impl Labels<'_> {
    fn goes_on(&self) -> bool {
        matches!(self.verb, "WATCH" | "CONNECT")
    }

    fn changes(verb: &str) -> bool {
        !matches!(verb, "GET" | "LIST" | "WATCH")
    }
}

/// The counters of requests with the same labels.
struct Series {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: &'static str,
    by_code: Vec<(u16, u64)>,
    /// The number of requests in each latency bucket; the last bucket has no bound.
    buckets: [u64; BUCKETS.len() + 1],
    seconds: f64,
}

impl Series {
    fn new(labels: &Labels<'_>) -> Self {
        Series {
            verb: labels.verb,
            group: labels.group.to_owned(),
            version: labels.version.to_owned(),
            resource: labels.resource.to_owned(),
            subresource: labels.subresource.to_owned(),
            scope: labels.scope,
            dry_run: labels.dry_run,
            by_code: Vec::new(),
            buckets: [0; BUCKETS.len() + 1],
            seconds: 0.0,
        }
    }

    fn labels(&self) -> Labels<'_> {
        Labels {
            verb: self.verb,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            scope: self.scope,
            dry_run: self.dry_run,
        }
    }

    fn text(&self) -> String {
        format!(
            "component=\"apiserver\",dry_run=\"{}\",group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            self.dry_run,
            self.group,
            self.resource,
            self.scope,
            self.subresource,
            self.verb,
            self.version
        )
    }
}

/// The metrics of a server.
#[derive(Default)]
pub(crate) struct Metrics {
    series: Mutex<FxHashMap<u64, Vec<Series>>>,
    reading: AtomicUsize,
    changing: AtomicUsize,
}

/// Counts a request as in flight until it is dropped.
pub(crate) struct InFlight<'m>(&'m AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Metrics {
    /// Counts a request as in flight; `None` for long-running ones, which are not counted.
    pub(crate) fn in_flight(&self, labels: &Labels<'_>) -> Option<InFlight<'_>> {
        if labels.goes_on() {
            return None;
        }
        let count = if Labels::changes(labels.verb) {
            &self.changing
        } else {
            &self.reading
        };
        count.fetch_add(1, Relaxed);
        Some(InFlight(count))
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, labels: &Labels<'_>, code: u16, took: Duration) {
        let mut hasher = FxHasher::default();
        labels.hash(&mut hasher);
        let mut all = self.all();
        let alike = all.entry(hasher.finish()).or_default();
        // Looked up by hash, so that counting a request builds no text for its labels.
        let at = alike.iter().position(|series| series.labels() == *labels);
        let at = at.unwrap_or_else(|| {
            alike.push(Series::new(labels));
            alike.len() - 1
        });
        let series = &mut alike[at];
        match series.by_code.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => series.by_code.push((code, 1)),
        }
        if !labels.goes_on() {
            let seconds = took.as_secs_f64();
            let bucket = BUCKETS.iter().position(|bound| seconds <= *bound);
            series.buckets[bucket.unwrap_or(BUCKETS.len())] += 1;
            series.seconds += seconds;
        }
    }

    fn all(&self) -> MutexGuard<'_, FxHashMap<u64, Vec<Series>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all metrics in Prometheus' text format.
    pub(crate) fn text(&self, table: &Table) -> String {
        let mut out = String::new();
        let head = |name: &str, kind: &str, help: &str| {
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
        };
        let total = head(
            "apiserver_request_total",
            "counter",
            "Requests that were answered, by what was asked for and the code of the answer.",
        );
        let duration = head(
            "apiserver_request_duration_seconds",
            "histogram",
            "How long answers took, in seconds, by what was asked for.",
        );
        let in_flight = head(
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests that are being answered.",
        );
        let objects = head(
            "apiserver_storage_objects",
            "gauge",
            "Objects that are stored, by kind.",
        );
        let all = self.all();
        let mut series: Vec<(String, &Series)> = all
            .values()
            .flatten()
            .map(|series| (series.text(), series))
            .collect();
        series.sort_by(|one, other| one.0.cmp(&other.0));
        // Writing to a string does not fail.
        out.push_str(&total);
        for (labels, series) in &series {
            for (code, count) in &series.by_code {
                let _ = writeln!(
                    out,
                    "apiserver_request_total{{code=\"{code}\",{labels}}} {count}"
                );
            }
        }
        out.push_str(&duration);
        for (labels, series) in &series {
            histogram(&mut out, labels, series);
        }
        // The lock delays every response, so it is released before the rest of the text is written.
        drop(all);
        out.push_str(&in_flight);
        for (kind, count) in [("mutating", &self.changing), ("readOnly", &self.reading)] {
            let count = count.load(Relaxed);
            let _ = writeln!(
                out,
                "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {count}"
            );
        }
        out.push_str(&objects);
        let mut seen = FxHashSet::default();
        for row in table.rows() {
            let rules = &row.resource.rules;
            let stored = !rules.transient && !rules.read_only;
            if stored && seen.insert(&*row.resource.storage) {
                let (name, count) = (row.resource.qualified(), row.collection.len());
                let _ = writeln!(
                    out,
                    "apiserver_storage_objects{{resource=\"{name}\"}} {count}"
                );
            }
        }
        out
    }
}

fn histogram(out: &mut String, labels: &str, series: &Series) {
    let name = "apiserver_request_duration_seconds";
    let count: u64 = series.buckets.iter().sum();
    if count == 0 {
        return;
    }
    let mut below = 0;
    for (bound, inside) in BUCKETS.iter().zip(series.buckets) {
        below += inside;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}", series.seconds);
    let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
}
