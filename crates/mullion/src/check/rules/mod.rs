//! Defines the rules as functions of what is checked and what is known; each group of the table has a file.

mod builds;
mod config_maps;
mod deprecated;
mod fields;
mod identity;
mod image_names;
mod instance_types;
mod karpenter;
mod label_values;
mod network;
mod nodes;
mod placement;
mod pod_spec;
mod pools;
mod resources;
mod runtime_class;
mod volumes;
mod zones;

use std::collections::BTreeSet;

use jiff::Timestamp;
use mullion_api::labels::PLACE_BY_IMAGE;
use mullion_engine::{images::System, windows::Builds};
use serde_json::Value;

use super::{
    finding::{Finding, Findings},
    fleet::Fleet,
    images::Images,
    live::Live,
    placement::{Choice, list},
    schemas::Schemas,
    subject::{CredentialUse, Object, Pod},
};

/// The rules that judge patches too.
const OF_PATCHES: [&str; 3] = ["MUL080", "MUL081", "MUL082"];

/// What is checked, and what is known about the cluster.
pub(super) struct Context<'a> {
    /// The checked objects, followed by those that describe the cluster.
    pub(super) objects: &'a [Object],
    /// The number of checked objects.
    pub(super) checked: usize,
    /// The pods of the checked objects.
    pub(super) pods: Vec<Pod<'a>>,
    /// The nodes of the cluster: those that were given, or else those of the checked objects.
    pub(super) fleet: Fleet,
    /// The node groups and pools among the checked objects.
    pub(super) own: Fleet,
    pub(super) builds: Builds,
    /// Whether anything shows that there are Windows nodes or pods.
    pub(super) mixed: bool,
    /// Whether the objects are all those of a running cluster, so that objects missing among them do not exist.
    pub(super) live: bool,
    /// The uses of credential specs that the cluster's authorizer denies; `None` without a running cluster.
    pub(super) denied: Option<&'a BTreeSet<CredentialUse>>,
    /// The schemas of the kinds of the objects.
    pub(super) schemas: Schemas,
    /// What is known of the cluster's zones.
    zones: zones::Zones,
    /// Whether the cluster places pods by their images.
    places_by_image: bool,
}

impl<'a> Context<'a> {
    /// Collects pods and nodes. `live` is given for a running cluster; objects after the first `checked` ones describe the cluster's nodes
    /// if `known` is set. `now` is the time of the check.
    pub(super) fn new(
        objects: &'a [Object],
        checked: usize,
        known: bool,
        live: Option<&'a Live>,
        images: &dyn Images,
        now: Timestamp,
    ) -> Self {
        let pods: Vec<_> = objects[..checked]
            .iter()
            .enumerate()
            .filter_map(|(index, object)| Pod::of(object, index, images, objects))
            .collect();
        let own = Fleet::of(&objects[..checked], false);
        let fleet = if known || live.is_some() {
            // Nodes were described, so the cluster is taken to have no others.
            Fleet::of(objects, true)
        } else {
            own.clone()
        };
        let mixed = fleet.windows().next().is_some()
            || own.windows().next().is_some()
            || pods.iter().any(Pod::is_windows)
            || objects.iter().any(mentions_windows);
        Context {
            objects,
            checked,
            pods,
            fleet,
            own,
            builds: Builds::default(),
            mixed,
            live: live.is_some(),
            denied: live.map(|live| &live.denied),
            schemas: Schemas::of(&objects[..checked], now),
            zones: zones::Zones::of(objects),
            places_by_image: live.is_some_and(|live| live.places_by_image),
        }
    }

    /// Returns the checked objects with their indices.
    pub(super) fn checked(&self) -> impl Iterator<Item = (usize, &'a Object)> {
        self.objects[..self.checked].iter().enumerate()
    }

    /// Returns the Windows pods.
    pub(super) fn windows(&self) -> impl Iterator<Item = &Pod<'a>> {
        self.pods.iter().filter(|pod| pod.is_windows())
    }

    /// Returns the Windows pods that a selector of labels in a namespace selects.
    pub(super) fn selected(&self, namespace: &str, selector: &Value) -> Vec<&Pod<'a>> {
        let is_it = |pod: &&Pod<'_>| pod.namespace == namespace && pod.has_labels(selector);
        self.windows().filter(is_it).collect()
    }

    /// Returns whether a pod selects no operating system, and the cluster does not select one for it.
    pub(super) fn is_open(&self, pod: &Pod<'_>) -> bool {
        pod.placement.os == Choice::Open && !self.is_placed(pod)
    }

    /// Returns whether the cluster places a pod by its images. Mullion's labels on the pod or its namespace turn that off.
    fn is_placed(&self, pod: &Pod<'_>) -> bool {
        let label = |meta: &Value| {
            let text = meta["labels"][PLACE_BY_IMAGE].as_str()?;
            text.parse::<bool>().ok()
        };
        let is_home =
            |object: &&Object| object.is("Namespace", "") && object.name() == pod.namespace;
        self.places_by_image
            && pod.wanted().is_some()
            && label(pod.meta)
                .or_else(|| label(&self.objects.iter().find(is_home)?.value["metadata"]))
                // The pod's label wins over its namespace's, as in the admission rule.
                .unwrap_or(pod.namespace != "kube-system")
    }
}

/// Returns whether an object other than workloads and nodes shows that there are Windows nodes.
fn mentions_windows(object: &Object) -> bool {
    match object.kind() {
        "RuntimeClass" => {
            object.value["scheduling"]["nodeSelector"]["kubernetes.io/os"] == "windows"
        }
        "ConfigMap" if object.name() == "amazon-vpc-cni" => {
            let value = object.text_at("/data/enable-windows-ipam");
            config_maps::parse_bool(value) == Some(true)
        }
        "EC2NodeClass" => super::fleet::family_of(&object.value)
            .is_some_and(|family| super::fleet::system_of(family) == System::Windows),
        "AWSNodeTemplate" => object.text_at("/spec/amiFamily").starts_with("Windows"),
        _ => false,
    }
}

/// Applies every rule.
pub(super) fn all(context: &Context<'_>) -> Findings {
    let mut found = Findings::default();
    for pod in &context.pods {
        placement::check(context, pod, &mut found);
        builds::check(context, pod, &mut found);
        image_names::check(pod, &mut found);
        pod_spec::check(context, pod, &mut found);
        resources::check(context, pod, &mut found);
        network::check(context, pod, &mut found);
        zones::check_pod(context, pod, &mut found);
    }
    for (index, object) in context.checked() {
        runtime_class::check(context, index, object, &mut found);
        network::check_object(context, index, object, &mut found);
        // What `mullion up` says of zones is left out where this rule has said it.
        zones::check(context, index, object, &mut found);
        nodes::check(context, index, object, &mut found);
        config_maps::check(context, index, object, &mut found);
        instance_types::check(index, object, &mut found);
        volumes::check(index, object, &mut found);
        pools::check(index, object, &mut found);
        karpenter::check(index, object, &mut found);
        fields::check(context, index, object, &mut found);
    }
    nodes::check_groups(context, &mut found);
    resources::check_services(context, &mut found);
    // A patch is a part of an object, of which fields and types can be judged and nothing else.
    let is_judged =
        |own: &Finding| !context.objects[own.object].is_patch || OF_PATCHES.contains(&own.rule.id);
    found.0.retain(is_judged);
    found
}

/// Returns the strings of a list.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    list(value).filter_map(Value::as_str)
}
