//! Amazon Linux 2023: a NodeConfig of nodeadm after the user's own NodeConfigs and scripts, which nodeadm merges in their order.

use serde_json::{Map, Value, json};

use super::{
    BootstrapError, Input,
    mime::{NODE_CONFIG, Part, SHELL, archive},
    yaml,
};

pub(super) fn write(input: &Input<'_>) -> Result<String, BootstrapError> {
    let mut parts = Part::read(input.user_data, type_of)?;
    let config = yaml::write(&node_config(input)?);
    let text = format!("# Mullion Generated NodeConfig\n{config}");
    // nodeadm merges NodeConfigs in order, so the settings of the class win over the user's.
    parts.push(Part::new(NODE_CONFIG, text));
    Ok(archive(&parts))
}

/// Returns the type of user data: a YAML mapping is a NodeConfig, everything else a script.
fn type_of(user_data: &str) -> &'static str {
    match serde_saphyr::from_str::<Map<String, Value>>(user_data) {
        Ok(_) => NODE_CONFIG,
        Err(_) => SHELL,
    }
}

fn node_config(input: &Input<'_>) -> Result<Value, BootstrapError> {
    let cluster = input.cluster;
    let cidr = cluster.service_cidr.as_deref();
    let cidr = cidr.ok_or(BootstrapError::NoServiceCidr)?;
    let mut details = json!({
        "name": cluster.name,
        "apiServerEndpoint": cluster.endpoint,
        "cidr": cidr,
    });
    if let Some(bundle) = &cluster.ca_bundle {
        details["certificateAuthority"] = json!(bundle);
    }
    let mut kubelet = json!(input.kubelet);
    let taints = input.taints.iter().map(|taint| {
        let mut one = json!({ "key": taint.key, "effect": taint.effect.as_str() });
        if !taint.value.is_empty() {
            one["value"] = json!(taint.value);
        }
        one
    });
    kubelet["registerWithTaints"] = taints.collect();
    let mut config = json!({
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            "cluster": details,
            "kubelet": { "config": kubelet },
        },
    });
    if let Some(flag) = input.label_arg() {
        config["spec"]["kubelet"]["flags"] = json!([flag]);
    }
    if input.raid0 {
        config["spec"]["instance"] = json!({ "localStorage": { "strategy": "RAID0" } });
    }
    Ok(config)
}
