//! Traces of pods that wait for a node, and of the NodeClaims that are bought for them.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use mullion_api::{karpenter::node_claim_condition as condition, labels};
use mullion_controllers::traces::{Sampler, Span, TraceId, Tracer, Value};
use serde_json::json;
use tokio::sync::mpsc::Receiver;

use crate::{pools, whole::Whole};

/// All spans so far of the object with this UID, in the order in which they were recorded.
fn trace(spans: &[Span], uid: Option<String>) -> Vec<Span> {
    let id = TraceId::of(&uid.expect("a UID"));
    let own = spans.iter().filter(|span| span.trace == id);
    own.cloned().collect()
}

fn recorded(spans: &mut Receiver<Span>) -> Vec<Span> {
    std::iter::from_fn(|| spans.try_recv().ok()).collect()
}

/// The only span of a name.
fn only<'s>(trace: &'s [Span], name: &str) -> &'s Span {
    let found: Vec<_> = trace.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {trace:#?}");
    found[0]
}

/// The only plan with an outcome.
fn plan<'s>(trace: &'s [Span], outcome: &str) -> &'s Span {
    let is_it = |span: &&Span| span.name == "plan" && text(span, "mullion.outcome") == outcome;
    let found: Vec<_> = trace.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{outcome}: {trace:#?}");
    found[0]
}

fn attribute<'s>(span: &'s Span, key: &str) -> &'s Value {
    let found = span.attributes.iter().find(|(own, _)| *own == key);
    &found.unwrap_or_else(|| panic!("{key}: {span:#?}")).1
}

fn text<'s>(span: &'s Span, key: &str) -> &'s str {
    match attribute(span, key) {
        Value::Text(text) => text,
        other => panic!("{key} is {other:?}"),
    }
}

/// Fails unless one span has no parent, and the parents of all others are there.
fn assert_connected(trace: &[Span]) {
    let roots = trace.iter().filter(|span| span.parent.is_none());
    assert_eq!(roots.count(), 1, "{trace:#?}");
    for span in trace {
        let known = |parent| trace.iter().any(|other| other.id == parent);
        assert!(span.parent.is_none_or(known), "{span:#?}");
        assert!(span.start <= span.end, "{span:#?}");
    }
}

async fn web(whole: &Whole, cpu: &str) {
    let requests = json!({ "cpu": cpu });
    let pod = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }]
    });
    whole.deployment("web", 1, pod).await;
}

async fn until_initialized(whole: &Whole) {
    let claims = || whole.claims().into_iter();
    let initialized = || claims().find(|claim| claim.is(condition::INITIALIZED));
    whole.until("a claim is initialized", initialized).await;
}

#[tokio::test(start_paused = true)]
async fn the_way_of_a_pod_to_a_bought_node_is_one_trace() {
    let (tracer, mut spans) = Tracer::new(Sampler::All);
    let whole = Whole::start_traced(tracer).await;
    // On-demand types that cost up to a quarter more than the cheapest stay alternatives.
    let types = ["m5.large", "m5d.large"];
    pools::linux(&whole, &types, &["on-demand"], json!({})).await;
    web(&whole, "500m").await;
    whole.until_running("web", 1).await;
    until_initialized(&whole).await;
    let (pod, claim) = (&whole.pods("web")[0], &whole.claims()[0]);
    let node = &whole.bought()[0].name_any();
    let spans = recorded(&mut spans);

    let way = trace(&spans, pod.uid());
    assert_connected(&way);
    for span in &way {
        assert_eq!(text(span, "k8s.pod.name"), pod.name_any());
        assert_eq!(span.error, None);
    }
    let whole_way = only(&way, "pod");
    assert_eq!(whole_way.parent, None);
    assert_eq!(text(whole_way, "k8s.node.name"), node);
    let created = pod.creation_timestamp().expect("a time").0;
    assert_eq!(whole_way.start, created);
    assert_eq!(only(&way, "pending").parent, Some(whole_way.id));

    let mut attempts = way.iter().filter(|span| span.name == "schedule");
    let first = attempts.next().expect("an attempt");
    assert_eq!(text(first, "mullion.outcome"), "refused");
    let message = text(first, "mullion.message");
    assert!(message.starts_with("0/1 nodes are available"), "{message}");
    let last = attempts.next_back().expect("another attempt");
    assert_eq!(text(last, "mullion.outcome"), "node found");
    assert_eq!(text(last, "k8s.node.name"), node);
    let bind = only(&way, "bind");
    assert_eq!(text(bind, "k8s.node.name"), node);
    assert!(bind.start >= last.end);

    let plan = plan(&way, "node bought");
    assert_eq!(text(plan, "mullion.nodepool"), "linux");
    assert_eq!(attribute(plan, "mullion.instance_types"), &Value::Whole(2));
    let Value::Number(price) = attribute(plan, "mullion.price_usd_per_hour") else {
        panic!("{plan:#?}");
    };
    assert_eq!(*price, 0.098_191);
    let Value::Texts(cheapest) = attribute(plan, "mullion.cheapest") else {
        panic!("{plan:#?}");
    };
    assert_eq!(cheapest, &["m5.large $0.098191", "m5d.large $0.115191"]);
    let creation = only(&way, "create nodeclaim");
    assert_eq!(creation.parent, Some(plan.id));
    assert_eq!(text(creation, "mullion.nodeclaim"), claim.name_any());

    let bought = only(&way, "nodeclaim");
    assert_eq!(bought.parent, Some(whole_way.id));
    assert_eq!(text(bought, "host.type"), "m5.large");
    let zone = claim.label(labels::ZONE).expect("it is launched");
    assert_eq!(text(bought, "cloud.availability_zone"), zone);
    let steps = ["launch", "register", "initialize"].map(|name| only(&way, name));
    assert!(steps.iter().all(|step| step.parent == Some(bought.id)));
    assert_eq!(text(steps[0], "host.type"), "m5.large");
    assert_eq!(text(steps[1], "k8s.node.name"), node);
    assert_eq!(bought.start, steps[0].start);
    assert!(steps.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert_eq!(steps[2].end, bought.end);
    assert!(bought.end > bought.start);

    let own = trace(&spans, claim.uid());
    assert_connected(&own);
    let whole_way = only(&own, "nodeclaim");
    for linked in [creation, bought] {
        assert_eq!(linked.links.len(), 1);
        assert_eq!(linked.links[0].trace, whole_way.trace);
        assert_eq!(linked.links[0].span, whole_way.id);
    }
    let launch = only(&own, "launch");
    assert_eq!(text(launch, "host.type"), "m5.large");
    assert_eq!(text(launch, "cloud.availability_zone"), zone);
    let instance = claim.provider_id().expect("it is launched");
    assert!(instance.ends_with(text(launch, "host.id")));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_goes_on_with_the_trace_of_the_one_before() {
    let (tracer, mut spans) = Tracer::new(Sampler::All);
    let mut whole = Whole::start_traced(tracer).await;
    pools::linux(&whole, &["m5.large"], &["on-demand"], json!({})).await;
    web(&whole, "500m").await;
    let ordered = || whole.claims().first().cloned();
    whole.until("a claim is there", ordered).await;
    let before = recorded(&mut spans);
    whole.restart_karpenter().await;
    whole.until_running("web", 1).await;
    until_initialized(&whole).await;
    let after = recorded(&mut spans);

    let uid = whole.pods("web")[0].uid();
    let (first, second) = (trace(&before, uid.clone()), trace(&after, uid));
    plan(&first, "node bought");
    let place = format!("nodeclaim/{}", whole.claims()[0].name_any());
    let found = second.iter().filter(|span| span.name == "plan");
    let places: Vec<_> = found.map(|span| text(span, "mullion.place")).collect();
    assert_eq!(places.first(), Some(&&*place), "{second:#?}");
    only(&second, "nodeclaim");
    assert_connected(&[first, second].concat());
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_place_and_a_launch_without_capacity_say_why() {
    let (tracer, mut spans) = Tracer::new(Sampler::All);
    let whole = Whole::start_traced(tracer).await;
    pools::linux(&whole, &["m5.large"], &["on-demand"], json!({})).await;
    web(&whole, "500").await;
    whole.pass(20).await;
    let uid = whole.pods("web")[0].uid();
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, "web").await;
    let gone = || whole.pods("web").is_empty().then_some(());
    whole.until("the pod is gone", gone).await;
    let way = trace(&recorded(&mut spans), uid);
    assert_connected(&way);
    let why = text(plan(&way, "refused"), "mullion.message");
    assert!(
        why.starts_with("incompatible with nodepool \"linux\"")
            && why.ends_with("no instance type has enough resources"),
        "{why}"
    );
    let end = only(&way, "pod").error.as_deref();
    assert_eq!(end, Some("the pod was deleted before it had a node"));

    let everywhere = "*/*/*".parse().expect("a pattern");
    whole.ec2.exhaust(everywhere);
    web(&whole, "500m").await;
    let mut launches = Vec::new();
    let failed = || {
        launches.extend(recorded(&mut spans));
        let failed = |span: &&Span| span.name == "launch" && span.error.is_some();
        launches.iter().find(failed).cloned()
    };
    let launch = whole.until("a launch failed", failed).await;
    assert_eq!(launch.error.as_deref(), Some("no option has capacity"));
    let Value::Texts(refused) = attribute(&launch, "mullion.refused") else {
        panic!("{launch:#?}");
    };
    let shortage = ": InsufficientInstanceCapacity";
    assert!(
        refused
            .iter()
            .all(|own| own.starts_with("m5.large ") && own.ends_with(shortage))
    );
    assert!(!refused.is_empty());
}
