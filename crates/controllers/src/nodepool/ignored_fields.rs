//! Fields of Karpenter's kinds that are accepted and have no effect, because a feature gate is off or because simulated
//! instances have nothing that they would change, with what happens instead.
//!
//! The condition `FieldsIgnored` of NodePools and EC2NodeClasses and the warnings at admission both come from this
//! list. A field that gets an effect must be removed from it.

use std::{collections::BTreeMap, fmt};

use mullion_api::karpenter::{
    AmiSelectorTerm, BlockDeviceMapping, EC2NodeClassSpec, KubeletConfiguration, MetadataOptions,
    NodePoolSpec,
    legacy::{AWSNodeTemplateSpec, ProvisionerSpec},
};

use crate::provisioner::{
    FeatureGates,
    conditions::{Conditions, Status},
};

/// The condition that names such fields; it is absent while there are none.
const FIELDS_IGNORED: &str = "FieldsIgnored";

/// A field of a NodePool or EC2NodeClass that Mullion accepts and ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredField {
    /// Where it is, such as `spec.replicas`.
    pub path: String,
    /// What is done instead of what the field asks for.
    pub instead: &'static str,
}

impl IgnoredField {
    fn new(path: impl Into<String>, instead: &'static str) -> Self {
        Self {
            path: path.into(),
            instead,
        }
    }
}

impl fmt::Display for IgnoredField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect: {}", self.path, self.instead)
    }
}

/// Sets the condition that names the fields, or drops it if there are none.
pub(crate) fn set_condition(conditions: &mut Conditions<'_>, fields: &[IgnoredField]) {
    if fields.is_empty() {
        return conditions.clear(FIELDS_IGNORED);
    }
    let sentences: Vec<_> = fields.iter().map(IgnoredField::to_string).collect();
    let message = sentences.join("; ");
    conditions.set(FIELDS_IGNORED, Status::True, "NoEffect", &message);
}

/// Returns the fields of a NodePool that have no effect while these gates are as they are.
pub fn of_node_pool(spec: &NodePoolSpec, gates: FeatureGates) -> Vec<IgnoredField> {
    let replicas = spec.replicas.filter(|_| !gates.static_capacity);
    let replicas = replicas.map(|_| {
        IgnoredField::new(
            "spec.replicas",
            "the pool keeps no fixed number of nodes and buys none for pods, because the feature gate StaticCapacity is off",
        )
    });
    replicas.into_iter().collect()
}

/// Returns that a CapacityBuffer has no effect, for the time that its gate is closed.
pub fn of_capacity_buffer() -> IgnoredField {
    IgnoredField::new(
        "spec",
        "no room is kept free, because the feature gate CapacityBuffer is off",
    )
}

/// Returns that a NodeOverlay has no effect, for the time that its gate is closed.
pub fn of_node_overlay() -> IgnoredField {
    IgnoredField::new(
        "spec",
        "no price and no capacity is changed, because the feature gate NodeOverlay is off",
    )
}

const OF_INSTANCES: &str = "it changes nothing about simulated instances";
const NEWEST_IMAGE: &str =
    "no simulated image is selected by it, so nodes run the newest image of the family";

/// Returns the fields of an EC2NodeClass that have no effect while these gates are as they are. `selects_no_image`: its terms are known to select none.
pub fn of_node_class(
    spec: &EC2NodeClassSpec,
    selects_no_image: bool,
    gates: FeatureGates,
) -> Vec<IgnoredField> {
    let set = [
        ("spec.userData", spec.user_data.is_some()),
        ("spec.ipPrefixCount", spec.ip_prefix_count.is_some()),
        (
            "spec.associatePublicIPAddress",
            spec.associate_public_ip_address.is_some(),
        ),
        (
            "spec.metadataOptions",
            spec.metadata_options
                .as_ref()
                // The schema fills these in, so their presence alone does not show that anybody asked for
                // them.
                .is_some_and(|options| *options != default_metadata_options()),
        ),
        (
            "spec.connectionTracking beyond the choice of instance types",
            spec.connection_tracking.is_some(),
        ),
        (
            "spec.detailedMonitoring",
            spec.detailed_monitoring.is_some(),
        ),
        ("spec.context", spec.context.is_some()),
    ];
    let mut fields: Vec<_> = set
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(path, _)| IgnoredField::new(path, OF_INSTANCES))
        .collect();
    if selects_no_image {
        fields.extend(of_images(&spec.ami_selector_terms));
    }
    fields.extend(of_reservations(spec, gates));
    fields.extend(of_volumes(&spec.block_device_mappings));
    if let Some(kubelet) = &spec.kubelet {
        fields.extend(of_kubelet("spec.kubelet", kubelet));
    }
    fields
}

/// Returns the metadata options that the schema defaults to.
fn default_metadata_options() -> MetadataOptions {
    MetadataOptions {
        http_endpoint: Some("enabled".to_owned()),
        http_protocol_ipv6: Some("disabled".to_owned()),
        http_put_response_hop_limit: Some(1),
        http_tokens: Some("required".to_owned()),
    }
}

fn of_images(terms: &[AmiSelectorTerm]) -> impl Iterator<Item = IgnoredField> {
    (0..terms.len())
        .map(|at| IgnoredField::new(format!("spec.amiSelectorTerms[{at}]"), NEWEST_IMAGE))
}

/// Returns that the terms for capacity reservations have no effect, for the time that their gate is closed.
pub fn of_reservations(spec: &EC2NodeClassSpec, gates: FeatureGates) -> Option<IgnoredField> {
    let is_set = !spec.capacity_reservation_selector_terms.is_empty();
    (is_set && !gates.reserved_capacity).then(|| {
        IgnoredField::new(
            "spec.capacityReservationSelectorTerms",
            "no reservation is used, because the feature gate ReservedCapacity is off",
        )
    })
}

fn of_volumes(mappings: &[BlockDeviceMapping]) -> Vec<IgnoredField> {
    let more_than_size = |mapping: &BlockDeviceMapping| {
        mapping.ebs.as_ref().is_some_and(|volume| {
            let mut rest = volume.clone();
            rest.volume_size = None;
            rest != Default::default()
        })
    };
    let mappings = mappings.iter().enumerate();
    mappings
        .filter(|(_, mapping)| more_than_size(mapping))
        .map(|(at, _)| {
            IgnoredField::new(
                format!("spec.blockDeviceMappings[{at}].ebs beyond volumeSize"),
                "of a volume, only its size counts",
            )
        })
        .collect()
}

fn of_kubelet(path: &str, kubelet: &KubeletConfiguration) -> Vec<IgnoredField> {
    const ACTING: [&str; 2] = ["memory.available", "nodefs.available"];
    let other_signals = |map: &BTreeMap<String, String>| {
        map.keys().any(|signal| !ACTING.contains(&signal.as_str()))
    };
    let set = [
        ("clusterDNS", !kubelet.cluster_dns.is_empty()),
        (
            "evictionHard beyond memory.available and nodefs.available",
            other_signals(&kubelet.eviction_hard),
        ),
        (
            "evictionSoft beyond memory.available and nodefs.available",
            other_signals(&kubelet.eviction_soft),
        ),
        (
            "evictionSoftGracePeriod",
            !kubelet.eviction_soft_grace_period.is_empty(),
        ),
        (
            "evictionMaxPodGracePeriod",
            kubelet.eviction_max_pod_grace_period.is_some(),
        ),
        (
            "imageGCHighThresholdPercent",
            kubelet.image_gc_high_threshold_percent.is_some(),
        ),
        (
            "imageGCLowThresholdPercent",
            kubelet.image_gc_low_threshold_percent.is_some(),
        ),
        ("cpuCFSQuota", kubelet.cpu_cfs_quota.is_some()),
    ];
    let known = set.into_iter().filter(|(_, set)| *set);
    let other = kubelet.other.keys().map(String::as_str);
    known
        .map(|(field, _)| field)
        .chain(other)
        .map(|field| {
            IgnoredField::new(
                format!("{path}.{field}"),
                "simulated kubelets do not look at it",
            )
        })
        .collect()
}

/// Returns the fields of a Provisioner that have no effect on the NodePool and the EC2NodeClass made of it.
pub fn of_provisioner(spec: &ProvisionerSpec) -> Vec<IgnoredField> {
    let mut fields = Vec::new();
    if spec.provider.is_some() {
        fields.push(IgnoredField::new(
            "spec.provider",
            "the cloud settings come from the AWSNodeTemplate that spec.providerRef names",
        ));
    }
    if let Some(kubelet) = &spec.kubelet_configuration {
        fields.extend(of_kubelet("spec.kubeletConfiguration", kubelet));
    }
    fields
}

/// Returns the fields of an AWSNodeTemplate that have no effect on the EC2NodeClass made of it.
pub fn of_node_template(spec: &AWSNodeTemplateSpec) -> Vec<IgnoredField> {
    let set = [
        ("spec.launchTemplate", spec.launch_template.is_some()),
        ("spec.userData", spec.user_data.is_some()),
        ("spec.metadataOptions", spec.metadata_options.is_some()),
        (
            "spec.detailedMonitoring",
            spec.detailed_monitoring.is_some(),
        ),
        ("spec.context", spec.context.is_some()),
    ];
    let set = set.into_iter().filter(|(_, set)| *set);
    set.map(|(path, _)| IgnoredField::new(path, OF_INSTANCES))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn messages(fields: Vec<IgnoredField>) -> Vec<String> {
        fields.iter().map(IgnoredField::to_string).collect()
    }

    #[test]
    fn a_pool_names_what_it_does_not_do() {
        let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c" });
        let spec = json!({
            "template": { "spec": { "nodeClassRef": class, "requirements": [], "expireAfter": "24h" } },
            "disruption": {
                "consolidateAfter": "30s", "consolidationPolicy": "Balanced",
                "budgets": [{ "nodes": "1" }, { "nodes": "2", "reasons": ["Drifted", "Underutilized"] }],
            },
        });
        let mut spec: NodePoolSpec = serde_json::from_value(spec).expect("a spec");
        let closed = FeatureGates::default();
        assert_eq!(of_node_pool(&spec, closed), []);
        spec.replicas = Some(3);
        let expected = "spec.replicas has no effect: the pool keeps no fixed number of nodes and buys none for pods, because the feature \
                        gate StaticCapacity is off";
        assert_eq!(messages(of_node_pool(&spec, closed)), [expected]);
        let open = FeatureGates {
            static_capacity: true,
            ..closed
        };
        assert_eq!(of_node_pool(&spec, open), []);
    }

    #[test]
    fn a_class_names_what_changes_nothing() {
        let class = |spec: Value, selects_no_image| {
            let spec = serde_json::from_value(spec).expect("a spec");
            let fields = of_node_class(&spec, selects_no_image, FeatureGates::default());
            let fields = fields.into_iter();
            fields.map(|field| field.path).collect::<Vec<_>>()
        };
        let plain = json!({
            "amiSelectorTerms": [{ "alias": "al2023@latest" }], "role": "r", "tags": { "a": "b" },
            "kubelet": { "maxPods": 20, "evictionHard": { "memory.available": "5%" } },
            "blockDeviceMappings": [{ "deviceName": "/dev/xvda", "ebs": { "volumeSize": "50Gi" } }],
            "metadataOptions": {
                "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
            },
        });
        assert_eq!(class(plain, false), [] as [&str; 0]);
        let all = json!({
            "amiSelectorTerms": [{ "alias": "al2023@v20260101" }, { "id": "ami-1" }],
            "userData": "echo", "context": "c", "detailedMonitoring": true, "ipPrefixCount": 1,
            "metadataOptions": { "httpTokens": "optional" },
            "kubelet": { "clusterDNS": ["10.0.0.1"], "registryPullQPS": 5, "evictionSoft": { "pid.available": "5%" } },
            "blockDeviceMappings": [{ "ebs": { "volumeSize": "50Gi", "volumeType": "gp3" } }],
        });
        let expected = [
            "spec.userData",
            "spec.ipPrefixCount",
            "spec.metadataOptions",
            "spec.detailedMonitoring",
            "spec.context",
            "spec.amiSelectorTerms[0]",
            "spec.amiSelectorTerms[1]",
            "spec.blockDeviceMappings[0].ebs beyond volumeSize",
            "spec.kubelet.clusterDNS",
            "spec.kubelet.evictionSoft beyond memory.available and nodefs.available",
            "spec.kubelet.registryPullQPS",
        ];
        assert_eq!(class(all, true), expected);
    }

    #[test]
    fn terms_that_select_something_are_acted_on() {
        let spec = json!({
            "amiSelectorTerms": [{ "name": "*-v20250317" }, { "tags": { "team": "a" } }],
            "capacityReservationSelectorTerms": [{ "id": "cr-1" }],
        });
        let spec = serde_json::from_value(spec).expect("a spec");
        let open = FeatureGates::default();
        assert_eq!(of_node_class(&spec, false, open), []);
        let sentence = "has no effect: no simulated image is selected by it, so nodes run the newest image of the family";
        let terms = [0, 1].map(|at| format!("spec.amiSelectorTerms[{at}] {sentence}"));
        assert_eq!(messages(of_node_class(&spec, true, open)), terms);
        let closed = FeatureGates {
            reserved_capacity: false,
            ..open
        };
        let reservations = "spec.capacityReservationSelectorTerms has no effect: no reservation is used, because the feature gate \
                            ReservedCapacity is off";
        assert_eq!(
            messages(of_node_class(&spec, false, closed)),
            [reservations]
        );
    }

    #[test]
    fn the_older_kinds_name_what_their_mirrors_do_not_do() {
        let provisioner = json!({
            "provider": {}, "consolidation": { "enabled": true }, "ttlSecondsUntilExpired": 60,
            "ttlSecondsAfterEmpty": 30, "kubeletConfiguration": { "maxPods": 10, "cpuCFSQuota": false },
        });
        let provisioner = serde_json::from_value(provisioner).expect("a spec");
        let paths = |fields: Vec<IgnoredField>| {
            let paths = fields.into_iter().map(|field| field.path);
            paths.collect::<Vec<_>>()
        };
        assert_eq!(
            paths(of_provisioner(&provisioner)),
            ["spec.provider", "spec.kubeletConfiguration.cpuCFSQuota",]
        );
        let template =
            json!({ "launchTemplate": "l", "amiSelector": { "team": "a" }, "amiFamily": "AL2" });
        let template = serde_json::from_value(template).expect("a spec");
        assert_eq!(paths(of_node_template(&template)), ["spec.launchTemplate"]);
    }
}
