//! Holds words and places of refusals against those of eksctl.

use serde_json::{Value, json};

use super::refusals;

/// Returns the refusals of a ClusterConfig with these fields: places and words.
fn found(fields: Value) -> Vec<(String, String)> {
    let mut config =
        json!({"metadata": {"name": "demo", "region": "us-west-2", "version": "1.33"}});
    let (Value::Object(config_fields), Value::Object(fields)) = (&mut config, fields) else {
        panic!("both are maps of fields");
    };
    config_fields.extend(fields);
    let found = refusals(&config).into_iter();
    found.map(|own| (own.at.to_string(), own.words)).collect()
}

#[test]
fn values_are_told_in_eksctls_words_at_the_field_that_is_wrong() {
    let cases = [
        (
            json!({"availabilityZones": ["us-west-2a"]}),
            "availabilityZones",
            "only 1 zone(s) specified [us-west-2a], 2 are required (can be non-unique)",
        ),
        (
            json!({"vpc": {"clusterEndpoints": {"publicAccess": false, "privateAccess": false}}}),
            "vpc.clusterEndpoints",
            "Kubernetes API access must have one of public or private clusterEndpoints enabled",
        ),
        (
            json!({"managedNodeGroups": [{"name": "a", "updateConfig": {"maxUnavailable": 1, "maxUnavailablePercentage": 20}}]}),
            "managedNodeGroups[0].updateConfig",
            "cannot use maxUnavailable=1 and maxUnavailablePercentage=20 at the same time",
        ),
        (
            json!({"managedNodeGroups": [{"name": "a", "minSize": 3, "desiredCapacity": 2}]}),
            "managedNodeGroups[0].desiredCapacity",
            "cannot use --nodes-min=3 and --nodes=2 at the same time",
        ),
        (
            json!({"managedNodeGroups": [{"name": "a", "updateConfig": {"maxUnavailable": 5}}]}),
            "managedNodeGroups[0].updateConfig.maxUnavailable",
            "maxUnavailable=5 cannot be greater than maxSize=2",
        ),
    ];
    for (fields, at, words) in cases {
        let expected = vec![(at.to_owned(), words.to_owned())];
        assert_eq!(found(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn a_group_of_a_name_that_another_group_has_is_found_across_both_lists() {
    let both = json!({"nodeGroups": [{"name": "a"}], "managedNodeGroups": [{"name": "a"}]});
    let found = found(both);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.ends_with("is not unique"), "{found:?}");
}

#[test]
fn what_another_program_fills_in_is_not_judged() {
    let open = json!({
        "availabilityZones": "${ZONES}",
        "managedNodeGroups": [{"name": "${NAME}", "minSize": "${LEAST}", "desiredCapacity": 0, "labels": {"${KEY}": "{{ value }}"}}],
    });
    assert_eq!(found(open), []);
}

#[test]
fn addons_and_versions_are_judged_in_eksctls_words() {
    let addon = |fields: Value| {
        let mut addon = json!({"name": "x"});
        let (Value::Object(all), Value::Object(fields)) = (&mut addon, fields) else {
            panic!("both are maps of fields");
        };
        all.extend(fields);
        json!({"addons": [addon, {"name": "eks-pod-identity-agent"}]})
    };
    let identity =
        json!([{"namespace": "a", "serviceAccountName": "b", "roleARN": "arn:aws:iam::1:role/a"}]);
    let cases = [
        (
            json!({"iam": {"withOIDC": true}, "karpenter": {"version": "v0.19.3"}}),
            "karpenter.version",
            "minimum supported version is v0.20.0",
        ),
        (
            json!({"iam": {"withOIDC": true}, "karpenter": {"version": "0.20.0-rc.1"}}),
            "karpenter.version",
            "minimum supported version is v0.20.0",
        ),
        (
            json!({"iam": {"withOIDC": true}, "karpenter": {"version": "newest"}}),
            "karpenter.version",
            "failed to parse Karpenter version",
        ),
        (
            addon(json!({"configurationValues": "a: [b"})),
            "addons[0].configurationValues",
            "is not valid, supported format(s) are: JSON and YAML",
        ),
        (
            addon(json!({"configurationValues": "text"})),
            "addons[0].configurationValues",
            "is not valid",
        ),
        (
            addon(json!({"namespaceConfig": {"namespace": "1a"}})),
            "addons[0].namespaceConfig.namespace",
            "must be a valid DNS-1123 label",
        ),
        (
            addon(
                json!({"attachPolicyARNs": ["arn:aws:iam::aws:policy/a"], "podIdentityAssociations": identity}),
            ),
            "addons[0].attachPolicyARNs",
            "cannot set IRSA config",
        ),
        (
            addon(
                json!({"attachPolicyARNs": ["arn:aws:iam::aws:policy/a"], "wellKnownPolicies": {"autoScaler": true}}),
            ),
            "addons[0].wellKnownPolicies",
            "at most one of wellKnownPolicies",
        ),
        (
            json!({"autoModeConfig": {"enabled": true}, "managedNodeGroups": [{"name": "a"}]}),
            "managedNodeGroups",
            "not supported during cluster creation when Auto Mode is enabled",
        ),
        (
            json!({"autoModeConfig": {"enabled": true}, "addons": [{"name": "coredns"}]}),
            "addons[0]",
            "core networking addons are not required",
        ),
        (
            json!({"addons": [{"name": "x", "podIdentityAssociations": identity}]}),
            "addons[0]",
            "the \"eks-pod-identity-agent\" addon must be installed",
        ),
        (
            json!({"metadata": {"name": "demo", "region": "us-west-2"}, "nodeGroups": [{"name": "a", "amiFamily": "AmazonLinux2"}]}),
            "nodeGroups[0].amiFamily",
            "AmazonLinux2 is not supported",
        ),
        (
            json!({"nodeGroups": [{"name": "a", "outpostARN": "arn:aws:outposts:us-west-2:1:outpost/op-1"}, {"name": "b", "outpostARN": "arn:aws:outposts:us-west-2:1:outpost/op-2"}]}),
            "nodeGroups[1].outpostARN",
            "two different Outposts",
        ),
    ];
    for (fields, at, words) in cases {
        let found = found(fields.clone());
        let is_it = |own: &&(String, String)| own.0 == at && own.1.contains(words);
        assert_eq!(found.iter().filter(is_it).count(), 1, "{fields}: {found:?}");
    }
    for fields in [
        json!({"iam": {"withOIDC": true}, "karpenter": {"version": "1.6.2"}}),
        json!({"iam": {"withOIDC": true}, "karpenter": {"version": "${VERSION}"}}),
        addon(
            json!({"configurationValues": "{\"replicaCount\": 2}", "namespaceConfig": {"namespace": "a-1"}}),
        ),
        addon(
            json!({"configurationValues": "replicaCount: 2\n", "serviceAccountRoleARN": "arn:aws:iam::1:role/a"}),
        ),
        json!({"autoModeConfig": {"enabled": true}, "addons": [{"name": "metrics-server"}]}),
    ] {
        assert_eq!(found(fields.clone()), [], "{fields}");
    }
}

#[test]
fn versions_for_ipv6_are_compared_as_numbers() {
    let of = |version: &str| {
        found(json!({
            "iam": {"withOIDC": true}, "kubernetesNetworkConfig": {"ipFamily": "IPv6"},
            "addons": [{"name": "coredns"}, {"name": "vpc-cni", "version": version}],
        }))
    };
    let old = of("v1.9.3-eksbuild.1");
    assert_eq!(old.len(), 1, "{old:?}");
    assert_eq!(
        old[0].1,
        "vpc-cni version must be at least version 1.10.0 for IPv6"
    );
    for version in ["1.10.0", "v1.20.1-eksbuild.3", "latest", ""] {
        assert!(
            of(version)
                .iter()
                .all(|own| !own.1.contains("at least version")),
            "{version}"
        );
    }
}

#[test]
fn a_profile_of_fargate_is_refused_by_its_own_command() {
    let config = json!({"metadata": {"name": "demo", "region": "us-west-2", "version": "1.33"}, "fargateProfiles": [{"name": "web"}]});
    let found = refusals(&config);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].command(), "eksctl create fargateprofile");
}
