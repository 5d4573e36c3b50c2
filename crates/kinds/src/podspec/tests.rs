//! Tests that invalid pods are refused, with all errors in kube-apiserver's order.

use mullion_kube_text::field::causes;
use serde_json::{Value, json};

use super::{defaults, validate_pod};

/// Returns the errors of a pod with one container; `container` and `spec` are added to a valid pod.
fn found(container: Value, spec: Value) -> Vec<String> {
    let with = |mut base: Value, more: Value| {
        for (field, value) in more.as_object().into_iter().flatten() {
            base[field] = value.clone();
        }
        base
    };
    let container = with(json!({"name": "a", "image": "i"}), container);
    let spec = with(json!({"containers": [container]}), spec);
    let mut pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec});
    defaults::pod(&mut pod);
    pod["spec"]["serviceAccountName"] = "default".into();
    causes(|errors| validate_pod(&pod, errors))
}

#[test]
fn files_for_variables_come_from_empty_dirs_of_the_pod() {
    let variable = |volume: &str, path: &str| {
        let file = json!({"volumeName": volume, "path": path, "key": "k"});
        json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": file}}]})
    };
    let volumes = || json!({"volumes": [{"name": "e", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]});
    let path = "spec.containers[0].env[0].valueFrom.fileKeyRef";
    assert!(found(variable("e", "a/b"), volumes()).is_empty());
    assert_eq!(
        found(variable("c", "a"), volumes()),
        [format!(
            r#"{path}.volumeName: Invalid value: "c": referenced volume must be of type emptyDir"#
        )]
    );
    assert_eq!(
        found(variable("x", "../a"), volumes()),
        [
            format!(r#"{path}.path: Invalid value: "../a": must not contain '..'"#),
            format!(r#"{path}.volumeName: Not found: "x""#),
        ]
    );
}

#[test]
fn a_name_of_ones_own_excludes_other_ways_to_be_named() {
    let at = "spec.hostnameOverride";
    assert_eq!(
        found(
            json!({}),
            json!({"hostnameOverride": "a", "setHostnameAsFQDN": true, "hostNetwork": true})
        ),
        [
            format!("{at}: Forbidden: may not be specified when setHostnameAsFQDN is true"),
            format!("{at}: Forbidden: may not be specified when hostNetwork is true"),
        ]
    );
    assert_eq!(
        found(json!({}), json!({"hostnameOverride": "a".repeat(65)})),
        [format!("{at}: Too long: may not be more than 64 bytes")]
    );
}

#[test]
fn users_of_their_own_have_no_devices() {
    let devices = json!([{"name": "v", "devicePath": "/d"}]);
    let spec = json!({
        "hostUsers": false, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "initContainers": [{"name": "i", "image": "i", "volumeDevices": devices}],
    });
    assert_eq!(
        found(json!({"volumeDevices": devices}), spec),
        [
            "spec.initContainers[0].volumeDevices: Forbidden: when `hostUsers` is false",
            "spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false",
        ]
    );
}

#[test]
fn init_containers_that_end_are_not_restarted_for_new_resources() {
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let init = |name: &str| json!({"name": name, "image": "i"});
    let (mut ends, mut stays) = (init("i"), init("s"));
    ends["resizePolicy"] = policy.clone();
    stays["resizePolicy"] = policy;
    stays["restartPolicy"] = "Always".into();
    assert_eq!(
        found(
            json!({}),
            json!({"initContainers": [init(""), init(""), ends, stays]})
        ),
        [
            "spec.initContainers[0].name: Required value",
            "spec.initContainers[1].name: Required value",
            r#"spec.initContainers[2].resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must not be set to 'RestartContainer' for non-sidecar initContainers"#,
        ]
    );
}

#[test]
fn a_pod_as_a_whole_asks_for_what_its_containers_ask_for() {
    let container =
        json!({"resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3"}}});
    let spec = json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}});
    assert_eq!(
        found(container, spec),
        [
            r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
            r#"spec.resources.containers[0][cpu].limits: Invalid value: "3": must be less than or equal to pod limits of 2"#,
        ]
    );
    let windows = json!({"os": {"name": "windows"}, "resources": {"limits": {"e.com/gpu": "1"}}});
    assert_eq!(
        found(json!({}), windows),
        ["spec.resources: Forbidden: may not be set for a windows pod"]
    );
}

#[test]
fn label_keys_of_a_spread_are_not_in_its_selector_too() {
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"],
        // This is the selector after the key was added to its expressions.
        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "In", "values": ["b"]}]},
    }]);
    assert_eq!(
        found(json!({}), json!({"topologySpreadConstraints": spread})),
        [
            r#"spec.topologySpreadConstraints[0][0]: Invalid value: "a": exists in both matchLabelKeys and labelSelector"#
        ]
    );
}

#[test]
fn registries_are_pairs_of_host_and_port_and_drivers_have_names() {
    let registry = |registry: &str| {
        let quobyte = json!({"registry": registry, "volume": "x"});
        found(
            json!({}),
            json!({"volumes": [{"name": "v", "quobyte": quobyte}]}),
        )
        .len()
    };
    assert_eq!(registry("a:7861,[::1]:7861"), 0);
    assert_eq!(registry("a:7861,b"), 1);
    assert_eq!(registry("a:b:7861"), 1);
    let csi = json!({"volumes": [{"name": "v", "csi": {"driver": ""}}]});
    assert_eq!(
        found(json!({}), csi),
        ["spec.volumes[0].csi.driver: Required value"]
    );
}
