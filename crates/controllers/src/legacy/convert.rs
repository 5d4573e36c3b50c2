//! Converts the v1alpha5 kinds to today's. Pure.
//!
//! Invariant: a converted object passes today's schema and means what v1alpha5 meant, defaults included: on-demand,
//! amd64, Linux unless asked otherwise, instance categories c, m and r of generations above 2 unless the type is
//! narrowed down, and no expiry unless one is set.

use std::collections::BTreeMap;

use mullion_api::{
    karpenter::{
        AmiSelectorTerm, BlockDevice, BlockDeviceMapping, ConsolidationPolicy, Disruption,
        EC2NodeClassSpec, KubeletConfiguration, MetadataOptions, NillableDuration,
        NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference, NodePoolSpec, Operator,
        Requirement, SecurityGroupSelectorTerm, SubnetSelectorTerm, TemplateMetadata,
        legacy::{AWSNodeTemplateSpec, LegacyBlockDeviceMapping, ProvisionerSpec},
    },
    labels,
};
use serde_json::Value;

/// Returns the NodePool that a Provisioner is today. `class` is the class its nodes come from.
pub fn node_pool(spec: &ProvisionerSpec, class: &str) -> NodePoolSpec {
    NodePoolSpec {
        template: NodeClaimTemplate {
            metadata: TemplateMetadata {
                labels: spec.labels.clone(),
                annotations: spec.annotations.clone(),
            },
            spec: NodeClaimTemplateSpec {
                taints: spec.taints.clone(),
                startup_taints: spec.startup_taints.clone(),
                requirements: with_defaults(&spec.requirements, &spec.labels),
                node_class_ref: NodeClassReference {
                    group: labels::AWS_GROUP.to_owned(),
                    kind: "EC2NodeClass".to_owned(),
                    name: class.to_owned(),
                },
                termination_grace_period: None,
                expire_after: Some(seconds(spec.ttl_seconds_until_expired)),
            },
        },
        disruption: disruption(spec),
        limits: spec.limits.as_ref().map(|limits| limits.resources.clone()),
        weight: spec.weight,
        replicas: None,
    }
}

fn seconds(seconds: Option<i64>) -> NillableDuration {
    match seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => NillableDuration::seconds(seconds),
        None => NillableDuration::never(),
    }
}

/// Converts the disruption settings. In v1alpha5 a Provisioner had either `ttlSecondsAfterEmpty` or consolidation;
/// without either, nodes stayed.
fn disruption(spec: &ProvisionerSpec) -> Disruption {
    let consolidates = spec
        .consolidation
        .as_ref()
        .is_some_and(|consolidation| consolidation.enabled == Some(true));
    let (consolidation_policy, consolidate_after) = if consolidates {
        // v1alpha5 consolidated without waiting.
        (
            ConsolidationPolicy::WhenEmptyOrUnderutilized,
            NillableDuration::seconds(0),
        )
    } else {
        (
            ConsolidationPolicy::WhenEmpty,
            seconds(spec.ttl_seconds_after_empty),
        )
    };
    Disruption {
        consolidate_after,
        consolidation_policy,
        ..Disruption::default()
    }
}

/// Returns the requirements with v1alpha5's defaults for what neither they nor the labels speak of.
fn with_defaults(
    requirements: &[Requirement],
    given_labels: &BTreeMap<String, String>,
) -> Vec<Requirement> {
    let mut all: Vec<_> = requirements
        .iter()
        .map(|requirement| Requirement {
            key: labels::normalized(&requirement.key).to_owned(),
            ..requirement.clone()
        })
        .collect();
    let speaks_of = |all: &[Requirement], keys: &[&str]| {
        keys.iter().any(|key| {
            given_labels.contains_key(*key) || all.iter().any(|requirement| requirement.key == *key)
        })
    };
    for (key, value) in [
        (labels::OS, labels::OS_LINUX),
        (labels::ARCH, "amd64"),
        (labels::CAPACITY_TYPE, labels::ON_DEMAND),
    ] {
        if !speaks_of(&all, &[key]) {
            all.push(Requirement::is(key, value));
        }
    }
    let narrowing = [
        labels::INSTANCE_TYPE,
        labels::INSTANCE_FAMILY,
        labels::INSTANCE_CATEGORY,
        labels::INSTANCE_GENERATION,
    ];
    // v1alpha5 added these defaults only where the user did not choose types in some other way.
    if !speaks_of(&all, &narrowing) {
        all.push(Requirement::new(
            labels::INSTANCE_CATEGORY,
            Operator::In,
            ["c", "m", "r"],
        ));
        all.push(Requirement::new(
            labels::INSTANCE_GENERATION,
            Operator::Gt,
            ["2"],
        ));
    }
    all
}

/// Returns the EC2NodeClass that an AWSNodeTemplate is today. `profile` is used where the template names none.
pub fn node_class(
    spec: &AWSNodeTemplateSpec,
    kubelet: Option<&KubeletConfiguration>,
    profile: &str,
) -> EC2NodeClassSpec {
    let (ami_family, ami_selector_terms) = images(spec);
    EC2NodeClassSpec {
        subnet_selector_terms: selectors(&spec.subnet_selector)
            .into_iter()
            .map(|(id, tags)| SubnetSelectorTerm { id, tags })
            .collect(),
        security_group_selector_terms: selectors(&spec.security_group_selector)
            .into_iter()
            .map(|(id, tags)| SecurityGroupSelectorTerm {
                id,
                tags,
                name: None,
            })
            .collect(),
        ami_selector_terms,
        ami_family,
        user_data: spec.user_data.clone(),
        instance_profile: Some(
            spec.instance_profile
                .clone()
                .unwrap_or_else(|| profile.to_owned()),
        ),
        tags: spec.tags.clone(),
        kubelet: kubelet.map(|kubelet| {
            let mut kubelet = kubelet.clone();
            // Every node runs containerd; today's schema has no such field.
            kubelet.other.remove("containerRuntime");
            kubelet
        }),
        block_device_mappings: spec.block_device_mappings.iter().map(volume).collect(),
        detailed_monitoring: spec.detailed_monitoring,
        metadata_options: Some(metadata_options(spec.metadata_options.as_ref())),
        context: spec.context.clone(),
        ..EC2NodeClassSpec::default()
    }
}

/// Returns a selector map as alternative terms: each of its ids, or its tags together.
fn selectors(map: &BTreeMap<String, String>) -> Vec<(Option<String>, BTreeMap<String, String>)> {
    let ids = map.iter().filter(|(key, _)| is_ids(key));
    let ids: Vec<_> = ids
        .flat_map(|(_, list)| list.split(','))
        .map(|id| (Some(id.trim().to_owned()), BTreeMap::new()))
        .collect();
    if !ids.is_empty() {
        return ids;
    }
    let tags: BTreeMap<_, _> = map
        .iter()
        .map(|(key, value)| {
            // v1alpha5 wrote an empty value for any value.
            let value = if value.is_empty() { "*" } else { value };
            (key.clone(), value.to_owned())
        })
        .collect();
    if tags.is_empty() {
        Vec::new()
    } else {
        vec![(None, tags)]
    }
}

fn is_ids(key: &str) -> bool {
    matches!(key, "aws-ids" | "aws::ids")
}

/// Returns the image family and the selector terms. Without an `amiSelector` the newest image of the family is
/// selected.
fn images(spec: &AWSNodeTemplateSpec) -> (Option<String>, Vec<AmiSelectorTerm>) {
    let family = spec.ami_family.as_deref().unwrap_or("AL2");
    if spec.ami_selector.is_empty() {
        let alias = match family {
            "Bottlerocket" => "bottlerocket@latest",
            "Windows2019" => "windows2019@latest",
            "Windows2022" => "windows2022@latest",
            _ => "al2@latest",
        };
        let term = AmiSelectorTerm {
            alias: Some(alias.to_owned()),
            ..AmiSelectorTerm::default()
        };
        return (None, vec![term]);
    }
    let owner = spec.ami_selector.get("aws::owners").cloned();
    let name = spec.ami_selector.get("aws::name").cloned();
    let own = spec
        .ami_selector
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "aws::owners" | "aws::name"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut terms: Vec<_> = selectors(&own)
        .into_iter()
        .map(|(id, tags)| AmiSelectorTerm {
            // An id stands alone in today's schema.
            owner: owner.clone().filter(|_| id.is_none()),
            name: name.clone().filter(|_| id.is_none()),
            id,
            tags,
            ..AmiSelectorTerm::default()
        })
        .collect();
    if terms.is_empty() {
        terms.push(AmiSelectorTerm {
            owner,
            name,
            ..AmiSelectorTerm::default()
        });
    }
    let family = match family {
        // Today's schema has no Ubuntu; as in Karpenter's conversion, its images boot with AL2's bootstrap
        // script.
        "Ubuntu" => "AL2",
        other => other,
    };
    (Some(family.to_owned()), terms)
}

fn volume(legacy: &LegacyBlockDeviceMapping) -> BlockDeviceMapping {
    let ebs = legacy.ebs.as_ref().map(|ebs| {
        let text = |key: &str| ebs.get(key).and_then(Value::as_str).map(str::to_owned);
        BlockDevice {
            delete_on_termination: ebs.get("deleteOnTermination").and_then(Value::as_bool),
            encrypted: ebs.get("encrypted").and_then(Value::as_bool),
            iops: ebs.get("iops").and_then(Value::as_i64),
            kms_key_id: text("kmsKeyID"),
            snapshot_id: text("snapshotID"),
            throughput: ebs.get("throughput").and_then(Value::as_i64),
            volume_initialization_rate: None,
            volume_size: ebs.get("volumeSize").and_then(gibibytes),
            volume_type: text("volumeType"),
        }
    });
    BlockDeviceMapping {
        device_name: legacy.device_name.clone(),
        ebs,
        root_volume: false,
    }
}

/// Returns a size in whole GiB, as today's schema wants it.
fn gibibytes(size: &Value) -> Option<String> {
    let text = match size {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let quantity: mullion_engine::model::Quantity = text.parse().ok()?;
    let bytes = u64::try_from(quantity.value()).ok()?;
    Some(format!("{}Gi", bytes.div_ceil(1 << 30).max(1)))
}

/// Fills in v1alpha5's defaults; the hop limit was 2, today's default is 1.
fn metadata_options(given: Option<&MetadataOptions>) -> MetadataOptions {
    let given = given.cloned().unwrap_or_default();
    let or = |value: Option<String>, default: &str| value.or_else(|| Some(default.to_owned()));
    MetadataOptions {
        http_endpoint: or(given.http_endpoint, "enabled"),
        http_protocol_ipv6: or(given.http_protocol_ipv6, "disabled"),
        http_put_response_hop_limit: given.http_put_response_hop_limit.or(Some(2)),
        http_tokens: or(given.http_tokens, "required"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provisioner(spec: Value) -> NodePoolSpec {
        node_pool(&serde_json::from_value(spec).expect("a provisioner"), "w")
    }

    fn template(spec: Value) -> EC2NodeClassSpec {
        node_class(
            &serde_json::from_value(spec).expect("a template"),
            None,
            "profile",
        )
    }

    fn requirement(pool: &NodePoolSpec, key: &str) -> Option<(Operator, Vec<String>)> {
        let requirements = &pool.template.spec.requirements;
        let found = requirements
            .iter()
            .find(|requirement| requirement.key == key)?;
        Some((found.operator, found.values.clone()))
    }

    #[test]
    fn the_blogs_provisioner_is_a_pool_that_goes_when_empty() {
        let pool = provisioner(json!({
            "requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                { "key": "kubernetes.io/os", "operator": "In", "values": ["windows"] }
            ],
            "limits": { "resources": { "cpu": 1000 } },
            "providerRef": { "name": "windows2022" },
            "ttlSecondsAfterEmpty": 30
        }));
        let only = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            requirement(&pool, labels::OS),
            Some((Operator::In, only(&["windows"])))
        );
        assert_eq!(
            requirement(&pool, labels::ARCH),
            Some((Operator::In, only(&["amd64"])))
        );
        assert_eq!(
            requirement(&pool, labels::INSTANCE_CATEGORY),
            Some((Operator::In, only(&["c", "m", "r"])))
        );
        assert_eq!(
            requirement(&pool, labels::INSTANCE_GENERATION),
            Some((Operator::Gt, only(&["2"])))
        );
        assert_eq!(
            pool.disruption.consolidation_policy,
            ConsolidationPolicy::WhenEmpty
        );
        assert_eq!(pool.disruption.consolidate_after.to_string(), "30s");
        let expire = pool.template.spec.expire_after.as_ref().expect("set");
        assert_eq!(expire.to_string(), "Never");
        assert_eq!(
            pool.limits.as_ref().and_then(|limits| limits.text("cpu")),
            Some("1000")
        );
        assert_eq!(pool.template.spec.node_class_ref.name, "w");
    }

    #[test]
    fn defaults_stay_out_of_the_way_of_what_was_said() {
        let pool = provisioner(json!({
            "labels": { "kubernetes.io/arch": "arm64" },
            "requirements": [
                { "key": "beta.kubernetes.io/os", "operator": "Exists" },
                { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m6g.large"] }
            ]
        }));
        assert_eq!(requirement(&pool, labels::ARCH), None);
        assert_eq!(
            requirement(&pool, labels::OS),
            Some((Operator::Exists, Vec::new()))
        );
        assert_eq!(requirement(&pool, labels::INSTANCE_CATEGORY), None);
        let expected = (Operator::In, vec!["on-demand".to_owned()]);
        assert_eq!(requirement(&pool, labels::CAPACITY_TYPE), Some(expected));
    }

    #[test]
    fn nodes_stay_where_nothing_lets_them_go() {
        let stays = provisioner(json!({}));
        assert_eq!(stays.disruption.consolidate_after.duration(), None);
        let consolidates = provisioner(json!({ "consolidation": { "enabled": true } }));
        assert_eq!(
            consolidates.disruption.consolidation_policy,
            ConsolidationPolicy::WhenEmptyOrUnderutilized
        );
        let expires = provisioner(json!({ "ttlSecondsUntilExpired": 86400 }));
        let expire = expires.template.spec.expire_after.expect("set");
        assert_eq!(expire.to_string(), "86400s");
    }

    #[test]
    fn the_blogs_template_is_a_class_with_an_alias() {
        let class = template(json!({
            "subnetSelector": { "karpenter.sh/discovery": "demo" },
            "securityGroupSelector": { "aws-ids": "sg-1, sg-2" },
            "amiFamily": "Windows2022",
            "metadataOptions": { "httpTokens": "optional" },
            "blockDeviceMappings": [{ "deviceName": "/dev/sda1", "ebs": { "volumeSize": "100G" } }]
        }));
        assert_eq!(
            class.ami_selector_terms[0].alias.as_deref(),
            Some("windows2022@latest")
        );
        assert_eq!(class.ami_family, None);
        assert_eq!(
            class.subnet_selector_terms[0].tags["karpenter.sh/discovery"],
            "demo"
        );
        let ids: Vec<_> = class
            .security_group_selector_terms
            .iter()
            .filter_map(|t| t.id.as_deref())
            .collect();
        assert_eq!(ids, ["sg-1", "sg-2"]);
        assert_eq!(class.instance_profile.as_deref(), Some("profile"));
        let options = class.metadata_options.expect("set");
        assert_eq!(options.http_tokens.as_deref(), Some("optional"));
        assert_eq!(options.http_put_response_hop_limit, Some(2));
        let volume = class.block_device_mappings[0].ebs.as_ref().expect("set");
        assert_eq!(volume.volume_size.as_deref(), Some("94Gi"));
    }

    #[test]
    fn images_may_be_selected_by_id_name_or_tag() {
        let by_id = template(
            json!({ "amiSelector": { "aws::ids": "ami-1,ami-2", "aws::owners": "self" } }),
        );
        assert_eq!(by_id.ami_selector_terms.len(), 2);
        assert_eq!(by_id.ami_selector_terms[0].owner, None);
        assert_eq!(by_id.ami_family.as_deref(), Some("AL2"));
        let by_name = template(
            json!({ "amiFamily": "Custom", "amiSelector": { "aws::name": "n", "aws::owners": "self" } }),
        );
        assert_eq!(by_name.ami_selector_terms[0].name.as_deref(), Some("n"));
        assert_eq!(by_name.ami_selector_terms[0].owner.as_deref(), Some("self"));
        let by_tag = template(json!({ "amiSelector": { "team": "" } }));
        assert_eq!(by_tag.ami_selector_terms[0].tags["team"], "*");
    }
}
