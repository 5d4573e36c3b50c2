//! The ClusterRole aggregation controller: an aggregated ClusterRole gets the rules of every ClusterRole that one
//! of its selectors matches, each rule once (kube-controller-manager: clusterrole-aggregation-controller).
//!
//! As in kube-controller-manager, the rules are written by server-side apply, so that managedFields shows who owns
//! them.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    core::{Selector, SelectorExt},
};
use serde_json::json;

use crate::{Context, Informer, Queue, api_error};

const MANAGER: &str = "clusterrole-aggregation-controller";

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("clusterrole-aggregation");
    let roles: Informer<ClusterRole> = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    roles.on_change({
        let queue = queue.clone();
        // A changed role may be part of any aggregated one, so all are computed again.
        move |_| queue.add(())
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if roles.synced().await {
            let workers = context.clone();
            queue.run(&workers, 1, move |()| {
                let (context, roles) = (context.clone(), roles.clone());
                async move { aggregate_all(&context, &roles).await }
            });
        }
    });
}

async fn aggregate_all(context: &Context, roles: &Informer<ClusterRole>) -> kube::Result<()> {
    let mut all = roles.list();
    // In a fixed order, or equal rules would be written again and again in another one.
    all.sort_by_key(|role| role.name_any());
    for role in all.iter().filter(|role| role.aggregation_rule.is_some()) {
        aggregate(context, role, &all).await?;
    }
    Ok(())
}

async fn aggregate(
    context: &Context,
    role: &ClusterRole,
    all: &[Arc<ClusterRole>],
) -> kube::Result<()> {
    let name = role.name_any();
    let rules = gathered(role, all.iter().map(|other| &**other));
    if role.rules.as_deref().unwrap_or_default() == rules {
        return Ok(());
    }
    let patch = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
    });
    let api: Api<ClusterRole> = Api::all(context.client.clone());
    let applied = api
        .patch(
            &name,
            // The rules of an aggregated role belong to this controller; what users write into them is
            // replaced.
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(patch),
        )
        .await;
    api_error::ignore_not_found(applied).map(drop)
}

/// Returns the rules that a role should have: those of the roles it selects, by selector and then by name, each
/// once.
fn gathered<'a>(
    role: &ClusterRole,
    others: impl Iterator<Item = &'a ClusterRole> + Clone,
) -> Vec<PolicyRule> {
    let aggregation = role.aggregation_rule.as_ref();
    let selectors = aggregation
        .and_then(|rule| rule.cluster_role_selectors.as_deref())
        .unwrap_or_default();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for wanted in selectors {
        // The API server accepts no invalid selector.
        let Ok(selector) = Selector::try_from(wanted.clone()) else {
            continue;
        };
        let selected = others.clone().filter(|other| {
            other.name_any() != role.name_any() && selector.matches(other.labels())
        });
        for rule in selected.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, labels: serde_json::Value, verb: &str) -> ClusterRole {
        let role = json!({
            "metadata": {"name": name, "labels": labels},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}],
        });
        serde_json::from_value(role).expect("it is a cluster role")
    }

    #[test]
    fn each_selected_rule_is_taken_once() {
        let sum = json!({
            "metadata": {"name": "sum", "labels": {"a": "b"}},
            "aggregationRule": {"clusterRoleSelectors": [
                {"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]},
            ]},
        });
        let sum: ClusterRole = serde_json::from_value(sum).expect("it is a cluster role");
        let roles = [
            role("one", json!({"c": "d"}), "get"),
            role("two", json!({"a": "b"}), "list"),
            role("three", json!({"a": "b"}), "get"),
            role("four", json!({"a": "c"}), "watch"),
            sum.clone(),
        ];
        let rules = gathered(&sum, roles.iter());
        let verbs: Vec<String> = rules.into_iter().flat_map(|rule| rule.verbs).collect();
        assert_eq!(verbs, ["list", "get"]);
    }
}
