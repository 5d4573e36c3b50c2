//! Random storage: few claims, volumes and classes, in every state that the rules tell apart; and telling the engine.

use mullion_engine::Cluster;
use serde_json::{Map, Value, json};

use crate::objects::read;
use crate::random::Random;

const CLASSES: [&str; 6] = ["fast", "zonal", "local", "now", "legacy", "absent"];
const DRIVER: &str = "ebs.csi.aws.com";

/// Applies an object to the cluster; kinds that the engine does not know are ignored.
pub(crate) fn apply(cluster: &mut Cluster, item: &Value) {
    match item["kind"].as_str() {
        Some("PersistentVolumeClaim") => cluster.set_claim(&read(item)),
        Some("PersistentVolume") => cluster.set_volume(&read(item)),
        Some("StorageClass") => cluster.set_storage_class(&read(item)),
        Some("CSINode") => cluster.set_csi_node(&read(item)),
        Some("CSIDriver") => cluster.set_csi_driver(&read(item)),
        Some("CSIStorageCapacity") => cluster.set_storage_capacity(&read(item)),
        Some("VolumeAttachment") => cluster.set_volume_attachment(&read(item)),
        _ => {}
    }
}

/// A volume of a pod.
pub(crate) fn volume(random: &mut Random) -> Value {
    let read_only = random.percent(50);
    match random.below(15) {
        0 => json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}),
        1 => {
            let id = random.text(&[
                "vol-1",
                "aws://a/vol-1",
                "vol-2",
                "aws:///vol-2",
                "aws://a/odd",
            ]);
            json!({"name": "d", "awsElasticBlockStore": {"volumeID": id}})
        }
        2 => {
            let name = random.text(&["p1", "p2"]);
            json!({"name": "d", "gcePersistentDisk": {"pdName": name, "readOnly": read_only}})
        }
        3 => {
            json!({"name": "d", "iscsi": {"iqn": random.text(&["i1", "i2"]), "readOnly": read_only}})
        }
        4 => {
            let monitors = [random.text(&["m1", "m2"]), "m3".to_owned()];
            let keep = 1 + random.below(2);
            json!({"name": "d", "rbd": {
                "monitors": monitors[..keep], "pool": random.text(&["rbd", "x"]), "image": "i", "readOnly": read_only,
            }})
        }
        5 => json!({"name": "d", "emptyDir": {}}),
        6 => {
            json!({"name": "d", "azureDisk": {"diskURI": random.text(&["u1", "u2"]), "kind": random.text(&["Managed", "Shared"])}})
        }
        7 => json!({"name": "d", "portworxVolume": {"volumeID": random.text(&["x1", "x2"])}}),
        8 => json!({"name": "d", "cinder": {"volumeID": random.text(&["vol-1", "vol-2"])}}),
        _ => {
            let claim = format!("c{}", random.below(5));
            json!({"name": "c", "persistentVolumeClaim": {"claimName": claim}})
        }
    }
}

/// Everything that volumes of pods may lead to.
pub(crate) fn objects(random: &mut Random, nodes: usize) -> Vec<Value> {
    let mut objects = classes(random);
    for namespace in ["default", "prod", "unlabelled"] {
        for index in 0..5 {
            if random.percent(92) {
                objects.push(claim(random, namespace, &format!("c{index}"), nodes));
            }
        }
        if random.percent(80) {
            let mut own = claim(random, namespace, "incoming-e", nodes);
            let uid = if random.percent(90) {
                "incoming"
            } else {
                "other"
            };
            own["metadata"]["ownerReferences"] =
                json!([{"kind": "Pod", "name": "incoming", "uid": uid, "controller": true}]);
            objects.push(own);
        }
    }
    for index in 0..6 {
        if random.percent(92) {
            objects.push(persistent(random, &format!("v{index}")));
        }
    }
    for index in 0..nodes {
        if random.percent(60) {
            objects.push(csi_node(random, &format!("n{index:02}")));
        }
        if random.percent(30) {
            let volume = format!("v{}", random.below(6));
            objects.push(json!({"kind": "VolumeAttachment", "metadata": {"name": format!("a{index}")}, "spec": {
                "attacher": DRIVER, "nodeName": format!("n{index:02}"), "source": {"persistentVolumeName": volume},
            }}));
        }
    }
    if random.percent(40) {
        let publishes_capacity = random.percent(70);
        objects.push(json!({"kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"storageCapacity": publishes_capacity}}));
    }
    for index in 0..random.below(4) {
        objects.push(capacity(random, index));
    }
    objects
}

fn classes(random: &mut Random) -> Vec<Value> {
    let mut zones = vec![
        json!({"key": "topology.kubernetes.io/zone", "values": [random.text(&["a", "b"]), "c"]}),
    ];
    if random.percent(30) {
        zones.push(json!({"key": "disk", "values": ["ssd"]}));
    }
    let class = |name: &str, provisioner: &str, mode: &str| json!({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    let mut zonal = class("zonal", DRIVER, "WaitForFirstConsumer");
    zonal["allowedTopologies"] = json!([{"matchLabelExpressions": zones}]);
    vec![
        class("fast", DRIVER, "WaitForFirstConsumer"),
        zonal,
        class(
            "local",
            "kubernetes.io/no-provisioner",
            "WaitForFirstConsumer",
        ),
        class("now", DRIVER, "Immediate"),
        class(
            "legacy",
            &random.text(&[
                "kubernetes.io/aws-ebs",
                "kubernetes.io/azure-disk",
                "kubernetes.io/vsphere-volume",
            ]),
            "WaitForFirstConsumer",
        ),
    ]
}

fn modes(random: &mut Random) -> Value {
    match random.below(8) {
        0 => json!(["ReadWriteOncePod"]),
        1 => json!(["ReadWriteOnce", "ReadOnlyMany"]),
        2 => json!(["ReadWriteMany"]),
        _ => json!(["ReadWriteOnce"]),
    }
}

fn size(random: &mut Random) -> String {
    random.text(&["1Gi", "5Gi", "10Gi", "20Gi"])
}

fn claim(random: &mut Random, namespace: &str, name: &str, nodes: usize) -> Value {
    let there = if random.percent(95) { 5 } else { 6 };
    let class = random.text(&CLASSES[..there]);
    let mut spec = json!({
        "storageClassName": class, "accessModes": modes(random), "resources": {"requests": {"storage": size(random)}},
    });
    let mut metadata =
        json!({"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")});
    let mut status = json!({"phase": "Pending"});
    if random.percent(50) || (class == "now" && random.percent(80)) {
        spec["volumeName"] = json!(format!("v{}", random.below(6)));
        if random.percent(95) {
            metadata["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        }
        status = json!({"phase": if random.percent(97) { "Bound" } else { "Lost" }});
    } else if random.percent(15) {
        let node = format!("n{:02}", random.below(nodes));
        metadata["annotations"] = json!({"volume.kubernetes.io/selected-node": node});
    }
    if random.percent(3) {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    if random.percent(10) {
        spec["volumeMode"] = json!("Block");
    }
    if random.percent(10) {
        spec["volumeAttributesClassName"] = json!("gold");
    }
    if random.percent(15) {
        spec["selector"] = json!({"matchLabels": {"kind": "good"}});
    }
    json!({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec, "status": status})
}

fn persistent(random: &mut Random, name: &str) -> Value {
    let mut labels = Map::new();
    for (key, values) in [
        (
            "topology.kubernetes.io/zone",
            &["a", "b", "a__b", "a__"][..],
        ),
        ("failure-domain.beta.kubernetes.io/zone", &["a", "b"][..]),
        ("topology.kubernetes.io/region", &["r1", "r2"][..]),
        ("kind", &["good", "bad"][..]),
    ] {
        if random.percent(20) {
            labels.insert(key.into(), json!(random.text(values)));
        }
    }
    let mut metadata = json!({"name": name, "labels": labels});
    if random.percent(4) {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let mut spec = json!({
        "storageClassName": random.text(&["fast", "zonal", "local", "local", "legacy"]),
        "accessModes": modes(random), "capacity": {"storage": size(random)},
    });
    match random.below(13) {
        11 => {
            spec["azureDisk"] = json!({"diskURI": random.text(&["u1", "u2"]), "kind": random.text(&["Managed", "Dedicated"])})
        }
        12 => spec["portworxVolume"] = json!({"volumeID": "x1"}),
        10 => spec["cinder"] = json!({"volumeID": "vol-1"}),
        0 | 8 => {
            spec["awsElasticBlockStore"] =
                json!({"volumeID": random.text(&["vol-1", "aws://b/vol-2", "aws://b/c/vol-2"])})
        }
        1 => spec["gcePersistentDisk"] = json!({"pdName": "p1"}),
        2 => spec["nfs"] = json!({"server": "s", "path": "/"}),
        9 => spec["vsphereVolume"] = json!({"volumePath": "[d] v"}),
        _ => {
            let handle = random.text(&["vol-1", "vol-2", "vol-3", name]);
            spec["csi"] = json!({"driver": random.text(&[DRIVER, "other.example.com"]), "volumeHandle": handle});
        }
    }
    if spec.get("gcePersistentDisk").is_some() {
        let zones = [
            "a",
            "",
            "us-east1-b",
            "us-east1-b__us-east1-c",
            "us-east1-b__us-west1-a",
            "a__b",
        ];
        for key in [
            "topology.kubernetes.io/zone",
            "failure-domain.beta.kubernetes.io/zone",
        ] {
            if random.percent(60) {
                metadata["labels"][key] = json!(random.text(&zones));
            }
        }
    }
    if random.percent(60) {
        let term = match random.below(5) {
            0 => {
                json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [format!("n{:02}", random.below(4))]}]})
            }
            1 => {
                json!({"matchFields": [{"key": "metadata.name", "operator": random.text(&["In", "NotIn"]), "values": ["n00"]}]})
            }
            2 => json!({"matchExpressions": []}),
            _ => {
                let (zone, region) = if random.percent(75) {
                    (
                        "topology.kubernetes.io/zone",
                        "topology.kubernetes.io/region",
                    )
                } else {
                    (
                        "failure-domain.beta.kubernetes.io/zone",
                        "failure-domain.beta.kubernetes.io/region",
                    )
                };
                let mut demands = vec![
                    json!({"key": zone, "operator": "In", "values": [random.text(&["a", "b"])]}),
                ];
                if random.percent(15) {
                    demands.push(json!({"key": region, "operator": "In", "values": [random.text(&["r1", "r2"])]}));
                }
                if random.percent(5) {
                    demands[0] = json!({"key": zone, "operator": "Exists"});
                }
                json!({"matchExpressions": demands})
            }
        };
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [term]}});
    }
    if random.percent(25) {
        let (namespace, name) = (
            random.text(&["default", "prod"]),
            format!("c{}", random.below(5)),
        );
        let uid = match random.below(3) {
            0 => String::new(),
            1 => format!("{namespace}-{name}"),
            _ => "before".to_owned(),
        };
        spec["claimRef"] = json!({"namespace": namespace, "name": name, "uid": uid});
    }
    if random.percent(10) {
        spec["volumeMode"] = json!("Block");
    }
    if random.percent(10) {
        spec["volumeAttributesClassName"] = json!("gold");
    }
    let phase = if random.percent(80) {
        "Available"
    } else {
        "Released"
    };
    json!({"kind": "PersistentVolume", "metadata": metadata, "spec": spec, "status": {"phase": phase}})
}

fn csi_node(random: &mut Random, name: &str) -> Value {
    let known = [
        DRIVER,
        "other.example.com",
        "pd.csi.storage.gke.io",
        "disk.csi.azure.com",
        "pxd.portworx.com",
        "cinder.csi.openstack.org",
    ];
    let drivers: Vec<_> = known
        .iter()
        .map(|driver| {
            let mut own = json!({"name": driver, "nodeID": name});
            if random.percent(80) {
                own["allocatable"] = json!({"count": random.below(4)});
            }
            own
        })
        .collect();
    let mut node =
        json!({"kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": drivers}});
    if random.percent(60) {
        node["metadata"]["annotations"] = json!({
            "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd,kubernetes.io/vsphere-volume,kubernetes.io/cinder",
        });
    }
    node
}

fn capacity(random: &mut Random, index: usize) -> Value {
    let mut own = json!({
        "kind": "CSIStorageCapacity", "metadata": {"name": format!("k{index}"), "namespace": "kube-system"},
        "storageClassName": random.text(&["fast", "zonal", "now"]),
    });
    if random.percent(90) {
        own["nodeTopology"] =
            json!({"matchLabels": {"topology.kubernetes.io/zone": random.text(&["a", "b", "c"])}});
    }
    if random.percent(90) {
        own["capacity"] = json!(size(random));
    }
    if random.percent(30) {
        own["maximumVolumeSize"] = json!(size(random));
    }
    own
}
