//! Builds a cluster as the engine sees it from objects: of a file (`kubectl get -o json`), of a case, or of a running API server.
//!
//! Objects are read one by one straight into the engine's types, and only what affects placing is kept. Kinds that do not affect placing
//! are ignored.

mod reading;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mullion_cloud::WindowsAddresses;
use mullion_controllers::provisioner::{
    self,
    discovered::{CapacityRecords, KEPT_IN},
    risk::SpotRisks,
};
use mullion_engine::{
    Cluster,
    ip::Settings,
    model::{NodeSpec, PodSpec},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error},
};
use serde_json::{Value, value::RawValue};

use super::{pod_facts::PodFacts, pod_owner::PodOwner, unused::Unused};

/// The cluster, and the facts that are not part of the engine's model.
pub(crate) struct State {
    /// The engine's cluster: nodes, bound pods and the objects that affect them.
    pub(crate) cluster: Cluster,
    /// All pods, bound or not. A case keeps none, because its pods are looked up by key only.
    pub(crate) pods: Vec<PodSpec>,
    keeps_pods: bool,
    /// What is kept unabridged beside the kinds above.
    pub(super) keeps: Keeps,
    /// Whether any pod has a priority.
    pub(super) has_priorities: bool,
    /// All nodes by name. A case keeps none, and leaves the following fields empty too.
    nodes: BTreeMap<String, NodeSpec>,
    /// Claims, and volumes bound to a claim; a manifest cannot change them.
    settled: BTreeSet<ObjectKey>,
    /// What is said of single pods beside the model.
    pub(super) pod_facts: PodFacts,
    /// The objects of the kinds that are kept unabridged.
    others: BTreeMap<ObjectKey, Value>,
    /// The `status.nodeInfo.kubeletVersion` of the first node that has one; it serves as the cluster's version.
    pub(super) kubelet_version: Option<String>,
    /// The settings of the cluster's provisioner.
    pub(crate) settings: provisioner::Settings,
    /// What of the input is not used. A case has none.
    pub(super) unused: Unused,
}

/// What a state keeps unabridged for callers that need it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keeps {
    /// Nodes and pods, for their annotations and conditions.
    pub(crate) whole: bool,
    /// ResourceQuotas, and the pods if there are any, for what quotas count of them.
    pub(crate) quotas: bool,
    /// Pods, because there are ResourceQuotas.
    pub(crate) pods: bool,
    /// Deployments, StatefulSets and ReplicaSets, for the templates of CapacityBuffers. Large clusters have many of them.
    pub(crate) templates: bool,
    /// These workloads, for their templates.
    pub(crate) workloads: Vec<PodOwner>,
}

impl Keeps {
    /// Returns whether one of the workloads is of a kind.
    fn has_workload_of(&self, kind: &str) -> bool {
        self.workloads.iter().any(|own| own.kind == kind)
    }
}

/// An object that is not of its type.
#[derive(Debug)]
pub(crate) struct MalformedObject {
    kind: String,
    name: String,
    error: serde_json::Error,
}

impl fmt::Display for MalformedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.name, self.error)
    }
}

/// Identifies an object: kind, namespace and name.
type ObjectKey = (String, String, String);

/// A list of objects: a `v1` List, or a typed one such as PodList. A single object can be read as such a list too.
#[derive(Deserialize)]
pub(crate) struct List {
    /// The kind: `List`, `PodList`, or the kind of a single object.
    #[serde(default)]
    pub(super) kind: String,
    /// The items; `None` for a single object.
    pub(crate) items: Option<Vec<Box<RawValue>>>,
}

impl State {
    /// Creates a state that starts with an empty cluster.
    pub(crate) fn new(empty: Cluster) -> Self {
        State {
            keeps_pods: true,
            ..State::of(empty)
        }
    }

    /// Makes the state keep more objects unabridged.
    pub(crate) fn keeping(self, keeps: Keeps) -> Self {
        State { keeps, ..self }
    }

    /// Creates the state of a case, which keeps no pods and nodes of its own.
    pub(super) fn of(cluster: Cluster) -> Self {
        State {
            cluster,
            pods: Vec::new(),
            keeps_pods: false,
            keeps: Keeps::default(),
            has_priorities: false,
            nodes: BTreeMap::new(),
            settled: BTreeSet::new(),
            pod_facts: PodFacts::default(),
            others: BTreeMap::new(),
            kubelet_version: None,
            settings: provisioner::Settings::default(),
            unused: Unused::default(),
        }
    }

    /// Stores an object, replacing one of the same kind, namespace and name.
    fn keep(&mut self, kind: &str, object: Value) {
        self.others.insert(key_of(kind, &object), object);
    }

    fn settle(&mut self, kind: &str, namespace: String, name: String) {
        if self.keeps_pods {
            self.settled.insert((kind.to_owned(), namespace, name));
        }
    }

    /// Returns whether the object is an existing claim, or an existing volume that is bound. What a claim asks for cannot be changed later,
    /// and a manifest does not decide what it was given.
    pub(crate) fn is_settled(&self, object: &Value) -> bool {
        let kind = object["kind"].as_str().unwrap_or_default();
        self.settled.contains(&key_of(kind, object))
    }

    /// Returns the status of an object that is kept unabridged; `None` if there is no such object.
    pub(super) fn status_of(&self, object: &Value) -> Option<&Value> {
        let kind = object["kind"].as_str().unwrap_or_default();
        self.others.get(&key_of(kind, object))?.get("status")
    }

    /// Adds a node of a manifest. An existing node is changed as `kubectl apply` would change it: labels are added, and fields that the
    /// manifest does not have stay; a status replaces the old one.
    ///
    /// # Errors
    /// The node is malformed, has no name, or has a negative amount of a resource.
    pub(super) fn set_node(&mut self, object: &Value) -> Result<(), serde_json::Error> {
        let mut node = NodeSpec::deserialize(object)?;
        if let Some(there) = self.nodes.get(&node.name) {
            let says = |field: &str| !object["spec"][field].is_null();
            let mut labels = there.labels.clone();
            labels.extend(node.labels);
            node.labels = labels;
            if !says("taints") {
                node.taints.clone_from(&there.taints);
            }
            if !says("unschedulable") {
                node.unschedulable = there.unschedulable;
            }
            if node.capacity.is_empty() && node.allocatable.is_empty() {
                node = NodeSpec {
                    name: node.name,
                    labels: node.labels,
                    taints: node.taints,
                    unschedulable: node.unschedulable,
                    ..there.clone()
                };
            }
        }
        self.cluster.set_node(&node).map_err(Error::custom)?;
        self.nodes.insert(node.name.clone(), node);
        Ok(())
    }

    /// Returns the objects of a kind that is kept unabridged, sorted by namespace and name.
    ///
    /// # Errors
    /// One of the objects is malformed.
    pub(crate) fn kept<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, MalformedObject> {
        let own = self.others.iter().filter(|((own, ..), _)| own == kind);
        own.map(|((_, _, name), object)| {
            T::deserialize(object).map_err(|error| MalformedObject {
                kind: kind.to_owned(),
                name: name.clone(),
                error,
            })
        })
        .collect()
    }

    /// Returns the settings in the ConfigMap of the VPC resource controller, if the state has it.
    pub(crate) fn address_settings(&self) -> Option<Settings> {
        let config = self.others.get(&vpc_cni())?;
        Some(Settings::read(&data_of(config)).0)
    }

    /// Returns the capacity that nodes of the cluster turned out to have, as far as the state has it.
    pub(crate) fn discovered_capacity(&self) -> CapacityRecords {
        let kept = self.others.get(&discovered());
        kept.map_or_else(CapacityRecords::default, |config| {
            CapacityRecords::read(&data_of(config)).0
        })
    }

    /// Returns the risks of spot offerings that the cluster has learnt, as far as the state has them.
    pub(crate) fn spot_risks(&self) -> SpotRisks {
        let kept = self.others.get(&discovered());
        let risks = kept.and_then(|config| SpotRisks::read(&data_of(config)));
        risks.unwrap_or_default()
    }

    /// Returns how pods on new Windows nodes get addresses; the default, as in Karpenter, is one by one.
    pub(crate) fn windows_addresses(&self) -> WindowsAddresses {
        let settings = self.address_settings();
        settings.map_or_else(WindowsAddresses::default, |own| WindowsAddresses::of(&own))
    }

    /// Returns an object of a kind that is kept unabridged.
    pub(crate) fn kept_object(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        let title = [kind, namespace, name].map(str::to_owned);
        self.others.get(&title.into())
    }

    /// Returns the objects of a kind that is kept unabridged as they were read.
    pub(crate) fn objects<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        let own = self.others.iter().filter(move |((own, ..), _)| own == kind);
        own.map(|(_, object)| object)
    }

    /// Returns the names of the objects of a kind that is kept unabridged.
    pub(crate) fn names_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        let own = self.others.keys().filter(move |(own, ..)| own == kind);
        own.map(|(_, _, name)| name.as_str())
    }

    /// Changes every object of a kind that is kept unabridged.
    pub(crate) fn edit(&mut self, kind: &str, mut change: impl FnMut(&mut Value)) {
        let own = self.others.iter_mut().filter(|((own, ..), _)| own == kind);
        own.for_each(|(_, object)| change(object));
    }

    /// Removes a cluster-scoped object of a kind that is kept unabridged. Returns whether it existed.
    pub(crate) fn forget(&mut self, kind: &str, name: &str) -> bool {
        let title = [kind, "", name].map(str::to_owned);
        self.others.remove(&title.into()).is_some()
    }

    /// Returns all nodes, sorted by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeSpec> {
        self.nodes.values()
    }

    /// Removes the pods for which `goes` returns true, and returns them.
    pub(crate) fn take_pods(&mut self, mut goes: impl FnMut(&PodSpec) -> bool) -> Vec<PodSpec> {
        let all = std::mem::take(&mut self.pods).into_iter();
        let (gone, left): (Vec<PodSpec>, Vec<PodSpec>) = all.partition(|pod| goes(pod));
        self.pods = left;
        for pod in &gone {
            let key = pod.key();
            self.cluster.denominate(&key);
            if self.cluster.node_of_pod(&key).is_some() {
                // The pod is on that node, so this cannot fail.
                let _ = self.cluster.remove_pod(&key);
            }
        }
        gone
    }

    /// Returns whether there is an object of a kind that is kept unabridged.
    pub(crate) fn has(&self, kind: &str) -> bool {
        // Objects of one kind follow each other.
        let first = (kind.to_owned(), String::new(), String::new());
        let found = self.others.range(first..).next();
        found.is_some_and(|((own, ..), _)| own == kind)
    }

    /// Returns the pod with this namespace and name.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&PodSpec> {
        self.pods
            .iter()
            .find(|pod| pod.name == name && pod.template.namespace == namespace)
    }
}

/// Returns whether a ConfigMap has settings or records that count.
pub(super) fn is_read(namespace: &str, name: &str) -> bool {
    let title = ["ConfigMap", namespace, name].map(str::to_owned).into();
    [vpc_cni(), discovered()].contains(&title)
}

/// Returns the title of the ConfigMap that records the capacity which nodes turned out to have.
fn discovered() -> ObjectKey {
    let (namespace, name) = KEPT_IN;
    ["ConfigMap", namespace, name].map(str::to_owned).into()
}

/// Returns the title of the ConfigMap with the settings of the VPC resource controller.
fn vpc_cni() -> ObjectKey {
    ["ConfigMap", "kube-system", "amazon-vpc-cni"]
        .map(str::to_owned)
        .into()
}

/// Returns the data of a ConfigMap.
fn data_of(config: &Value) -> BTreeMap<String, String> {
    let data = config["data"].as_object().into_iter().flatten();
    data.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn key_of(kind: &str, object: &Value) -> ObjectKey {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &object["metadata"];
    (
        kind.to_owned(),
        text(&meta["namespace"]),
        text(&meta["name"]),
    )
}

#[cfg(test)]
mod tests {
    use mullion_engine::Options;
    use serde_json::json;

    use super::{
        super::object::{fault, title},
        reading::KEPT,
        *,
    };

    fn nodes(text: &str, usual: &str) -> usize {
        let raw = RawValue::from_string(text.to_owned()).expect("JSON");
        let mut state = State::new(Cluster::new(Options::default()));
        state.add(&raw, usual).expect("an object");
        state.cluster.node_count()
    }

    #[test]
    fn an_object_is_what_its_kind_says_wherever_that_stands() {
        let first = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#;
        let last = r#"{"metadata":{"name":"a","labels":{"kind":"Pod"}},"kind":"Node"}"#;
        let none = r#"{"metadata":{"name":"a"}}"#;
        assert_eq!(
            (nodes(first, ""), nodes(last, ""), nodes(last, "Pod")),
            (1, 1, 1)
        );
        assert_eq!(nodes(none, "Node"), 1);
        let list = format!(r#"{{"items":[{none},{first}],"kind":"NodeList"}}"#);
        assert_eq!(nodes(&list.replacen("\"a\"", "\"b\"", 1), ""), 2);
        let nested = format!(
            r#"{{"kind":"List","metadata":{{}},"items":[{{"kind":"List","items":[{first}]}}]}}"#
        );
        assert_eq!(nodes(&nested, ""), 1);
    }

    #[test]
    fn an_object_without_a_kind_is_refused() {
        let raw = RawValue::from_string(r#"{"metadata":{"name":"a"}}"#.to_owned()).expect("JSON");
        let mut state = State::new(Cluster::new(Options::default()));
        let refused = state.add(&raw, "").expect_err("no kind");
        assert_eq!(
            (title(&raw, ""), fault(&refused)),
            ("a".to_owned(), "an object without a kind".to_owned())
        );
    }

    #[test]
    fn null_means_nothing() {
        let pod = r#"{"kind":"Pod","metadata":{"name":"a","ownerReferences":null},
            "spec":{"nodeName":"n","containers":[{"resources":null,"ports":null}]}}"#;
        let raw = RawValue::from_string(pod.to_owned()).expect("JSON");
        let mut state = State::new(Cluster::new(Options::default()));
        state.add(&raw, "").expect("a pod");
        assert_eq!(state.cluster.pod_count(), 1);
    }

    fn state_of(objects: &[Value]) -> State {
        let mut state = State::new(Cluster::new(Options::default()));
        for object in objects {
            let raw = RawValue::from_string(object.to_string()).expect("JSON");
            state.add(&raw, "").expect("an object");
        }
        state
    }

    #[test]
    fn an_object_that_is_kept_takes_the_place_of_one_of_its_name() {
        for kind in KEPT.into_iter().chain(["StorageClass"]) {
            let of = |home: &str, value: i32| {
                json!({
                    "kind": kind, "metadata": {"name": "a", "namespace": home}, "value": value,
                    "provisioner": "p", "status": {"value": value},
                })
            };
            let state = state_of(&[of("x", 1), of("y", 2), of("x", 3)]);
            let kept: Vec<Value> = state.kept(kind).expect("objects");
            let values: Vec<_> = kept.iter().map(|own| own["value"].clone()).collect();
            assert_eq!(values, [3, 2], "{kind}");
            assert_eq!(state.status_of(&of("y", 0)), Some(&json!({"value": 2})));
        }
    }
}
