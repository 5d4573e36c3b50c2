//! Traces of decisions: the way of one pod from its creation to its node, and that of each NodeClaim that is bought.
//!
//! The id of a trace is the UID of its object, and ids of spans are derived from it, so that several processes, and a new leader, add to
//! one trace without sharing anything. [`follow`] adds the spans that objects show; the scheduler, the provisioner and the launch of a
//! NodeClaim add the others. Whoever exports the spans takes them from the queue of [`Tracer::new`].
//!
//! Invariant: no decision waits for or depends on a trace. The queue is bounded, and spans that find it full are dropped and counted.

mod objects;
mod span;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_api::karpenter::NodeClaim;
use tokio::sync::mpsc;

pub use objects::follow;
pub use span::{Link, Span, SpanId, TraceId, Value};

/// The most spans that wait for the exporter: those of about 2,500 pods that get nodes at once.
const QUEUE: usize = 16_384;

/// Names of spans' attributes. Those of Kubernetes, hosts and clouds are OpenTelemetry's.
pub(crate) mod key {
    pub(crate) const POD: &str = "k8s.pod.name";
    pub(crate) const POD_UID: &str = "k8s.pod.uid";
    pub(crate) const NAMESPACE: &str = "k8s.namespace.name";
    pub(crate) const NODE: &str = "k8s.node.name";
    pub(crate) const INSTANCE_TYPE: &str = "host.type";
    pub(crate) const INSTANCE: &str = "host.id";
    pub(crate) const ZONE: &str = "cloud.availability_zone";
    pub(crate) const CAPACITY_TYPE: &str = "mullion.capacity_type";
    pub(crate) const NODE_CLAIM: &str = "mullion.nodeclaim";
    pub(crate) const NODE_POOL: &str = "mullion.nodepool";
    pub(crate) const OUTCOME: &str = "mullion.outcome";
    pub(crate) const MESSAGE: &str = "mullion.message";
    pub(crate) const PRICE: &str = "mullion.price_usd_per_hour";
}

/// Which traces are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// All.
    All,
    /// None.
    None,
    /// This part of them, between 0 and 1. All processes keep the same ones.
    Part(f64),
}

impl Sampler {
    fn keeps(self, id: TraceId) -> bool {
        match self {
            Sampler::All => true,
            Sampler::None => false,
            Sampler::Part(part) => id.fraction() < part,
        }
    }
}

/// Begins traces. Cheap to clone; the default one records nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Recording>>);

#[derive(Debug)]
struct Recording {
    sampler: Sampler,
    queue: mpsc::Sender<Span>,
    dropped: AtomicU64,
}

impl Tracer {
    /// Creates a tracer, and the queue of its spans.
    pub fn new(sampler: Sampler) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        let recording = Recording {
            sampler,
            queue,
            dropped: AtomicU64::new(0),
        };
        (Tracer(Some(Arc::new(recording))), spans)
    }

    /// Returns whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns how many spans were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        let recording = self.0.as_ref();
        recording.map_or(0, |own| own.dropped.load(Ordering::Relaxed))
    }

    /// Returns the trace of a pod if it is recorded.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Option<Trace> {
        let uid = pod.metadata.uid.as_deref()?;
        let mut trace = self.trace(uid)?;
        trace.about = vec![
            (key::NAMESPACE, pod.namespace().unwrap_or_default().into()),
            (key::POD, pod.name_any().into()),
            (key::POD_UID, uid.into()),
        ];
        Some(trace)
    }

    /// Returns the trace of a NodeClaim if it is recorded.
    pub(crate) fn of_claim(&self, claim: &NodeClaim) -> Option<Trace> {
        let mut trace = self.trace(claim.metadata.uid.as_deref()?)?;
        trace.about = vec![
            (key::NODE_CLAIM, claim.name_any().into()),
            (key::NODE_POOL, claim.node_pool().unwrap_or_default().into()),
        ];
        Some(trace)
    }

    fn trace(&self, uid: &str) -> Option<Trace> {
        let recording = self.0.as_ref()?;
        let id = TraceId::of(uid);
        recording.sampler.keeps(id).then(|| Trace {
            recording: Arc::clone(recording),
            id,
            about: Vec::new(),
        })
    }
}

/// The trace of one object.
#[derive(Debug)]
pub(crate) struct Trace {
    recording: Arc<Recording>,
    id: TraceId,
    /// The attributes of all its spans.
    about: Vec<(&'static str, Value)>,
}

impl Trace {
    /// Returns the span that is the parent of all others.
    pub(crate) fn root(&self, name: &'static str, start: Timestamp, end: Timestamp) -> Span {
        Span {
            id: self.id.root(),
            parent: None,
            ..self.step(name, start, end)
        }
    }

    /// Returns a span below the root. Spans with one name and start are one span.
    pub(crate) fn step(&self, name: &'static str, start: Timestamp, end: Timestamp) -> Span {
        Span {
            trace: self.id,
            id: self.id.span(name, start),
            parent: Some(self.id.root()),
            name,
            start,
            // The wall clock may have been set back meanwhile.
            end: end.max(start),
            attributes: self.about.clone(),
            links: Vec::new(),
            error: None,
        }
    }

    /// Gives a span to the exporter.
    pub(crate) fn record(&self, span: Span) {
        // The queue is closed only when the process stops.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.recording.queue.try_send(span)
            && self.recording.dropped.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(
                "more spans than can be exported; some are dropped, and counted in mullion_trace_spans_dropped_total"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    const UID: &str = "5f3759df-1c1b-4c3e-9d0a-8a6f5b1e2d3c";

    #[test]
    fn a_tracer_that_is_off_has_no_traces() {
        assert!(!Tracer::default().is_on());
        assert!(Tracer::default().of_pod(&pod(UID)).is_none());
    }

    #[test]
    fn two_processes_give_one_pod_the_same_ids() {
        let spans = [Tracer::new(Sampler::All), Tracer::new(Sampler::All)].map(|(tracer, _)| {
            let trace = tracer.of_pod(&pod(UID)).expect("all are kept");
            let at = Timestamp::UNIX_EPOCH;
            (trace.root("pod", at, at), trace.step("plan", at, at))
        });
        assert_eq!(spans[0], spans[1]);
        let (root, step) = &spans[0];
        assert_eq!(root.trace.to_string(), UID.replace('-', ""));
        assert_eq!((root.parent, step.parent), (None, Some(root.id)));
        assert_ne!(root.id, step.id);
    }

    #[test]
    fn a_part_of_the_traces_is_kept_by_their_ids_alone() {
        let kept = |part: f64, uid: &str| {
            let (tracer, _spans) = Tracer::new(Sampler::Part(part));
            tracer.of_pod(&pod(uid)).is_some()
        };
        // The last 56 bits of the UID decide: 0x0a8a... is about 4 % of the way.
        assert!(kept(1.0, UID) && kept(0.05, UID));
        assert!(!kept(0.0, UID) && !kept(0.04, UID));
        let (tracer, _spans) = Tracer::new(Sampler::None);
        assert!(tracer.of_pod(&pod(UID)).is_none());
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let (tracer, mut spans) = Tracer::new(Sampler::All);
        let trace = tracer.of_pod(&pod(UID)).expect("all are kept");
        let at = Timestamp::UNIX_EPOCH;
        for _ in 0..QUEUE + 2 {
            trace.record(trace.step("plan", at, at));
        }
        assert_eq!(tracer.dropped(), 2);
        let mut waiting = 0;
        while spans.try_recv().is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting, QUEUE);
    }
}
