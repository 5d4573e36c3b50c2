//! Builds a container's environment, and expands `$(NAME)` in its command and arguments.
//!
//! The rules are those of the kubelet's `makeEnvironmentVariables` and `ExpandContainerCommandAndArgs`, and of `Expand` in
//! the package expansion. Variables come from `envFrom`, then from `env` in order, then from the Services of the namespace
//! ([`services`]); a later one replaces an earlier one of its name, except that Services never replace any. [`Sources`] has
//! the objects that they come from.
//!
//! Invariant: no value of a Secret is included. [`HIDDEN`] stands in its place, because users who may read logs may not be
//! allowed to read Secrets.

mod fields;
mod services;
mod sources;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod};

pub(super) use sources::Sources;

/// Replaces a value that is not shown: that of a Secret, or of a file that does not exist in the simulation.
const HIDDEN: &str = "***";

/// Variables by name.
pub(super) type Variables = BTreeMap<String, String>;

/// Returns the environment of a container of `pod` that was started at `started_at`.
pub(super) fn variables(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    started_at: Timestamp,
) -> Variables {
    let of_services = services::variables(pod, &sources.services, started_at);
    let mut variables = from_whole_objects(container, sources);
    for variable in container.env.iter().flatten() {
        // Only entries before this one are known here, so a reference to a later entry stays unexpanded, as in a
        // kubelet.
        let value = value_of(variable, pod, container, sources, |name| {
            variables.get(name).or_else(|| of_services.get(name))
        });
        if let Some(value) = value {
            variables.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in of_services {
        // Variables of Services are defaults: whatever the pod sets under the same name wins.
        variables.entry(name).or_insert(value);
    }
    variables
}

/// Returns the variables from `envFrom`.
fn from_whole_objects(container: &Container, sources: &Sources) -> Variables {
    let mut variables = Variables::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let name = |key: &String| format!("{prefix}{key}");
        if let Some(map) = &from.config_map_ref {
            let data = sources.config_maps.get(&map.name).into_iter().flatten();
            variables.extend(data.map(|(key, value)| (name(key), value.clone())));
        } else if let Some(secret) = &from.secret_ref {
            let keys = sources.secret_keys.get(&secret.name).into_iter().flatten();
            variables.extend(keys.map(|key| (name(key), HIDDEN.to_owned())));
        }
    }
    variables
}

/// Returns the value of one entry of `env`, or `None` if it refers to something optional that does not exist.
fn value_of<'a>(
    variable: &EnvVar,
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    known: impl Fn(&str) -> Option<&'a String>,
) -> Option<String> {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) if !value.is_empty() => Some(expand(value, known)),
        (_, Some(source)) => value_from(source, pod, container, sources),
        _ => Some(String::new()),
    }
}

fn value_from(
    source: &EnvVarSource,
    pod: &Pod,
    container: &Container,
    sources: &Sources,
) -> Option<String> {
    if let Some(field) = &source.field_ref {
        fields::of_pod(pod, &field.field_path)
    } else if let Some(resource) = &source.resource_field_ref {
        fields::of_resources(pod, container, resource, sources.node.as_deref())
    } else if let Some(key) = &source.config_map_key_ref {
        sources.config_maps.get(&key.name)?.get(&key.key).cloned()
    } else if let Some(key) = &source.secret_key_ref {
        let keys = sources.secret_keys.get(&key.name)?;
        keys.contains(&key.key).then(|| HIDDEN.to_owned())
    } else {
        source.file_key_ref.as_ref().map(|_| HIDDEN.to_owned())
    }
}

/// Replaces `$(NAME)` by the value of NAME and `$$` by `$`. A reference to an unknown name stays as it is, and so does any
/// other `$`.
pub(super) fn expand<'a>(text: &str, value_of: impl Fn(&str) -> Option<&'a String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let reference = after
            .strip_prefix('(')
            .and_then(|inside| inside.split_once(')'));
        rest = match (after.strip_prefix('$'), reference) {
            (Some(after), _) => {
                expanded.push('$');
                after
            }
            (None, Some((name, after))) => {
                match value_of(name) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.extend(["$(", name, ")"]),
                }
                after
            }
            (None, None) => {
                expanded.push('$');
                after
            }
        };
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn references_are_replaced_as_the_kubelet_replaces_them() {
        let variables: Variables = [("A", "A"), ("B", "B"), ("REF", "$(A)"), ("EMPTY", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let cases = [
            ("$(A)-$(A)", "A-A"),
            ("___$(B)", "___B"),
            ("$$(B)_$(A)", "$(B)_A"),
            ("f000-$$VAR_A", "f000-$VAR_A"),
            ("foo\\$(B)bar", "foo\\Bbar"),
            ("$(A$(B))", "$(A$(B))"),
            ("$(REF)", "$(A)"),
            ("foo$(EMPTY)bar", "foobar"),
            ("foo$(Awhoops!", "foo$(Awhoops!"),
            ("f00__(A)__", "f00__(A)__"),
            ("$?_boo_$!", "$?_boo_$!"),
            ("$(NONE)", "$(NONE)"),
            ("$$$$$$(A)", "$$$(A)"),
            ("$$$$$$$(A)", "$$$A"),
            ("${A}", "${A}"),
            ("$(A)foobarzab$", "Afoobarzab$"),
            ("--$($($($($--", "--$($($($($--"),
            ("$(foo$$var)", "$(foo$$var)"),
            ("$é$(A)", "$éA"),
            ("\n", "\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(
                expand(text, |name| variables.get(name)),
                expected,
                "{text:?}"
            );
        }
    }

    fn sources() -> Sources {
        let service = |namespace: &str, name: &str, made: &str, spec: Value| {
            let service = json!({
                "metadata": { "name": name, "namespace": namespace, "creationTimestamp": made }, "spec": spec,
            });
            serde_json::from_value::<k8s_openapi::api::core::v1::Service>(service)
                .expect("a Service")
                .into()
        };
        let port = |port: i32| json!([{ "port": port }]);
        let early = "2026-01-01T00:00:00Z";
        Sources {
            config_maps: [(
                "settings".to_owned(),
                [
                    ("color".to_owned(), "red".to_owned()),
                    ("size".to_owned(), "big".to_owned()),
                ]
                .into(),
            )]
            .into(),
            secret_keys: [("login".to_owned(), ["password".to_owned()].into())].into(),
            services: vec![
                service(
                    "default",
                    "kubernetes",
                    early,
                    json!({ "clusterIP": "10.100.0.1", "ports": port(443) }),
                ),
                service(
                    "ns",
                    "my-db",
                    early,
                    json!({ "clusterIP": "10.100.0.7", "ports": [
                        { "name": "sql", "port": 5432 }, { "name": "web", "port": 80, "protocol": "UDP" },
                    ] }),
                ),
                service(
                    "ns",
                    "headless",
                    early,
                    json!({ "clusterIP": "None", "ports": port(1) }),
                ),
                service(
                    "other",
                    "away",
                    early,
                    json!({ "clusterIP": "10.100.0.8", "ports": port(1) }),
                ),
                service(
                    "ns",
                    "late",
                    "2026-03-01T00:00:00Z",
                    json!({ "clusterIP": "10.100.0.9", "ports": port(1) }),
                ),
            ],
            node: Some(
                serde_json::from_value::<k8s_openapi::api::core::v1::Node>(
                    json!({ "status": { "allocatable": { "cpu": "3920m", "memory": "6Gi" } } }),
                )
                .expect("a node")
                .into(),
            ),
        }
    }

    fn made(env: Value, env_from: Value) -> Variables {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns", "uid": "u", "labels": { "app": "shop" }, "annotations": { "a/b": "c" } },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "robot", "enableServiceLinks": true,
                "containers": [{
                    "name": "web", "env": env, "envFrom": env_from,
                    "resources": { "limits": { "memory": "100M" }, "requests": { "cpu": "250m" } },
                }],
            },
            "status": { "podIP": "10.0.0.5", "podIPs": [{ "ip": "10.0.0.5" }], "hostIP": "10.0.0.1", "hostIPs": [{ "ip": "10.0.0.1" }] },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let started_at = "2026-02-01T00:00:00Z".parse().expect("a time");
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        variables(&pod, container, &sources(), started_at)
    }

    #[test]
    fn variables_may_refer_to_what_stands_before_them() {
        let all = made(
            json!([
                { "name": "color", "value": "blue" },
                { "name": "BOTH", "value": "$(color) $(size) $(MY_DB_SERVICE_HOST) $(LATER)" },
                { "name": "LATER", "value": "x" },
                { "name": "SIZE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "size" } } },
                { "name": "NONE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "no", "optional": true } } },
                { "name": "URL", "value": "u:$(PASSWORD)@h" },
                { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } },
                { "name": "DSN", "value": "u:$(PASSWORD)@h" },
                { "name": "MY_DB_SERVICE_PORT", "value": "mine" },
            ]),
            json!([{ "configMapRef": { "name": "settings" } }, { "prefix": "P_", "secretRef": { "name": "login" } }]),
        );
        let expected = [
            ("color", "blue"),
            ("size", "big"),
            ("P_password", "***"),
            ("BOTH", "blue big 10.100.0.7 $(LATER)"),
            ("SIZE", "big"),
            ("URL", "u:$(PASSWORD)@h"),
            ("DSN", "u:***@h"),
            ("MY_DB_SERVICE_PORT", "mine"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
            ("MY_DB_PORT", "tcp://10.100.0.7:5432"),
            ("MY_DB_PORT_80_UDP_ADDR", "10.100.0.7"),
            ("KUBERNETES_SERVICE_HOST", "10.100.0.1"),
        ];
        for (name, value) in expected {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
        for name in [
            "NONE",
            "HEADLESS_SERVICE_HOST",
            "AWAY_SERVICE_HOST",
            "LATE_SERVICE_HOST",
        ] {
            assert_eq!(all.get(name), None, "{name}");
        }
    }

    #[test]
    fn fields_of_the_pod_and_resources_of_the_container_are_known() {
        let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
        let resource = |name: &str, divisor: &str| json!({ "resourceFieldRef": { "resource": name, "divisor": divisor } });
        let cases = [
            (field("metadata.name"), "p"),
            (field("metadata.namespace"), "ns"),
            (field("metadata.uid"), "u"),
            (field("metadata.labels['app']"), "shop"),
            (field("metadata.annotations['a/b']"), "c"),
            (field("metadata.labels['none']"), ""),
            (field("spec.nodeName"), "n1"),
            (field("spec.serviceAccountName"), "robot"),
            (field("status.podIP"), "10.0.0.5"),
            (field("status.hostIP"), "10.0.0.1"),
            (resource("limits.memory", "0"), "100000000"),
            (resource("limits.memory", "1Mi"), "96"),
            (resource("limits.cpu", "0"), "4"),
            (resource("limits.cpu", "1m"), "3920"),
            (resource("requests.cpu", "1m"), "250"),
            (resource("requests.memory", "1"), "0"),
        ];
        for (source, expected) in cases {
            let all = made(json!([{ "name": "X", "valueFrom": source }]), Value::Null);
            assert_eq!(all.get("X").map(String::as_str), Some(expected), "{source}");
        }
    }
}
