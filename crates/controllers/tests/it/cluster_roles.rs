//! ClusterRoles that are put together from others follow them.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;

use crate::{cluster::Cluster, wait::until};

/// Lets time pass until a role has exactly these verbs for widgets.
async fn until_widgets(roles: &Api<ClusterRole>, name: &str, wanted: &[&str]) {
    let has = |role: &ClusterRole| {
        let rules = role.rules.iter().flatten();
        let about = rules.filter(|rule| {
            let mut resources = rule.resources.iter().flatten();
            resources.any(|name| name == "widgets")
        });
        let verbs: Vec<&str> = about
            .flat_map(|rule| rule.verbs.iter().map(String::as_str))
            .collect();
        verbs == wanted
    };
    until(roles, name, has).await;
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
