//! Says why pools that were added by `--add-pool` buy nothing.

use mullion_engine::{
    Cluster, ModelError,
    model::PodTemplate,
    provision::{NodeTemplate, Plan, PlanRequest},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::question::Question;
use crate::why::outlook::{self, PoolReason};

/// The number of pod templates whose refusals are put into words.
const MOST: usize = 20;

/// Returns why each of these pools buys nothing in a plan. Left out are the pools that buy nodes, and those whose reasons the report has
/// anyway: pools that are closed, and the refusals of pods without a place. The cluster is unchanged when this returns.
///
/// # Errors
/// A pool has an impossible amount of a resource, such as a negative one.
pub(super) fn reasons(
    pools: &[String],
    plan: &Plan,
    question: &Question,
    cluster: &mut Cluster,
) -> Result<Vec<PoolReason>, ModelError> {
    let mut found = Vec::new();
    for pool in pools {
        let buys = plan.nodes.iter().any(|node| node.pool == *pool);
        let mut templates = question.request.templates.iter();
        let Some(template) = templates.find(|own| own.pool == *pool && !buys) else {
            continue;
        };
        let reasons = reasons_of(template, plan, question, cluster)?;
        found.extend(reasons.into_iter().map(|reason| PoolReason {
            pool: pool.clone(),
            reason,
        }));
    }
    Ok(found)
}

fn reasons_of(
    pool: &NodeTemplate,
    plan: &Plan,
    question: &Question,
    cluster: &mut Cluster,
) -> Result<Vec<String>, ModelError> {
    let mut templates = bought_for(plan, question);
    if templates.is_empty() {
        return Ok(
            match (plan.existing.is_empty(), plan.unplaceable.is_empty()) {
                (true, true) => vec!["no pod waits for a node".to_owned()],
                (false, true) => vec!["every pod fits on the nodes there are".to_owned()],
                (_, false) => Vec::new(),
            },
        );
    }
    // Asked for all pods and with the nodes on their way, so that pods for which there is room take it again.
    let alone = question.pools.plan(
        cluster,
        &PlanRequest {
            pods: question.request.pods.clone(),
            in_flight: question.request.in_flight.clone(),
            templates: vec![pool.clone()],
            preferences: question.request.preferences,
            min_values: question.request.min_values,
            effort: Some(0),
            ..PlanRequest::default()
        },
    )?;
    let mut reasons = Vec::new();
    if !alone.nodes.is_empty() {
        reasons.push(
            "the pods that it could hold go to pools that cost no more or have a greater weight"
                .to_owned(),
        );
    }
    let refused = alone.unplaceable.iter();
    let refused: FxHashMap<&str, _> = refused.map(|own| (own.pod.as_str(), own)).collect();
    for pod in &question.request.pods {
        let Some(refused) = refused.get(pod.key().as_str()) else {
            continue;
        };
        // One pod of each template: the others are refused alike.
        if !templates.remove(&pod.template) {
            continue;
        }
        let words = outlook::refusal_texts(
            cluster,
            &question.pools,
            &pod.template,
            &refused.pools,
            &alone.full,
        )?;
        for PoolReason { reason, .. } in words {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    Ok(reasons)
}

/// Returns the templates of pods for which a plan buys nodes, at most [`MOST`].
fn bought_for<'a>(plan: &Plan, question: &'a Question) -> FxHashSet<&'a PodTemplate> {
    let on_new = plan.nodes.iter().flat_map(|node| &node.pods);
    let on_new: FxHashSet<&str> = on_new.map(String::as_str).collect();
    let mut seen = FxHashSet::default();
    let pods = question.request.pods.iter();
    for pod in pods.filter(|pod| on_new.contains(pod.key().as_str())) {
        if seen.len() == MOST {
            break;
        }
        seen.insert(&pod.template);
    }
    seen
}
