//! Pods that do not exist yet: those of a manifest, or of the workloads in it, as an API server would admit them.

use std::path::Path;

use kube::Client;
use mullion_engine::model::PodSpec;
use serde_json::{Value, json};

use super::source;
use crate::failure::{Failure, first_line};

/// A pod of a manifest.
pub(super) struct Planned {
    /// `pod shop/iis`, or what it would be a pod of.
    pub(super) named: String,
    pub(super) pod: PodSpec,
}

/// Every pod, and one of every workload, of a file of one or more objects; `names` keeps only those.
///
/// # Errors
/// The file is no manifest, has no pod of that name, or the API server refuses a pod: its words.
pub(super) async fn pods(
    path: &Path,
    namespace: Option<&str>,
    names: &[String],
    client: &Client,
    offline: bool,
) -> Result<Vec<Planned>, Failure> {
    let text = source::text_of(path)?;
    let shown = path.display();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| Failure::input(format!("{shown}: {}", first_line(&error))))?;
    let objects = documents.into_iter().flat_map(|document| match document {
        Value::Object(mut list) if list.get("items").is_some_and(Value::is_array) => {
            match list.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        other => vec![other],
    });
    let mut planned = Vec::new();
    for object in objects {
        let Some(pod) = pod_of(&object, namespace) else {
            continue;
        };
        let meta = &pod["metadata"];
        let (home, name) = (text_at(meta, "namespace"), text_at(meta, "name"));
        if !(names.is_empty() || names.contains(&name)) {
            continue;
        }
        if offline {
            let account = pod["spec"]["serviceAccountName"].as_str();
            source::make_home(client, &home, account.unwrap_or("default")).await?;
        }
        let named = match text_at(&object, "kind").as_str() {
            "Pod" => format!("pod {home}/{name}"),
            kind => format!("a pod of {kind} {home}/{name}"),
        };
        // A misspelt field would change the answer.
        let path = format!("/api/v1/namespaces/{home}/pods?dryRun=All&fieldValidation=Strict");
        let admitted = source::create(client, &path, &pod, false).await;
        let admitted = admitted.map_err(|failure| failure.about(format!("{shown}: {named}")))?;
        let spec: PodSpec = serde_json::from_value(admitted)
            .map_err(|error| Failure::run(format!("pod {home}/{name} cannot be read: {error}")))?;
        planned.push(Planned {
            named,
            // Its key must be nobody else's.
            pod: PodSpec {
                uid: String::new(),
                ..spec
            },
        });
    }
    match planned.is_empty() {
        false => Ok(planned),
        true if names.is_empty() => Err(Failure::input(format!(
            "{shown} has no pod and no workload with pods"
        ))),
        true => Err(Failure::input(format!(
            "{shown} has no pod and no workload named {}",
            names.join(" or ")
        ))),
    }
}

fn text_at(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// The pod that an object is or would make; none for objects that make no pods.
fn pod_of(object: &Value, namespace: Option<&str>) -> Option<Value> {
    let template = match object["kind"].as_str()? {
        "Pod" => object,
        "Deployment"
        | "ReplicaSet"
        | "StatefulSet"
        | "DaemonSet"
        | "Job"
        | "ReplicationController" => &object["spec"]["template"],
        "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    let own = &object["metadata"];
    let home = own["namespace"].as_str().or(namespace).unwrap_or("default");
    let name = own["name"].as_str().or(own["generateName"].as_str())?;
    Some(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name.trim_end_matches('-'), "namespace": home,
            "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_makes_the_pod_of_its_template() {
        let cron = json!({
            "kind": "CronJob", "metadata": { "name": "nightly", "namespace": "shop" },
            "spec": { "jobTemplate": { "spec": { "template": {
                "metadata": { "labels": { "app": "n" } }, "spec": { "os": { "name": "windows" } },
            } } } },
        });
        let pod = pod_of(&cron, Some("other")).expect("a CronJob makes pods");
        assert_eq!(pod["metadata"]["name"], "nightly");
        assert_eq!(pod["metadata"]["namespace"], "shop");
        assert_eq!(pod["metadata"]["labels"]["app"], "n");
        assert_eq!(pod["spec"]["os"]["name"], "windows");
        assert_eq!(
            pod_of(
                &json!({ "kind": "Service", "metadata": { "name": "s" } }),
                None
            ),
            None
        );
    }
}
