//! The rules about volumes, asked of the objects as they are, one question at a time.

use std::collections::{BTreeMap, BTreeSet};

use mullion_engine::Plugin;
use serde_json::{Value, json};

use crate::filters::{self, Refusal, one};
use crate::objects::{Node, NodeSelector, Pod, Selector, World, read};
use crate::selectors::{meets, selects};

const PLACES: [(&str, &str); 4] = [
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    (
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
];

/// In-tree plugins whose disks are counted for a driver, with the field of a volume that names them.
const IN_TREE: [(&str, &str, &str); 5] = [
    (
        "kubernetes.io/azure-disk",
        "disk.csi.azure.com",
        "azureDisk",
    ),
    (
        "kubernetes.io/portworx-volume",
        "pxd.portworx.com",
        "portworxVolume",
    ),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org", "cinder"),
    (
        "kubernetes.io/aws-ebs",
        "ebs.csi.aws.com",
        "awsElasticBlockStore",
    ),
    (
        "kubernetes.io/gce-pd",
        "pd.csi.storage.gke.io",
        "gcePersistentDisk",
    ),
];

/// Fields of volumes whose plugin a driver may stand in for, with the plugin and the driver's label of the zone.
type Driver = (&'static str, &'static str);
const DRIVERS: [(&str, Driver); 3] = [
    (
        "awsElasticBlockStore",
        ("kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone"),
    ),
    (
        "gcePersistentDisk",
        ("kubernetes.io/gce-pd", "topology.gke.io/zone"),
    ),
    (
        "cinder",
        (
            "kubernetes.io/cinder",
            "topology.cinder.csi.openstack.org/zone",
        ),
    ),
];

impl World {
    fn stored(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.storage.iter().filter(move |own| own["kind"] == kind)
    }

    fn named(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<&Value> {
        self.stored(kind).find(|own| {
            let own = &own["metadata"];
            own["name"] == name && namespace.is_none_or(|namespace| own["namespace"] == namespace)
        })
    }

    fn claim(&self, pod: &Pod, name: &str) -> Option<&Value> {
        self.named("PersistentVolumeClaim", Some(&pod.metadata.namespace), name)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// The claims a pod names: the name and whether it is an ephemeral volume's.
pub(crate) fn claims(pod: &Pod) -> Vec<(String, bool)> {
    let volumes = pod.spec.volumes.iter().filter_map(|volume| {
        if let Some(name) = volume["persistentVolumeClaim"]["claimName"].as_str() {
            return Some((name.to_owned(), false));
        }
        volume.get("ephemeral")?;
        let name = format!("{}-{}", pod.metadata.name, text(&volume["name"]));
        Some((name, true))
    });
    volumes.collect()
}

fn belongs_to(claim: &Value, pod: &Pod) -> bool {
    let owners = claim["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == pod.metadata.uid.as_str())
}

fn class_of(object: &Value) -> &str {
    let beta = annotation(object, "volume.beta.kubernetes.io/storage-class");
    beta.unwrap_or_else(|| text(&object["spec"]["storageClassName"]))
}

fn is_bound(claim: &Value) -> bool {
    !text(&claim["spec"]["volumeName"]).is_empty()
        && annotation(claim, "pv.kubernetes.io/bind-completed").is_some()
}

fn waits(world: &World, claim: &Value) -> bool {
    world
        .named("StorageClass", None, class_of(claim))
        .is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer")
}

/// Why the pod is refused before any node is looked at, by the first plugin that says so.
pub(crate) fn before_nodes(world: &World, pod: &Pod) -> Option<Refusal> {
    let mut asked = world.profile.pre_filters.iter();
    asked.find_map(|plugin| conflict(world, pod, *plugin))
}

/// What is wrong with the pod's claims, in the words of one plugin.
pub(crate) fn conflict(world: &World, pod: &Pod, plugin: Plugin) -> Option<Refusal> {
    let words = match plugin {
        Plugin::VolumeRestrictions => claims(pod)
            .into_iter()
            .filter(|(_, ephemeral)| !ephemeral)
            .find_map(|(name, _)| world.claim(pod, &name).is_none().then(|| missing(&name))),
        Plugin::VolumeBinding => unbindable(world, pod),
        Plugin::VolumeZone => claims(pod)
            .into_iter()
            .filter(|(_, ephemeral)| !ephemeral)
            .find_map(|(name, _)| nowhere(world, pod, &name)),
        Plugin::NodeAffinity => {
            filters::names_contradict(pod).then(|| "pod affinity terms conflict".to_owned())
        }
        _ => None,
    };
    one(plugin.name(), &words?)
}

fn missing(name: &str) -> String {
    format!("persistentvolumeclaim \"{name}\" not found")
}

/// VolumeBinding: every claim must be there, and bound unless it waits for the pod.
fn unbindable(world: &World, pod: &Pod) -> Option<String> {
    for (name, ephemeral) in claims(pod) {
        let Some(claim) = world.claim(pod, &name) else {
            return Some(if ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                missing(&name)
            });
        };
        if claim["status"]["phase"] == "Lost" {
            let volume = text(&claim["spec"]["volumeName"]);
            return Some(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim["metadata"]["deletionTimestamp"].is_string() {
            return Some(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if ephemeral && !belongs_to(claim, pod) {
            let (namespace, own) = (&pod.metadata.namespace, &pod.metadata.name);
            return Some(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{own} (pod is not owner)"
            ));
        }
    }
    let own = claims(pod);
    let mut own = own.iter().filter_map(|(name, _)| world.claim(pod, name));
    let later =
        |claim: &Value| waits(world, claim) && text(&claim["spec"]["volumeName"]).is_empty();
    own.any(|claim| !is_bound(claim) && !later(claim))
        .then(|| "pod has unbound immediate PersistentVolumeClaims".to_owned())
}

/// VolumeZone: the volume of a claim must be there, unless it is still to come.
fn nowhere(world: &World, pod: &Pod, name: &str) -> Option<String> {
    let Some(claim) = world.claim(pod, name) else {
        return Some(missing(name));
    };
    let volume = text(&claim["spec"]["volumeName"]);
    let class = class_of(claim);
    if !volume.is_empty() {
        let there = world.named("PersistentVolume", None, volume).is_some();
        return (!there).then(|| format!("persistentvolume \"{volume}\" not found"));
    }
    if class.is_empty() {
        return Some("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
    }
    if world.named("StorageClass", None, class).is_none() {
        return Some(format!("storageclass.storage.k8s.io \"{class}\" not found"));
    }
    (!waits(world, claim)).then(|| "PersistentVolume had no name".to_owned())
}

fn clash(a: &Value, b: &Value) -> bool {
    let both = |field: &str| a.get(field).zip(b.get(field));
    let written = |(a, b): (&Value, &Value)| !(a["readOnly"] == true && b["readOnly"] == true);
    let same = |(a, b): (&Value, &Value), field: &str| a[field] == b[field];
    both("gcePersistentDisk").is_some_and(|own| same(own, "pdName") && written(own))
        || both("awsElasticBlockStore").is_some_and(|own| same(own, "volumeID"))
        || both("iscsi").is_some_and(|own| same(own, "iqn") && written(own))
        || both("rbd").is_some_and(|own| {
            let (a, b) = own;
            let mut monitors = a["monitors"].as_array().expect("monitors").iter();
            let theirs = b["monitors"].as_array().expect("monitors");
            monitors.any(|monitor| theirs.contains(monitor))
                && same(own, "pool")
                && same(own, "image")
                && written(own)
        })
}

pub(crate) fn restrictions(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    const PLUGIN: &str = "VolumeRestrictions";
    for volume in &pod.spec.volumes {
        for other in world.on(node) {
            if other
                .spec
                .volumes
                .iter()
                .any(|theirs| clash(volume, theirs))
            {
                return one(PLUGIN, "node(s) had no available disk");
            }
        }
    }
    let mut exclusive = exclusive(world, pod).into_iter();
    let used = match &world.trial {
        Some(trial) => trial.claims > 0,
        None => exclusive.any(|name| is_used(world, &pod.metadata.namespace, &name)),
    };
    let reason = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
    used.then(|| one(PLUGIN, reason))?
}

/// The claims of a pod that are for one pod, by name, each once.
pub(crate) fn exclusive(world: &World, pod: &Pod) -> Vec<String> {
    let single = |name: &String| {
        let claim = world.claim(pod, name);
        let modes = claim.and_then(|claim| claim["spec"]["accessModes"].as_array());
        modes.is_some_and(|modes| modes.contains(&"ReadWriteOncePod".into()))
    };
    let own = claims(pod).into_iter().filter(|(_, ephemeral)| !ephemeral);
    let mut names: Vec<_> = own.map(|(name, _)| name).filter(single).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether a placed pod has a claim.
pub(crate) fn is_used(world: &World, namespace: &str, name: &str) -> bool {
    world.placed.iter().any(|other| {
        other.metadata.namespace == namespace && claims(other).contains(&(name.to_owned(), false))
    })
}

pub(crate) fn has_disks(pod: &Pod) -> bool {
    const DISKS: [&str; 4] = ["gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi"];
    let mut volumes = pod.spec.volumes.iter();
    volumes.any(|volume| DISKS.iter().any(|disk| volume.get(*disk).is_some()))
}

/// Driver and handle of a volume, as its source says; `labels` are those of the object that has it.
fn source(volume: &Value, labels: &Value) -> Option<(String, String)> {
    let csi = &volume["csi"];
    if csi.is_object() {
        let (driver, handle) = (text(&csi["driver"]), text(&csi["volumeHandle"]));
        return (!driver.is_empty() && !handle.is_empty())
            .then(|| (driver.to_owned(), handle.to_owned()));
    }
    let (_, driver, field) = IN_TREE
        .into_iter()
        .find(|(_, _, field)| volume.get(*field).is_some())?;
    let disk = &volume[field];
    let handle = match field {
        "awsElasticBlockStore" => {
            let id = text(&disk["volumeID"]);
            let parts: Vec<&str> = id.split('/').collect();
            match parts[..] {
                [id] => id.to_owned(),
                ["aws:", "", _, id] if id.starts_with("vol-") => id.to_owned(),
                _ => return None,
            }
        }
        "azureDisk" => (disk["kind"] == "Managed").then(|| text(&disk["diskURI"]).to_owned())?,
        "gcePersistentDisk" => google(text(&disk["pdName"]), labels)?,
        _ => text(&disk["volumeID"]).to_owned(),
    };
    Some((driver.to_owned(), handle))
}

/// The driver's name of a Google disk: by the one zone it is in, or the one region of its zones.
fn google(disk: &str, labels: &Value) -> Option<String> {
    let beta = text(&labels["failure-domain.beta.kubernetes.io/zone"]);
    let zones = match beta {
        "" => text(&labels["topology.kubernetes.io/zone"]),
        beta => beta,
    };
    let place = match zones.contains("__") {
        false if zones.is_empty() => "zones/UNSPECIFIED".to_owned(),
        false => format!("zones/{zones}"),
        true => {
            let mut regions = BTreeSet::new();
            for zone in zones.split("__") {
                let parts: Vec<&str> = zone.split('-').collect();
                regions.insert((parts.len() == 3).then(|| format!("{}-{}", parts[0], parts[1]))?);
            }
            let only = regions.pop_first().filter(|_| regions.is_empty())?;
            format!("regions/{only}")
        }
    };
    Some(format!("projects/UNSPECIFIED/{place}/disks/{disk}"))
}

fn migrated(plugin: &str, csi_node: &Value) -> bool {
    let migrated = annotation(csi_node, "storage.alpha.kubernetes.io/migrated-plugins");
    migrated.is_some_and(|migrated| migrated.split(',').any(|own| own == plugin))
}

fn attachable(world: &World, pod: &Pod) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for volume in &pod.spec.volumes {
        found.extend(source(volume, &Value::Null));
    }
    for (name, ephemeral) in claims(pod) {
        let Some(claim) = world.claim(pod, &name) else {
            continue;
        };
        if ephemeral && !belongs_to(claim, pod) {
            continue;
        }
        match world.named("PersistentVolume", None, text(&claim["spec"]["volumeName"])) {
            Some(volume) => {
                found.extend(source(&volume["spec"], &volume["metadata"]["labels"]));
            }
            None => {
                let Some(class) = world.named("StorageClass", None, class_of(claim)) else {
                    continue;
                };
                let provisioner = text(&class["provisioner"]);
                let handle = format!("of claim {}/{name}", pod.metadata.namespace);
                let migrated = IN_TREE.iter().find(|own| own.0 == provisioner);
                match migrated {
                    Some((_, driver, _)) => drop(found.insert(((*driver).to_owned(), handle))),
                    // Volumes of this plugin are never counted.
                    None if provisioner == "kubernetes.io/vsphere-volume" => {}
                    None if provisioner.is_empty() => {}
                    None => drop(found.insert((provisioner.to_owned(), handle))),
                }
            }
        }
    }
    found
}

pub(crate) fn limits(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    for (name, _) in claims(pod) {
        if world.claim(pod, &name).is_none() {
            let home = &pod.metadata.namespace;
            let why = format!("looking up PVC {home}/{name}: {}", missing(&name));
            return one("NodeVolumeLimits", &why);
        }
    }
    let csi_node = world.named("CSINode", None, &node.metadata.name)?;
    let drivers = csi_node["spec"]["drivers"].as_array()?;
    let limits: BTreeMap<&str, i64> = drivers
        .iter()
        .filter_map(|own| Some((own["name"].as_str()?, own["allocatable"]["count"].as_i64()?)))
        .collect();
    let mut attached: BTreeSet<(String, String)> = BTreeSet::new();
    for other in world.on(node) {
        attached.extend(attachable(world, other));
    }
    let mut new = attachable(world, pod);
    new.retain(|volume| !attached.contains(volume));
    for attachment in world.stored("VolumeAttachment") {
        let spec = &attachment["spec"];
        let name = text(&spec["source"]["persistentVolumeName"]);
        let volume = world.named("PersistentVolume", None, name);
        if spec["nodeName"] == node.metadata.name.as_str()
            && let Some(handle) = volume.and_then(|own| own["spec"]["csi"]["volumeHandle"].as_str())
        {
            attached.insert((text(&spec["attacher"]).to_owned(), handle.to_owned()));
        }
    }
    let exceeded = limits.iter().any(|(driver, limit)| {
        let of = |volumes: &BTreeSet<(String, String)>| {
            volumes.iter().filter(|own| own.0 == *driver).count() as i64
        };
        of(&new) > 0 && of(&attached) + of(&new) > *limit
    });
    exceeded.then(|| one("NodeVolumeLimits", "node(s) exceed max volume count"))?
}

/// Whether a volume can be reached; terms are asked about labels without a name, and do not look at names then.
fn reaches(volume: &Value, node: &Node) -> bool {
    let required = &volume["spec"]["nodeAffinity"]["required"];
    if required.is_null() {
        return true;
    }
    let selector: NodeSelector = read(required);
    selector.node_selector_terms.iter().any(|term| {
        let has_words = !term.match_expressions.is_empty() || !term.match_fields.is_empty();
        let mut labels = term.match_expressions.iter();
        has_words && labels.all(|own| meets(own, &node.metadata.labels))
    })
}

/// A bound volume as a node sees it whose driver stands in for the volume's in-tree plugin.
fn as_migrated(world: &World, volume: &Value, node: &Node) -> Value {
    const REGION: &str = "topology.kubernetes.io/region";
    let mut volume = volume.clone();
    let Some((_, (plugin, zone))) = DRIVERS
        .into_iter()
        .find(|(field, _)| volume["spec"].get(*field).is_some())
    else {
        return volume;
    };
    let csi_node = world.named("CSINode", None, &node.metadata.name);
    if !csi_node.is_some_and(|csi_node| migrated(plugin, csi_node)) {
        return volume;
    }
    let labels = volume["metadata"]["labels"].clone();
    let selector = volume["spec"]["nodeAffinity"]["required"].clone();
    let mut terms = selector["nodeSelectorTerms"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let demands = |terms: &[Value], key: &str| -> Vec<Value> {
        let all = terms
            .iter()
            .flat_map(|term| term["matchExpressions"].as_array());
        all.flatten()
            .filter(|own| own["key"] == key)
            .cloned()
            .collect()
    };
    let mut names = ["", ".beta"].into_iter().map(|beta| match beta {
        "" => ("topology.kubernetes.io/zone", REGION),
        _ => (
            "failure-domain.beta.kubernetes.io/zone",
            "failure-domain.beta.kubernetes.io/region",
        ),
    });
    let both: Vec<_> = names.by_ref().collect();
    let labelled = both.iter().find(|own| !demands(&terms, own.0).is_empty());
    let labelled = labelled.or_else(|| both.iter().find(|own| labels.get(own.0).is_some()));
    let (own_zone, own_region) = *labelled.unwrap_or(&both[0]);
    let mut pairs = vec![(own_zone, zone, true)];
    if own_region != REGION {
        pairs.push((own_region, REGION, false));
    }
    for (from, to, by_label) in pairs {
        let has_values = demands(&terms, from).iter().any(|own| {
            own["values"]
                .as_array()
                .is_some_and(|values| !values.is_empty())
        });
        if has_values {
            for term in &mut terms {
                for own in term["matchExpressions"]
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                {
                    if own["key"] == from {
                        own["key"] = to.into();
                    }
                }
            }
        } else if let Some(label) = labels[from].as_str().filter(|_| by_label) {
            let mut values: Vec<&str> = label.split("__").map(str::trim).collect();
            values.retain(|own| !own.is_empty());
            if values.is_empty() {
                continue;
            }
            let demand = json!({"key": to, "operator": "In", "values": values});
            if terms.is_empty() {
                terms.push(json!({}));
            }
            for term in &mut terms {
                let mut all = term["matchExpressions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                all.push(demand.clone());
                term["matchExpressions"] = json!(all);
            }
        }
    }
    if !terms.is_empty() {
        volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = json!(terms);
    }
    volume
}

fn gibibytes(value: &Value) -> i64 {
    let text = text(value);
    let number = text.strip_suffix("Gi").unwrap_or("0");
    number.parse().expect("a number of Gi")
}

fn request(claim: &Value) -> i64 {
    gibibytes(&claim["spec"]["resources"]["requests"]["storage"])
}

pub(crate) fn binding(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    let own: Vec<(String, &Value)> = claims(pod)
        .into_iter()
        .filter_map(|(name, _)| {
            let claim = world.claim(pod, &name)?;
            Some((name, claim))
        })
        .collect();
    let mut reasons = Vec::new();
    let mut last = None;
    for (_, claim) in own.iter().filter(|own| is_bound(own.1)) {
        match world.named("PersistentVolume", None, text(&claim["spec"]["volumeName"])) {
            None => {
                last = Some(
                    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                );
                break;
            }
            Some(volume) if !reaches(&as_migrated(world, volume, node), node) => {
                reasons.push("node(s) didn't match PersistentVolume's node affinity");
                break;
            }
            Some(_) => {}
        }
    }
    let open: Vec<&(String, &Value)> = own.iter().filter(|own| !is_bound(own.1)).collect();
    reasons.extend(open_claims(world, pod, node, &open));
    reasons.extend(last);
    let mut reasons: Vec<String> = reasons.into_iter().map(str::to_owned).collect();
    reasons.sort();
    (!reasons.is_empty()).then_some(("VolumeBinding", reasons))
}

fn open_claims(
    world: &World,
    pod: &Pod,
    node: &Node,
    open: &[&(String, &Value)],
) -> Option<&'static str> {
    const NONE: &str = "node(s) didn't find available persistent volumes to bind";
    let mut provision: Vec<&Value> = Vec::new();
    let mut find: Vec<&(String, &Value)> = Vec::new();
    for own in open {
        match annotation(own.1, "volume.kubernetes.io/selected-node") {
            Some(selected) if selected != node.metadata.name => return Some(NONE),
            Some(_) => provision.push(own.1),
            None => find.push(own),
        }
    }
    find.sort_by_key(|own| request(own.1));
    let mut taken: Vec<&str> = Vec::new();
    for (name, claim) in find {
        match smallest(world, (&pod.metadata.namespace, name), claim, node, &taken) {
            Some(volume) => taken.push(text(&volume["metadata"]["name"])),
            None => provision.push(claim),
        }
    }
    for claim in provision {
        let class = world
            .named("StorageClass", None, class_of(claim))
            .expect("claims that wait have a class");
        let provisioner = text(&class["provisioner"]);
        let terms = class["allowedTopologies"].as_array();
        let allowed = terms.is_none_or(|terms| {
            terms.iter().any(|term| {
                let mut demands = term["matchLabelExpressions"]
                    .as_array()
                    .expect("expressions")
                    .iter();
                demands.all(|demand| {
                    let value = node.metadata.labels.get(text(&demand["key"]));
                    let values = demand["values"].as_array().expect("values");
                    value.is_some_and(|value| values.contains(&value.as_str().into()))
                })
            })
        });
        if provisioner == "kubernetes.io/no-provisioner" || !allowed {
            return Some(NONE);
        }
        let driver = world.named("CSIDriver", None, provisioner);
        let publishes_capacity =
            driver.is_some_and(|driver| driver["spec"]["storageCapacity"] == true);
        let enough = world.stored("CSIStorageCapacity").any(|capacity| {
            let largest = match &capacity["maximumVolumeSize"] {
                Value::Null => &capacity["capacity"],
                size => size,
            };
            let nodes: Option<Selector> = capacity.get("nodeTopology").map(read);
            capacity["storageClassName"] == class_of(claim)
                && !largest.is_null()
                && gibibytes(largest) >= request(claim)
                && selects(nodes.as_ref(), &node.metadata.labels)
        });
        if publishes_capacity && !enough {
            return Some("node(s) did not have enough free storage");
        }
    }
    None
}

/// The volume that a claim would get on a node.
fn smallest<'a>(
    world: &'a World,
    key: (&str, &str),
    claim: &Value,
    node: &Node,
    taken: &[&str],
) -> Option<&'a Value> {
    let mut volumes: Vec<&Value> = world
        .stored("PersistentVolume")
        .filter(|volume| class_of(volume) == class_of(claim))
        .filter(|volume| !taken.contains(&text(&volume["metadata"]["name"])))
        .collect();
    volumes.sort_by_key(|volume| text(&volume["metadata"]["name"]));
    let spec = &claim["spec"];
    let is_for = |volume: &Value| {
        let own = &volume["spec"]["claimRef"];
        own["namespace"] == key.0
            && own["name"] == key.1
            && (text(&own["uid"]).is_empty() || own["uid"] == claim["metadata"]["uid"])
    };
    let mode = |spec: &Value| {
        spec["volumeMode"]
            .as_str()
            .unwrap_or("Filesystem")
            .to_owned()
    };
    volumes.retain(|volume| {
        (volume["spec"]["claimRef"].is_null() || is_for(volume))
            && gibibytes(&volume["spec"]["capacity"]["storage"]) >= request(claim)
            && mode(&volume["spec"]) == mode(spec)
            && volume["metadata"]["deletionTimestamp"].is_null()
    });
    if let Some(set_aside) = volumes.iter().find(|volume| is_for(volume)) {
        return Some(*set_aside).filter(|volume| reaches(volume, node));
    }
    let selector: Option<Selector> = spec.get("selector").map(read);
    volumes.retain(|volume| {
        let labels = read(&volume["metadata"]["labels"]);
        let modes = volume["spec"]["accessModes"].as_array().expect("modes");
        let mut wanted = spec["accessModes"].as_array().expect("modes").iter();
        volume["status"]["phase"] == "Available"
            && selector
                .as_ref()
                .is_none_or(|own| selects(Some(own), &labels))
            && wanted.all(|mode| modes.contains(mode))
            && volume["spec"]["volumeAttributesClassName"] == spec["volumeAttributesClassName"]
            && reaches(volume, node)
    });
    volumes
        .into_iter()
        .min_by_key(|volume| gibibytes(&volume["spec"]["capacity"]["storage"]))
}

pub(crate) fn zones(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    let labels = &node.metadata.labels;
    if !PLACES.iter().any(|(key, _)| labels.contains_key(*key)) {
        return None;
    }
    for (name, _) in claims(pod).iter().filter(|own| !own.1) {
        let claim = world.claim(pod, name)?;
        let volume = text(&claim["spec"]["volumeName"]);
        let Some(volume) = world.named("PersistentVolume", None, volume) else {
            continue;
        };
        for (key, modern) in PLACES {
            let Some(zones) = volume["metadata"]["labels"][key].as_str() else {
                continue;
            };
            let places: Vec<&str> = zones.split("__").map(str::trim).collect();
            if places.contains(&"") {
                continue;
            }
            let own = labels.get(key).or(labels.get(modern));
            if !own.is_some_and(|own| places.contains(&own.as_str())) {
                return one("VolumeZone", "node(s) had no available volume zone");
            }
        }
    }
    None
}
