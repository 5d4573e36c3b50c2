//! ClusterRoles that are put together from others follow them.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;

use crate::cluster::Cluster;

/// The verbs that a role has for widgets, once they are as wanted.
async fn until_widgets(roles: &Api<ClusterRole>, name: &str, wanted: &[&str]) {
    for _ in 0..600 {
        let role = roles.get(name).await.expect("the default roles are there");
        let rules = role.rules.iter().flatten();
        let verbs: Vec<&str> = rules
            .filter(|rule| {
                rule.resources
                    .iter()
                    .flatten()
                    .any(|name| name == "widgets")
            })
            .flat_map(|rule| rule.verbs.iter().map(String::as_str))
            .collect();
        if verbs == wanted {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{name} does not come to have {wanted:?} for widgets");
}

#[tokio::test(start_paused = true)]
async fn a_labelled_role_is_part_of_view_edit_and_admin_as_long_as_it_is_there() {
    let cluster = Cluster::start().await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "widget-viewer", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}],
    });
    cluster.create(role).await;
    let roles: Api<ClusterRole> = Api::all(cluster.context.client.clone());
    for name in ["view", "edit", "admin"] {
        until_widgets(&roles, name, &["get"]).await;
    }
    let admin = roles.get("admin").await.expect("it is there");
    assert!(admin.rules.iter().flatten().count() > 20);
    let managers: Vec<&str> = admin
        .managed_fields()
        .iter()
        .filter_map(|entry| entry.manager.as_deref())
        .collect();
    assert!(managers.contains(&"clusterrole-aggregation-controller"));
    roles
        .delete("widget-viewer", &DeleteParams::default())
        .await
        .expect("it is there");
    for name in ["view", "edit", "admin"] {
        until_widgets(&roles, name, &[]).await;
    }
}
