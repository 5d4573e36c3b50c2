//! Node groups: `nodeGroups` (auto scaling groups) and `managedNodeGroups` (managed by EKS).
//!
//! Invariant: sizes are ordered (min <= desired <= max), and a group has at least one instance type. The catalogue checks later whether a
//! type exists, so a group stores its own path for the error.

use std::collections::BTreeMap;

use crate::ami::{AmiFamily, FamilyError, WindowsRelease};

use super::{Cluster, ConfigError, Taint, reader::Field, taints};

/// eksctl's instance type for groups that name none.
pub const DEFAULT_INSTANCE_TYPE: &str = "m5.large";
const DEFAULT_NODES: u32 = 2;
const DEFAULT_VOLUME_GIB: u32 = 80;
const MOST_NODES: u32 = 100_000;

/// A group of identical nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeGroup {
    /// The path of the group in the file, for errors found later.
    pub path: String,
    /// Name.
    pub name: String,
    /// Whether EKS manages it.
    pub managed: bool,
    /// Images of its nodes.
    pub ami_family: AmiFamily,
    /// Instance types, at least one; nodes take the first that has capacity.
    pub instance_types: Vec<String>,
    /// Number of nodes at start.
    pub desired: u32,
    /// Least number of nodes.
    pub min: u32,
    /// Greatest number of nodes.
    pub max: u32,
    /// Labels of its nodes.
    pub labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    pub taints: Vec<Taint>,
    /// Tags of its instances.
    pub tags: BTreeMap<String, String>,
    /// Zones of its nodes; empty means the cluster's.
    pub availability_zones: Vec<String>,
    /// Root volume in GiB.
    pub volume_gib: u32,
    /// Whether its instances are spot.
    pub spot: bool,
    /// Maximum number of pods per node, if the file sets it.
    pub max_pods: Option<u32>,
}

pub(super) const USED: &[&str] = &[
    "name",
    "amiFamily",
    "instanceType",
    "instanceTypes",
    "instancesDistribution",
    "desiredCapacity",
    "minSize",
    "maxSize",
    "labels",
    "taints",
    "tags",
    "availabilityZones",
    "volumeSize",
    "spot",
    "maxPodsPerNode",
];

/// Fields of eksctl without an effect here.
pub(super) const UNUSED: &[&str] = &[
    "additionalEncryptedVolume",
    "additionalVolumes",
    "ami",
    "asgMetricsCollection",
    "asgSuspendProcesses",
    "bottlerocket",
    "capacityReservation",
    "classicLoadBalancerNames",
    "clusterDNS",
    "containerRuntime",
    "cpuCredits",
    "disableASGTagPropagation",
    "disableIMDSv1",
    "disablePodIMDS",
    "ebsOptimized",
    "efaEnabled",
    "enableDetailedMonitoring",
    "enclaveEnabled",
    "iam",
    "id",
    "instanceMarketOptions",
    "instanceName",
    "instancePrefix",
    "instanceSelector",
    "kubeletExtraConfig",
    "launchTemplate",
    "localZones",
    "maxInstanceLifetime",
    "nodeRepairConfig",
    "outpostARN",
    "overrideBootstrapCommand",
    "placement",
    "preBootstrapCommands",
    "privateNetworking",
    "propagateASGTags",
    "releaseVersion",
    "securityGroups",
    "ssh",
    "subnets",
    "targetGroupARNs",
    "updateConfig",
    "volumeEncrypted",
    "volumeIOPS",
    "volumeKmsKeyID",
    "volumeName",
    "volumeThroughput",
    "volumeType",
    "warmPool",
];

impl NodeGroup {
    pub(super) fn read(
        field: &Field<'_>,
        managed: bool,
        cluster: &Cluster,
        ignored: &mut Vec<String>,
    ) -> Result<Self, ConfigError> {
        field.check_fields(USED, UNUSED, ignored)?;
        let name = field.required("name")?;
        let (min, desired, max) = sizes(field)?;
        let ami_family = family(field, cluster)?;
        Ok(Self {
            path: field.path().to_owned(),
            name: group_name(&name)?,
            managed,
            ami_family,
            instance_types: instance_types(field)?,
            desired,
            min,
            max,
            labels: labels(field)?,
            taints: taints::read(field)?,
            tags: field.string_map("tags")?,
            availability_zones: field.zones("availabilityZones", &cluster.region)?,
            volume_gib: match field.get("volumeSize") {
                Some(size) => size.number(1, 16_384)?,
                None => DEFAULT_VOLUME_GIB,
            },
            spot: match field.get("spot") {
                Some(spot) => spot.bool()?,
                None => false,
            },
            max_pods: match field.get("maxPodsPerNode") {
                Some(pods) => Some(pods.number(1, 1_000)?),
                None => None,
            },
        })
    }

    /// Returns the Windows release of its nodes, if they run Windows.
    pub fn windows_release(&self) -> Option<WindowsRelease> {
        self.ami_family.windows_release()
    }
}

fn group_name(field: &Field<'_>) -> Result<String, ConfigError> {
    let name = field.string()?;
    if taints::is_name(&name) {
        Ok(name)
    } else {
        Err(field.error(format!(
            "{name:?} is not a name of letters, digits, '-', '_' and '.', at most 63 long"
        )))
    }
}

fn family(group: &Field<'_>, cluster: &Cluster) -> Result<AmiFamily, ConfigError> {
    let Some(field) = group.get("amiFamily") else {
        return Ok(AmiFamily::AmazonLinux2023);
    };
    let family = field.string()?.parse().map_err(|refusal: FamilyError| {
        let error = field.error(refusal.to_string());
        match refusal.meant() {
            Some(meant) => error.hint(format!("amiFamily: {meant}")),
            None => error,
        }
    })?;
    cluster.check_family(field.path(), family)?;
    Ok(family)
}

fn instance_types(group: &Field<'_>) -> Result<Vec<String>, ConfigError> {
    let distribution = group.get("instancesDistribution");
    let lists = [
        group.strings("instanceTypes")?,
        match &distribution {
            Some(field) => field.strings("instanceTypes")?,
            None => Vec::new(),
        },
    ];
    let single = match group.get("instanceType") {
        Some(field) => Some((field.string()?, field)),
        None => None,
    };
    let listed = lists.concat();
    // eksctl has the type `mixed` for groups whose types are listed in `instancesDistribution`.
    match (single, listed.is_empty()) {
        (Some((kind, _)), true) if kind != "mixed" => Ok(vec![kind]),
        (Some((kind, field)), false) if kind != "mixed" => Err(field
            .error(format!("{kind:?} stands beside a list of instance types"))
            .hint("leave out instanceType, or the list")),
        (_, false) => Ok(listed),
        (_, true) => Ok(vec![DEFAULT_INSTANCE_TYPE.to_owned()]),
    }
}

/// Returns min, desired and max with eksctl's defaults.
fn sizes(group: &Field<'_>) -> Result<(u32, u32, u32), ConfigError> {
    let read = |name: &str| match group.get(name) {
        Some(field) => field.number(0, MOST_NODES).map(Some),
        None => Ok(None),
    };
    let (min, desired, max) = (read("minSize")?, read("desiredCapacity")?, read("maxSize")?);
    let desired = desired
        .or(min)
        .unwrap_or_else(|| DEFAULT_NODES.min(max.unwrap_or(DEFAULT_NODES)));
    let error = |name: &str, message: String| {
        Err(ConfigError::new(group.child_path(name), message)
            .hint("minSize <= desiredCapacity <= maxSize"))
    };
    if let (Some(least), Some(most)) = (min, max)
        && least > most
    {
        return error("minSize", format!("{least} is greater than maxSize {most}"));
    }
    let (least, most) = (min.unwrap_or(desired), max.unwrap_or(desired));
    if desired < least {
        return error(
            "desiredCapacity",
            format!("{desired} is less than minSize {least}"),
        );
    }
    if desired > most {
        return error(
            "desiredCapacity",
            format!("{desired} is greater than maxSize {most}"),
        );
    }
    Ok((least, desired, most))
}

fn labels(group: &Field<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
    let labels = group.string_map("labels")?;
    for (key, value) in &labels {
        let path = || format!("{}.{key}", group.child_path("labels"));
        if !value.is_empty() && !taints::is_name(value) {
            return Err(ConfigError::new(
                path(),
                format!(
                    "{value:?} is not a label value: letters, digits, '-', '_' and '.', at most 63 long"
                ),
            ));
        }
        let name = key.rsplit('/').next().unwrap_or_default();
        if !taints::is_name(name) {
            return Err(ConfigError::new(
                path(),
                format!("{key:?} is not a label key"),
            ));
        }
    }
    Ok(labels)
}
