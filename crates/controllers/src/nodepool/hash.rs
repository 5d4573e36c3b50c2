//! Hashes that tell whether a node was made from the current version of its pool and class.
//!
//! Invariant: the hash of a pool is Karpenter's (`NodePool.Hash`), so an annotation that Karpenter wrote is valid here.
//! The hash of a class is computed like Karpenter's but without the cluster's certificate authority, so it has a
//! version of its own, and the module `stamp` replaces annotations of other versions. Fields whose drift is detected
//! otherwise are left out: the requirements of a pool and the selectors of a class. [`super::hashstructure`] hashes
//! single values.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Taint;
use mullion_api::{
    karpenter::{
        BlockDevice, BlockDeviceMapping, EC2NodeClassSpec, KubeletConfiguration, MetadataOptions,
        NillableDuration, NodeClaimTemplate, NodeClaimTemplateSpec, TemplateMetadata,
    },
    labels,
};

use super::hashstructure::{Hash, Struct, boolean, int32, int64, map, set, string};

/// Version of [`template_hash`].
pub const HASH_VERSION: &str = labels::NODEPOOL_HASH_VERSION_VALUE;

/// Returns the hash of a pool's template without its requirements.
pub fn template_hash(template: &NodeClaimTemplate) -> String {
    Struct::new("NodeClaimTemplate")
        .field("ObjectMeta", metadata(&template.metadata))
        .field("Spec", Some(template_spec(&template.spec)))
        .hash()
        .to_string()
}

fn metadata(metadata: &TemplateMetadata) -> Option<Hash> {
    let (labels, annotations) = (texts(&metadata.labels), texts(&metadata.annotations));
    (labels.is_some() || annotations.is_some()).then(|| {
        Struct::new("ObjectMeta")
            .field("Labels", labels)
            .field("Annotations", annotations)
            .hash()
    })
}

fn template_spec(spec: &NodeClaimTemplateSpec) -> Hash {
    let class = &spec.node_class_ref;
    let class = Struct::new("NodeClassReference")
        .field("Kind", text(&class.kind))
        .field("Name", text(&class.name))
        .field("Group", text(&class.group));
    let grace = spec.termination_grace_period.as_ref();
    let expiry = spec.expire_after.as_ref();
    Struct::new("NodeClaimTemplateSpec")
        .field("Taints", taints(&spec.taints))
        .field("StartupTaints", taints(&spec.startup_taints))
        .field("NodeClassRef", Some(class.hash()))
        .field(
            "TerminationGracePeriod",
            grace.and_then(|grace| duration("Duration", grace)),
        )
        .field(
            "ExpireAfter",
            expiry.and_then(|expiry| duration("NillableDuration", expiry)),
        )
        .hash()
}

/// Hashes a duration in the struct that wraps it; `Never` is that struct's zero value.
fn duration(wrapper: &str, duration: &NillableDuration) -> Option<Hash> {
    let duration = duration.duration()?;
    let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    // `NillableDuration` holds a pointer, which counts also when it points to zero.
    let counts = duration != Duration::ZERO || wrapper == "NillableDuration";
    let inner = counts.then(|| int64(nanos));
    Some(Struct::new(wrapper).field("Duration", inner).hash())
}

fn taints(taints: &[Taint]) -> Option<Hash> {
    (!taints.is_empty()).then(|| {
        set(taints.iter().map(|taint| {
            Struct::new("Taint")
                .field("Key", text(&taint.key))
                .field("Value", taint.value.as_deref().and_then(text))
                .field("Effect", text(&taint.effect))
                .hash()
        }))
    })
}

/// Returns the hash of a class's spec, without its selectors, and of the image family that its alias means.
pub fn class_hash(spec: &EC2NodeClassSpec) -> String {
    let family = family(spec);
    set([class_spec(spec), string(family)]).to_string()
}

/// Returns the family in Karpenter's spelling.
fn family(spec: &EC2NodeClassSpec) -> &str {
    const FAMILIES: [&str; 6] = [
        "AL2",
        "AL2023",
        "Bottlerocket",
        "Windows2019",
        "Windows2022",
        "Windows2025",
    ];
    if let Some(family) = &spec.ami_family {
        return family;
    }
    let mut aliases = spec.ami_selector_terms.iter();
    let alias = aliases.find_map(|term| term.alias.as_deref()?.split_once('@'));
    let named = |(name, _): (&str, &str)| {
        let mut families = FAMILIES.into_iter();
        families.find(|family| family.to_lowercase() == name)
    };
    alias.and_then(named).unwrap_or("Custom")
}

fn class_spec(spec: &EC2NodeClassSpec) -> Hash {
    let mappings = &spec.block_device_mappings;
    let mappings = (!mappings.is_empty()).then(|| set(mappings.iter().map(block_device_mapping)));
    let interfaces = &spec.network_interfaces;
    let interfaces = (!interfaces.is_empty()).then(|| {
        set(interfaces.iter().map(|interface| {
            Struct::new("NetworkInterface")
                .field("NetworkCardIndex", number(interface.network_card_index))
                .field("DeviceIndex", number(interface.device_index))
                .field("InterfaceType", text(&interface.interface_type))
                .hash()
        }))
    });
    let tracking = spec.connection_tracking.as_ref().map(|tracking| {
        Struct::new("ConnectionTracking")
            .field(
                "TCPEstablishedTimeout",
                tracking.tcp_established_timeout.map(int32),
            )
            .field("UDPStreamTimeout", tracking.udp_stream_timeout.map(int32))
            .field("UDPTimeout", tracking.udp_timeout.map(int32))
            .hash()
    });
    let cpu = spec.cpu_options.as_ref().map(|options| {
        let nested = options.nested_virtualization.as_deref().map(string);
        Struct::new("CPUOptions")
            .field("NestedVirtualization", nested)
            .hash()
    });
    Struct::new("EC2NodeClassSpec")
        .field(
            "AssociatePublicIPAddress",
            spec.associate_public_ip_address.map(boolean),
        )
        .field("UserData", spec.user_data.as_deref().map(string))
        .field("Role", spec.role.as_deref().and_then(text))
        .field(
            "InstanceProfile",
            spec.instance_profile.as_deref().map(string),
        )
        .field("Tags", texts(&spec.tags))
        .field("Kubelet", spec.kubelet.as_ref().and_then(kubelet))
        .field("BlockDeviceMappings", mappings)
        .field(
            "InstanceStorePolicy",
            spec.instance_store_policy.as_deref().map(string),
        )
        .field("NetworkInterfaces", interfaces)
        .field("DetailedMonitoring", spec.detailed_monitoring.map(boolean))
        .field(
            "MetadataOptions",
            spec.metadata_options.as_ref().map(metadata_options),
        )
        .field("ConnectionTracking", tracking)
        .field("CPUOptions", cpu)
        .field("Context", spec.context.as_deref().map(string))
        .hash()
}

fn metadata_options(options: &MetadataOptions) -> Hash {
    let optional = |text: &Option<String>| text.as_deref().map(string);
    Struct::new("MetadataOptions")
        .field("HTTPEndpoint", optional(&options.http_endpoint))
        .field("HTTPProtocolIPv6", optional(&options.http_protocol_ipv6))
        .field(
            "HTTPPutResponseHopLimit",
            options.http_put_response_hop_limit.map(int64),
        )
        .field("HTTPTokens", optional(&options.http_tokens))
        .hash()
}

fn block_device_mapping(mapping: &BlockDeviceMapping) -> Hash {
    Struct::new("BlockDeviceMapping")
        .field("DeviceName", mapping.device_name.as_deref().map(string))
        .field("EBS", mapping.ebs.as_ref().map(block_device))
        .field("RootVolume", mapping.root_volume.then(|| boolean(true)))
        .hash()
}

fn block_device(device: &BlockDevice) -> Hash {
    Struct::new("BlockDevice")
        .field(
            "DeleteOnTermination",
            device.delete_on_termination.map(boolean),
        )
        .field("Encrypted", device.encrypted.map(boolean))
        .field("IOPS", device.iops.map(int64))
        .field("KMSKeyID", device.kms_key_id.as_deref().map(string))
        .field("SnapshotID", device.snapshot_id.as_deref().map(string))
        .field("Throughput", device.throughput.map(int64))
        .field(
            "VolumeInitializationRate",
            device.volume_initialization_rate.map(int32),
        )
        // A quantity hashes as its text, and one that was read keeps the text it was read from.
        .field("VolumeSize", device.volume_size.as_deref().map(string))
        .field("VolumeType", device.volume_type.as_deref().map(string))
        .hash()
}

/// Hashes the kubelet's settings as their JSON text with sorted keys, as Go's encoder writes it.
fn kubelet(settings: &KubeletConfiguration) -> Option<Hash> {
    // Settings are maps with string keys, numbers and texts: they always have a JSON form.
    let json = serde_json::to_value(settings).ok()?;
    let fields = json.as_object()?;
    if fields.is_empty() {
        return None;
    }
    let json = json
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026");
    Some(string(&json))
}

/// Hashes a string field, whose zero value is empty.
fn text(value: &str) -> Option<Hash> {
    (!value.is_empty()).then(|| string(value))
}

/// Hashes a number field, whose zero value is 0.
fn number(value: i32) -> Option<Hash> {
    (value != 0).then(|| int32(value))
}

/// Hashes a map of strings; one without entries counts as not set.
fn texts(map_of_texts: &BTreeMap<String, String>) -> Option<Hash> {
    let entries = map_of_texts.iter();
    let entries = entries.map(|(key, value)| (string(key), string(value)));
    (!map_of_texts.is_empty()).then(|| map(entries))
}

#[cfg(test)]
mod tests {
    use mullion_api::karpenter::Requirement;
    use serde_json::{Value, json};

    use super::*;

    fn template(template: Value) -> NodeClaimTemplate {
        serde_json::from_value(template).expect("a template")
    }

    #[test]
    fn a_pool_has_the_hash_it_has_in_a_cluster_with_karpenter() {
        // The pool of Karpenter's getting-started guide.
        let guide = template(json!({ "spec": {
            "expireAfter": "720h",
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }]
        }}));
        assert_eq!(template_hash(&guide), "6821555240594823858");
        // The general-purpose pool of EKS Auto Mode.
        let auto = template(json!({ "metadata": {}, "spec": {
            "expireAfter": "336h",
            "terminationGracePeriod": "24h0m0s",
            "nodeClassRef": { "group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default" },
            "requirements": []
        }}));
        assert_eq!(template_hash(&auto), "4012513481623584108");
    }

    #[test]
    fn labels_and_taints_change_a_pools_hash_and_requirements_do_not() {
        let mut template = NodeClaimTemplate::default();
        let first = template_hash(&template);
        template.spec.requirements.push(Requirement::is("a", "b"));
        assert_eq!(template_hash(&template), first);
        template.spec.expire_after = Some(NillableDuration::never());
        assert_eq!(template_hash(&template), first);
        template.metadata.labels.insert("team".into(), "a".into());
        let labelled = template_hash(&template);
        assert_ne!(labelled, first);
        template.spec.taints.push(Taint {
            key: "os".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        });
        assert_ne!(template_hash(&template), labelled);
    }

    /// Returns the class of upstream's own tests of the hash, with some fields changed.
    fn class(change: Value) -> EC2NodeClassSpec {
        let mut spec = json!({
            "role": "role-1",
            "tags": { "keyTag-1": "valueTag-1", "keyTag-2": "valueTag-2" },
            "context": "fake-context",
            "detailedMonitoring": false,
            "associatePublicIPAddress": false,
            "metadataOptions": {
                "httpEndpoint": "disabled", "httpProtocolIPv6": "disabled",
                "httpPutResponseHopLimit": 1, "httpTokens": "optional"
            },
            "blockDeviceMappings": [
                {
                    "deviceName": "map-device-1",
                    "ebs": {
                        "deleteOnTermination": false, "encrypted": false, "iops": 0,
                        "kmsKeyID": "fakeKMSKeyID", "snapshotID": "fakeSnapshot", "throughput": 0,
                        "volumeSize": "2G", "volumeType": "standard"
                    }
                },
                { "deviceName": "map-device-2" }
            ],
            "userData": "userdata-test-1"
        });
        merge(&mut spec, change);
        serde_json::from_value(spec).expect("a class")
    }

    fn merge(into: &mut Value, change: Value) {
        match (into, change) {
            (Value::Object(into), Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn what_counts_in_a_class_is_what_counts_for_karpenter() {
        let cases = [
            (json!({}), "4950366118253097694"),
            (
                json!({ "userData": "userdata-test-2" }),
                "9034828637236670345",
            ),
            (
                json!({ "tags": { "keyTag-test-3": "valueTag-test-3" } }),
                "6878220270322275255",
            ),
            (json!({ "context": "context-2" }), "13953931752662869657"),
            (
                json!({ "detailedMonitoring": true }),
                "14187487647319890991",
            ),
            (
                json!({ "instanceStorePolicy": "RAID0" }),
                "4160809219257698490",
            ),
            (
                json!({ "associatePublicIPAddress": true }),
                "4469320567057431454",
            ),
            (
                json!({ "metadataOptions": { "httpEndpoint": "enabled" } }),
                "1277386558528601282",
            ),
            (
                json!({ "metadataOptions": { "httpProtocolIPv6": "enabled" } }),
                "14697047633165484196",
            ),
            (
                json!({ "metadataOptions": { "httpPutResponseHopLimit": 10 } }),
                "2086799014304536137",
            ),
            (
                json!({ "metadataOptions": { "httpTokens": "required" } }),
                "14750841460622248593",
            ),
            (
                json!({ "role": "", "instanceProfile": "test-instance-profile" }),
                "5855570904022890593",
            ),
            (
                json!({ "amiSelectorTerms": [{ "tags": { "": "ami-test-value" } }] }),
                "4950366118253097694",
            ),
        ];
        for (change, expected) in cases {
            let text = change.to_string();
            assert_eq!(class_hash(&class(change)), expected, "{text}");
        }
        let mut larger = class(json!({}));
        let device = larger.block_device_mappings[0].ebs.as_mut();
        device.expect("a device").volume_size = Some("10G".into());
        assert_eq!(class_hash(&larger), "5906178522470964189");
        let mut reordered = class(json!({}));
        reordered.block_device_mappings.swap(0, 1);
        assert_eq!(class_hash(&reordered), "4950366118253097694");
    }

    #[test]
    fn an_alias_hashes_as_the_family_it_means() {
        let alias = |family: Value, alias: &str| {
            class_hash(&class(json!({
                "amiFamily": family, "amiSelectorTerms": [{ "alias": alias }]
            })))
        };
        let named = alias(json!("Windows2022"), "windows2022@latest");
        assert_eq!(alias(Value::Null, "windows2022@latest"), named);
        assert_ne!(alias(Value::Null, "windows2025@latest"), named);
        assert_eq!(
            alias(Value::Null, "al2023@latest"),
            alias(Value::Null, "al2023@v20240625")
        );
    }

    #[test]
    fn any_setting_of_the_kubelet_changes_a_classes_hash() {
        let bare = class_hash(&class(json!({})));
        assert_eq!(class_hash(&class(json!({ "kubelet": {} }))), bare);
        let pods = class_hash(&class(json!({ "kubelet": { "maxPods": 20 } })));
        let other = class_hash(&class(json!({ "kubelet": { "registryPullQPS": 20 } })));
        assert!(pods != bare && other != bare && pods != other);
    }
}
