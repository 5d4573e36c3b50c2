//! The webhook configurations that make API servers ask this program.
//!
//! Nothing but a pod that names a GMSACredentialSpec ever depends on an answer: for all others `failurePolicy` is Ignore, so that a pod is
//! admitted as it is while no replica answers. A pod that names one is refused then, as windows-gmsa does it: it would run without its
//! identity. Pods of kube-system never wait for that, nor for placement.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Hooks;
use crate::{controller::args::Part, failure::Failure};

/// The name of both configurations.
const NAME: &str = "mullion";
/// How long an API server waits for an answer. A registry may take one second.
const TIMEOUT_SECONDS: u32 = 3;
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a container list of a pod names a GMSACredentialSpec, in CEL; the pod is `{}`, the list `[]`.
const NAMES_SPEC: &str = "has({}.spec.[]) && {}.spec.[].exists(c, has(c.securityContext) && has(c.securityContext.windowsOptions) && (has(c.securityContext.windowsOptions.gmsaCredentialSpecName) || has(c.securityContext.windowsOptions.gmsaCredentialSpec)))";
/// The same of the pod itself.
const POD_NAMES_SPEC: &str = "has({}.spec.securityContext) && has({}.spec.securityContext.windowsOptions) && (has({}.spec.securityContext.windowsOptions.gmsaCredentialSpecName) || has({}.spec.securityContext.windowsOptions.gmsaCredentialSpec))";
/// Whether the annotation with a pod's address is there, or was; or changes.
const ADDRESS_CHANGES: &str = "(has(object.metadata.annotations) && 'vpc.amazonaws.com/PrivateIPv4Address' in object.metadata.annotations ? object.metadata.annotations['vpc.amazonaws.com/PrivateIPv4Address'] : '') != (oldObject != null && has(oldObject.metadata.annotations) && 'vpc.amazonaws.com/PrivateIPv4Address' in oldObject.metadata.annotations ? oldObject.metadata.annotations['vpc.amazonaws.com/PrivateIPv4Address'] : '')";

/// One webhook of a configuration.
struct Hook {
    name: &'static str,
    path: &'static str,
    operations: &'static [&'static str],
    group: &'static str,
    resources: &'static [&'static str],
    fails: bool,
    in_kube_system: bool,
    condition: Option<(&'static str, String)>,
}

/// Writes the configurations for the parts that run.
///
/// # Errors
/// The API server does not take them.
pub(super) async fn write(client: &Client, hooks: &Hooks, trusted: &str) -> Result<(), Failure> {
    let (mutating, validating) = (mutating(hooks), validating(hooks));
    let params = PatchParams::apply("mullion").force();
    let written = async {
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let kind = "MutatingWebhookConfiguration";
        match configuration(kind, &mutating, hooks, trusted) {
            Some(object) => drop(api.patch(NAME, &params, &Patch::Apply(object)).await?),
            None => drop(api.delete(NAME, &DeleteParams::default()).await),
        }
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let kind = "ValidatingWebhookConfiguration";
        match configuration(kind, &validating, hooks, trusted) {
            Some(object) => drop(api.patch(NAME, &params, &Patch::Apply(object)).await?),
            None => drop(api.delete(NAME, &DeleteParams::default()).await),
        }
        kube::Result::Ok(())
    };
    let failed = |why: String| {
        Failure::run(format!(
            "the webhook configurations {NAME} cannot be written: {why}"
        ))
        .hint("this program must be allowed to patch mutating- and validatingwebhookconfigurations of this name")
    };
    timeout(PATIENCE, written)
        .await
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error: kube::Error| failed(error.to_string()))
}

/// Deletes the configurations: nobody answers any more.
pub(super) async fn delete(client: &Client) {
    let deleted = async {
        let params = DeleteParams::default();
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let mutating = api.delete(NAME, &params).await;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let validating = api.delete(NAME, &params).await;
        mutating.map(drop).and(validating.map(drop))
    };
    match timeout(PATIENCE, deleted).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("the webhook configurations {NAME} stay: {error}"),
        Err(_) => tracing::warn!("the webhook configurations {NAME} stay: no answer"),
    }
}

fn mutating(hooks: &Hooks) -> Vec<Hook> {
    let mut all = Vec::new();
    if hooks.parts.has(Part::Placement) {
        all.push(Hook {
            name: "placement.mullion.dev",
            path: "/placement/pods",
            operations: &["CREATE", "UPDATE"],
            group: "",
            resources: &["pods", "pods/ephemeralcontainers"],
            fails: false,
            in_kube_system: false,
            // Updates of a pod's status are not asked about: they are another subresource.
            condition: Some((
                "images-are-new",
                "oldObject == null || object.spec != oldObject.spec".to_owned(),
            )),
        });
        all.push(Hook {
            name: "templates.placement.mullion.dev",
            path: "/placement/daemonsets",
            operations: &["CREATE", "UPDATE"],
            group: "apps",
            resources: &["daemonsets"],
            fails: false,
            in_kube_system: false,
            condition: None,
        });
    }
    if hooks.parts.has(Part::Addresses) {
        all.push(Hook {
            name: "addresses.mullion.dev",
            path: "/addresses/mutate",
            operations: &["CREATE"],
            group: "",
            resources: &["pods"],
            fails: false,
            in_kube_system: true,
            condition: None,
        });
    }
    if hooks.parts.has(Part::Gmsa) {
        all.push(gmsa("gmsa.mullion.dev", "/gmsa/mutate", &["CREATE"]));
    }
    all
}

fn validating(hooks: &Hooks) -> Vec<Hook> {
    let mut all = Vec::new();
    if hooks.parts.has(Part::Addresses) {
        all.push(Hook {
            name: "addresses.mullion.dev",
            path: "/addresses/validate",
            operations: &["CREATE", "UPDATE"],
            group: "",
            resources: &["pods"],
            fails: false,
            in_kube_system: true,
            condition: Some(("address-changes", ADDRESS_CHANGES.to_owned())),
        });
    }
    if hooks.parts.has(Part::Gmsa) {
        all.push(gmsa(
            "gmsa.mullion.dev",
            "/gmsa/validate",
            &["CREATE", "UPDATE"],
        ));
    }
    all
}

/// A webhook about pods that name, or named, a GMSACredentialSpec.
fn gmsa(name: &'static str, path: &'static str, operations: &'static [&'static str]) -> Hook {
    let of = |object: &str| {
        let list = |list: &str| NAMES_SPEC.replace("[]", list).replace("{}", object);
        [
            POD_NAMES_SPEC.replace("{}", object),
            list("containers"),
            list("initContainers"),
        ]
        .map(|condition| format!("({condition})"))
        .join(" || ")
    };
    Hook {
        name,
        path,
        operations,
        group: "",
        resources: &["pods"],
        fails: true,
        in_kube_system: false,
        condition: Some(("names-a-credential-spec", of("object"))),
    }
}

/// The object of a configuration; `None` without webhooks.
fn configuration(kind: &str, all: &[Hook], hooks: &Hooks, trusted: &str) -> Option<Value> {
    if all.is_empty() {
        return None;
    }
    let all = all.iter().map(|hook| webhook(kind, hook, hooks, trusted));
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "mullion"}},
        "webhooks": all.collect::<Vec<_>>(),
    }))
}

fn webhook(kind: &str, hook: &Hook, hooks: &Hooks, trusted: &str) -> Value {
    let mut client = hooks.place.client_config(hook.path);
    client["caBundle"] = json!(BASE64_STANDARD.encode(trusted));
    let mut object = json!({
        "name": hook.name,
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": if hook.fails { "Fail" } else { "Ignore" },
        "matchPolicy": "Equivalent",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "rules": [{
            "apiGroups": [hook.group],
            "apiVersions": ["v1"],
            "operations": hook.operations,
            "resources": hook.resources,
            "scope": "Namespaced",
        }],
    });
    let mut excluded = Vec::new();
    if !hook.in_kube_system {
        excluded.push(json!({
            "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"],
        }));
    }
    if hook.fails {
        excluded.push(json!({
            "key": "windows.k8s.io/disabled", "operator": "NotIn", "values": ["true"],
        }));
    }
    if !excluded.is_empty() {
        object["namespaceSelector"] = json!({"matchExpressions": excluded});
    }
    if let Some((name, expression)) = &hook.condition {
        object["matchConditions"] = json!([{"name": name, "expression": expression}]);
    }
    if kind == "MutatingWebhookConfiguration" {
        // A later webhook may add what says that a pod is for Windows.
        object["reinvocationPolicy"] = json!("IfNeeded");
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::webhooks::Place;

    #[test]
    fn a_dead_webhook_blocks_nobody_but_pods_that_name_a_credential_spec() {
        let hooks = Hooks {
            parts: "placement,addresses,gmsa".parse().expect("parts"),
            place: Place::Service {
                namespace: "kube-system".to_owned(),
                name: "mullion".to_owned(),
            },
        };
        let all = [
            configuration(
                "MutatingWebhookConfiguration",
                &mutating(&hooks),
                &hooks,
                "CA",
            ),
            configuration(
                "ValidatingWebhookConfiguration",
                &validating(&hooks),
                &hooks,
                "CA",
            ),
        ];
        insta::assert_snapshot!(serde_json::to_string_pretty(&json!(all)).expect("JSON"));
    }
}
