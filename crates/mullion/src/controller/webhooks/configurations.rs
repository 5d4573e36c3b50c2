//! Writes the webhook configurations that make API servers call this program.
//!
//! Only the admission of pods that name a GMSACredentialSpec depends on an answer: for all others `failurePolicy` is Ignore, so that they
//! are admitted unchanged while no replica answers. A pod that names one is refused then, as by windows-gmsa, because it would run without
//! its identity. Pods of kube-system never wait for that, nor for placement.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::WebhookSettings;
use crate::{controller::args::Part, failure::Failure};

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";
/// How long an API server waits for an answer. The answer may have to wait one second for a registry.
const TIMEOUT_SECONDS: u32 = 3;
/// The timeout of one request.
const PATIENCE: Duration = Duration::from_secs(30);

/// A CEL expression for whether a list of containers names a GMSACredentialSpec; the pod is `{}`, the list `[]`.
const NAMES_SPEC: &str = "has({}.spec.[]) && {}.spec.[].exists(c, has(c.securityContext) && has(c.securityContext.windowsOptions) && (has(c.securityContext.windowsOptions.gmsaCredentialSpecName) || has(c.securityContext.windowsOptions.gmsaCredentialSpec)))";
/// The same CEL expression for the securityContext of the pod itself.
const POD_NAMES_SPEC: &str = "has({}.spec.securityContext) && has({}.spec.securityContext.windowsOptions) && (has({}.spec.securityContext.windowsOptions.gmsaCredentialSpecName) || has({}.spec.securityContext.windowsOptions.gmsaCredentialSpec))";
/// A CEL expression for whether an object is created or its spec changes.
const SPEC_CHANGES: &str = "oldObject == null || object.spec != oldObject.spec";
/// A CEL expression for whether the annotation with a pod's address changes, which includes being added and removed.
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

/// The webhook configurations of one part. Each part has its own, so that processes with other parts do not touch them. Mutating webhooks
/// are called in the order of these names, because what placement adds to a pod decides about its address.
struct Configurations {
    name: &'static str,
    mutating: Vec<Hook>,
    validating: Vec<Hook>,
}

/// Writes the configurations of all parts that run.
///
/// # Errors
/// The API server does not accept them.
pub(super) async fn write(
    client: &Client,
    hooks: &WebhookSettings,
    trusted: &str,
) -> Result<(), Failure> {
    // Forced, because the configurations are this program's alone; a conflict would leave a wrong certificate
    // in place.
    let params = PatchParams::apply("mullion").force();
    let written = async {
        for part in all(hooks) {
            let name = part.name;
            if let Some(object) = configuration(MUTATING, name, &part.mutating, hooks, trusted) {
                let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
                api.patch(name, &params, &Patch::Apply(object)).await?;
            }
            if let Some(object) = configuration(VALIDATING, name, &part.validating, hooks, trusted)
            {
                let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
                api.patch(name, &params, &Patch::Apply(object)).await?;
            }
        }
        kube::Result::Ok(())
    };
    let failed = |why: String| {
        Failure::run(format!(
            "the webhook configurations mullion-* cannot be written: {why}"
        ))
        .hint("this program must be allowed to create and patch mutating- and validatingwebhookconfigurations (docs/real-clusters.md)")
    };
    timeout(PATIENCE, written)
        .await
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error: kube::Error| failed(error.to_string()))
}

/// Deletes the configurations that lead to `url`, where no process answers any more.
pub(super) async fn delete(client: &Client, hooks: &WebhookSettings, url: &str) {
    let deleted = async {
        for part in all(hooks) {
            let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
            if let Some(found) = api.get_opt(part.name).await? {
                let mut webhooks = found.webhooks.iter().flatten();
                if webhooks.any(|own| leads_to(&own.client_config, url)) {
                    delete_as_read(&api, part.name, &found.metadata).await?;
                }
            }
            let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
            if let Some(found) = api.get_opt(part.name).await? {
                let mut webhooks = found.webhooks.iter().flatten();
                if webhooks.any(|own| leads_to(&own.client_config, url)) {
                    delete_as_read(&api, part.name, &found.metadata).await?;
                }
            }
        }
        Ok::<(), kube::Error>(())
    };
    match timeout(PATIENCE, deleted).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("webhook configurations mullion-* stay: {error}"),
        Err(_) => tracing::warn!("webhook configurations mullion-* stay: no answer"),
    }
}

fn leads_to(config: &WebhookClientConfig, url: &str) -> bool {
    let path = config.url.as_deref().and_then(|own| own.strip_prefix(url));
    path.is_some_and(|path| path.starts_with('/'))
}

/// Deletes an object, unless another process has written it since it was read.
async fn delete_as_read<K>(api: &Api<K>, name: &str, metadata: &ObjectMeta) -> kube::Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: metadata.uid.clone(),
        // Another process may have taken over the configuration meanwhile.
        resource_version: metadata.resource_version.clone(),
    });
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

fn all(hooks: &WebhookSettings) -> Vec<Configurations> {
    let mut all = Vec::new();
    if hooks.parts.has(Part::Placement) {
        all.push(Configurations {
            name: "mullion-placement",
            mutating: vec![
                Hook {
                    name: "placement.mullion.dev",
                    path: "/placement/pods",
                    operations: &["CREATE", "UPDATE"],
                    group: "",
                    resources: &["pods", "pods/ephemeralcontainers"],
                    fails: false,
                    in_kube_system: false,
                    condition: Some(("spec-changes", SPEC_CHANGES.to_owned())),
                },
                Hook {
                    name: "templates.placement.mullion.dev",
                    path: "/placement/daemonsets",
                    operations: &["CREATE", "UPDATE"],
                    group: "apps",
                    resources: &["daemonsets"],
                    fails: false,
                    in_kube_system: false,
                    condition: Some(("spec-changes", SPEC_CHANGES.to_owned())),
                },
            ],
            validating: Vec::new(),
        });
    }
    if hooks.parts.has(Part::Addresses) {
        let hook = |path, operations, condition| Hook {
            name: "addresses.mullion.dev",
            path,
            operations,
            group: "",
            resources: &["pods"],
            fails: false,
            in_kube_system: true,
            condition,
        };
        let changes = Some(("address-changes", ADDRESS_CHANGES.to_owned()));
        all.push(Configurations {
            name: "mullion-windows-addresses",
            mutating: vec![hook("/addresses/mutate", &["CREATE"], None)],
            validating: vec![hook("/addresses/validate", &["CREATE", "UPDATE"], changes)],
        });
    }
    if hooks.parts.has(Part::Gmsa) {
        all.push(Configurations {
            name: "mullion-windows-gmsa",
            mutating: vec![gmsa("/gmsa/mutate", &["CREATE"])],
            validating: vec![gmsa("/gmsa/validate", &["CREATE", "UPDATE"])],
        });
    }
    all
}

/// Returns the webhook for pods that name a GMSACredentialSpec, which is called when they are created or their spec changes.
fn gmsa(path: &'static str, operations: &'static [&'static str]) -> Hook {
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
    let condition = format!("({SPEC_CHANGES}) && ({})", of("object"));
    Hook {
        name: "gmsa.mullion.dev",
        path,
        operations,
        group: "",
        resources: &["pods"],
        fails: true,
        in_kube_system: false,
        condition: Some(("names-a-credential-spec", condition)),
    }
}

/// Returns the object of a webhook configuration; `None` if it would have no webhooks.
fn configuration(
    kind: &str,
    name: &str,
    all: &[Hook],
    hooks: &WebhookSettings,
    trusted: &str,
) -> Option<Value> {
    if all.is_empty() {
        return None;
    }
    let all = all.iter().map(|hook| webhook(kind, hook, hooks, trusted));
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "mullion"}},
        "webhooks": all.collect::<Vec<_>>(),
    }))
}

fn webhook(kind: &str, hook: &Hook, hooks: &WebhookSettings, trusted: &str) -> Value {
    let mut client = hooks.address.client_config(hook.path);
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
    if kind == MUTATING {
        // A later webhook may add the field that shows that a pod is for Windows, so this one may have to run again.
        object["reinvocationPolicy"] = json!("IfNeeded");
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::webhooks::WebhookAddress;

    #[test]
    fn a_dead_webhook_blocks_nobody_but_pods_that_name_a_credential_spec() {
        let hooks = WebhookSettings {
            parts: "placement,addresses,gmsa".parse().expect("parts"),
            address: WebhookAddress::Service {
                namespace: "kube-system".to_owned(),
                name: "mullion".to_owned(),
            },
        };
        let all: Vec<_> = all(&hooks)
            .iter()
            .map(|part| {
                let name = part.name;
                [
                    configuration(MUTATING, name, &part.mutating, &hooks, "CA"),
                    configuration(VALIDATING, name, &part.validating, &hooks, "CA"),
                ]
            })
            .collect();
        insta::assert_snapshot!(serde_json::to_string_pretty(&json!(all)).expect("JSON"));
    }
}
