//! The fields that a configuration may have, and their types. They are checked before anything is parsed, so that
//! every fault has a path.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ConfigError, Fault, Faults, refuse};

/// The type of a value. Null is allowed everywhere and means that the value is absent.
pub(super) enum Shape {
    Any,
    Text,
    Integer,
    Boolean,
    /// A map from any key to text.
    Texts,
    List(&'static Shape),
    Fields(&'static [(&'static str, Shape)]),
}

use Shape::{Any, Boolean, Fields, Integer, List, Text, Texts};

const PLUGIN: Shape = Fields(&[("name", Text), ("weight", Integer)]);
const PLUGIN_SET: Shape = Fields(&[("enabled", List(&PLUGIN)), ("disabled", List(&PLUGIN))]);

const PROFILE: Shape = Fields(&[
    ("schedulerName", Text),
    ("percentageOfNodesToScore", Integer),
    (
        "plugins",
        Fields(&[
            ("preEnqueue", PLUGIN_SET),
            ("queueSort", PLUGIN_SET),
            ("preFilter", PLUGIN_SET),
            ("filter", PLUGIN_SET),
            ("postFilter", PLUGIN_SET),
            ("preScore", PLUGIN_SET),
            ("score", PLUGIN_SET),
            ("reserve", PLUGIN_SET),
            ("permit", PLUGIN_SET),
            ("preBind", PLUGIN_SET),
            ("bind", PLUGIN_SET),
            ("postBind", PLUGIN_SET),
            ("multiPoint", PLUGIN_SET),
        ]),
    ),
    (
        "pluginConfig",
        List(&Fields(&[("name", Text), ("args", Any)])),
    ),
]);

/// The whole file.
pub(super) const CONFIGURATION: Shape = Fields(&[
    ("apiVersion", Text),
    ("kind", Text),
    ("parallelism", Integer),
    (
        "leaderElection",
        Fields(&[
            ("leaderElect", Boolean),
            ("leaseDuration", Text),
            ("renewDeadline", Text),
            ("retryPeriod", Text),
            ("resourceLock", Text),
            ("resourceName", Text),
            ("resourceNamespace", Text),
        ]),
    ),
    (
        "clientConnection",
        Fields(&[
            ("kubeconfig", Text),
            ("acceptContentTypes", Text),
            ("contentType", Text),
            ("qps", Any),
            ("burst", Integer),
        ]),
    ),
    ("enableProfiling", Boolean),
    ("enableContentionProfiling", Boolean),
    ("percentageOfNodesToScore", Integer),
    ("podInitialBackoffSeconds", Integer),
    ("podMaxBackoffSeconds", Integer),
    ("delayCacheUntilActive", Boolean),
    ("profiles", List(&PROFILE)),
    ("extenders", List(&Any)),
]);

const REQUIREMENT: Shape = Fields(&[("key", Text), ("operator", Text), ("values", List(&Text))]);
const NODE_TERM: Shape = Fields(&[
    ("matchExpressions", List(&REQUIREMENT)),
    ("matchFields", List(&REQUIREMENT)),
]);
const LABEL_SELECTOR: Shape = Fields(&[
    ("matchLabels", Texts),
    ("matchExpressions", List(&REQUIREMENT)),
]);
const RESOURCES: Shape = List(&Fields(&[("name", Text), ("weight", Integer)]));
const CURVE: Shape = List(&Fields(&[("utilization", Integer), ("score", Integer)]));

/// The arguments of each plugin that has some.
pub(super) const ARGUMENTS: [(&str, Shape); 7] = [
    (
        "DefaultPreemption",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("minCandidateNodesPercentage", Integer),
            ("minCandidateNodesAbsolute", Integer),
        ]),
    ),
    (
        "InterPodAffinity",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("hardPodAffinityWeight", Integer),
            ("ignorePreferredTermsOfExistingPods", Boolean),
        ]),
    ),
    (
        "NodeAffinity",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            (
                "addedAffinity",
                Fields(&[
                    (
                        "requiredDuringSchedulingIgnoredDuringExecution",
                        Fields(&[("nodeSelectorTerms", List(&NODE_TERM))]),
                    ),
                    (
                        "preferredDuringSchedulingIgnoredDuringExecution",
                        List(&Fields(&[("weight", Integer), ("preference", NODE_TERM)])),
                    ),
                ]),
            ),
        ]),
    ),
    (
        "NodeResourcesBalancedAllocation",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("resources", RESOURCES),
        ]),
    ),
    (
        "NodeResourcesFit",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("ignoredResources", List(&Text)),
            ("ignoredResourceGroups", List(&Text)),
            (
                "scoringStrategy",
                Fields(&[
                    ("type", Text),
                    ("resources", RESOURCES),
                    ("requestedToCapacityRatio", Fields(&[("shape", CURVE)])),
                ]),
            ),
        ]),
    ),
    (
        "PodTopologySpread",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("defaultingType", Text),
            (
                "defaultConstraints",
                List(&Fields(&[
                    ("maxSkew", Integer),
                    ("topologyKey", Text),
                    ("whenUnsatisfiable", Text),
                    ("labelSelector", LABEL_SELECTOR),
                    ("minDomains", Integer),
                    ("nodeAffinityPolicy", Text),
                    ("nodeTaintsPolicy", Text),
                    ("matchLabelKeys", List(&Text)),
                ])),
            ),
        ]),
    ),
    (
        "VolumeBinding",
        Fields(&[
            ("apiVersion", Text),
            ("kind", Text),
            ("bindTimeoutSeconds", Integer),
        ]),
    ),
];

/// Refuses values that do not have the shape.
pub(super) fn check(value: &Value, shape: &Shape, path: &str, faults: &mut Faults) {
    let wanted = match (shape, value) {
        (Any, _) | (_, Value::Null) | (Text, Value::String(_)) | (Boolean, Value::Bool(_)) => {
            return;
        }
        (Integer, Value::Number(number)) if number.is_i64() => return,
        (Texts, Value::Object(fields)) => {
            for (key, value) in fields {
                check(value, &Text, &below(path, key), faults);
            }
            return;
        }
        (List(each), Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                check(value, each, &format!("{path}[{index}]"), faults);
            }
            return;
        }
        (Fields(known), Value::Object(fields)) => {
            for (key, value) in fields {
                let path = below(path, key);
                match known.iter().find(|(name, _)| name == key) {
                    Some((_, shape)) => check(value, shape, &path, faults),
                    None => {
                        let allowed = known.iter().map(|(name, _)| *name).collect();
                        faults.refuse(path, Fault::Unknown { allowed });
                    }
                }
            }
            return;
        }
        (Text, _) => "must be text",
        (Integer, _) => "must be a whole number",
        (Boolean, _) => "must be true or false",
        (List(_), _) => "must be a list",
        (Texts | Fields(_), _) => "must be an object",
    };
    faults.refuse(path, Fault::invalid(value.clone(), wanted));
}

fn below(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

/// Deserializes a value that passed [`check`]; null fields are treated as absent.
pub(super) fn typed<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T, ConfigError> {
    let mut value = value.clone();
    drop_nulls(&mut value);
    serde_json::from_value(value.clone())
        .map_err(|error| refuse(path, Fault::invalid(value, &error.to_string())))
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
