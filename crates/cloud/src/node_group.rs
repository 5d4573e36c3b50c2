//! Converts eksctl's node groups to launch requests.
//!
//! Invariant: the nodes of a group are spread over its zones in turn, as by an auto scaling group. The client token consists of group and
//! index, so that a repeated launch buys nothing new.

use std::collections::BTreeMap;

use mullion_api::{
    ami::Os,
    eksctl::{Cluster, ConfigError, NodeGroup},
    labels,
};

use crate::{
    CapacityType, KubeletSettings, LaunchOption, LaunchRequest, NodeTemplate, Registration,
    catalogue::{self, Arch},
    image::NodeImage,
    sim::{SimulatedEc2, zone_id},
};

/// Returns the launch requests for all initial nodes of a cluster's groups.
///
/// # Errors
/// [`ConfigError`] with the group's path if an instance type is unknown or cannot run its image.
pub fn orders(cluster: &Cluster, ec2: &SimulatedEc2) -> Result<Vec<LaunchRequest>, ConfigError> {
    let mut orders = Vec::new();
    for group in &cluster.node_groups {
        check_instance_types(group)?;
        let zones: Vec<String> = match group.availability_zones.as_slice() {
            [] => ec2.zones().iter().map(ToString::to_string).collect(),
            zones => zones.to_vec(),
        };
        if let Some(zone) = zones
            .iter()
            .find(|zone| !ec2.zones().iter().any(|z| **z == **zone))
        {
            return Err(ConfigError::new(
                format!("{}.availabilityZones", group.path),
                format!("{zone:?} is not one of the cluster's availabilityZones"),
            ));
        }
        check_labels(cluster, group, &zones)?;
        for index in 0..group.desired {
            orders.push(order(cluster, group, index, &zones));
        }
    }
    Ok(orders)
}

fn check_instance_types(group: &NodeGroup) -> Result<(), ConfigError> {
    let field = match group.instance_types.len() {
        1 => "instanceType",
        _ => "instanceTypes",
    };
    for name in &group.instance_types {
        let error = |message: String| ConfigError::new(format!("{}.{field}", group.path), message);
        let Some(instance_type) = catalogue::get(name) else {
            let error = error(format!("{name:?} is not an EC2 instance type"));
            return Err(match catalogue::similar(name).as_slice() {
                [] => error.hint("instanceType: m5.large"),
                similar => error.hint(format!("one of {}", similar.join(", "))),
            });
        };
        if !instance_type.runs(group.ami_family.os()) {
            return Err(error(format!("{name} cannot run {}", group.ami_family))
                .hint("Windows needs an x86-64 type that the VPC resource controller knows, such as m5.xlarge"));
        }
    }
    Ok(())
}

/// Refuses labels whose value differs from the one that kubelet, cloud or eksctl gives the nodes.
fn check_labels(cluster: &Cluster, group: &NodeGroup, zones: &[String]) -> Result<(), ConfigError> {
    let given = given_labels(cluster, group);
    for (key, value) in &group.labels {
        let refuse = |why: String, hint: String| {
            let path = format!("{}.labels.{key}", group.path);
            Err(ConfigError::new(path, format!("{value:?} {why}")).hint(hint))
        };
        let Some(values) = values_of(key, cluster, group, zones, &given) else {
            continue;
        };
        match values.as_slice() {
            [only] if only == value => {}
            [] => {
                return refuse(
                    "is not for a group to say: a node has this label from its machine, or has it not".into(),
                    format!("leave {key} out"),
                );
            }
            [only] => {
                return refuse(
                    format!("is not what the nodes of this group have: {only}"),
                    format!("leave {key} out, every node has it by itself"),
                );
            }
            several => {
                return refuse(
                    format!(
                        "is not what all nodes of this group have: {}",
                        several.join(" or ")
                    ),
                    format!("leave {key} out, every node has its own by itself"),
                );
            }
        }
    }
    Ok(())
}

/// Returns the values that nodes of a group get for a label from kubelet, cloud or eksctl. The list is empty if no machine of the group has
/// the label; the result is `None` for labels that only users set.
fn values_of(
    key: &str,
    cluster: &Cluster,
    group: &NodeGroup,
    zones: &[String],
    given: &BTreeMap<String, String>,
) -> Option<Vec<String>> {
    let types = || {
        group
            .instance_types
            .iter()
            .filter_map(|name| catalogue::get(name))
    };
    let image = NodeImage::new(group.ami_family, cluster.version, Arch::Amd64);
    let mut values: Vec<String> = match labels::normalized(key) {
        labels::OS => vec![group.ami_family.os().as_str().to_owned()],
        labels::WINDOWS_BUILD => image
            .windows_build()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        labels::ARCH => types().map(|kind| kind.arch.as_str().to_owned()).collect(),
        labels::INSTANCE_TYPE => group.instance_types.clone(),
        labels::ZONE => zones.to_vec(),
        labels::ZONE_ID => zones.iter().map(|zone| zone_id(zone)).collect(),
        labels::REGION => vec![cluster.region.clone()],
        // Every node has another one, so no group can set it.
        labels::HOSTNAME => Vec::new(),
        key => given.get(key).into_iter().cloned().collect(),
    };
    values.sort();
    values.dedup();
    let is_machine = [labels::HOSTNAME, labels::WINDOWS_BUILD].contains(&key);
    (is_machine || !values.is_empty()).then_some(values)
}

fn order(cluster: &Cluster, group: &NodeGroup, index: u32, zones: &[String]) -> LaunchRequest {
    let capacity_type = if group.spot {
        CapacityType::Spot
    } else {
        CapacityType::OnDemand
    };
    // The first zone of each node is the next one in turn; the others follow in case it has no capacity.
    let first = index as usize % zones.len();
    let options = group
        .instance_types
        .iter()
        .flat_map(|instance_type| {
            zones
                .iter()
                .cycle()
                .skip(first)
                .take(zones.len())
                .map(move |zone| LaunchOption {
                    instance_type: instance_type.clone(),
                    zone: zone.clone(),
                    capacity_type,
                    reservation: None,
                    placement: None,
                })
        })
        .collect();
    let mut tags = cluster.tags.clone();
    tags.extend(group.tags.clone());
    tags.insert(
        "Name".into(),
        format!("{}-{}-Node", cluster.name, group.name),
    );
    tags.insert(labels::EKSCTL_NODEGROUP.into(), group.name.clone());
    LaunchRequest {
        client_token: format!("group/{}/{index}", group.name),
        options,
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template: NodeTemplate {
            root_volume_gib: group.volume_gib.into(),
            kubelet: KubeletSettings {
                max_pods: group.max_pods.map(u64::from),
                ..KubeletSettings::default()
            },
            ..NodeTemplate::new(group.ami_family, cluster.version)
        },
        registration: Registration {
            labels: node_labels(cluster, group),
            taints: group.taints.clone(),
        },
        tags,
        class: None,
    }
}

/// Returns the labels of eksctl and EKS for nodes of a group, and the group's own labels.
fn node_labels(cluster: &Cluster, group: &NodeGroup) -> BTreeMap<String, String> {
    let mut map = given_labels(cluster, group);
    // eksctl sets this label in the bootstrap script of its own Linux nodes only.
    if !group.managed && group.ami_family.os() == Os::Linux {
        let lifecycle = if group.spot { "spot" } else { "on-demand" };
        map.insert("node-lifecycle".into(), lifecycle.into());
    }
    map.extend(group.labels.clone());
    map
}

/// Returns the labels by which eksctl and EKS identify the nodes of a group.
fn given_labels(cluster: &Cluster, group: &NodeGroup) -> BTreeMap<String, String> {
    let mut map = BTreeMap::from([
        (labels::EKSCTL_CLUSTER.to_owned(), cluster.name.clone()),
        (labels::EKSCTL_NODEGROUP.to_owned(), group.name.clone()),
    ]);
    if group.managed {
        let capacity_type = if group.spot { "SPOT" } else { "ON_DEMAND" };
        // EKS labels all nodes of a group with one image; the types of a group agree in architecture.
        let image = match catalogue::get(&group.instance_types[0]) {
            Some(first) => NodeImage::for_type(group.ami_family, cluster.version, first, 0),
            None => NodeImage::new(group.ami_family, cluster.version, Arch::Amd64),
        };
        map.insert(labels::EKS_NODEGROUP.into(), group.name.clone());
        map.insert(labels::EKS_CAPACITY_TYPE.into(), capacity_type.into());
        map.insert(labels::EKS_NODEGROUP_IMAGE.into(), image.id);
    }
    map
}
