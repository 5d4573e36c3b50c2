//! Tests that the Rust types can read what users write, and write it back unchanged.

use mullion_api::karpenter::{
    ConsolidationPolicy, EC2NodeClass, NodeClaim, NodePool, Operator,
    legacy::{AWSNodeTemplate, Provisioner},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Reads a value as `K` and writes it back; numbers in resource maps become text.
fn round_trip<K: Serialize + DeserializeOwned>(value: &Value) -> (K, Value) {
    let typed: K = serde_json::from_value(value.clone()).unwrap();
    let written = serde_json::to_value(&typed).unwrap();
    (typed, written)
}

#[test]
fn the_walkthrough_provisioners_round_trip() {
    for text in [
        include_str!("../testdata/karpenter-provisioner-2019.yaml"),
        include_str!("../testdata/karpenter-provisioner-2022.yaml"),
    ] {
        let documents = documents(text);
        let (provisioner, written) = round_trip::<Provisioner>(&documents[0]);
        let mut expected = documents[0].clone();
        expected["spec"]["limits"]["resources"]["cpu"] = json!("1000");
        assert_eq!(written, expected);
        assert_eq!(provisioner.spec.ttl_seconds_after_empty, Some(30));
        assert_eq!(provisioner.spec.requirements[1].operator, Operator::In);
        let (template, written) = round_trip::<AWSNodeTemplate>(&documents[1]);
        assert_eq!(written, documents[1]);
        let name = template.metadata.name.unwrap();
        assert_eq!(template.spec.ami_family.unwrap().to_lowercase(), name);
    }
}

#[test]
fn a_full_node_class_round_trips() {
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "all"},
        "spec": {
            "subnetSelectorTerms": [{"tags": {"a": "b"}}, {"id": "subnet-1"}],
            "securityGroupSelectorTerms": [{"name": "x"}],
            "capacityReservationSelectorTerms": [{"ownerID": "111122223333", "instanceMatchCriteria": "open"}],
            "placementGroupSelector": {"name": "pg"},
            "associatePublicIPAddress": true, "ipPrefixCount": 2,
            "amiSelectorTerms": [{"ssmParameter": "/p"}, {"name": "n", "owner": "self"}],
            "amiFamily": "AL2023", "userData": "#!", "role": "r",
            "tags": {"t": "v"},
            "kubelet": {
                "clusterDNS": ["10.0.0.10"], "maxPods": 20, "podsPerCore": 4,
                "systemReserved": {"memory": "100Mi"}, "kubeReserved": {"cpu": "100m"},
                "evictionHard": {"memory.available": "5%"}, "evictionSoft": {"memory.available": "1Gi"},
                "evictionSoftGracePeriod": {"memory.available": "1m"}, "evictionMaxPodGracePeriod": 60,
                "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80, "cpuCFSQuota": true,
                "registryPullQPS": 10
            },
            "blockDeviceMappings": [{"deviceName": "/dev/xvda", "rootVolume": true, "ebs": {
                "deleteOnTermination": true, "encrypted": true, "iops": 3000, "kmsKeyID": "k", "snapshotID": "s",
                "throughput": 125, "volumeInitializationRate": 100, "volumeSize": "100Gi", "volumeType": "gp3"}}],
            "instanceStorePolicy": "RAID0",
            "networkInterfaces": [{"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}],
            "detailedMonitoring": true,
            "metadataOptions": {"httpEndpoint": "enabled", "httpProtocolIPv6": "disabled",
                "httpPutResponseHopLimit": 1, "httpTokens": "required"},
            "connectionTracking": {"udpTimeout": 30},
            "cpuOptions": {"nestedVirtualization": "enabled"}, "context": "c"
        }
    });
    let (_, written) = round_trip::<EC2NodeClass>(&class);
    assert_eq!(written, class);
}

#[test]
fn a_node_claim_round_trips_with_its_status() {
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "w-4hq46"},
        "spec": {
            "taints": [{"key": "os", "value": "windows", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
            "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"], "minValues": 1}],
            "resources": {"requests": {"pods": "10"}},
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "w"},
            "terminationGracePeriod": "1h", "expireAfter": "Never"
        },
        "status": {
            "nodeName": "n", "providerID": "aws:///us-west-2a/i-1", "imageID": "ami-1",
            "capacity": {"cpu": "4"}, "allocatable": {"cpu": "3920m"},
            "lastPodEventTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Launched", "status": "True", "reason": "Launched", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]
        }
    });
    let (typed, written) = round_trip::<NodeClaim>(&claim);
    assert_eq!(written, claim);
    assert!(typed.is("Launched") && !typed.is("Registered"));
    assert_eq!(typed.node_name(), Some("n"));
}

#[test]
fn what_a_pool_leaves_out_means_what_the_schema_defaults_say() {
    let pool: NodePool = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"template": {"spec": {
            "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []
        }}}
    }))
    .unwrap();
    let disruption = &pool.spec.disruption;
    assert_eq!(
        disruption.consolidation_policy,
        ConsolidationPolicy::WhenEmptyOrUnderutilized
    );
    assert_eq!(disruption.consolidate_after.to_string(), "0s");
    assert_eq!(disruption.budgets[0].nodes, "10%");
    assert_eq!(pool.weight(), 0);
}
