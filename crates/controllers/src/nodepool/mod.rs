//! Maintains the status of NodePools and their classes: whether they are ready, what their nodes hold, and the hash of
//! their version.
//!
//! Invariant: nothing here buys or removes a node; the controllers that do check `Ready` first.

pub mod class;
pub mod hash;
pub mod hashstructure;
pub mod health;
pub mod ignored_fields;
mod stamp;
pub mod terms;
pub(crate) mod validation;

use kube::{
    Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{
        EC2NodeClass, NodeClassReference, NodePool, NodePoolSpec, NodePoolStatus,
        node_pool_condition as condition,
    },
    labels,
};
use mullion_engine::model::{Quantity, ResourceMap};
use serde_json::json;

use health::{Failure, Health, Registrations};
use stamp::Stamp;

use crate::{
    Queue, api_error,
    provisioner::{
        BY_CLASS, BY_POOL, KarpenterContext,
        conditions::{Conditions, Status},
        market::{amounts, resource_list},
    },
};

/// The limit and status entry that counts machines.
pub(crate) const NODES: &str = "nodes";

/// Starts the controllers of pools and classes.
pub(crate) fn start(karpenter: &KarpenterContext) {
    class::start(karpenter);
    let queue = Queue::new("nodepool");
    let pools = queue.clone();
    karpenter
        .pools
        .on_change(move |change| pools.add(change.object().name_any()));
    let (pools, informer) = (queue.clone(), karpenter.pools.clone());
    karpenter.classes.on_change(move |change| {
        for pool in informer.by_index(BY_CLASS, &change.object().name_any()) {
            pools.add(pool.name_any());
        }
    });
    let pools = queue.clone();
    karpenter.claims.on_change(move |change| {
        if let Some(pool) = change.object().node_pool() {
            pools.add(pool.to_owned());
        }
    });
    let karpenter = karpenter.clone();
    let context = karpenter.base.clone();
    queue.run(&context, 2, move |name| {
        let karpenter = karpenter.clone();
        async move { reconcile(&karpenter, &name).await }
    });
}

async fn reconcile(karpenter: &KarpenterContext, name: &str) -> kube::Result<()> {
    if !(karpenter.claims.synced().await && karpenter.classes.synced().await) {
        return Ok(());
    }
    let Some(pool) = karpenter.pools.get("", name) else {
        return Ok(());
    };
    let reference = &pool.spec.template.spec.node_class_ref;
    let class = is_ec2(reference).then(|| karpenter.classes.get("", &reference.name));
    let class = class.flatten();
    let held = karpenter.claims.by_index(BY_POOL, name);
    let capacities: Vec<_> = held
        .iter()
        .filter_map(|claim| Some(amounts(&claim.status.as_ref()?.capacity)))
        .filter(|capacity| !capacity.is_empty())
        .collect();
    let now = karpenter.base.clock.now();
    let health = health_of(&pool, class.as_deref(), &karpenter.registrations);
    // Logged once per version of the spec, as Karpenter does, and not at every change of a claim.
    if !is_judged(&pool) {
        log_ignored_values(karpenter, &pool);
    }
    let ignored = ignored_fields::of_node_pool(&pool.spec, karpenter.options.gates);
    let status = status_of(&pool, class.as_deref(), &capacities, &health, &ignored, now);
    if pool.status.as_ref() != Some(&status) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = karpenter
            .pool_api()
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        api_error::ignore_not_found(patched)?;
    }
    let hash = Stamp::of_pool(&pool.spec.template);
    // The claims are stamped before the pool: a crash in between repeats this, while the other order would
    // lose it.
    hash.renew(karpenter, &*pool, &held).await?;
    annotate(&karpenter.pool_api(), &*pool, hash.annotations()).await
}

/// Returns whether a reference is to a class of the one provider there is.
fn is_ec2(reference: &NodeClassReference) -> bool {
    reference.group == EC2NodeClass::group(&()) && reference.kind == EC2NodeClass::kind(&())
}

/// Returns whether this version of a pool's spec has been validated.
fn is_judged(pool: &NodePool) -> bool {
    let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|judged| {
        judged.type_ == condition::VALIDATION_SUCCEEDED
            && judged.observed_generation == pool.metadata.generation
    })
}

/// Logs values that no node has where a pool can be used without them, as Karpenter does.
fn log_ignored_values(karpenter: &KarpenterContext, pool: &NodePool) {
    for (key, values) in validation::ignored_values(&pool.spec) {
        let subject = ("karpenter.sh", "NodePool");
        let pass =
            karpenter
                .log
                .reconciliation_of("nodepool.validation", subject, &pool.name_any());
        pass.with("key", key).with("invalid-values", values).error(
            "please correct found invalid values, proceeding with valid values",
            &"invalid values found for key",
        );
    }
}

/// Sets annotations unless the object has them already.
async fn annotate<K>(
    api: &kube::Api<K>,
    object: &K,
    annotations: serde_json::Value,
) -> kube::Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let wanted = annotations.as_object().into_iter().flatten();
    let has_all = wanted
        .clone()
        .all(|(key, value)| object.annotations().get(key).map(String::as_str) == value.as_str());
    if has_all {
        return Ok(());
    }
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let patched = api
        .patch(&object.name_any(), &PatchParams::default(), &patch)
        .await;
    api_error::ignore_not_found(patched).map(drop)
}

/// Returns the health of a pool by the launches of its present version from the present version of its class.
fn health_of(
    pool: &NodePool,
    class: Option<&EC2NodeClass>,
    registrations: &Registrations,
) -> Health {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let status = pool.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let Some(registration) = conditions.find(|c| c.type_ == condition::NODE_REGISTRATION_HEALTHY)
    else {
        return registrations.health(uid, || Health::Unknown);
    };
    let class_seen = status.and_then(|status| status.node_class_observed_generation);
    let class_now = class.and_then(|class| class.metadata.generation);
    if registration.observed_generation != pool.metadata.generation || class_seen != class_now {
        // Failures of an older version say nothing about this one.
        registrations.reset(uid);
        return Health::Unknown;
    }
    registrations.health(uid, || match registration.status.as_str() {
        "True" => Health::Healthy,
        "False" => Health::Unhealthy(Failure {
            reason: registration.reason.clone(),
            message: registration.message.clone(),
        }),
        _ => Health::Unknown,
    })
}

/// Returns what makes a pool invalid beyond its schema, in Karpenter's words, as the condition `ValidationSucceeded` says it; `None` if it is valid.
pub fn invalid(spec: &NodePoolSpec) -> Option<String> {
    validation::error(spec)
}

/// Returns the values in a pool's requirements that have no effect because no node has them, by label. Others beside them count.
pub fn ignored_values(spec: &NodePoolSpec) -> Vec<(&str, Vec<&str>)> {
    validation::ignored_values(spec)
}

/// Computes the status of a pool.
fn status_of(
    pool: &NodePool,
    class: Option<&EC2NodeClass>,
    capacities: &[ResourceMap],
    health: &Health,
    ignored: &[ignored_fields::IgnoredField],
    now: jiff::Timestamp,
) -> NodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(&mut status.conditions, now, pool.metadata.generation);
    let mut errors: Vec<String> = validation::error(&pool.spec).into_iter().collect();
    errors.extend(terms::errors(pool));
    let valid = condition::VALIDATION_SUCCEEDED;
    if errors.is_empty() {
        conditions.set_true(valid)
    } else {
        let (reason, message) = ("NodePoolValidationFailed", errors.join("; "));
        conditions.set(valid, Status::False, reason, &message);
    }
    let healthy = condition::NODE_REGISTRATION_HEALTHY;
    match health {
        Health::Unknown => conditions.set_unknown(healthy),
        Health::Healthy => conditions.set_true(healthy),
        Health::Unhealthy(why) => {
            conditions.set(healthy, Status::False, &why.reason, &why.message);
        }
    }
    let (ready, reason, message) = class_readiness(&pool.spec.template.spec.node_class_ref, class);
    conditions.set(condition::NODE_CLASS_READY, ready, &reason, &message);
    ignored_fields::set_condition(&mut conditions, ignored);
    conditions.summarize(&[condition::VALIDATION_SUCCEEDED, condition::NODE_CLASS_READY]);
    status.resources = resource_list(&total(capacities));
    status.nodes = Some(i64::try_from(capacities.len()).unwrap_or(i64::MAX));
    status.node_class_observed_generation = class.and_then(|class| class.metadata.generation);
    status
}

/// Returns whether the class of a pool is ready, with reason and message; a class that is not there is named after
/// Karpenter's words.
fn class_readiness(
    reference: &NodeClassReference,
    class: Option<&EC2NodeClass>,
) -> (Status, String, String) {
    let not_ready = |reason: &str, message: String| (Status::False, reason.to_owned(), message);
    let Some(class) = class else {
        let (kind, name) = (&reference.kind, &reference.name);
        let message = if is_ec2(reference) {
            format!("NodeClass not found on cluster: there is no {kind} {name:?}")
        } else {
            format!(
                "NodeClass not found on cluster: {kind} of group {:?} is no kind of NodeClass, EC2NodeClass of group {:?} is",
                reference.group,
                EC2NodeClass::group(&())
            )
        };
        return not_ready("NodeClassNotFound", message);
    };
    if class.metadata.deletion_timestamp.is_some() {
        return not_ready(
            "NodeClassTerminating",
            "NodeClass is Terminating".to_owned(),
        );
    }
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == condition::READY);
    match ready.next() {
        Some(ready) if ready.status == "True" => {
            let reason = condition::NODE_CLASS_READY.to_owned();
            (Status::True, reason, String::new())
        }
        Some(ready) if ready.status == "False" => not_ready(&ready.reason, ready.message.clone()),
        _ => not_ready(
            "NodeClassReadinessUnknown",
            "Node Class Readiness Unknown".to_owned(),
        ),
    }
}

/// Returns the total capacity of a pool's nodes, with their number.
fn total(capacities: &[ResourceMap]) -> ResourceMap {
    // Karpenter shows these resources also for a pool without nodes.
    let basics = [
        labels::CPU,
        labels::MEMORY,
        labels::EPHEMERAL_STORAGE,
        labels::PODS,
    ];
    let mut sum: ResourceMap = basics
        .into_iter()
        .map(|name| (name.to_owned(), Quantity::default()))
        .collect();
    for (name, amount) in capacities.iter().flatten() {
        let total = sum.entry(name.clone()).or_default();
        *total = total.saturating_add(*amount);
    }
    let count = i64::try_from(capacities.len()).unwrap_or(i64::MAX);
    sum.insert(NODES.to_owned(), Quantity::from_units(count));
    sum
}

/// Subtracts one node's amounts, and the node itself, from what is left of limits or of any other amounts.
pub fn take(remaining: &mut ResourceMap, used: &ResourceMap) {
    for (name, left) in remaining {
        let taken = match name.as_str() {
            NODES => Quantity::from_units(1),
            _ => used.get(name).copied().unwrap_or_default(),
        };
        *left = left.saturating_sub(taken);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::provisioner::FeatureGates;

    /// Returns the status while every gate is closed.
    fn status_of(
        pool: &NodePool,
        class: Option<&EC2NodeClass>,
        capacities: &[ResourceMap],
        health: &Health,
        now: jiff::Timestamp,
    ) -> NodePoolStatus {
        let ignored = ignored_fields::of_node_pool(&pool.spec, FeatureGates::default());
        super::status_of(pool, class, capacities, health, &ignored, now)
    }

    fn pool() -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "generation": 3 },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c" },
                "requirements": []
            }}}
        }))
        .expect("a pool")
    }

    fn class(ready: Value) -> EC2NodeClass {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "generation": 7 }, "spec": {},
            "status": { "conditions": [{
                "type": "Ready", "status": ready, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }]}
        }))
        .expect("a class")
    }

    fn ready(status: &NodePoolStatus) -> (&str, &str) {
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        let ready = ready.expect("set");
        (ready.status.as_str(), ready.message.as_str())
    }

    #[test]
    fn a_pool_is_as_ready_as_its_class() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let status = status_of(&pool(), None, &[], &Health::Unknown, now);
        assert_eq!(ready(&status), ("False", "NodeClassReady=False"));
        let status = status_of(
            &pool(),
            Some(&class(json!("Unknown"))),
            &[],
            &Health::Unknown,
            now,
        );
        assert_eq!(ready(&status), ("False", "NodeClassReady=False"));
        let status = status_of(
            &pool(),
            Some(&class(json!("True"))),
            &[],
            &Health::Unknown,
            now,
        );
        assert_eq!(ready(&status), ("True", ""));
        assert_eq!(status.node_class_observed_generation, Some(7));
    }

    #[test]
    fn a_pool_says_why_it_is_not_ready() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let outcome = |pool: &NodePool, class: Option<&EC2NodeClass>, kind: &str| {
            let status = status_of(pool, class, &[], &Health::Unknown, now);
            let mut conditions = status.conditions.into_iter();
            let condition = conditions.find(|c| c.type_ == kind).expect("set");
            (condition.status, condition.reason, condition.message)
        };
        let because = |reason: &str, message: &str| {
            ("False".to_owned(), reason.to_owned(), message.to_owned())
        };
        let class_ready = condition::NODE_CLASS_READY;
        assert_eq!(
            outcome(&pool(), None, class_ready),
            because(
                "NodeClassNotFound",
                "NodeClass not found on cluster: there is no EC2NodeClass \"c\""
            )
        );
        let mut other = pool();
        other.spec.template.spec.node_class_ref.kind = "AKSNodeClass".to_owned();
        let (_, reason, message) = outcome(&other, None, class_ready);
        assert_eq!(reason, "NodeClassNotFound");
        assert!(message.contains("AKSNodeClass"), "{message}");
        let unready = class(json!("False"));
        assert_eq!(
            outcome(&pool(), Some(&unready), class_ready),
            because("R", "m")
        );
        let mut pool = pool();
        let capacity =
            json!([{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spott"] }]);
        pool.spec.template.spec.requirements =
            serde_json::from_value(capacity).expect("requirements");
        let ready_class = class(json!("True"));
        let (status, reason, _) =
            outcome(&pool, Some(&ready_class), condition::VALIDATION_SUCCEEDED);
        assert_eq!((&*status, &*reason), ("False", "NodePoolValidationFailed"));
        let (status, _, message) = outcome(&pool, Some(&ready_class), condition::READY);
        assert_eq!(
            (&*status, &*message),
            ("False", "ValidationSucceeded=False")
        );
    }

    #[test]
    fn fields_without_effect_are_named_by_a_condition_as_long_as_there_are_any() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let named = |pool: &NodePool| {
            let status = status_of(pool, None, &[], &Health::Unknown, now);
            let mut conditions = status.conditions.into_iter();
            conditions
                .find(|c| c.type_ == "FieldsIgnored")
                .map(|c| c.message)
        };
        let mut pool = pool();
        pool.spec.replicas = Some(2);
        let message = named(&pool).expect("it is set");
        assert!(
            message.starts_with("spec.replicas has no effect"),
            "{message}"
        );
        pool.status = Some(status_of(&pool, None, &[], &Health::Unknown, now));
        pool.spec.replicas = None;
        assert_eq!(named(&pool), None);
    }

    #[test]
    fn another_version_of_a_pool_or_its_class_begins_with_unknown_health() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let launches = Registrations::default();
        let class = class(json!("True"));
        let mut pool = pool();
        let judged = |pool: &mut NodePool| {
            let health = health_of(pool, Some(&class), &launches);
            pool.status = Some(status_of(pool, Some(&class), &[], &health, now));
            health
        };
        assert_eq!(judged(&mut pool), Health::Unknown);
        launches.succeeded("");
        assert_eq!(judged(&mut pool), Health::Healthy);
        assert!(pool.is(condition::NODE_REGISTRATION_HEALTHY));
        pool.metadata.generation = Some(4);
        assert_eq!(judged(&mut pool), Health::Unknown);
        assert!(!pool.is(condition::NODE_REGISTRATION_HEALTHY));
    }

    #[test]
    fn resources_are_summed_and_nodes_counted() {
        let node: ResourceMap = [("cpu".to_owned(), "4".parse().expect("a quantity"))].into();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let status = status_of(&pool(), None, &[node.clone(), node], &Health::Unknown, now);
        assert_eq!(status.resources.text("cpu"), Some("8"));
        assert_eq!(status.resources.text("nodes"), Some("2"));
        assert_eq!(status.resources.text("memory"), Some("0"));
        assert_eq!(status.nodes, Some(2));
    }

    #[test]
    fn a_node_takes_its_amounts_and_itself() {
        let quantity = |text: &str| text.parse::<Quantity>().expect("a quantity");
        let mut left: ResourceMap = [
            ("cpu".to_owned(), quantity("10")),
            ("nodes".to_owned(), quantity("3")),
        ]
        .into();
        take(&mut left, &[("cpu".to_owned(), quantity("4"))].into());
        assert_eq!(left["cpu"], quantity("6"));
        assert_eq!(left["nodes"], quantity("2"));
    }
}
