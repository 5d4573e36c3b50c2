//! Builds the chunks of a CapacityBuffer: pods that are planned for and never created. Pure.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mullion_api::capacity_buffer::CapacityBuffer;
use mullion_cloud::WindowsAddresses;

use crate::provisioner::coming_pod;

/// The annotation that marks a pod as a chunk.
const FAKE_POD: &str = "karpenter.sh/capacity-buffer-fake-pod";
/// The annotation with the name of the chunk's buffer.
const BUFFER_NAME: &str = "karpenter.sh/capacity-buffer-name";
/// The annotation with the namespace of the chunk's buffer.
const BUFFER_NAMESPACE: &str = "karpenter.sh/capacity-buffer-namespace";

/// Returns the chunks of a buffer (karpenter: `BuildVirtualPods`). A chunk for Windows asks for an address if pods get
/// any, as the webhook would make a pod ask.
pub(super) fn of(
    buffer: &CapacityBuffer,
    template: &PodTemplateSpec,
    count: i32,
    addresses: WindowsAddresses,
) -> Vec<Arc<Pod>> {
    let meta = &buffer.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let namespace = meta.namespace.clone().unwrap_or_default();
    let uid = meta.uid.clone().unwrap_or_default();
    let spec = spec(template.spec.clone().unwrap_or_default(), addresses);
    let own = template.metadata.as_ref();
    let chunk = |number: i32| Pod {
        metadata: ObjectMeta {
            name: Some(format!("capacity-buffer-{name}-{number}")),
            namespace: meta.namespace.clone(),
            uid: Some(format!("{uid}-{number}")),
            labels: own.and_then(|own| own.labels.clone()),
            annotations: Some(
                [
                    (FAKE_POD, "true"),
                    (BUFFER_NAME, &name),
                    (BUFFER_NAMESPACE, &namespace),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(spec.clone()),
        status: None,
    };
    (1..=count).map(|number| Arc::new(chunk(number))).collect()
}

/// Returns the namespace and name of the buffer that a chunk belongs to; `None` for a pod of the
/// API.
pub(crate) fn buffer_of(pod: &Pod) -> Option<(&str, &str)> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let value = |key: &str| annotations.get(key).map(String::as_str);
    (value(FAKE_POD) == Some("true"))
        .then(|| value(BUFFER_NAMESPACE).zip(value(BUFFER_NAME)))
        .flatten()
}

/// Returns the pod spec of a chunk: the template without the fields that only an existing pod can
/// have.
fn spec(mut spec: PodSpec, addresses: WindowsAddresses) -> PodSpec {
    spec.node_name = None;
    // A gated pod is not planned for, and nobody would ever open the gate of a chunk.
    spec.scheduling_gates = None;
    // The least there is: chunks give way to every pod.
    spec.priority = Some(i32::MIN);
    let volumes = spec.volumes.iter_mut().flatten();
    // Claims belong to one pod; chunks that named them would all be bound to the zone of one volume.
    let lost: Vec<String> = volumes
        .filter(|own| own.persistent_volume_claim.is_some() || own.ephemeral.is_some())
        .map(|own| own.name.clone())
        .collect();
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|own| !lost.contains(&own.name));
    }
    let init = spec.init_containers.iter_mut().flatten();
    for mounts in spec
        .containers
        .iter_mut()
        .chain(init)
        .filter_map(|own| own.volume_mounts.as_mut())
    {
        mounts.retain(|own| !lost.contains(&own.name));
    }
    coming_pod::complete(&mut spec, addresses);
    spec
}

#[cfg(test)]
mod tests {
    use mullion_api::labels;
    use serde_json::{Value, json};

    use super::*;

    fn chunks(spec: Value, addresses: WindowsAddresses) -> Vec<Value> {
        let buffer =
            json!({ "metadata": { "name": "b", "namespace": "shop", "uid": "u" }, "spec": {} });
        let buffer = serde_json::from_value(buffer).expect("a buffer");
        let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec });
        let template = serde_json::from_value(template).expect("a template");
        let chunks = of(&buffer, &template, 2, addresses);
        assert!(
            chunks
                .iter()
                .all(|own| buffer_of(own) == Some(("shop", "b")))
        );
        chunks.iter().map(|own| json!(&**own)).collect()
    }

    #[test]
    fn a_chunk_has_the_labels_of_the_template_and_nothing_that_only_a_pod_can_have() {
        let spec = json!({
            "nodeName": "n", "schedulingGates": [{ "name": "g" }], "priority": 5,
            "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "c" } },
                { "name": "own", "ephemeral": {} },
                { "name": "tmp", "emptyDir": {} }
            ],
            "containers": [{ "name": "c", "volumeMounts": [
                { "name": "data", "mountPath": "/a" }, { "name": "tmp", "mountPath": "/b" }
            ]}]
        });
        let chunks = chunks(spec, WindowsAddresses::Single);
        let [first, second] = &chunks[..] else {
            panic!("{chunks:?}");
        };
        assert_eq!(first["metadata"]["name"], "capacity-buffer-b-1");
        assert_eq!(second["metadata"]["uid"], "u-2");
        assert_eq!(second["metadata"]["labels"], json!({ "app": "web" }));
        let spec = &first["spec"];
        assert_eq!(spec["priority"], i32::MIN);
        assert!(spec["nodeName"].is_null() && spec["schedulingGates"].is_null());
        assert_eq!(spec["volumes"], json!([{ "name": "tmp", "emptyDir": {} }]));
        let mounts = &spec["containers"][0]["volumeMounts"];
        assert_eq!(*mounts, json!([{ "name": "tmp", "mountPath": "/b" }]));
        assert!(spec["containers"][0]["resources"].is_null());
    }

    #[test]
    fn a_chunk_for_windows_has_room_for_an_address() {
        let asks = |spec: Value, addresses| {
            let chunks = chunks(spec, addresses);
            let requests = &chunks[0]["spec"]["containers"][0]["resources"]["requests"];
            requests[labels::PRIVATE_IPV4] == "1"
        };
        let windows = |more: Value| {
            let mut spec = json!({ "containers": [{ "name": "c" }] });
            for (key, value) in more.as_object().expect("fields") {
                spec[key] = value.clone();
            }
            spec
        };
        let selected = json!({ "nodeSelector": { "kubernetes.io/os": "windows" } });
        assert!(asks(windows(selected.clone()), WindowsAddresses::Single));
        assert!(!asks(windows(selected), WindowsAddresses::Off));
        assert!(asks(
            windows(json!({ "os": { "name": "windows" } })),
            WindowsAddresses::Prefixes
        ));
        let host = json!({ "os": { "name": "windows" }, "hostNetwork": true });
        assert!(!asks(windows(host), WindowsAddresses::Single));
        assert!(!asks(windows(json!({})), WindowsAddresses::Single));
    }

    #[test]
    fn pods_are_no_chunks() {
        assert_eq!(buffer_of(&Pod::default()), None);
    }
}
