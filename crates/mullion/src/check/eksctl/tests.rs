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
