//! Checks the rights that parts of a ResourceClaim need beyond the right to write it.
//!
//! Admin access to devices, which does not exclude other users, is only for namespaces with a label (`DRAAdminAccess`). The right to write
//! `resourceclaims/status` is not enough (`DRAResourceClaimGranularStatusAuthorization`, on since 1.36): allocations and reservations also
//! need the right to write `resourceclaims/binding`. Device statuses need the right to write `resourceclaims/driver` for the driver's name;
//! a driver on the only node of the allocation needs that right for its own node only.

use std::collections::{BTreeSet, HashSet};

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::request::{
    Ctx, User,
    attributes::{Attributes, Resource, Target},
    service_account,
};

/// The user's extra field with the node of the pod that a service account token is bound to.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The namespace label that allows its users to request devices with admin access.
const ADMIN_ACCESS: &str = "resource.kubernetes.io/admin-access";

/// Records an error if a claim requests admin access in a namespace without the label. As in kube-apiserver, the path is the same for claim
/// templates.
pub(super) fn admin_access(ctx: &Ctx<'_>, spec: &Value, errors: &mut Errors) {
    let requests = spec["devices"].items("requests");
    let asks = |request: &Value| request["exactly"].flag("adminAccess");
    if let Some(index) = requests.iter().position(asks) {
        let path = Path::new("spec");
        let path = path.child("devices");
        let path = path.child("requests");
        let path = path.index(index);
        labelled(ctx, &path.child("adminAccess"), errors);
    }
}

/// Records an error if a status grants admin access in a namespace without the label, unless it did before.
fn admin_access_given(
    ctx: &Ctx<'_>,
    status: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let given = |status: &Value| {
        let mut results = status["allocation"]["devices"].items("results").iter();
        results.position(|result| result.flag("adminAccess"))
    };
    if let (Some(index), None) = (given(status), given(old)) {
        let path = path.child("allocation");
        let path = path.child("devices");
        let path = path.child("results");
        let path = path.index(index);
        labelled(ctx, &path.child("adminAccess"), errors);
    }
}

fn labelled(ctx: &Ctx<'_>, path: &Path<'_>, errors: &mut Errors) {
    let namespace = ctx.lookup.find("", "namespaces", None, ctx.namespace);
    let label = namespace
        .as_ref()
        .map(|namespace| namespace["metadata"]["labels"].text(ADMIN_ACCESS));
    match label {
        Some("true") => {}
        Some(_) => errors.forbidden(
            path,
            format!(
                "admin access to devices requires the `{ADMIN_ACCESS}: true` label on the containing namespace"
            ),
        ),
        None => errors.internal(
            path,
            format!(
                "could not retrieve namespace to verify admin access: namespaces {:?} not found",
                ctx.namespace
            ),
        ),
    }
}

/// Records the changes of a claim's status that the user may not make.
pub(super) fn status(
    ctx: &Ctx<'_>,
    status: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    admin_access_given(ctx, status, old, path, errors);
    let verb = if ctx.patches { "patch" } else { "update" };
    let bound = ["allocation", "reservedFor"];
    let rebound = bound.iter().any(|part| status[part] != old[part]);
    // kube-apiserver asks for this right without a namespace.
    if rebound && !may(ctx, verb, "binding", "", "") {
        let why = "changing status.allocation or status.reservedFor requires extra permission";
        errors.forbidden(path, why);
    }
    let node = node_of(&status["allocation"]).filter(|node| runs_on(ctx.user, node));
    for driver in changed_drivers(status, old) {
        let scopes = [node.map(|_| "associated-node"), Some("arbitrary-node")];
        let mut verbs = scopes.into_iter().flatten();
        if !verbs.any(|scope| {
            may(
                ctx,
                &format!("{scope}:{verb}"),
                "driver",
                ctx.namespace,
                driver,
            )
        }) {
            let why = "changing status.devices requires extra permission";
            errors.forbidden(&path.child("devices"), why);
        }
    }
}

fn may(ctx: &Ctx<'_>, verb: &str, subresource: &str, namespace: &str, name: &str) -> bool {
    let attributes = Attributes {
        verb: verb.into(),
        target: Target::Resource(Resource {
            group: "resource.k8s.io",
            resource: "resourceclaims",
            subresource,
            namespace,
            name: name.into(),
        }),
    };
    ctx.authorizer.allows(ctx.user, &attributes)
}

/// Returns the drivers of devices whose status is new, removed or changed.
fn changed_drivers<'a>(status: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let (now, before) = (status.items("devices"), old.items("devices"));
    let changed = |these: &'a [Value], those: &'a [Value]| {
        let those: HashSet<&Value> = those.iter().collect();
        let these = these.iter().filter(move |device| !those.contains(device));
        these.map(|device| device.text("driver"))
    };
    changed(now, before).chain(changed(before, now)).collect()
}

/// Returns the node of an allocation, if its selector consists of one node name.
fn node_of(allocation: &Value) -> Option<&str> {
    let [term] = allocation["nodeSelector"].items("nodeSelectorTerms") else {
        return None;
    };
    let [field] = term.items("matchFields") else {
        return None;
    };
    let by_name = field["key"] == "metadata.name" && field["operator"] == "In";
    match field.items("values") {
        [name] if by_name && term.items("matchExpressions").is_empty() => name.as_str(),
        _ => None,
    }
}

/// Returns whether the user is a service account in a pod on that node.
fn runs_on(user: &User, node: &str) -> bool {
    let home = user.extra.get(NODE_NAME).map(Vec::as_slice);
    service_account::split_username(&user.name).is_some()
        && matches!(home, Some([home]) if home == node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device(driver: &str, name: &str) -> Value {
        json!({"driver": driver, "pool": "p", "device": name})
    }

    #[test]
    fn drivers_of_devices_that_changed_are_asked_about() {
        let old = json!({"devices": [device("a", "1"), device("b", "1")]});
        let mut told = old.clone();
        told["devices"][0]["data"] = json!({"x": 1});
        for (now, drivers) in [
            (old.clone(), vec![]),
            (
                json!({"devices": [device("b", "1"), device("a", "1")]}),
                vec![],
            ),
            (told, vec!["a"]),
            (json!({"devices": [device("a", "1")]}), vec!["b"]),
            (
                json!({"devices": [device("a", "1"), device("b", "1"), device("a", "2")]}),
                vec!["a"],
            ),
            (json!({"devices": [device("c", "1")]}), vec!["a", "b", "c"]),
            (json!({}), vec!["a", "b"]),
        ] {
            assert_eq!(
                Vec::from_iter(changed_drivers(&now, &old)),
                drivers,
                "{now}"
            );
        }
    }

    #[test]
    fn an_allocation_is_for_a_node_that_its_selector_names_alone() {
        let by = |key: &str, operator: &str, values: &[&str]| json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]);
        let mut labelled = by("metadata.name", "In", &["n"]);
        labelled[0]["matchExpressions"] = json!([{"key": "a", "operator": "Exists"}]);
        for (terms, node) in [
            (by("metadata.name", "In", &["n"]), Some("n")),
            (by("metadata.name", "In", &["n", "m"]), None),
            (by("metadata.name", "NotIn", &["n"]), None),
            (by("metadata.namespace", "In", &["n"]), None),
            (labelled, None),
            (json!([]), None),
            (
                json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}]),
                None,
            ),
        ] {
            let allocation = json!({"nodeSelector": {"nodeSelectorTerms": terms}});
            assert_eq!(node_of(&allocation), node, "{terms}");
        }
        assert_eq!(node_of(&Value::Null), None);
    }

    #[test]
    fn only_a_service_account_on_the_node_is_at_home_there() {
        let account = "system:serviceaccount:default:driver";
        for (name, homes, at_home) in [
            (account, vec!["n"], true),
            (account, vec!["m"], false),
            (account, vec!["n", "m"], false),
            (account, vec![], false),
            ("system:node:n", vec!["n"], false),
        ] {
            let mut user = User::administrator();
            user.name = name.into();
            let homes = homes.into_iter().map(str::to_owned).collect();
            user.extra.insert(NODE_NAME.into(), homes);
            assert_eq!(runs_on(&user, "n"), at_home, "{name} {:?}", user.extra);
        }
    }
}
