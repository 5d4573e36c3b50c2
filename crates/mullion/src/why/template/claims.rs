//! Makes the claims that come with a pod: of its ephemeral volumes, of its devices, and of its StatefulSet.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::put;

/// Returns the claims of a pod's ephemeral volumes; the pod must have a uid.
pub(in crate::why) fn ephemeral_claims(pod: &Value) -> Vec<Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &pod["metadata"];
    let (home, name) = (text(&meta["namespace"]), text(&meta["name"]));
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let owner = owned_by_pod(meta);
    let made = volumes.filter_map(|volume| {
        let template = volume.pointer("/ephemeral/volumeClaimTemplate")?;
        let claim = format!("{name}-{}", text(&volume["name"]));
        Some(self::claim(&claim, &home, template, Some(owner.clone())))
    });
    made.collect()
}

/// Returns the ResourceClaims that are created for a pod from these templates, and names them in the pod's status.
pub(in crate::why) fn device_claims(pod: &mut Value, templates: &[Value]) -> Vec<Value> {
    let meta = pod["metadata"].clone();
    let asked = pod["spec"]["resourceClaims"].as_array().cloned();
    let mut made = Vec::new();
    let mut statuses = Vec::new();
    for entry in asked.iter().flatten() {
        let wanted = &entry["resourceClaimTemplateName"];
        let is_it = |template: &&Value| {
            let own = &template["metadata"];
            own["name"] == *wanted && own["namespace"] == meta["namespace"]
        };
        let (Some(entry), Some(template)) = (entry["name"].as_str(), templates.iter().find(is_it))
        else {
            continue;
        };
        let name = format!("{}-{entry}", meta["name"].as_str().unwrap_or_default());
        statuses.push(json!({"name": entry, "resourceClaimName": name}));
        made.push(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": meta["namespace"], "ownerReferences": owned_by_pod(&meta)},
            "spec": template["spec"]["spec"],
        }));
    }
    if !statuses.is_empty() {
        put(
            &mut pod["status"],
            "resourceClaimStatuses",
            Value::Array(statuses),
        );
    }
    made
}

fn owned_by_pod(meta: &Value) -> Value {
    json!([{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": true}])
}

/// Returns a claim that is made from a template.
pub(super) fn claim(
    name: impl Display,
    home: &str,
    template: &Value,
    owners: Option<Value>,
) -> Value {
    let mut meta = Map::new();
    meta.insert("name".into(), json!(name.to_string()));
    meta.insert("namespace".into(), json!(home));
    for field in ["labels", "annotations"] {
        meta.insert(field.into(), template["metadata"][field].clone());
    }
    meta.insert("ownerReferences".into(), json!(owners));
    meta.retain(|_, value| !value.is_null());
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_devices_are_made_from_their_templates() {
        let mut pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}, {"name": "nic", "resourceClaimName": "nic"}]},
        });
        let of = |home: &str| json!({"metadata": {"name": "gpus", "namespace": home}, "spec": {"spec": {"devices": {}}}});
        assert_eq!(
            device_claims(&mut pod.clone(), &[of("other")]),
            Vec::<Value>::new()
        );
        let claims = device_claims(&mut pod, &[of("other"), of("shop")]);
        assert_eq!(claims[0]["metadata"]["name"], "web-gpu");
        assert_eq!(claims[0]["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(claims[0]["spec"], json!({"devices": {}}));
        let statuses = json!([{"name": "gpu", "resourceClaimName": "web-gpu"}]);
        assert_eq!(pod["status"]["resourceClaimStatuses"], statuses);
    }
}
