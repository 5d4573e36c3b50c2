//! Every pod ends where the last plan had it, no node is bought that stays empty and none for pods that have a place: random clusters with spread,
//! affinity, host ports, daemons, several pools, both operating systems and pods that come while nodes boot.
//!
//! With a scheduler that knows nothing of plans all pods run, too. It may put pods where others were to go; which further nodes that excuses says
//! [`replay`].

mod random;
mod replay;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use mullion_controllers::pods::{is_ready, node_name};
use serde_json::json;

use self::{
    random::{App, Dice},
    replay::{Moments, Replay},
};
use crate::whole::Whole;

/// Clusters that each test tries; the variable PLANNED_RUNS asks for more, at 1.5 s of processor time each, PLANNED_FIRST for others.
const RUNS: u64 = 8;
/// All pods run after this long, or will not. Events are kept for an hour only.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Timestamps of the API are whole seconds, and a plan's claims are created one after the other.
const ONE_PLAN: SignedDuration = SignedDuration::from_secs(1);

/// What pods were told about their places.
#[derive(Clone, Debug, Default)]
struct Told {
    /// When a plan put the pod on which claim, in this order.
    nominated: Vec<(Timestamp, String)>,
    /// When the pod first had a place, planned or bound.
    first: Option<Timestamp>,
}

impl Told {
    /// The claim that the last plan up to a moment had for the pod.
    fn place_at(&self, moment: Timestamp) -> Option<&str> {
        let mut until = self.nominated.iter().rev();
        let last = until.find(|(at, _)| *at <= moment);
        last.map(|(_, claim)| claim.as_str())
    }
}

/// What became of one cluster.
#[derive(Debug, Default)]
struct Outcome {
    seed: u64,
    /// Pods that do not run, with what they were told.
    unplaced: Vec<String>,
    /// How many more do not run since kube-scheduler, too, would have cut them off from those with which they must be.
    cut_off: usize,
    /// Pods that run elsewhere than the last plan had them.
    moved: Vec<String>,
    /// Nodes without pods.
    empty: Vec<String>,
    /// Claims created after all pods had a place.
    second: Vec<String>,
    /// Pods that do not run and claims created after all pods had a place, as far as no pod in the wrong place excuses them.
    unexcused: Vec<String>,
}

impl Outcome {
    fn faults(&self) -> Vec<String> {
        let all = [&self.unplaced, &self.moved, &self.empty, &self.second];
        self.say(all.into_iter().flatten())
    }

    fn say<'a>(&self, faults: impl Iterator<Item = &'a String>) -> Vec<String> {
        faults
            .map(|fault| format!("cluster {}: {fault}", self.seed))
            .collect()
    }
}

/// Which pods a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pods {
    /// Of any kind.
    Any,
    /// One deployment of pods that may go anywhere.
    Alike,
}

/// What becomes of a random cluster with such pods.
async fn outcome(seed: u64, whole: Whole, kind: Pods) -> Outcome {
    let mut dice = Dice::new(seed);
    let moments = Moments::of(&whole);
    match kind {
        Pods::Alike => random::one_pool(&whole).await,
        Pods::Any => random::pools(&whole, &mut dice).await,
    }
    random::daemons(&whole, &mut dice).await;
    let mut apps: Vec<App> = Vec::new();
    let count = match kind {
        Pods::Alike => 1,
        Pods::Any => 1 + dice.below(5),
    };
    for _ in 0..count {
        let app = match kind {
            Pods::Alike => random::plain_app(&mut dice),
            Pods::Any => random::app(&mut dice, &apps),
        };
        let (name, spec) = (&app.name, app.spec.clone());
        whole.deployment(name, app.replicas, spec).await;
        apps.push(app);
        if dice.one_in(3) {
            // Others come while nodes are on their way, or just ready.
            whole.pass(1 + dice.below(200)).await;
        }
    }
    let all = apps.iter().map(|app| app.replicas as usize).sum();
    settle(&whole, all).await;
    let outcome = look(seed, &whole, moments).await;
    whole.karpenter.base.stop().await;
    whole.context.stop().await;
    outcome
}

fn is_web(pod: &Pod) -> bool {
    let app = pod.labels().get("app");
    app.is_some_and(|app| app.starts_with("web-"))
}

/// Lets time pass until all pods run, or [`PATIENCE`] has passed.
async fn settle(whole: &Whole, all: usize) {
    let wait = async {
        loop {
            let mut pods = whole.context.informers.pods.list();
            pods.retain(|pod| is_web(pod) && is_ready(pod));
            if pods.len() == all {
                break;
            }
            whole.pass(1).await;
        }
    };
    // Who does not run then is seen by who looks.
    let _ = tokio::time::timeout(PATIENCE, wait).await;
}

/// Compares where pods run with where they were planned.
async fn look(seed: u64, whole: &Whole, moments: Moments) -> Outcome {
    let told = told(whole).await;
    let mut outcome = Outcome {
        seed,
        ..Outcome::default()
    };
    let mut pods = whole.context.informers.pods.list();
    pods.retain(|pod| is_web(pod));
    let claims = whole.claims();
    let nothing = Told::default();
    let told_of = |pod: &Pod| told.get(&pod.name_any()).unwrap_or(&nothing);
    let all_had_a_place = pods.iter().filter_map(|pod| told_of(pod).first).max();
    let all_had_a_place = all_had_a_place.unwrap_or(Timestamp::MAX - ONE_PLAN) + ONE_PLAN;
    let mut replay = Replay::of(whole, moments, &told);
    let mut used = BTreeSet::new();
    for pod in &pods {
        let (name, node) = (pod.name_any(), node_name(pod));
        if !is_ready(pod) {
            let events = whole.events(&name).await;
            let unplaced = format!("{name} does not run on {node:?}; it was told {events:#?}");
            if replay.is_cut_off(&name) {
                outcome.cut_off += 1;
                continue;
            }
            if let Some(fault) = replay.fault_of_unplaced(&name) {
                outcome.unexcused.push(format!("{fault}; {unplaced}"));
            }
            outcome.unplaced.push(unplaced);
        }
        if node.is_empty() {
            continue;
        }
        used.insert(node.to_owned());
        let claim = claims.iter().find(|claim| claim.node_name() == Some(node));
        let claim = claim.map(|claim| claim.name_any()).unwrap_or_default();
        let told = told_of(pod);
        let last = told.place_at(Timestamp::MAX);
        if let Some(place) = last.filter(|place| *place != claim) {
            outcome.moved.push(format!(
                "{name} was planned on {place} and runs on {claim}; plans said {told:?}"
            ));
        }
    }
    let bought = whole.bought().into_iter().map(|node| node.name_any());
    let empty = bought.filter(|node| !used.contains(node));
    outcome.empty = empty.map(|node| format!("{node} is empty")).collect();
    for claim in &claims {
        let created = claim.metadata.creation_timestamp.as_ref();
        if created.is_some_and(|created| created.0 > all_had_a_place) {
            let name = claim.name_any();
            outcome.unexcused.extend(replay.fault_of_claim(&name));
            let second = format!("{name} was bought when all pods had a place");
            outcome.second.push(second);
        }
    }
    outcome
}

/// What each pod was told, by its name.
async fn told(whole: &Whole) -> BTreeMap<String, Told> {
    let events: Api<Event> = Api::all(whole.context.client.clone());
    let events = events.list(&ListParams::default()).await;
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    for event in events.expect("events are listed") {
        let reason = event.reason.as_deref().unwrap_or_default();
        if reason != "Nominated" && reason != "Scheduled" {
            continue;
        }
        let first = event.first_timestamp.or(event.last_timestamp.clone());
        let first = first.map(|at| at.0).or(event.event_time.map(|at| at.0));
        let first = first.expect("every event has a time");
        let pod = event.involved_object.name.unwrap_or_default();
        let of_pod = told.entry(pod).or_default();
        of_pod.first = Some(of_pod.first.map_or(first, |known| known.min(first)));
        let message = event.message.unwrap_or_default();
        if let Some((_, place)) = message.split_once("nodeclaim/") {
            let claim = place.split(',').next().unwrap_or_default().to_owned();
            let last = event.last_timestamp.map_or(first, |at| at.0);
            of_pod.nominated.push((first, claim.clone()));
            of_pod.nominated.push((last, claim));
        }
    }
    for told in told.values_mut() {
        told.nominated.sort_by_key(|(at, _)| *at);
        told.nominated.dedup();
    }
    told
}

/// A pod for which nothing can be bought is looked at again every ten seconds. Pods that come just before that are planned together with
/// those that come just after.
#[tokio::test(start_paused = true)]
async fn a_second_look_at_waiting_pods_does_not_cut_a_batch_in_two() {
    let whole = Whole::start().await;
    random::one_pool(&whole).await;
    let containers =
        json!([{ "name": "a", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]);
    let nowhere = json!({ "nodeSelector": { "team": "nobody" }, "containers": containers });
    whole.deployment("nowhere", 1, nowhere).await;
    let alone = json!([{
        "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] },
        "topologyKey": "kubernetes.io/hostname",
    }]);
    let some = json!({
        "containers": containers,
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": alone } },
    });
    // Wherever the second look falls between the two, there is one plan for both.
    let waits_ms: Vec<u64> = (9_000..13_000).step_by(200).collect();
    let pairs = waits_ms.len();
    for (pair, wait_ms) in waits_ms.into_iter().enumerate() {
        for (wait_ms, name) in [(wait_ms, "before"), (600, "after")] {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let name = format!("{name}-{pair}");
            whole.deployment(&name, 1, some.clone()).await;
        }
    }
    whole
        .until_running(&format!("after-{}", pairs - 1), 1)
        .await;
    let story = whole.story();
    let plans = story
        .iter()
        .filter(|line| *line == "computed new nodeclaim(s) to fit pod(s)");
    assert_eq!(plans.count(), pairs, "{story:#?}");
}

/// Three pods that must share a node get a large one, on which a pod with a node of its own would fit as well. A plan for
/// further pods leaves it where it is.
#[tokio::test(start_paused = true)]
async fn a_later_plan_leaves_no_node_without_the_pods_it_was_bought_for() {
    let whole = Whole::start().await;
    let moments = Moments::of(&whole);
    random::one_pool(&whole).await;
    let rule = |affinity: &str, name: &str| {
        let selector = json!({ "matchLabels": { "app": name } });
        let term = json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": selector });
        json!({ affinity: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } })
    };
    let apps = [
        ("web-apart", 2, "1Gi", rule("podAntiAffinity", "web-apart")),
        (
            "web-together",
            3,
            "256Mi",
            rule("podAffinity", "web-together"),
        ),
        ("web-further", 1, "128Mi", json!({})),
    ];
    for (name, replicas, memory, affinity) in apps {
        let requests = json!({ "cpu": "900m", "memory": memory });
        let spec = json!({
            "nodeSelector": { "team": "linux" }, "affinity": affinity,
            "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }],
        });
        whole.deployment(name, replicas, spec).await;
        whole.pass(10).await;
    }
    settle(&whole, 6).await;
    let outcome = look(0, &whole, moments).await;
    assert_eq!(outcome.faults(), [] as [String; 0]);
}

/// The seeds of the clusters to try.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, default: u64| {
        let said = std::env::var(name).ok();
        said.map_or(default, |said| said.parse().expect("a number"))
    };
    let first = number("PLANNED_FIRST", 0);
    first..first + number("PLANNED_RUNS", RUNS)
}

/// Seeds of clusters in which pods once ran elsewhere than planned: with 61611 the scheduler bound them while claims of a plan that moved them were created.
const MENDED: [u64; 1] = [61_611];

/// Runs a cluster in a runtime of its own, because its controllers run on, under the same clock, as long as their runtime does.
fn alone<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(run)
}

#[test]
fn pods_end_where_the_last_plan_had_them() {
    let mut faults = Vec::new();
    for seed in seeds().chain(MENDED) {
        let outcome = alone(async { outcome(seed, Whole::start().await, Pods::Any).await });
        faults.extend(outcome.faults());
    }
    assert_eq!(faults, [] as [String; 0], "of clusters {:?}", seeds());
}

#[test]
fn a_scheduler_that_knows_no_plans_causes_further_nodes_only_for_pods_whose_room_others_took() {
    let (mut faults, mut again, mut waiting) = (Vec::new(), 0, 0);
    for seed in seeds() {
        let outcome = alone(async {
            let whole = Whole::start_with_foreign_scheduler(seed).await;
            outcome(seed, whole, Pods::Any).await
        });
        faults.extend(outcome.say(outcome.unexcused.iter()));
        again += outcome.second.len();
        waiting += outcome.unplaced.len();
    }
    assert_eq!(
        faults,
        [] as [String; 0],
        "of clusters {:?}, where {again} further nodes were bought and {waiting} pods do not run",
        seeds()
    );
}

#[test]
fn for_pods_that_are_alike_no_second_node_is_bought_whoever_places_them() {
    let mut faults = Vec::new();
    for seed in seeds() {
        let outcome = alone(async {
            let whole = Whole::start_with_foreign_scheduler(seed).await;
            outcome(seed, whole, Pods::Alike).await
        });
        faults.extend(outcome.say([&outcome.unplaced, &outcome.second].into_iter().flatten()));
    }
    assert_eq!(faults, [] as [String; 0], "of clusters {:?}", seeds());
}
