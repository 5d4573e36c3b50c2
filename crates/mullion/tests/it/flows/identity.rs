//! Users, rights and tokens as `kubectl` handles them.

use crate::cluster::{Cluster, text};

/// Runs kubectl as somebody who need not be allowed; both outputs.
fn as_user(cluster: &Cluster, user: &[&str], args: &[&str]) -> String {
    let output = cluster.run("kubectl", &[args, user].concat(), "");
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn rights_are_granted_asked_about_and_used() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let jane = ["--as", "jane"];
    let refused = as_user(&cluster, &jane, &["get", "pods"]);
    assert!(
        refused.contains(r#"pods is forbidden: User "jane" cannot list resource "pods""#),
        "{refused}"
    );
    cluster.kubectl(&[
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=pods",
    ]);
    cluster.kubectl(&[
        "create",
        "rolebinding",
        "jane",
        "--role=reader",
        "--user=jane",
    ]);
    let listed = as_user(&cluster, &jane, &["get", "pods"]);
    assert!(listed.contains("No resources found"), "{listed}");
    let can = |args: &[&str]| as_user(&cluster, &jane, &[&["auth", "can-i"], args].concat());
    assert_eq!(can(&["list", "pods"]).trim(), "yes");
    assert_eq!(can(&["delete", "pods"]).trim(), "no");
    let all = can(&["--list"]);
    let pods = all.lines().find(|line| line.starts_with("pods "));
    assert!(
        pods.is_some_and(|line| line.contains("[get list]")),
        "{all}"
    );
    let who = as_user(&cluster, &jane, &["auth", "whoami"]);
    assert!(
        who.contains("jane") && who.contains("system:authenticated"),
        "{who}"
    );
    let described = cluster.kubectl(&["describe", "role", "reader"]);
    assert!(described.contains("[get list]"), "{described}");
    let described = cluster.kubectl(&["describe", "rolebinding", "jane"]);
    assert!(described.contains("User  jane"), "{described}");
    let bindings = cluster.kubectl(&["get", "rolebindings", "-o", "wide"]);
    assert!(bindings.contains("Role/reader"), "{bindings}");
    // The controller has filled in the rules of the roles that are put together from others.
    let view = ["auth", "can-i", "list", "deployments", "--as", "joe"];
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "joe",
        "--clusterrole=view",
        "--user=joe",
    ]);
    cluster.until("joe may view", &view, |answer| answer.trim() == "yes");
    let manifest = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules:
- {apiGroups: [''], resources: [configmaps], verbs: [get]}
";
    let output = cluster.run("kubectl", &["auth", "reconcile", "-f", "-"], manifest);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains("reader reconciled"), "{said}");
    assert_eq!(can(&["get", "configmaps"]).trim(), "yes");
    assert_eq!(can(&["get", "pods"]).trim(), "yes");
}

#[test]
fn a_token_of_a_service_account_is_a_way_in() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.kubectl(&["create", "serviceaccount", "robot"]);
    cluster.kubectl(&[
        "create",
        "clusterrole",
        "node-reader",
        "--verb=get,list",
        "--resource=nodes",
    ]);
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "robot",
        "--clusterrole=node-reader",
        "--serviceaccount=default:robot",
    ]);
    let token = cluster.kubectl(&["create", "token", "robot", "--duration=10m"]);
    cluster.kubectl(&[
        "config",
        "set-credentials",
        "robot",
        "--token",
        token.trim(),
    ]);
    let context = cluster.kubectl(&["config", "current-context"]);
    let config = cluster.kubectl(&[
        "config",
        "view",
        "-o",
        "jsonpath={.contexts[0].context.cluster}",
    ]);
    assert_eq!(context.trim(), config);
    cluster.kubectl(&[
        "config",
        "set-context",
        "robot",
        "--cluster",
        &config,
        "--user",
        "robot",
    ]);
    let robot = ["--context", "robot"];
    let who = as_user(&cluster, &robot, &["auth", "whoami"]);
    assert!(who.contains("system:serviceaccount:default:robot"), "{who}");
    let nodes = as_user(&cluster, &robot, &["get", "nodes", "-o", "name"]);
    assert!(nodes.starts_with("node/"), "{nodes}");
    let refused = as_user(&cluster, &robot, &["get", "secrets"]);
    assert!(
        refused.contains(
            r#"User "system:serviceaccount:default:robot" cannot list resource "secrets""#
        ),
        "{refused}"
    );
    cluster.kubectl(&["delete", "serviceaccount", "robot"]);
    let refused = as_user(&cluster, &robot, &["get", "nodes"]);
    assert!(
        refused.contains("Unauthorized") || refused.contains("logged in"),
        "{refused}"
    );
}
