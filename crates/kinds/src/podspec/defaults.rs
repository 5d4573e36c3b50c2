//! Sets the defaults of pod specs (`pkg/apis/core/v1/defaults.go`).
//!
//! [`template`] sets the defaults of every pod spec, including those of workloads. [`pod`] adds the defaults of Pods: requests from limits,
//! pod-level resources, host ports, service links. Templates therefore stay as short as their authors wrote them.

use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value, json};

use super::{image, resource_defaults};

/// Sets the defaults of a Pod.
pub(crate) fn pod(pod: &mut Value) {
    drop_init_container_annotations(pod);
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        mirror_address(status);
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    pod_spec(spec);
    if spec
        .get("terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .is_some_and(|seconds| seconds < 0)
    {
        // The conversion of Pods makes a negative period one second; that of templates keeps it.
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    for_each(spec, "containers", resource_defaults::requests_from_limits);
    for_each(
        spec,
        "initContainers",
        resource_defaults::requests_from_limits,
    );
    resource_defaults::pod_level(spec);
    set_default(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        // These containers listen on the node's own ports, and the scheduler must see which ones are taken.
        for_each(spec, "containers", default_host_ports);
        for_each(spec, "initContainers", default_host_ports);
    }
}

/// Keeps `podIP` equal to the first of `podIPs`; if a client sends different ones, `podIP` wins.
fn mirror_address(status: &mut Map<String, Value>) {
    let first = match status.get("podIPs").and_then(Value::as_array) {
        Some(ips) => ips.first().map_or("", |ip| ip.text("ip")),
        None => "",
    };
    let address = status.get("podIP").and_then(Value::as_str).unwrap_or("");
    if address == first {
        return;
    }
    if address.is_empty() {
        let first = first.to_owned();
        status.insert("podIP".into(), first.into());
    } else {
        let ips = json!([{ "ip": address }]);
        status.insert("podIPs".into(), ips);
    }
}

/// Sets the defaults of the `template` in a workload's spec.
pub(crate) fn template(template: &mut Value) {
    drop_init_container_annotations(template);
    let Some(template) = template.as_object_mut() else {
        return;
    };
    // Go prints this struct even if it is empty.
    object_at(template, "metadata");
    pod_spec(object_at(template, "spec"));
}

/// Copies the service account's name to both of its fields. The deprecated field counts only if the other one is empty.
pub(crate) fn mirror_service_account(spec: &mut Map<String, Value>) {
    let name = ["serviceAccountName", "serviceAccount"]
        .into_iter()
        .find_map(|field| {
            spec.get(field)
                .filter(|value| value.as_str().is_some_and(|name| !name.is_empty()))
        })
        .cloned();
    for field in ["serviceAccountName", "serviceAccount"] {
        match &name {
            Some(name) => spec.insert(field.into(), name.clone()),
            None => spec.remove(field),
        };
    }
}

fn pod_spec(spec: &mut Map<String, Value>) {
    set_default(spec, "containers", Value::Array(Vec::new()));
    mirror_service_account(spec);
    set_zero(spec, "dnsPolicy", "ClusterFirst");
    set_zero(spec, "restartPolicy", "Always");
    object_at(spec, "securityContext");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_zero(spec, "schedulerName", "default-scheduler");
    for_each(spec, "volumes", volume);
    for_each(spec, "containers", container);
    for_each(spec, "initContainers", container);
    for_each(spec, "ephemeralContainers", container);
    if let Some(overhead) = spec.get_mut("overhead") {
        resource_defaults::round_up(overhead);
    }
    if let Some(level) = spec.get_mut("resources") {
        resource_defaults::round_up_requirements(level);
    }
}

fn container(container: &mut Map<String, Value>) {
    let pull = match container
        .get("image")
        .and_then(Value::as_str)
        .and_then(image::tag)
    {
        // The tag `latest` moves, so a node's copy of the image may be outdated.
        Some("latest") => "Always",
        _ => "IfNotPresent",
    };
    set_zero(container, "imagePullPolicy", pull);
    set_zero(container, "terminationMessagePath", "/dev/termination-log");
    set_zero(container, "terminationMessagePolicy", "File");
    object_at(container, "resources");
    if let Some(requirements) = container.get_mut("resources") {
        resource_defaults::round_up_requirements(requirements);
    }
    for_each(container, "ports", |port| set_zero(port, "protocol", "TCP"));
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        with(container, field, probe);
    }
    with(container, "lifecycle", |lifecycle| {
        for hook in ["postStart", "preStop"] {
            with(lifecycle, hook, |handler| {
                with(handler, "httpGet", http_get)
            });
        }
    });
    for_each(container, "env", |variable| {
        with(variable, "valueFrom", value_from)
    });
}

fn probe(probe: &mut Map<String, Value>) {
    set_zero(probe, "timeoutSeconds", 1);
    set_zero(probe, "periodSeconds", 10);
    set_zero(probe, "successThreshold", 1);
    set_zero(probe, "failureThreshold", 3);
    with(probe, "httpGet", http_get);
    with(probe, "grpc", |grpc| set_default(grpc, "service", ""));
}

fn http_get(action: &mut Map<String, Value>) {
    set_zero(action, "path", "/");
    set_zero(action, "scheme", "HTTP");
}

fn value_from(source: &mut Map<String, Value>) {
    with(source, "fieldRef", |reference| {
        set_zero(reference, "apiVersion", "v1")
    });
    with(source, "resourceFieldRef", |reference| {
        // Go prints a quantity that is not set as 0.
        set_default(reference, "divisor", "0")
    });
    with(source, "fileKeyRef", |reference| {
        set_default(reference, "optional", false)
    });
}

fn volume(volume: &mut Map<String, Value>) {
    // A volume without a source is an empty directory.
    if volume
        .iter()
        .all(|(field, source)| field == "name" || source.is_null())
    {
        volume.insert("emptyDir".into(), Value::Object(Map::new()));
    }
    for source in ["secret", "configMap"] {
        with(volume, source, |source| {
            set_default(source, "defaultMode", 0o644)
        });
    }
    with(volume, "downwardAPI", |source| {
        set_default(source, "defaultMode", 0o644);
        for_each(source, "items", value_from);
    });
    with(volume, "projected", |source| {
        set_default(source, "defaultMode", 0o644);
        // The Go field has no `omitempty`, so missing sources are printed as null.
        set_default(source, "sources", Value::Null);
        for_each(source, "sources", |projection| {
            with(projection, "serviceAccountToken", |token| {
                set_default(token, "expirationSeconds", 3600)
            });
            with(projection, "downwardAPI", |api| {
                for_each(api, "items", value_from)
            });
        });
    });
    with(volume, "hostPath", |source| set_default(source, "type", ""));
    with(volume, "iscsi", |source| {
        set_zero(source, "iscsiInterface", "default")
    });
    with(volume, "rbd", |source| {
        set_zero(source, "pool", "rbd");
        set_zero(source, "user", "admin");
        set_zero(source, "keyring", "/etc/ceph/keyring");
    });
    with(volume, "azureDisk", |source| {
        set_default(source, "cachingMode", "ReadWrite");
        set_default(source, "kind", "Shared");
        set_default(source, "fsType", "ext4");
        set_default(source, "readOnly", false);
    });
    with(volume, "scaleIO", |source| {
        set_zero(source, "storageMode", "ThinProvisioned");
        set_zero(source, "fsType", "xfs");
    });
    with(volume, "image", |source| {
        let latest = source
            .get("reference")
            .and_then(Value::as_str)
            .and_then(image::tag)
            == Some("latest");
        set_zero(
            source,
            "pullPolicy",
            if latest { "Always" } else { "IfNotPresent" },
        );
    });
    with(volume, "ephemeral", |source| {
        with(source, "volumeClaimTemplate", |claim| {
            // Go prints a struct that is empty; without it a workload would differ from its stored template.
            object_at(claim, "metadata");
            let claim = object_at(claim, "spec");
            set_default(claim, "volumeMode", "Filesystem");
            object_at(claim, "resources");
        });
    });
}

fn default_host_ports(container: &mut Map<String, Value>) {
    for_each(container, "ports", |port| {
        if let Some(number) = port.get("containerPort").cloned() {
            set_zero(port, "hostPort", number);
        }
    });
}

/// Removes annotations from the time when init containers were stored in annotations; old clients would see them as differences.
fn drop_init_container_annotations(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    const LEGACY: [&str; 4] = [
        "pod.beta.kubernetes.io/init-containers",
        "pod.alpha.kubernetes.io/init-containers",
        "pod.beta.kubernetes.io/init-container-statuses",
        "pod.alpha.kubernetes.io/init-container-statuses",
    ];
    for key in LEGACY {
        annotations.remove(key);
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn with(parent: &mut Map<String, Value>, field: &str, apply: impl FnOnce(&mut Map<String, Value>)) {
    if let Some(child) = parent.get_mut(field).and_then(Value::as_object_mut) {
        apply(child);
    }
}

fn for_each(parent: &mut Map<String, Value>, field: &str, apply: impl Fn(&mut Map<String, Value>)) {
    let Some(items) = parent.get_mut(field).and_then(Value::as_array_mut) else {
        return;
    };
    items
        .iter_mut()
        .filter_map(Value::as_object_mut)
        .for_each(apply);
}

/// Returns whether the init container is a sidecar, which has `restartPolicy: Always`.
pub fn is_restartable_init(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaulted(mut object: Value) -> Value {
        pod(&mut object);
        object
    }

    #[test]
    fn the_two_forms_of_a_pod_s_address_agree() {
        for (given, kept) in [
            (json!({"podIP": "10.0.0.1"}), "10.0.0.1"),
            (json!({"podIPs": [{"ip": "10.0.0.2"}]}), "10.0.0.2"),
            (
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}),
                "10.0.0.1",
            ),
        ] {
            let status = &defaulted(json!({"status": given}))["status"];
            assert_eq!(status, &json!({"podIP": kept, "podIPs": [{"ip": kept}]}));
        }
        let both = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
        assert_eq!(defaulted(json!({"status": both}))["status"], both);
    }

    #[test]
    fn a_pod_of_the_host_network_occupies_its_ports_of_the_host() {
        let spec = json!({"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 80}]}]});
        let object = defaulted(json!({"spec": spec}));
        let port = &object["spec"]["containers"][0]["ports"][0];
        assert_eq!(
            port,
            &json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"})
        );
    }

    #[test]
    fn a_template_is_not_given_what_only_pods_get() {
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]});
        let mut template_of = json!({"spec": spec});
        template(&mut template_of);
        let of_pod = defaulted(json!({"spec": spec}));
        assert_eq!(
            of_pod["spec"]["containers"][0]["resources"]["requests"],
            json!({"cpu": "1"})
        );
        assert_eq!(of_pod["spec"]["enableServiceLinks"], true);
        assert!(
            template_of["spec"]["containers"][0]["resources"]
                .get("requests")
                .is_none()
        );
        assert!(template_of["spec"].get("enableServiceLinks").is_none());
    }
}
