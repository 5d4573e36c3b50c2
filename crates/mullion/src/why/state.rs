//! A cluster as the engine sees it, read from objects: of a file (`kubectl get -o json`), of a case, or of a live API server.
//!
//! Objects are read one by one as they come, straight into the engine's types, and nothing of them is kept but what placing needs. Kinds
//! that do not matter to placing are passed over.

use std::collections::{BTreeMap, BTreeSet};

use mullion_api::labels::{self, PLACED_BY_IMAGE};
use mullion_cloud::WindowsAddresses;
use mullion_controllers::provisioner::{
    self,
    discovered::{Book, KEPT_IN},
};
use mullion_engine::{
    Cluster, ModelError,
    images::ImageTable,
    ip::Settings,
    model::{
        CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, DeviceClassSpec, NamespaceSpec,
        NodeSpec, PdbSpec, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodSpec,
        RESIZE_PENDING, ResourceClaimSpec, ResourceSliceSpec, ServiceSpec, StorageClassSpec,
        VolumeAttachmentSpec, WorkloadSpec,
    },
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error, IgnoredAny},
};
use serde_json::{Value, value::RawValue};

use super::{
    images::{self, ImageWord},
    nulls::without_nulls,
    object::{Nested, Object, is_list, named, whole},
};

/// Kinds that are kept as they are, for those who understand them.
const KEPT: [&str; 10] = [
    "DaemonSet",
    "NodePool",
    "NodeOverlay",
    "EC2NodeClass",
    "SimulatedAccount",
    "NodeClaim",
    "LimitRange",
    "ResourceClaimTemplate",
    "PriorityClass",
    "RuntimeClass",
];

/// The cluster, and what is not part of the engine's model.
pub(crate) struct State {
    /// Nodes, bound pods and the objects that matter to them.
    pub(crate) cluster: Cluster,
    /// Every pod, bound or not. None are kept for a case, whose pods are asked about by key only.
    pub(crate) pods: Vec<PodSpec>,
    keeps_pods: bool,
    /// Nodes and pods are kept as they are, too.
    keeps_whole: bool,
    /// A pod has a priority.
    pub(super) has_priorities: bool,
    /// Every node by its name; none are kept for a case, as of what follows.
    nodes: BTreeMap<String, NodeSpec>,
    /// Claims, and volumes that are somebody's: a manifest changes none of them.
    settled: BTreeSet<Title>,
    /// Why pods are not resized that ask for it.
    resizes: BTreeMap<Title, String>,
    /// What images run on, as placement from images wrote it into pods.
    images: BTreeMap<Title, Vec<ImageWord>>,
    /// Namespace and name of the Windows pods that have an address.
    pub(super) addressed: BTreeSet<(String, String)>,
    /// Objects of the kinds that only some questions need.
    others: BTreeMap<Title, Value>,
    /// `status.nodeInfo.kubeletVersion` of a node: the cluster's version, as near as a node can say it.
    pub(super) kubelet_version: Option<String>,
    /// What the plans of the cluster's provisioner heed.
    pub(crate) settings: provisioner::Settings,
}

/// Kind, namespace and name.
type Title = (String, String, String);

/// Any list: a `v1` List, or one of a kind's own.
#[derive(Deserialize)]
pub(crate) struct List {
    /// `List`, `PodList`, or the kind of a single object.
    #[serde(default)]
    pub(super) kind: String,
    /// Absent in a single object.
    pub(crate) items: Option<Vec<Box<RawValue>>>,
}

impl State {
    /// Into a cluster without anything in it.
    pub(crate) fn new(empty: Cluster) -> Self {
        State {
            keeps_pods: true,
            ..State::of(empty)
        }
    }

    /// Keeps nodes and pods as they are, too, for those who look at their annotations and conditions.
    pub(crate) fn keeping_whole(self) -> Self {
        State {
            keeps_whole: true,
            ..self
        }
    }

    /// The same for a case.
    pub(super) fn of(cluster: Cluster) -> Self {
        State {
            cluster,
            pods: Vec::new(),
            keeps_pods: false,
            keeps_whole: false,
            has_priorities: false,
            nodes: BTreeMap::new(),
            settled: BTreeSet::new(),
            resizes: BTreeMap::new(),
            images: BTreeMap::new(),
            addressed: BTreeSet::new(),
            others: BTreeMap::new(),
            kubelet_version: None,
            settings: provisioner::Settings::default(),
        }
    }

    /// Takes an object in; `usual` is the kind of one that names none, as in a typed list.
    ///
    /// # Errors
    /// It is malformed, or says what cannot be true (a negative request, two nodes of one name).
    pub(crate) fn add(&mut self, object: &RawValue, usual: &str) -> Result<(), serde_json::Error> {
        let text = object.get();
        if self.kubelet_version.is_none() && text.contains("kubeletVersion") {
            let value: Value = serde_json::from_str(text)?;
            let version = value.pointer("/status/nodeInfo/kubeletVersion");
            self.kubelet_version = version.and_then(Value::as_str).map(str::to_owned);
        }
        if self.keeps_pods && text.contains(RESIZE_PENDING.0) {
            self.note_resize(&serde_json::from_str(text)?);
        }
        if self.keeps_pods && text.contains(PLACED_BY_IMAGE) {
            self.note_images(&serde_json::from_str(text)?);
        }
        if self.keeps_pods && text.contains(labels::PRIVATE_IPV4) {
            self.note_address(&serde_json::from_str(text)?);
        }
        self.tell(text, usual)
            .or_else(|error| match without_nulls(text.as_bytes()) {
                // Some items of a list may be there already.
                Some(text) if !is_list(&text, usual) => self.tell(&text, usual),
                _ => Err(error),
            })
    }

    /// Keeps why a pod that asks for other resources than it has does not get them.
    fn note_resize(&mut self, pod: &Value) {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let pending = conditions.find(|condition| condition["type"] == RESIZE_PENDING.0);
        let words = pending.map(|pending| [&pending["reason"], &pending["message"]]);
        let words = words.into_iter().flatten().filter_map(Value::as_str);
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        if !words.is_empty() {
            let title = title_of("Pod", pod);
            self.resizes.insert(title, words.join(": "));
        }
    }

    /// Keeps what placement from images wrote into a pod.
    pub(super) fn note_images(&mut self, pod: &Value) {
        if let Some(report) = pod["metadata"]["annotations"][PLACED_BY_IMAGE].as_str() {
            let words = images::of_annotation(report);
            self.images.insert(title_of("Pod", pod), words);
        }
    }

    /// Whether the cluster has placed a pod by its images.
    pub(super) fn is_placed_by_image(&self) -> bool {
        !self.images.is_empty()
    }

    /// Returns what is known of a pod's images, where that matters.
    pub(super) fn images_of(&self, pod: &PodSpec, table: &ImageTable) -> Vec<ImageWord> {
        let home = pod.template.namespace.clone();
        let title = ("Pod".to_owned(), home, pod.name.clone());
        let words = self.images.get(&title).cloned();
        words.unwrap_or_else(|| images::guessed(pod, table))
    }

    /// Keeps which pods have been given an address.
    fn note_address(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        if metadata["annotations"][labels::PRIVATE_IPV4].is_string() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let title = (text(&metadata["namespace"]), text(&metadata["name"]));
            self.addressed.insert(title);
        }
    }

    /// Why a pod is not resized as it asks; none where it does not ask.
    pub(super) fn resize_of(&self, pod: &PodSpec) -> Option<&String> {
        let home = pod.template.namespace.clone();
        let title = ("Pod".to_owned(), home, pod.name.clone());
        self.resizes.get(&title)
    }

    fn tell(&mut self, text: &str, usual: &str) -> Result<(), serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let state = self;
        Object { state, usual }.deserialize(&mut reader)
    }

    /// Takes what is left of an object in, once its kind is known.
    pub(super) fn take<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let cluster = &mut self.cluster;
        let refuse = |error: ModelError| D::Error::custom(error);
        match kind {
            "Node" if self.keeps_whole => {
                let object = whole(rest)?;
                let node = NodeSpec::deserialize(&object).map_err(D::Error::custom)?;
                cluster.add_node(&node).map_err(refuse)?;
                self.nodes.insert(node.name.clone(), node);
                self.keep(kind, object);
            }
            "Node" => {
                let node = named(rest, |own: &NodeSpec| &own.name)?;
                cluster.add_node(&node).map_err(refuse)?;
                if self.keeps_pods {
                    self.nodes.insert(node.name.clone(), node);
                }
            }
            "Pod" if self.keeps_whole => {
                let object = whole(rest)?;
                let pod = PodSpec::deserialize(&object).map_err(D::Error::custom)?;
                self.add_pod(pod).map_err(refuse)?;
                self.keep(kind, object);
            }
            "Pod" => {
                let pod = named(rest, |own: &PodSpec| &own.name)?;
                self.add_pod(pod).map_err(refuse)?;
            }
            // Placement from images reads its labels.
            "Namespace" if self.keeps_pods => {
                let namespace = whole(rest)?;
                let spec = NamespaceSpec::deserialize(&namespace).map_err(D::Error::custom)?;
                cluster.set_namespace(&spec);
                self.keep(kind, namespace);
            }
            "Namespace" => cluster.set_namespace(&named(rest, |own: &NamespaceSpec| &own.name)?),
            "Service" => cluster.set_service(&named(rest, |own: &ServiceSpec| &own.name)?),
            // How many of its pods may go is not for a manifest to say.
            "PodDisruptionBudget" if self.keeps_pods => {
                let budget = whole(rest)?;
                let spec = PdbSpec::deserialize(&budget).map_err(D::Error::custom)?;
                cluster.set_pdb(&spec);
                self.keep(kind, budget);
            }
            "PodDisruptionBudget" => cluster.set_pdb(&named(rest, |own: &PdbSpec| &own.name)?),
            "ReplicaSet" | "ReplicationController" | "StatefulSet" => {
                cluster.set_workload(&WorkloadSpec {
                    kind: kind.to_owned(),
                    ..named(rest, |own: &WorkloadSpec| &own.name)?
                });
            }
            "PersistentVolumeClaim" => {
                let claim = named(rest, |own: &PersistentVolumeClaimSpec| &own.name)?;
                cluster.set_claim(&claim);
                self.settle(kind, claim.namespace, claim.name);
            }
            "PersistentVolume" => {
                let volume = named(rest, |own: &PersistentVolumeSpec| &own.name)?;
                cluster.set_volume(&volume);
                if volume.claim.is_some() {
                    self.settle(kind, String::new(), volume.name);
                }
            }
            // Which class is the default is for the admission of claims to know.
            "StorageClass" if self.keeps_pods => {
                let class = whole(rest)?;
                let spec = StorageClassSpec::deserialize(&class).map_err(D::Error::custom)?;
                cluster.set_storage_class(&spec);
                self.keep(kind, class);
            }
            "StorageClass" => {
                cluster.set_storage_class(&named(rest, |own: &StorageClassSpec| &own.name)?);
            }
            "CSINode" => cluster.set_csi_node(&named(rest, |own: &CsiNodeSpec| &own.name)?),
            "CSIDriver" => cluster.set_csi_driver(&named(rest, |own: &CsiDriverSpec| &own.name)?),
            "CSIStorageCapacity" => {
                let capacity = named(rest, |own: &CsiStorageCapacitySpec| &own.name)?;
                cluster.set_storage_capacity(&capacity);
            }
            "VolumeAttachment" => {
                let attachment = named(rest, |own: &VolumeAttachmentSpec| &own.name)?;
                cluster.set_volume_attachment(&attachment);
            }
            "ResourceClaim" => {
                let claim = named(rest, |own: &ResourceClaimSpec| &own.name)?;
                cluster.set_resource_claim(&claim);
                self.settle(kind, claim.namespace, claim.name);
            }
            "DeviceClass" => {
                cluster.set_device_class(&named(rest, |own: &DeviceClassSpec| &own.name)?);
            }
            "ResourceSlice" => {
                cluster.set_resource_slice(&named(rest, |own: &ResourceSliceSpec| &own.name)?);
            }
            "ConfigMap" => {
                let config = whole(rest)?;
                if [vpc_cni(), discovered()].contains(&title_of(kind, &config)) {
                    self.keep(kind, config);
                }
            }
            kind if KEPT.contains(&kind) => self.keep(kind, whole(rest)?),
            "" => return Err(D::Error::custom("an object without a kind")),
            list if list.ends_with("List") => {
                let usual = list.strip_suffix("List").unwrap_or_default();
                return rest.deserialize_map(Nested { state: self, usual });
            }
            _ => drop(IgnoredAny::deserialize(rest)?),
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: PodSpec) -> Result<(), ModelError> {
        self.has_priorities |= pod.template.priority != 0;
        match (&pod.node_name, &pod.nominated_node_name) {
            (Some(_), _) if !self.keeps_pods => return self.cluster.take_pod(pod),
            (Some(_), _) => self.cluster.add_pod(&pod)?,
            (None, Some(node)) => self.cluster.nominate(&pod, node)?,
            (None, None) => {}
        }
        if self.keeps_pods {
            self.pods.push(pod);
        }
        Ok(())
    }

    /// Keeps an object in place of one of its name.
    fn keep(&mut self, kind: &str, object: Value) {
        self.others.insert(title_of(kind, &object), object);
    }

    fn settle(&mut self, kind: &str, namespace: String, name: String) {
        if self.keeps_pods {
            self.settled.insert((kind.to_owned(), namespace, name));
        }
    }

    /// Whether there is such a claim, or such a volume that is somebody's. What claims ask for does not change once they are there, and
    /// what they were given is not for a manifest to say.
    pub(crate) fn is_settled(&self, object: &Value) -> bool {
        let kind = object["kind"].as_str().unwrap_or_default();
        self.settled.contains(&title_of(kind, object))
    }

    /// What became of an object that is kept as it is; none where there is none of its name.
    pub(super) fn status_of(&self, object: &Value) -> Option<&Value> {
        let kind = object["kind"].as_str().unwrap_or_default();
        self.others.get(&title_of(kind, object))?.get("status")
    }

    /// Takes in a node of a manifest. One that is there is changed as `kubectl apply` would change it: labels are added, and what the manifest
    /// does not say stays; only a status counts as written.
    ///
    /// # Errors
    /// It is malformed, has no name, or offers a negative amount.
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

    /// The objects of a kind that was kept as it is, by their names.
    ///
    /// # Errors
    /// One of them is malformed: which one, and why.
    pub(crate) fn kept<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, String> {
        let own = self.others.iter().filter(|((own, ..), _)| own == kind);
        own.map(|((_, _, name), object)| {
            T::deserialize(object).map_err(|error| format!("{kind} {name}: {error}"))
        })
        .collect()
    }

    /// Returns what the ConfigMap of the VPC resource controller says, if the state holds it.
    pub(crate) fn address_settings(&self) -> Option<Settings> {
        let config = self.others.get(&vpc_cni())?;
        Some(Settings::read(&data_of(config)).0)
    }

    /// Returns what nodes of the cluster turned out to have, as far as the state holds it.
    pub(crate) fn discovered_capacity(&self) -> Book {
        let kept = self.others.get(&discovered());
        kept.map_or_else(Book::default, |config| Book::read(&data_of(config)).0)
    }

    /// Returns how pods of new Windows nodes get addresses: one by one where the state does not say, as Karpenter takes it.
    pub(crate) fn windows_addresses(&self) -> WindowsAddresses {
        let settings = self.address_settings();
        settings.map_or_else(WindowsAddresses::default, |own| WindowsAddresses::of(&own))
    }

    /// Returns an object of a kind that is kept as it is.
    pub(crate) fn kept_object(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        let title = [kind, namespace, name].map(str::to_owned);
        self.others.get(&title.into())
    }

    /// Returns the names of the objects of a kind that is kept as it is.
    pub(crate) fn names_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        let own = self.others.keys().filter(move |(own, ..)| own == kind);
        own.map(|(_, _, name)| name.as_str())
    }

    /// Changes every object of a kind that is kept as it is.
    pub(crate) fn edit(&mut self, kind: &str, mut change: impl FnMut(&mut Value)) {
        let own = self.others.iter_mut().filter(|((own, ..), _)| own == kind);
        own.for_each(|(_, object)| change(object));
    }

    /// Forgets an object that is kept as it is and in no namespace. Returns whether it was there.
    pub(crate) fn forget(&mut self, kind: &str, name: &str) -> bool {
        let title = [kind, "", name].map(str::to_owned);
        self.others.remove(&title.into()).is_some()
    }

    /// Returns the nodes by their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeSpec> {
        self.nodes.values()
    }

    /// Takes pods out for which this holds; returns them.
    pub(crate) fn take_pods(&mut self, mut goes: impl FnMut(&PodSpec) -> bool) -> Vec<PodSpec> {
        let all = std::mem::take(&mut self.pods).into_iter();
        let (gone, left): (Vec<PodSpec>, Vec<PodSpec>) = all.partition(|pod| goes(pod));
        self.pods = left;
        for pod in &gone {
            let key = pod.key();
            self.cluster.denominate(&key);
            if self.cluster.node_of_pod(&key).is_some() {
                // It is there, as its node says.
                let _ = self.cluster.remove_pod(&key);
            }
        }
        gone
    }

    /// Whether there is an object of a kind that is kept as it is.
    pub(crate) fn has(&self, kind: &str) -> bool {
        self.others.keys().any(|(own, ..)| own == kind)
    }

    /// The pod of a name.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&PodSpec> {
        self.pods
            .iter()
            .find(|pod| pod.name == name && pod.template.namespace == namespace)
    }
}

/// The ConfigMap that switches addresses of Windows pods.
fn discovered() -> Title {
    let (namespace, name) = KEPT_IN;
    ["ConfigMap", namespace, name].map(str::to_owned).into()
}

fn vpc_cni() -> Title {
    ["ConfigMap", "kube-system", "amazon-vpc-cni"]
        .map(str::to_owned)
        .into()
}

/// The data of a ConfigMap.
fn data_of(config: &Value) -> BTreeMap<String, String> {
    let data = config["data"].as_object().into_iter().flatten();
    data.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn title_of(kind: &str, object: &Value) -> Title {
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
