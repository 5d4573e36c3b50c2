//! Who may do what: roles and bindings, what their writers may put into them, acting as somebody else, and asking about rights.

use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt;
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::{Value, json};
use tower::ServiceExt;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

pub(crate) struct Server(axum::Router);

impl Server {
    pub(crate) fn new(config: Config) -> Self {
        Server(ApiServer::new(config).router())
    }

    /// Sends a request as a user, or with nothing but its headers.
    pub(crate) async fn send(
        &self,
        user: Option<&User>,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            Value::Null => Body::empty(),
            body => Body::from(body.to_string()),
        };
        let mut request = request.body(body).unwrap();
        if let Some(user) = user {
            request.extensions_mut().insert(user.clone());
        }
        let response = self.0.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub(crate) async fn get(&self, user: &User, path: &str) -> (u16, Value) {
        self.send(Some(user), Method::GET, path, &[], Value::Null)
            .await
    }

    pub(crate) async fn post(&self, user: &User, path: &str, body: Value) -> (u16, Value) {
        self.send(Some(user), Method::POST, path, &[], body).await
    }

    /// Gives a user a role of these rules in the default namespace.
    async fn grant(&self, user: &str, rules: Value) {
        let role = json!({"metadata": {"name": user}, "rules": rules});
        let (status, body) = self.post(&admin(), ROLES, role).await;
        assert_eq!(status, 201, "{body}");
        let binding = json!({
            "metadata": {"name": user}, "roleRef": {"kind": "Role", "name": user},
            "subjects": [{"kind": "User", "name": user}],
        });
        let (status, body) = self.post(&admin(), BINDINGS, binding).await;
        assert_eq!(status, 201, "{body}");
    }

    /// Gives a user a cluster role of these rules everywhere.
    async fn grant_all(&self, user: &str, rules: Value) {
        let role = json!({"metadata": {"name": user}, "rules": rules});
        let path = format!("{RBAC}/clusterroles");
        assert_eq!(self.post(&admin(), &path, role).await.0, 201);
        let binding = json!({
            "metadata": {"name": user}, "roleRef": {"kind": "ClusterRole", "name": user},
            "subjects": [{"kind": "User", "name": user}],
        });
        let path = format!("{RBAC}/clusterrolebindings");
        assert_eq!(self.post(&admin(), &path, binding).await.0, 201);
    }
}

pub(crate) fn admin() -> User {
    User {
        name: "admin".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    }
}

pub(crate) fn user(name: &str) -> User {
    User {
        name: name.into(),
        groups: vec!["system:authenticated".into()],
        ..User::default()
    }
}

fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_grant_holds_for_the_next_request_and_its_end_too() {
    let server = Server::new(Config::default());
    let (jane, pods) = (user("jane"), "/api/v1/namespaces/default/pods");
    let (status, body) = server.get(&jane, pods).await;
    let refusal = r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#;
    assert_eq!((status, message(&body)), (403, refusal));
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
    server.grant("jane", rules).await;
    assert_eq!(server.get(&jane, pods).await.0, 200);
    assert_eq!(server.get(&jane, "/api/v1/pods").await.0, 403);
    let role = format!("{ROLES}/jane");
    let patch = json!({"rules": []});
    let merge = [("content-type", "application/merge-patch+json")];
    let changed = server
        .send(Some(&admin()), Method::PATCH, &role, &merge, patch)
        .await;
    assert_eq!(changed.0, 200, "{}", changed.1);
    assert_eq!(server.get(&jane, pods).await.0, 403);
    let deleted = server
        .send(Some(&admin()), Method::DELETE, &role, &[], Value::Null)
        .await;
    assert_eq!(deleted.0, 200);
    let (_, body) = server.get(&jane, pods).await;
    let why = format!(r#"{refusal}: RBAC: role.rbac.authorization.k8s.io "jane" not found"#);
    assert_eq!(message(&body), why);
}

#[tokio::test]
async fn nothing_but_probes_and_version_is_answered_without_identity() {
    let server = Server::new(Config::default());
    for path in ["/healthz", "/livez", "/readyz", "/version", "/version/"] {
        let (status, _) = server.send(None, Method::GET, path, &[], Value::Null).await;
        assert_eq!(status, 200, "{path}");
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/metrics",
        "/livez/ping",
        "/readyz/etcd",
        "/healthz/",
        "//livez",
        "/api/v1/nodes",
        "/nonsense",
    ] {
        let (status, body) = server.send(None, Method::GET, path, &[], Value::Null).await;
        assert_eq!((status, message(&body)), (401, "Unauthorized"), "{path}");
    }
}

/// As kube-apiserver does it: who asks is found out first, then as whom, then whether they may.
#[tokio::test]
async fn probes_are_refused_to_bad_tokens_and_to_those_who_may_not() {
    let server = Server::new(Config::default());
    let ask = async |user: Option<&User>, path: &str, headers: &[(&str, &str)]| {
        let (status, body) = server
            .send(user, Method::GET, path, headers, Value::Null)
            .await;
        (status, message(&body).to_owned())
    };
    let ok = (200, String::new());
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        let bad = ask(None, path, &[("authorization", "Bearer bad")]).await;
        assert_eq!(bad, (401, "Unauthorized".to_owned()), "{path}");
        let none = ask(None, path, &[("authorization", "Basic bad")]).await;
        assert_eq!(none, ok, "{path}");
        let (status, why) = ask(None, path, &[("impersonate-user", "joe")]).await;
        let refusal = format!(
            r#"forbidden: User "system:anonymous" cannot impersonate-on:user-info:get path "{path}""#
        );
        assert_eq!((status, why), (403, refusal));
        assert_eq!(ask(Some(&user("jane")), path, &[]).await, ok, "{path}");
    }
    let verbose = ask(Some(&admin()), "/livez?verbose", &[]).await;
    assert_eq!(verbose, ok);
    assert_eq!(ask(Some(&admin()), "/livez/ping", &[]).await, ok);
    let (status, why) = ask(Some(&user("jane")), "/livez/ping", &[]).await;
    let refusal = r#"forbidden: User "jane" cannot get path "/livez/ping""#;
    assert_eq!((status, &*why), (403, refusal));
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let public = format!("{bindings}/system:public-info-viewer");
    let gone = server
        .send(Some(&admin()), Method::DELETE, &public, &[], Value::Null)
        .await;
    assert_eq!(gone.0, 200);
    let (status, why) = ask(None, "/version", &[]).await;
    let refusal = r#"forbidden: User "system:anonymous" cannot get path "/version""#;
    assert_eq!((status, &*why), (403, refusal));
}

#[tokio::test]
async fn everybody_with_an_identity_may_discover_and_nothing_more() {
    let server = Server::new(Config::default());
    for path in ["/api", "/apis", "/apis/apps/v1", "/openapi/v3"] {
        assert_eq!(server.get(&user("jane"), path).await.0, 200, "{path}");
    }
    let (status, body) = server.get(&user("jane"), "/openid/v1/jwks").await;
    let refusal = r#"forbidden: User "jane" cannot get path "/openid/v1/jwks""#;
    assert_eq!((status, message(&body)), (403, refusal));
    assert_eq!(body["details"], json!({}));
}

#[tokio::test]
async fn whoever_may_only_update_or_watch_creates_nothing() {
    let server = Server::new(Config::default());
    let rules = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update", "patch", "get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]},
    ]);
    server.grant("jane", rules).await;
    let jane = user("jane");
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let lease = json!({"metadata": {"name": "l"}});
    let (status, body) = server
        .send(Some(&jane), Method::PUT, path, &[], lease)
        .await;
    let refusal = r#"leases.coordination.k8s.io "l" is forbidden: User "jane" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace "default""#;
    assert_eq!((status, message(&body)), (403, refusal));
    let apply = [("content-type", "application/apply-patch+yaml")];
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let path = format!("{path}?fieldManager=m");
    let (status, body) = server
        .send(Some(&jane), Method::PATCH, &path, &apply, lease)
        .await;
    assert_eq!((status, message(&body)), (403, refusal));
    let path = "/api/v1/watch/namespaces/default/configmaps";
    let (status, _) = server
        .post(&jane, path, json!({"metadata": {"name": "x"}}))
        .await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn nobody_grants_more_than_they_have() {
    let server = Server::new(Config::default());
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]);
    server.grant("jane", rules).await;
    let jane = user("jane");
    let own = json!({"metadata": {"name": "own"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    assert_eq!(server.post(&jane, ROLES, own).await.0, 201);
    let more = json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]}]});
    let (status, body) = server.post(&jane, ROLES, more.clone()).await;
    let refusal = "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"jane\" (groups=[\"system:authenticated\"]) is attempting to grant \
                   RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}\n{APIGroups:[\"\"], \
                   Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}";
    assert_eq!((status, message(&body)), (403, refusal));
    assert_eq!(server.post(&admin(), ROLES, more).await.0, 201);
    let bind = |name: &str, role: &str| json!({"metadata": {"name": name}, "roleRef": {"kind": "Role", "name": role}, "subjects": [{"kind": "User", "name": "joe"}]});
    assert_eq!(server.post(&jane, BINDINGS, bind("a", "own")).await.0, 201);
    let (status, body) = server.post(&jane, BINDINGS, bind("b", "more")).await;
    assert!(
        status == 403
            && message(&body).starts_with(
                r#"rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "jane""#
            ),
        "{body}"
    );
    let (status, body) = server.post(&jane, BINDINGS, bind("c", "none")).await;
    let missing = r#"rolebindings.rbac.authorization.k8s.io "none" not found"#;
    assert_eq!((status, message(&body)), (404, missing));
    // Who may bind a role need not have it.
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings"], "verbs": ["create"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["more"], "verbs": ["bind"]},
    ]);
    server.grant("binder", rules).await;
    let bound = server
        .post(&user("binder"), BINDINGS, bind("d", "more"))
        .await;
    assert_eq!(bound.0, 201, "{}", bound.1);
}

#[tokio::test]
async fn only_who_has_everything_writes_an_aggregation_rule() {
    let server = Server::new(Config::default());
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create", "update"]}]);
    server.grant_all("jane", rules).await;
    let role = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let path = format!("{RBAC}/clusterroles");
    let (status, body) = server.post(&user("jane"), &path, role).await;
    let refusal = r#"clusterroles.rbac.authorization.k8s.io "sum" is forbidden: must have cluster-admin privileges to use the aggregationRule"#;
    assert_eq!((status, message(&body)), (403, refusal));
}

#[tokio::test]
async fn a_refused_role_names_roles_that_do_not_exist_by_the_resource_of_the_request() {
    let server = Server::new(Config::default());
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create"]}]);
    server.grant_all("jane", rules).await;
    for (binding, role) in [("a", "lost"), ("b", "gone"), ("c", "lost")] {
        let body = json!({"metadata": {"name": binding}, "subjects": [{"kind": "User", "name": "jane"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
        let path = format!("{RBAC}/clusterrolebindings");
        let (status, body) = server.post(&admin(), &path, body).await;
        assert_eq!(status, 201, "{body}");
    }
    let role = json!({"metadata": {"name": "x"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let path = format!("{RBAC}/clusterroles");
    let (status, body) = server.post(&user("jane"), &path, role).await;
    let missing = "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}; resolution errors: \
        [[clusterroles.rbac.authorization.k8s.io \"lost\" not found, clusterroles.rbac.authorization.k8s.io \"gone\" not found]]";
    assert_eq!(status, 403, "{body}");
    assert!(message(&body).ends_with(missing), "{body}");
    // The authorizer, which refuses before that, names the kinds of the roles.
    let (_, body) = server
        .post(
            &user("jane"),
            &format!("{RBAC}/clusterrolebindings"),
            json!({}),
        )
        .await;
    let reason = "RBAC: [clusterrole.rbac.authorization.k8s.io \"lost\" not found, clusterrole.rbac.authorization.k8s.io \"gone\" not found]";
    assert!(message(&body).ends_with(reason), "{body}");
}

#[tokio::test]
async fn each_part_of_another_user_needs_a_permission() {
    let server = Server::new(Config::default());
    let rules = json!([
        {"apiGroups": [""], "resources": ["users"], "resourceNames": ["jane"], "verbs": ["impersonate"]},
        {"apiGroups": [""], "resources": ["groups"], "resourceNames": ["dev"], "verbs": ["impersonate"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
    ]);
    server.grant_all("bob", rules).await;
    let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (bob, empty) = (user("bob"), json!({}));
    let act = |headers: &'static [(&'static str, &'static str)]| {
        server.send(Some(&bob), Method::POST, whoami, headers, empty.clone())
    };
    // The first way of acting as somebody that applies is the constrained one: its refusal is told.
    let refusal = r#"selfsubjectreviews.authentication.k8s.io is forbidden: User "bob" cannot impersonate-on:user-info:create resource "selfsubjectreviews" in API group "authentication.k8s.io" at the cluster scope"#;
    let (status, body) = act(&[("impersonate-user", "joe")]).await;
    assert_eq!((status, message(&body)), (403, refusal));
    let (status, body) = act(&[
        ("impersonate-user", "jane"),
        ("impersonate-group", "dev"),
        ("impersonate-extra-scopes", "view"),
    ])
    .await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(
        body["status"]["userInfo"],
        json!({"username": "jane", "groups": ["dev", "system:authenticated"], "extra": {"scopes": ["view"]}})
    );
    // From then on the one that let him is the first.
    for (headers, target, group) in [
        (&[("impersonate-user", "joe")][..], r#"users "joe""#, ""),
        (
            &[("impersonate-user", "jane"), ("impersonate-group", "ops")],
            r#"groups "ops""#,
            "",
        ),
        (
            &[("impersonate-user", "jane"), ("impersonate-uid", "1")],
            r#"uids.authentication.k8s.io "1""#,
            "authentication.k8s.io",
        ),
    ] {
        let (status, body) = act(headers).await;
        let resource = target.split(['.', ' ']).next().unwrap();
        let refusal = format!(
            "{target} is forbidden: User \"bob\" cannot impersonate resource {resource:?} in API group {group:?} at the cluster scope"
        );
        assert_eq!((status, message(&body)), (403, &*refusal));
    }
    let (status, body) = act(&[("impersonate-group", "dev")]).await;
    assert!(
        status == 400 && message(&body).ends_with("without impersonating a user name"),
        "{body}"
    );
}

#[tokio::test]
async fn constrained_impersonation_allows_one_verb_as_one_user() {
    let server = Server::new(Config::default());
    let rules = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["serviceaccounts"], "resourceNames": ["s"], "verbs": ["impersonate:serviceaccount"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:serviceaccount:list"]},
    ]);
    server.grant_all("bob", rules).await;
    let as_account = [("impersonate-user", "system:serviceaccount:default:s")];
    let pods = "/api/v1/namespaces/default/pods";
    let list = || server.send(Some(&USER_BOB), Method::GET, pods, &as_account, Value::Null);
    let (_, body) = list().await;
    let refusal = r#"pods is forbidden: User "system:serviceaccount:default:s" cannot list resource "pods" in API group "" in the namespace "default""#;
    assert_eq!(message(&body), refusal);
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]}]);
    server.grant("system:serviceaccount:default:s", rules).await;
    assert_eq!(list().await.0, 200);
    let one = format!("{pods}/p");
    let (status, body) = server
        .send(Some(&USER_BOB), Method::GET, &one, &as_account, Value::Null)
        .await;
    let refusal = r#"pods "p" is forbidden: User "bob" cannot impersonate-on:serviceaccount:get resource "pods" in API group "" in the namespace "default""#;
    assert_eq!((status, message(&body)), (403, refusal));
}

static USER_BOB: std::sync::LazyLock<User> = std::sync::LazyLock::new(|| user("bob"));

#[tokio::test]
async fn access_reviews_name_the_binding_that_allows() {
    let server = Server::new(Config::default());
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    server.grant("jane", rules).await;
    let ask = |verb: &str| {
        let attributes = json!({"namespace": "default", "verb": verb, "resource": "pods"});
        json!({"spec": {"user": "jane", "resourceAttributes": attributes}})
    };
    let (status, body) = server.post(&admin(), ACCESS, ask("get")).await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(
        body["status"],
        json!({"allowed": true, "reason": r#"RBAC: allowed by RoleBinding "jane/default" of Role "jane" to User "jane""#})
    );
    let (_, body) = server.post(&admin(), ACCESS, ask("list")).await;
    assert_eq!(body["status"], json!({"allowed": false}));
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let path = json!({"spec": {"nonResourceAttributes": {"path": "/apis/x", "verb": "get"}}});
    let (_, body) = server.post(&user("joe"), own, path).await;
    assert_eq!(
        body["status"],
        json!({"allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" to Group "system:authenticated""#})
    );
    assert_eq!(server.post(&user("joe"), ACCESS, ask("get")).await.0, 403);
}

/// What these programs watch and write in a cluster of today's release: without one of these they wait for ever or report errors.
#[tokio::test]
async fn kubernetes_own_programs_have_the_rights_that_they_use() {
    let server = Server::new(Config::default());
    let scheduler = "system:kube-scheduler";
    let claims = "system:serviceaccount:kube-system:pvc-protection-controller";
    let expansion = "system:serviceaccount:kube-system:expand-controller";
    for (user, right, wanted) in [
        (scheduler, "watch storage.k8s.io/volumeattachments", true),
        (scheduler, "update storage.k8s.io/volumeattachments", false),
        (scheduler, "create resource.k8s.io/resourceclaims", true),
        (scheduler, "get coordination.k8s.io/leasecandidates", true),
        (claims, "update /persistentvolumeclaims/status", true),
        (expansion, "get /services", false),
    ] {
        let (verb, path) = right.split_once(' ').unwrap();
        let parts: Vec<&str> = path.split('/').collect();
        let subresource = parts.get(2).copied().unwrap_or_default();
        let asked = json!({
            "verb": verb, "group": parts[0], "resource": parts[1], "subresource": subresource,
        });
        let review = json!({"spec": {"user": user, "resourceAttributes": asked}});
        let (_, body) = server.post(&admin(), ACCESS, review).await;
        assert_eq!(body["status"]["allowed"], wanted, "{user} {right}: {body}");
    }
    // Whoever may edit or view a namespace may do so to its events, under both names of their group.
    for (role, verb) in [("edit", "create"), ("view", "list")] {
        let path = format!("{RBAC}/clusterroles/system:aggregate-to-{role}");
        let (_, body) = server.get(&admin(), &path).await;
        let rules = body["rules"].as_array().unwrap();
        let both = rules
            .iter()
            .find(|rule| rule["resources"] == json!(["events"]));
        let both = both.unwrap_or_else(|| panic!("{role} has no rule of events: {body}"));
        assert_eq!(both["apiGroups"], json!(["", "events.k8s.io"]));
        assert!(
            both["verbs"].as_array().unwrap().contains(&json!(verb)),
            "{both}"
        );
    }
}

#[tokio::test]
async fn access_reviews_tell_of_selectors_that_do_not_parse() {
    let server = Server::new(Config::default());
    let requirement = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
    let two = json!({"requirements": [requirement("a", "In", json!(["b"])), requirement("c", "Exists", json!([]))]});
    let several = json!({"requirements": [requirement("a", "In", json!(["b", "c"]))]});
    let unknown = json!({"requirements": [requirement("a", "Gt", json!(["1"]))]});
    let raw = |text: &str| json!({"rawSelector": text});
    for (labels, fields, told) in [
        (raw("a=b"), raw("a=b"), ""),
        (two.clone(), raw("a!=b"), ""),
        (
            raw("!!"),
            Value::Null,
            "spec.resourceAttributes.labelSelector ignored due to parse error",
        ),
        (
            unknown,
            raw("!!"),
            "spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error",
        ),
        (
            Value::Null,
            several,
            "spec.resourceAttributes.fieldSelector ignored due to parse error",
        ),
        (
            Value::Null,
            two,
            "spec.resourceAttributes.fieldSelector partially ignored due to parse error",
        ),
    ] {
        let attributes = json!({"verb": "list", "resource": "pods", "labelSelector": labels, "fieldSelector": fields});
        let spec = json!({"user": "jane", "resourceAttributes": attributes});
        let (status, body) = server.post(&admin(), ACCESS, json!({"spec": spec})).await;
        assert_eq!(status, 201, "{body}");
        let status = &body["status"];
        assert_eq!(
            status["evaluationError"].as_str().unwrap_or_default(),
            told,
            "{spec}"
        );
    }
}

#[tokio::test]
async fn names_with_colons_are_reached_escaped_and_plain() {
    let server = Server::new(Config::default());
    for name in ["system:discovery", "system%3Adiscovery"] {
        let (status, body) = server
            .get(&admin(), &format!("{RBAC}/clusterroles/{name}"))
            .await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["metadata"]["name"], "system:discovery");
    }
}

#[tokio::test]
async fn parts_of_a_claims_status_are_for_those_who_may_write_them() {
    let server = Server::new(Config::default());
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim = json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": [request]}}});
    let (status, stored) = server.post(&admin(), claims, claim).await;
    assert_eq!(status, 201, "{stored}");
    let (path, group) = (format!("{claims}/x/status"), json!(["resource.k8s.io"]));
    let rule = |resource: &str, verbs: Value| json!({"apiGroups": group, "resources": [resource], "verbs": verbs});
    let writes = rule("resourceclaims/status", json!(["update", "patch"]));
    let binds = rule("resourceclaims/binding", json!(["update"]));
    server.grant("writer", json!([writes])).await;
    server.grant("here", json!([writes, binds])).await;
    server.grant("binder", json!([writes])).await;
    server.grant_all("binder", json!([binds])).await;
    let driver = "system:serviceaccount:default:driver";
    let mut own = rule("resourceclaims/driver", json!(["associated-node:update"]));
    own["resourceNames"] = json!(["d"]);
    server.grant(driver, json!([writes, own])).await;
    let node = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    let status_of = |device: Value| {
        let allocation = json!({
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
            "devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "e"}]},
        });
        json!({"metadata": {"name": "x"}, "spec": stored["spec"], "status": {"allocation": allocation, "devices": device}})
    };
    let put = async |who: &str, home: &str, body: Value| {
        let extra = "impersonate-extra-authentication.kubernetes.io%2fnode-name";
        let headers = [("impersonate-user", who), (extra, home)];
        let (status, answer) = server
            .send(Some(&admin()), Method::PUT, &path, &headers, body)
            .await;
        (status, answer["details"]["causes"][0]["message"].clone())
    };
    let allocated = status_of(json!([]));
    assert_eq!(
        put("writer", "n", allocated.clone()).await,
        (
            422,
            "Forbidden: changing status.allocation or status.reservedFor requires extra permission"
                .into()
        )
    );
    // A right in the claim's own namespace is not enough.
    assert_eq!(put("here", "n", allocated.clone()).await.0, 422);
    let mut above = allocated.clone();
    above["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = true.into();
    let label = "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    assert_eq!(put("binder", "n", above).await, (422, label.into()));
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}});
    let claim = json!({"metadata": {"name": "y"}, "spec": {"devices": {"requests": [request]}}});
    let (status, refused) = server.post(&admin(), claims, claim.clone()).await;
    assert_eq!(
        (status, &refused["details"]["causes"][0]["message"]),
        (422, &label.into())
    );
    let named = json!("spec.devices.requests[0].adminAccess");
    assert_eq!(refused["details"]["causes"][0]["field"], named);
    let space = json!({"metadata": {"name": "ops", "labels": {"resource.kubernetes.io/admin-access": "true"}}});
    assert_eq!(
        server.post(&admin(), "/api/v1/namespaces", space).await.0,
        201
    );
    let claims = claims.replace("default", "ops");
    assert_eq!(server.post(&admin(), &claims, claim).await.0, 201);
    assert_eq!(put("binder", "n", allocated).await, (200, Value::Null));
    let told = status_of(json!([{"driver": "d", "pool": "p", "device": "e", "data": {"a": 1}}]));
    let refused = "Forbidden: changing status.devices requires extra permission";
    assert_eq!(
        put("binder", "n", told.clone()).await,
        (422, refused.into())
    );
    assert_eq!(
        put(driver, "elsewhere", told.clone()).await,
        (422, refused.into())
    );
    assert_eq!(put(driver, "n", told).await, (200, Value::Null));
}
