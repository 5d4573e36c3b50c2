//! ServiceAccount: every pod runs as a service account that exists, and has a token of it mounted unless it asks not to.

use std::{collections::HashSet, sync::Arc};

use mullion_kinds::request::Ctx;
use mullion_kube_text::{golang::quote, names, status::Status};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{Action, Operation, Plugin, Request};
use crate::object::metadata::generate_name;

const DEFAULT: &str = "default";
/// The annotation of accounts whose pods may use no other secrets than those it names.
const MOUNTABLE_ONLY: &str = "kubernetes.io/enforce-mountable-secrets";
const MIRROR: &str = "kubernetes.io/config.mirror";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A little more than an hour, which tells the token apart from those a user asked for.
const TOKEN_SECONDS: i64 = 3607;

/// kube-apiserver: ServiceAccount.
pub(super) struct ServiceAccount;

impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates("", "pods") || adds_ephemeral_containers(action)
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        // kube-apiserver mutates pods at their creation alone; an ephemeral container gets no token of its own.
        if adds_ephemeral_containers(&request.action) {
            return Ok(());
        }
        // A mirror pod shows a static pod of a kubelet, which deletes it if the server has changed its spec.
        if is_mirror(request.object) {
            return refuse_mirror(request);
        }
        if request.object["spec"].text("serviceAccountName").is_empty() {
            request.object["spec"]["serviceAccountName"] = DEFAULT.into();
            request.object["spec"]["serviceAccount"] = DEFAULT.into();
        }
        let account = account(ctx, request)?;
        let spec = &mut request.object["spec"];
        let automount = [&*spec, &*account]
            .into_iter()
            // The pod's own wish wins over that of its account.
            .find_map(|wish| wish["automountServiceAccountToken"].as_bool());
        if automount.unwrap_or(true) {
            mount_token(spec);
        }
        if spec.items("imagePullSecrets").is_empty()
            && !account.items("imagePullSecrets").is_empty()
        {
            spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
        }
        Ok(())
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let added = adds_ephemeral_containers(&request.action);
        if !added && is_mirror(request.object) {
            return refuse_mirror(request);
        }
        let account = account(ctx, request)?;
        let only = account["metadata"]["annotations"].text(MOUNTABLE_ONLY);
        // The values that Go's `strconv.ParseBool` reads as true.
        if !matches!(only, "1" | "t" | "T" | "true" | "TRUE" | "True") {
            return Ok(());
        }
        let spec = &request.object["spec"];
        let refusal = if added {
            foreign_variable(spec, &account, "ephemeralContainers", "ephemeral container")
        } else {
            foreign_secret(spec, &account)
        };
        refusal.map_or(Ok(()), |why| Err(request.forbidden(&why)))
    }
}

fn adds_ephemeral_containers(action: &Action<'_>) -> bool {
    action.operation == Operation::Update
        && action.subresource == Some("ephemeralcontainers")
        && action.is("", "pods")
}

/// Returns the error for a secret that the pod uses but its service account does not list.
fn foreign_secret(spec: &Value, account: &Value) -> Option<String> {
    let owner = account["metadata"].text("name");
    let secrets = names(account, "secrets");
    let volumes = spec.items("volumes").iter();
    let mut mounted = volumes.filter_map(|volume| volume.field("secret"));
    if let Some(secret) = mounted.find(|secret| !secrets.contains(secret.text("secretName"))) {
        let name = secret.text("secretName");
        return Some(format!(
            "volume with secret.secretName=\"{name}\" is not allowed because service account {owner} does not reference that secret"
        ));
    }
    let lists = [
        ("initContainers", "init container"),
        ("containers", "container"),
    ];
    let mut lists = lists.into_iter();
    let variable = lists.find_map(|(list, kind)| foreign_variable(spec, account, list, kind));
    if variable.is_some() {
        return variable;
    }
    let mut pulls = spec.items("imagePullSecrets").iter().enumerate();
    let known = names(account, "imagePullSecrets");
    let (index, pull) = pulls.find(|(_, pull)| !known.contains(pull.text("name")))?;
    let name = pull.text("name");
    Some(format!(
        "imagePullSecrets[{index}].name=\"{name}\" is not allowed because service account {owner} does not reference that imagePullSecret"
    ))
}

/// Returns the names in a list of an account.
fn names<'a>(account: &'a Value, list: &str) -> HashSet<&'a str> {
    let entries = account.items(list).iter();
    entries.filter_map(|entry| entry["name"].as_str()).collect()
}

/// Returns the error for a variable of these containers that comes from a secret which the account does not list.
fn foreign_variable(spec: &Value, account: &Value, list: &str, kind: &str) -> Option<String> {
    let owner = account["metadata"].text("name");
    let known = names(account, "secrets");
    for container in spec.items(list) {
        let variables = container.items("env").iter().filter_map(|variable| {
            let secret = variable["valueFrom"].field("secretKeyRef")?;
            Some((format!("envVar {}", variable.text("name")), secret))
        });
        let sources = container.items("envFrom").iter();
        let sources = sources.filter_map(|source| source.field("secretRef"));
        let sources = sources.map(|secret| ("envFrom".to_owned(), secret));
        for (place, secret) in variables.chain(sources) {
            let name = secret.text("name");
            if !known.contains(name) {
                return Some(format!(
                    "{kind} {} with {place} referencing secret.secretName=\"{name}\" is not allowed because service account {owner} does not reference that secret",
                    container.text("name")
                ));
            }
        }
    }
    None
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].has(MIRROR)
}

fn refuse_mirror(request: &Request<'_>) -> Result<(), Status> {
    let spec = &request.object["spec"];
    let uses_token = |volume: &Value| {
        let sources = volume["projected"].items("sources");
        sources
            .iter()
            .any(|source| source.has("serviceAccountToken"))
    };
    let what = if !spec.text("serviceAccountName").is_empty() {
        "reference service accounts"
    } else if references_secrets(spec) {
        "reference secrets"
    } else if spec.items("volumes").iter().any(uses_token) {
        "use ServiceAccountToken volume projections"
    } else {
        return Ok(());
    };
    Err(request.forbidden(&format!("a mirror pod may not {what}")))
}

/// Returns whether a pod refers to a secret: as image pull secret, in a variable or in a volume.
fn references_secrets(spec: &Value) -> bool {
    let in_variables = |container: &Value| {
        let (from, variables) = (container.items("envFrom"), container.items("env"));
        from.iter().any(|source| source.has("secretRef"))
            || variables
                .iter()
                .any(|variable| variable["valueFrom"].has("secretKeyRef"))
    };
    // Most sources name their secret in a `secretRef`; the others have a word of their own.
    let in_volume = |volume: &Value| {
        let sources = volume["projected"].items("sources");
        volume.has("secret")
            || volume["azureFile"].has("secretName")
            || volume["csi"].has("nodePublishSecretRef")
            || sources.iter().any(|source| source.has("secret"))
            || volume
                .as_object()
                .is_some_and(|volume| volume.values().any(|source| source.has("secretRef")))
    };
    !spec.items("imagePullSecrets").is_empty()
        || ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .any(|list| spec.items(list).iter().any(in_variables))
        || spec.items("volumes").iter().any(in_volume)
}

fn account(ctx: &Ctx<'_>, request: &Request<'_>) -> Result<Arc<Value>, Status> {
    let (namespace, name) = (
        request.namespace.unwrap_or(""),
        request.object["spec"].text("serviceAccountName"),
    );
    ctx.lookup
        .find("", "serviceaccounts", Some(namespace), name)
        .ok_or_else(|| {
            let wrong = names::path_segment(name);
            let why = if wrong.is_empty() {
                format!("serviceaccount {name:?} not found")
            } else {
                // kube-apiserver's client refuses to ask for such a name.
                format!(
                    "invalid resource name {}: [{}]",
                    quote(name),
                    wrong.join(" ")
                )
            };
            request.forbidden(&format!(
                "error looking up service account {namespace}/{name}: {why}"
            ))
        })
}

/// Mounts a token volume in every container that has nothing at its place.
fn mount_token(spec: &mut Value) {
    let existing = spec
        .items("volumes")
        .iter()
        .map(|volume| volume.text("name"))
        .find(|name| name.starts_with(VOLUME_PREFIX));
    // An existing volume of that name is used again, as in kube-apiserver: a copied pod manifest must not get a second one.
    let has_volume = existing.is_some();
    let name = existing.map_or_else(|| generate_name(VOLUME_PREFIX), str::to_owned);
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            // A container that mounts something at the place itself keeps it: so pods replace the token by one of their own.
            if container
                .items("volumeMounts")
                .iter()
                .any(|mount| mount["mountPath"] == MOUNT_PATH)
            {
                continue;
            }
            needed = true;
            append(
                container,
                "volumeMounts",
                json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}),
            );
        }
    }
    if needed && !has_volume {
        append(spec, "volumes", token_volume(&name));
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ],
        },
    })
}

/// Appends to a list that may be absent.
fn append(parent: &mut Value, field: &str, item: Value) {
    match parent[field].as_array_mut() {
        Some(list) => list.push(item),
        None => parent[field] = Value::Array(vec![item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_with_something_at_the_place_keeps_it() {
        let mut spec = json!({"containers": [
            {"name": "a"},
            {"name": "b", "volumeMounts": [{"name": "mine", "mountPath": MOUNT_PATH}]},
        ]});
        mount_token(&mut spec);
        let volume = spec["volumes"][0]["name"].as_str().unwrap();
        assert!(volume.starts_with(VOLUME_PREFIX) && volume.len() == VOLUME_PREFIX.len() + 5);
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], volume);
        assert_eq!(
            spec["containers"][1]["volumeMounts"],
            json!([{"name": "mine", "mountPath": MOUNT_PATH}])
        );
        let mut spec = json!({"containers": [{"name": "b", "volumeMounts": [{"name": "mine", "mountPath": MOUNT_PATH}]}]});
        mount_token(&mut spec);
        assert!(!spec.has("volumes"));
    }
}
