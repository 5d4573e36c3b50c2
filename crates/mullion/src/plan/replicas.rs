//! Makes the pods of a workload: one for each replica, each with its own name and its own claims.

use mullion_engine::model::PodSpec;
use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    why::{
        state::State,
        template::put,
        world::{self, PlannedPod},
    },
};

/// The largest number of pods that can be planned for.
const MOST_PODS: u64 = 1_000_000;
/// Labels that differ between the pods of a StatefulSet. They are removed, because hardly any selector uses them and pods with equal
/// templates are planned for together.
const ORDINALS: [&str; 2] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

/// Returns the pods that a workload would have. `keys` has the keys of existing pods; those of the new pods are added.
///
/// # Errors
/// There are too many pods, or a claim cannot be read.
pub(super) fn of(
    planned: &PlannedPod,
    state: &mut State,
    keys: &mut FxHashSet<String>,
) -> Result<Vec<PodSpec>, Failure> {
    let named = &planned.named;
    if planned.replicas.saturating_add(keys.len() as u64) > MOST_PODS {
        return Err(Failure::input(format!(
            "{named}: {} pods are more than the {MOST_PODS} that can be planned for",
            planned.replicas
        )));
    }
    let mut pods = Vec::with_capacity(planned.replicas as usize);
    for index in 0..planned.replicas {
        let mut pod = if planned.claims.is_empty() {
            alike(planned)
        } else {
            // The pod has claims of its own, so it cannot share a template with its siblings.
            with_claims(planned, index, state)?
        };
        pod.name = name(planned, index);
        if !keys.insert(pod.key()) {
            let kind = planned.owner.kind.to_lowercase();
            pod.name = format!("{}-{kind}-{index}", planned.owner.name);
            keys.insert(pod.key());
        }
        pods.push(pod);
    }
    Ok(pods)
}

/// Returns the ordinal of a workload's first pod.
fn first(planned: &PlannedPod) -> u64 {
    let label = &planned.admitted["metadata"]["labels"][ORDINALS[1]];
    let number = label.as_str().and_then(|text| text.parse().ok());
    number.unwrap_or(0)
}

fn name(planned: &PlannedPod, index: u64) -> String {
    match planned.owner.kind.as_str() {
        "Pod" => planned.pod.name.clone(),
        _ => format!("{}-{}", planned.owner.name, first(planned) + index),
    }
}

fn alike(planned: &PlannedPod) -> PodSpec {
    let mut pod = planned.pod.clone();
    if planned.owner.kind == "StatefulSet" {
        pod.template
            .labels
            .retain(|label, _| !ORDINALS.contains(&label.as_str()));
    }
    pod
}

/// Returns a pod of a workload with claims of its own, which are named after the pod and added to the state.
fn with_claims(planned: &PlannedPod, index: u64, state: &mut State) -> Result<PodSpec, Failure> {
    let wrong = |error: serde_json::Error| Failure::run(error).about(&planned.named);
    let (old, new) = (&planned.pod.name, name(planned, index));
    let mut pod = planned.admitted.clone();
    put(&mut pod["metadata"], "name", json!(new));
    // The claim of an ephemeral volume belongs to its pod by the pod's uid.
    let uid = json!(format!("uid of {new}"));
    put(&mut pod["metadata"], "uid", uid.clone());
    for claim in &planned.claims {
        let Some(before) = claim["metadata"]["name"].as_str() else {
            continue;
        };
        // The claim is named `data-web-0` for a StatefulSet, or `web-0-data` for an ephemeral volume.
        let after = before.replacen(old.as_str(), &new, 1);
        let mut own = claim.clone();
        put(&mut own["metadata"], "name", json!(after));
        if let Some(owner) = own.pointer_mut("/metadata/ownerReferences/0") {
            put(owner, "name", json!(new));
            put(owner, "uid", uid.clone());
        }
        // An existing claim keeps what it was given.
        if !state.is_settled(&own) {
            world::take(state, &own)?;
        }
        let volumes = pod["spec"]["volumes"].as_array_mut();
        let claims = volumes.into_iter().flatten();
        for named in claims.filter_map(|volume| volume.get_mut("persistentVolumeClaim")) {
            if named["claimName"] == before {
                put(named, "claimName", Value::String(after.clone()));
            }
        }
    }
    let spec = PodSpec::deserialize(&pod).map_err(wrong)?;
    Ok(PodSpec {
        uid: String::new(),
        ..spec
    })
}
