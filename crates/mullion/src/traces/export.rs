//! Sends spans to the collector, in batches.
//!
//! Invariant: nothing waits for the collector. While it does not answer, one batch is tried again and again, and the queue behind it
//! fills up and then drops spans. The log says once when that begins, and once when it ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode, header};
use kube::Client;
use mullion_controllers::traces::{Span, Tracer};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{otlp, settings::TraceSettings};
use crate::failure::Failure;

/// The most spans of one request, and how long the first of them waits for others. OpenTelemetry's batches have this size.
const BATCH: usize = 512;
const GATHER: Duration = Duration::from_secs(1);
/// How long a request may take, as in OpenTelemetry's exporters.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after the first failed attempt, which doubles with each one, and the longest pause.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How long the last spans may take when the process stops.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// The largest response that is read, in bytes.
const MOST_BYTES: usize = 64 * 1024;

/// The export of a process's spans.
#[derive(Debug)]
pub(crate) struct Export {
    stop: CancellationToken,
    task: JoinHandle<()>,
    metrics: Metrics,
}

/// The numbers of spans. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    tracer: Tracer,
    exported: Arc<AtomicU64>,
    /// Spans that the collector did not take, in addition to those that found the queue full.
    refused: Arc<AtomicU64>,
}

impl Metrics {
    /// Returns the metrics in Prometheus' text format; nothing if there are no traces.
    pub(crate) fn text(&self) -> String {
        if !self.tracer.is_on() {
            return String::new();
        }
        let exported = self.exported.load(Ordering::Relaxed);
        let dropped = self.tracer.dropped() + self.refused.load(Ordering::Relaxed);
        format!(
            "# HELP mullion_trace_spans_exported_total Spans that the collector took.\n\
             # TYPE mullion_trace_spans_exported_total counter\n\
             mullion_trace_spans_exported_total {exported}\n\
             # HELP mullion_trace_spans_dropped_total Spans that were dropped, because the collector did not take them or not fast enough.\n\
             # TYPE mullion_trace_spans_dropped_total counter\n\
             mullion_trace_spans_dropped_total {dropped}\n"
        )
    }
}

/// Starts to export the spans of a queue, which is that of the tracer.
fn export(
    client: Client,
    settings: TraceSettings,
    tracer: Tracer,
    spans: mpsc::Receiver<Span>,
) -> Export {
    let metrics = Metrics {
        tracer,
        ..Metrics::default()
    };
    let stop = CancellationToken::new();
    let exporter = Exporter {
        client,
        settings,
        metrics: metrics.clone(),
        stop: stop.clone(),
        lost: None,
    };
    let task = tokio::spawn(exporter.run(spans));
    Export {
        stop,
        task,
        metrics,
    }
}

impl Export {
    /// Starts to export traces. Returns the tracer that begins them.
    ///
    /// # Errors
    /// No connection can be made at all, for example because this machine has no certificate authorities.
    pub(crate) fn start(settings: TraceSettings) -> Result<(Tracer, Self), Failure> {
        let mut config = kube::Config::new(settings.server.clone());
        // Whether an attempt is repeated is decided here.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| {
            Failure::input(format!("spans cannot be sent to {settings}: {error}"))
        })?;
        let (tracer, spans) = Tracer::new(settings.sampler);
        let export = export(client, settings, tracer.clone(), spans);
        Ok((tracer, export))
    }

    /// Returns the numbers of spans.
    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Exports what is still in the queue, for two seconds at most.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        // What has not been sent by then is lost, as it is when the process is killed.
        let _ = timeout(LAST_PATIENCE, self.task).await;
    }
}

/// Why an attempt failed.
enum Refusal {
    /// The same request may succeed later.
    ForNow(String),
    /// It will not.
    ForGood(String),
}

struct Exporter {
    client: Client,
    settings: TraceSettings,
    metrics: Metrics,
    stop: CancellationToken,
    /// The number of dropped spans when the collector was lost; `None` while it takes spans.
    lost: Option<u64>,
}

impl Exporter {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>) {
        let (stop, mut batch) = (self.stop.clone(), Vec::new());
        while stop
            .run_until_cancelled(gather(&mut spans, &mut batch))
            .await
            == Some(true)
        {
            self.send_batch(&batch).await;
            batch.clear();
        }
        // The process stops.
        loop {
            while batch.len() < BATCH
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() || !self.send_batch(&batch).await {
                return;
            }
            batch.clear();
        }
    }

    /// Sends a batch until the collector takes it, refuses it for good, or the process stops. Returns whether it was taken.
    async fn send_batch(&mut self, batch: &[Span]) -> bool {
        let mut pause = RETRY;
        loop {
            match self.send(batch).await {
                Ok(()) => {
                    self.found();
                    return true;
                }
                Err(Refusal::ForGood(why)) => {
                    self.report_loss(&why);
                    self.drop_spans(batch.len());
                    return false;
                }
                Err(Refusal::ForNow(why)) => self.report_loss(&why),
            }
            let waited = tokio::time::sleep(pause);
            if self.stop.run_until_cancelled(waited).await.is_none() {
                self.drop_spans(batch.len());
                return false;
            }
            pause = LONGEST_RETRY.min(pause * 2);
        }
    }

    async fn send(&self, batch: &[Span]) -> Result<(), Refusal> {
        let body = otlp::request(&self.settings.resource, batch).to_string();
        let mut request =
            Request::post(&self.settings.path).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(kube::client::Body::from(body.into_bytes()))
            .map_err(|error| Refusal::ForGood(error.to_string()))?;
        let answered = async {
            let response = self.client.send(request).await;
            let response = response.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let body = to_bytes(Body::new(body), MOST_BYTES).await;
            let body = body.map_err(|error| error.to_string())?;
            Ok::<_, String>((head.status, body))
        };
        let answer = timeout(PATIENCE, answered).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no answer in {} s", PATIENCE.as_secs())));
        let (status, body) = answer.map_err(Refusal::ForNow)?;
        if status.is_success() {
            let rejected = otlp::rejected(&body);
            let count = rejected.as_ref().map_or(0, |(count, _)| *count);
            if let Some((count, why)) = rejected {
                tracing::debug!("{} rejected {count} spans: {why}", self.settings);
            }
            let taken = (batch.len() as u64).saturating_sub(count);
            self.metrics.exported.fetch_add(taken, Ordering::Relaxed);
            self.metrics.refused.fetch_add(count, Ordering::Relaxed);
            return Ok(());
        }
        let why = format!("it answers {status}");
        // OTLP: these statuses alone may be tried again.
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Refusal::ForNow(why),
            _ => Refusal::ForGood(why),
        })
    }

    fn drop_spans(&self, count: usize) {
        let refused = &self.metrics.refused;
        refused.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn dropped(&self) -> u64 {
        self.metrics.tracer.dropped() + self.metrics.refused.load(Ordering::Relaxed)
    }

    /// Says that the collector takes no spans, once until it does again.
    fn report_loss(&mut self, why: &str) {
        if self.lost.is_none() {
            self.lost = Some(self.dropped());
            tracing::warn!(
                "{} does not take spans of traces: {why}; nothing else waits for it",
                self.settings
            );
        }
    }

    fn found(&mut self) {
        if let Some(before) = self.lost.take() {
            tracing::info!(
                "{} takes spans of traces again; {} were dropped",
                self.settings,
                self.dropped() - before
            );
        }
    }
}

/// Waits for spans until there is a full batch, or until the first one has waited long enough. Returns false when no more will come.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) -> bool {
    if spans.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let end = Instant::now() + GATHER;
    while batch.len() < BATCH
        && let Ok(1..) = timeout_at(end, spans.recv_many(batch, BATCH - batch.len())).await
    {}
    true
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex};

    use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
    use jiff::Timestamp;
    use mullion_controllers::traces::{Sampler, TraceId};
    use serde_json::Value;

    use super::*;

    /// A collector without a socket. Each answer is given once, in their order, and the last one for ever.
    #[derive(Clone, Default)]
    struct Collector {
        answers: Arc<Mutex<Vec<StatusCode>>>,
        received: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    }

    impl Collector {
        fn answering(answers: &[StatusCode]) -> Self {
            Collector {
                answers: Arc::new(Mutex::new(answers.to_vec())),
                ..Collector::default()
            }
        }

        fn client(&self) -> Client {
            let own = self.clone();
            let answer = move |headers: HeaderMap, body: Bytes| async move {
                let body = serde_json::from_slice(&body).expect("JSON");
                own.received.lock().expect("no panic").push((headers, body));
                let mut answers = own.answers.lock().expect("no panic");
                match answers.len() {
                    1 => answers[0],
                    _ => answers.remove(0),
                }
            };
            let routes = Router::new().route("/v1/traces", post(answer));
            Client::new(routes, "default")
        }

        fn requests(&self) -> Vec<(HeaderMap, Value)> {
            self.received.lock().expect("no panic").clone()
        }
    }

    fn start_at(collector: &Collector) -> (mpsc::Sender<Span>, Export) {
        let settings = TraceSettings {
            server: http::Uri::from_static("http://collector:4318/"),
            path: "/v1/traces".to_owned(),
            headers: vec![(
                http::HeaderName::from_static("x-team"),
                http::HeaderValue::from_static("a"),
            )],
            sampler: Sampler::All,
            resource: vec![("service.name".to_owned(), "mullion".to_owned())],
        };
        let (queue, spans) = mpsc::channel(2 * BATCH);
        let (tracer, _) = Tracer::new(Sampler::All);
        (queue, export(collector.client(), settings, tracer, spans))
    }

    fn span() -> Span {
        let trace = TraceId::of("a");
        Span {
            trace,
            id: trace.root(),
            parent: None,
            name: "pod",
            start: Timestamp::UNIX_EPOCH,
            end: Timestamp::UNIX_EPOCH,
            attributes: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    fn spans(request: &Value) -> &Vec<Value> {
        request["resourceSpans"][0]["scopeSpans"][0]["spans"]
            .as_array()
            .expect("a list")
    }

    /// The lines that are logged while the guard lives.
    fn log() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
        struct Lines(Arc<Mutex<Vec<u8>>>);

        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no panic").extend(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
        let writer = Arc::clone(&lines);
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || Lines(Arc::clone(&writer)))
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_sent_together_with_the_headers_of_the_settings() {
        let collector = Collector::answering(&[StatusCode::OK]);
        let (queue, export) = start_at(&collector);
        queue.send(span()).await.expect("it is open");
        queue.send(span()).await.expect("it is open");
        tokio::time::sleep(2 * GATHER).await;
        let requests = collector.requests();
        assert_eq!(requests.len(), 1);
        let (headers, body) = &requests[0];
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-team"], "a");
        assert_eq!(spans(body).len(), 2);
        queue.send(span()).await.expect("it is open");
        let metrics = export.metrics();
        export.finish().await;
        assert_eq!(collector.requests().len(), 2, "the last span was sent");
        let text = metrics.text();
        assert!(
            text.contains("\nmullion_trace_spans_exported_total 3\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\nmullion_trace_spans_dropped_total 0\n"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_down_is_said_once_and_gets_the_spans_later() {
        let (lines, _guard) = log();
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        let collector = Collector::answering(&[busy, busy, busy, StatusCode::OK]);
        let (queue, export) = start_at(&collector);
        queue.send(span()).await.expect("it is open");
        tokio::time::sleep(LONGEST_RETRY).await;
        let requests = collector.requests();
        assert_eq!(requests.len(), 4);
        assert!(requests.iter().all(|(_, body)| spans(body).len() == 1));
        let text = String::from_utf8(lines.lock().expect("no panic").clone()).expect("UTF-8");
        let said = |what: &str| text.matches(what).count();
        assert_eq!(
            said("does not take spans of traces: it answers 503"),
            1,
            "{text}"
        );
        assert_eq!(
            said("takes spans of traces again; 0 were dropped"),
            1,
            "{text}"
        );
        let text = export.metrics().text();
        assert!(text.contains("exported_total 1\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn spans_that_are_refused_for_good_are_dropped_and_counted() {
        let collector = Collector::answering(&[StatusCode::BAD_REQUEST, StatusCode::OK]);
        let (queue, export) = start_at(&collector);
        for _ in 0..2 {
            queue.send(span()).await.expect("it is open");
            tokio::time::sleep(2 * GATHER).await;
        }
        assert_eq!(collector.requests().len(), 2);
        let text = export.metrics().text();
        assert!(text.contains("exported_total 1\n"), "{text}");
        assert!(text.contains("dropped_total 1\n"), "{text}");
    }
}
