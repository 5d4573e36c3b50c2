//! Launching: from a claim to an instance.
//!
//! Invariant: the options are tried cheapest first; when none has capacity the claim is deleted, because another pod
//! placement (or another pool) may be what helps, and the provisioner decides that afresh.

use std::collections::BTreeMap;

use kube::{ResourceExt, api::DeleteParams};
use mullion_api::{
    eksctl::{Taint, TaintEffect},
    karpenter::{EC2NodeClass, NodeClaim, Operator, node_claim_condition as condition},
    labels,
};
use mullion_cloud::{CloudError, Instance, LaunchRequest, Registration};
use serde_json::json;

use super::{Error, edit, pass};
use crate::{
    api_error,
    nodepool::hash::class_hash,
    provisioner::{
        KarpenterContext,
        conditions::Status,
        market::{Market, amounts, instance_labels},
    },
};

/// What came of the step.
pub(super) enum Outcome {
    /// The claim is launched, or waits for its class.
    Done,
    /// Nothing has capacity; the claim is being deleted.
    Refused,
}

/// Launches the claim unless it is launched.
pub(super) async fn step(
    karpenter: &KarpenterContext,
    claim: &mut NodeClaim,
) -> Result<Outcome, Error> {
    if claim.is(condition::LAUNCHED) {
        return Ok(Outcome::Done);
    }
    let class_name = &claim.spec.node_class_ref.name;
    let Some(class) = karpenter.class_api().get_opt(class_name).await? else {
        let message = format!(
            "resolving ec2nodeclass, ec2nodeclasses.karpenter.k8s.aws {class_name:?} not found"
        );
        wait(karpenter, claim, &message);
        return Ok(Outcome::Done);
    };
    if !is_ready(&class) {
        wait(
            karpenter,
            claim,
            "resolving ec2nodeclass, nodeclass is not ready",
        );
        return Ok(Outcome::Done);
    }
    let market = Market::open(&class, karpenter.options.version, &*karpenter.cloud).await?;
    let request = order(karpenter, claim, &class, &market);
    let launched = match request.options.is_empty() {
        true => Err(CloudError::InsufficientCapacity(Vec::new())),
        false => karpenter.cloud.launch(request).await,
    };
    match launched {
        Ok(instance) => {
            note(karpenter, claim, &class, &market, &instance);
            Ok(Outcome::Done)
        }
        Err(error) if error.is_insufficient_capacity() => refuse(karpenter, claim, &error).await,
        Err(error) => {
            edit(karpenter, claim, |conditions| {
                let message = truncated(&error.to_string());
                conditions.set(
                    condition::LAUNCHED,
                    Status::Unknown,
                    "LaunchFailed",
                    &message,
                );
            });
            Err(Error::Launch(error))
        }
    }
}

fn wait(karpenter: &KarpenterContext, claim: &mut NodeClaim, message: &str) {
    edit(karpenter, claim, |conditions| {
        conditions.set(
            condition::LAUNCHED,
            Status::Unknown,
            "NodeClassNotReady",
            message,
        );
    });
}

fn is_ready(class: &EC2NodeClass) -> bool {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|c| c.type_ == condition::READY);
    ready.any(|c| c.status == "True") && class.metadata.deletion_timestamp.is_none()
}

fn order(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    class: &EC2NodeClass,
    market: &Market,
) -> LaunchRequest {
    let requests = amounts(&claim.spec.resources.requests);
    let name = claim.name_any();
    let mut tags = class.spec.tags.clone();
    tags.extend(
        [
            ("Name", name.as_str()),
            ("eks:eks-cluster-name", &karpenter.options.cluster),
            ("karpenter.sh/nodeclaim", &name),
            (labels::NODEPOOL, claim.node_pool().unwrap_or_default()),
            (labels::EC2NODECLASS, &class.name_any()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    LaunchRequest {
        client_token: claim.uid().unwrap_or(name),
        options: market.launch_options(&claim.spec.requirements, &requests),
        subnets: market.subnets.clone(),
        template: market.template.clone(),
        registration: Registration {
            labels: claim.labels().clone(),
            taints: registration_taints(claim),
        },
        tags,
    }
}

/// The taints a kubelet registers with: the one that marks it as unregistered, its own, its startup taints.
fn registration_taints(claim: &NodeClaim) -> Vec<Taint> {
    let unregistered = Taint {
        key: labels::UNREGISTERED_TAINT.to_owned(),
        value: String::new(),
        effect: TaintEffect::NoExecute,
    };
    let spec = &claim.spec;
    let others = spec.taints.iter().chain(&spec.startup_taints);
    let others = others.filter_map(|taint| {
        Some(Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            // The schema admits no other effects.
            effect: taint.effect.parse().ok()?,
        })
    });
    std::iter::once(unregistered).chain(others).collect()
}

/// Writes down what was bought.
fn note(
    karpenter: &KarpenterContext,
    claim: &mut NodeClaim,
    class: &EC2NodeClass,
    market: &Market,
    instance: &Instance,
) {
    let mut own = instance_labels(
        market,
        &instance.instance_type,
        &instance.zone,
        &instance.zone_id,
        instance.capacity_type,
    );
    own.extend(decided_labels(claim));
    own.extend(claim.labels().clone());
    claim.metadata.labels = Some(own);
    claim.annotations_mut().extend(
        [
            (labels::EC2NODECLASS_HASH, class_hash(&class.spec)),
            (
                labels::EC2NODECLASS_HASH_VERSION,
                labels::EC2NODECLASS_HASH_VERSION_VALUE.to_owned(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let status = claim.status.get_or_insert_default();
    status.provider_id = instance.provider_id.clone();
    status.image_id = instance.image.id.clone();
    status.capacity = instance.capacity.to_list();
    status.allocatable = instance.allocatable.to_list();
    edit(karpenter, claim, |conditions| {
        conditions.set_true(condition::LAUNCHED)
    });
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with("instance-type", &*instance.instance_type.name)
        .with("zone", &*instance.zone)
        .with("capacity-type", instance.capacity_type.as_str())
        .with("allocatable", json!(instance.allocatable.to_list()))
        .info("launched nodeclaim");
}

/// Labels that the requirements leave only one value for.
fn decided_labels(claim: &NodeClaim) -> BTreeMap<String, String> {
    let requirements = claim.spec.requirements.iter();
    requirements
        .filter(|requirement| requirement.operator == Operator::In)
        .filter_map(|requirement| match requirement.values.as_slice() {
            [value] => Some((requirement.key.clone(), value.clone())),
            _ => None,
        })
        .collect()
}

async fn refuse(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    error: &CloudError,
) -> Result<Outcome, Error> {
    let name = claim.name_any();
    let message = format!("NodeClaim {name} event: {}", truncated(&error.to_string()));
    karpenter
        .recorder
        .warning(claim, "InsufficientCapacityError", message);
    pass(karpenter, "nodeclaim.lifecycle", claim).error("failed launching nodeclaim", error);
    let deleted = karpenter
        .claim_api()
        .delete(&name, &DeleteParams::default())
        .await;
    api_error::ignore_not_found(deleted)?;
    Ok(Outcome::Refused)
}

/// Upstream cuts messages in conditions and events at 300 characters.
fn truncated(message: &str) -> String {
    match message.char_indices().nth(300) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}...", &message[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1" },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" },
                "requirements": [
                    { "key": "example.com/team", "operator": "In", "values": ["a"] },
                    { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"] },
                    { "key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["2"] }
                ],
                "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }],
                "startupTaints": [{ "key": "cni", "effect": "NoExecute" }]
            }
        }))
        .expect("a claim")
    }

    #[test]
    fn a_kubelet_registers_as_unregistered() {
        let taints = registration_taints(&claim());
        let keys: Vec<_> = taints.iter().map(|t| (t.key.as_str(), t.effect)).collect();
        assert_eq!(
            keys,
            [
                ("karpenter.sh/unregistered", TaintEffect::NoExecute),
                ("os", TaintEffect::NoSchedule),
                ("cni", TaintEffect::NoExecute)
            ]
        );
    }

    #[test]
    fn a_requirement_with_one_value_becomes_a_label() {
        let expected = BTreeMap::from([("example.com/team".to_owned(), "a".to_owned())]);
        assert_eq!(decided_labels(&claim()), expected);
    }

    #[test]
    fn long_messages_are_cut() {
        assert_eq!(truncated("short"), "short");
        assert_eq!(truncated(&"x".repeat(400)).len(), 303);
    }
}
