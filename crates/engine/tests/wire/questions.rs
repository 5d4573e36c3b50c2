//! What is asked of any bytes that claim to be the engine's input: nothing panics, and what is answered holds together.
//!
//! Each question is a function of bytes, so that fuzz targets and ordinary tests ask the same.

use mullion_engine::model::{
    Container, CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, LabelSelector, NamespaceSpec,
    NodeAffinity, NodeSelector, NodeSpec, PdbSpec, PersistentVolumeClaimSpec, PersistentVolumeSpec,
    PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Quantity, ServiceSpec, StorageClassSpec,
    StringMap, TopologySpreadConstraint, VolumeAttachmentSpec, WorkloadSpec,
};
use mullion_engine::{Cluster, Decision, Options};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A quantity as text: written and read again it is the same, and its roundings agree.
pub(crate) fn quantity(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(quantity) = text.parse::<Quantity>() else {
        return;
    };
    let written = quantity.to_string();
    assert_eq!(written.parse(), Ok(quantity), "{text} is written {written}");
    assert_eq!(quantity.is_zero(), quantity == Quantity::default());
    assert_eq!(quantity.is_negative(), quantity < Quantity::default());
    let (units, milli) = (
        i128::from(quantity.value()),
        i128::from(quantity.milli_value()),
    );
    let cut = milli == i128::from(i64::MAX) || milli == i128::from(i64::MIN);
    assert!(
        cut || (milli <= 1000 * units && milli > 1000 * (units - 1)),
        "{text} is {units} or {milli}m"
    );
    let back = quantity.saturating_add(quantity).saturating_sub(quantity);
    let (more, less) = if quantity.is_negative() {
        (Quantity::default(), quantity)
    } else {
        (quantity, Quantity::default())
    };
    assert!(
        less <= back && back <= more,
        "{text} doubled less itself is {back}"
    );
}

/// `{"labels": {...}, "selector": a label selector, "nodes": a node selector}`: two pods of these labels, kept together
/// by the selector and sent to nodes by the other, on one node with the labels and one without.
pub(crate) fn selector(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let (Some(labels), Some(selector), Some(nodes)) = (
        field::<StringMap>(&value, "labels"),
        field::<LabelSelector>(&value, "selector"),
        field::<NodeSelector>(&value, "nodes"),
    ) else {
        return;
    };
    let mut cluster = Cluster::new(Options::default());
    for name in ["a", "b"] {
        let mut node = NodeSpec::named(name);
        node.allocatable
            .insert("pods".into(), Quantity::from_units(9));
        if name == "a" {
            node.labels.clone_from(&labels);
        }
        node.labels.insert("place".into(), name.into());
        cluster
            .set_node(&node)
            .expect("named, and offers no less than nothing");
    }
    let mut template = PodTemplate {
        labels,
        containers: vec![Container::default()],
        ..PodTemplate::default()
    };
    template.affinity.node_affinity = Some(NodeAffinity {
        required: Some(nodes),
        ..NodeAffinity::default()
    });
    template.affinity.pod_affinity = Some(PodAffinity {
        required: vec![PodAffinityTerm {
            label_selector: Some(selector.clone()),
            topology_key: "place".into(),
            ..PodAffinityTerm::default()
        }],
        ..PodAffinity::default()
    });
    template.topology_spread_constraints = vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "place".into(),
        label_selector: Some(selector),
        ..TopologySpreadConstraint::default()
    }];
    for name in ["first", "second"] {
        let pod = PodSpec {
            name: name.into(),
            template: template.clone(),
            ..PodSpec::default()
        };
        if let Some(node) = ask(&mut cluster, &pod) {
            cluster.bind(&pod, &node).expect("a new pod");
        }
    }
}

/// Objects as JSON, a line each: what can be taken in is, and pods without a node are asked about.
pub(crate) fn objects(input: &[u8]) {
    let mut cluster = Cluster::new(Options::default());
    for line in input.split(|byte| *byte == b'\n').take(200) {
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        take(&mut cluster, value);
    }
}

fn take(cluster: &mut Cluster, value: Value) {
    match value["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
        .as_str()
    {
        "Node" => with(value, |node: NodeSpec| drop(cluster.set_node(&node))),
        "Namespace" => with(value, |own: NamespaceSpec| cluster.set_namespace(&own)),
        "Service" => with(value, |own: ServiceSpec| cluster.set_service(&own)),
        "PodDisruptionBudget" => with(value, |own: PdbSpec| cluster.set_pdb(&own)),
        "ReplicaSet" => with(value, |own: WorkloadSpec| cluster.set_workload(&own)),
        "PersistentVolumeClaim" => {
            with(value, |own: PersistentVolumeClaimSpec| {
                cluster.set_claim(&own)
            });
        }
        "PersistentVolume" => with(value, |own: PersistentVolumeSpec| cluster.set_volume(&own)),
        "StorageClass" => with(value, |own: StorageClassSpec| {
            cluster.set_storage_class(&own)
        }),
        "CSINode" => with(value, |own: CsiNodeSpec| cluster.set_csi_node(&own)),
        "CSIDriver" => with(value, |own: CsiDriverSpec| cluster.set_csi_driver(&own)),
        "CSIStorageCapacity" => {
            with(value, |own: CsiStorageCapacitySpec| {
                cluster.set_storage_capacity(&own)
            });
        }
        "VolumeAttachment" => {
            with(value, |own: VolumeAttachmentSpec| {
                cluster.set_volume_attachment(&own)
            });
        }
        "Pod" => with(value, |pod: PodSpec| {
            if pod.node_name.is_some() {
                drop(cluster.set_pod(&pod));
            } else {
                ask(cluster, &pod);
            }
        }),
        _ => {}
    }
}

fn with<T: DeserializeOwned>(value: Value, take: impl FnOnce(T)) {
    if let Ok(object) = serde_json::from_value(value) {
        take(object);
    }
}

fn field<T: DeserializeOwned + Default>(value: &Value, name: &str) -> Option<T> {
    match value.get(name) {
        None => Some(T::default()),
        Some(field) => serde_json::from_value(field.clone()).ok(),
    }
}

/// Asks about a pod every way there is; gives the node it would go to.
fn ask(cluster: &mut Cluster, pod: &PodSpec) -> Option<String> {
    let decision = cluster.schedule_pod(pod, 1).ok()?;
    let class = cluster.pod_class(&pod.template).expect("taken before");
    let checkpoint = cluster.checkpoint();
    let answer = cluster.answer(class);
    let node = match decision {
        Decision::Node(node) => {
            let promised = pod.nominated_node_name.is_some();
            assert!(promised || answer.best.contains(&node), "one of the best");
            let name = cluster.node_name(node).to_owned();
            let copy = PodSpec {
                uid: "a copy of it".into(),
                ..pod.clone()
            };
            drop(cluster.bind(&copy, &name));
            Some(name)
        }
        Decision::Unschedulable(refused) => {
            let nominated = cluster.is_nominated(&pod.key());
            assert!(nominated || cluster.unschedulable(&answer).as_ref() == Some(&refused));
            let preemption = cluster.preempt(class, &pod.key(), &refused, 1);
            assert!(
                !cluster
                    .message_with_preemption(&refused, &preemption)
                    .is_empty()
            );
            None
        }
    };
    cluster.rollback(checkpoint);
    assert_eq!(
        cluster.answer(class),
        answer,
        "a what-if leaves nothing behind"
    );
    node
}
