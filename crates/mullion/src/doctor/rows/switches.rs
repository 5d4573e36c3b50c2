//! Checks the settings that turn addresses for Windows pods on and off.

use std::collections::BTreeMap;

use mullion_engine::ip::{Settings, Unreadable};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    super::{
        change::Change,
        findings::Findings,
        report::counted,
        snapshot::{Snapshot, Unknown, name_of},
    },
    is_simulated,
};

const CONFIG_MAP: &str = "amazon-vpc-cni";
const IPAM: &str = "enable-windows-ipam";

/// The objects of the controllers that EKS needed before 2021: names from their manifests, and those that eksctl gave them.
const LEGACY: [(&str, &[&str]); 5] = [
    (
        "Deployment",
        &[
            "vpc-resource-controller",
            "vpc-admission-webhook",
            "vpc-admission-webhook-deployment",
        ],
    ),
    (
        "Service",
        &["vpc-admission-webhook", "vpc-admission-webhook-svc"],
    ),
    (
        "MutatingWebhookConfiguration",
        &["vpc-admission-webhook-cfg"],
    ),
    (
        "CertificateSigningRequest",
        &["vpc-admission-webhook-svc.kube-system"],
    ),
    ("Secret", &["vpc-admission-webhook-certs"]),
];

/// Returns the settings in the ConfigMap amazon-vpc-cni, as the address controller reads them.
pub(super) fn settings(snapshot: &Snapshot) -> Result<Settings, Unknown> {
    let map = snapshot.system("ConfigMap", CONFIG_MAP)?;
    Ok(Settings::read(&map.map(data).unwrap_or_default()).0)
}

fn data(map: &Value) -> BTreeMap<String, String> {
    BTreeMap::deserialize(&map["data"]).unwrap_or_default()
}

/// Checks DOC01: Windows IP management is on.
pub(in super::super) fn ip_management(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let map = snapshot.system("ConfigMap", CONFIG_MAP)?;
    let Some(map) = map else {
        let mut found = Findings::default();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": "kube-system"},
            "data": {IPAM: "true"},
        });
        found
            .fail("there is no ConfigMap kube-system/amazon-vpc-cni, so no Windows pod gets an address")
            .with_fix(Change::create(
                object,
                "kubectl -n kube-system create configmap amazon-vpc-cni --from-literal=enable-windows-ipam=true",
            ));
        return Ok(found);
    };
    let (settings, unreadable) = Settings::read(&data(map));
    let mut found = Findings::state(format!("{IPAM} is on"));
    if !settings.windows_ipam {
        let says = match map["data"][IPAM].as_str() {
            Some(value) => format!("says {IPAM}: \"{value}\""),
            None => format!("does not say {IPAM}"),
        };
        found
            .fail(format!(
                "the ConfigMap kube-system/{CONFIG_MAP} {says}, so no Windows pod gets an address"
            ))
            .with_fix(Change::merge(map, json!({"data": {IPAM: "true"}})));
    }
    // The switch itself was checked above.
    for value in unreadable.iter().filter(|own| own.key() != IPAM) {
        let problem = found.warn(match value {
            // Mullion's own controller does not have this defect.
            Unreadable::Target { key, value } if !is_simulated(snapshot) => format!(
                "ConfigMap kube-system/{CONFIG_MAP}: {key} is `{value}`, not a whole number: EKS's controller takes it for 0; write a number such as \"3\""
            ),
            value => value.to_string(),
        });
        let mut without = data(map);
        without.remove(value.key());
        if Settings::read(&without).0 == settings {
            problem.with_fix(Change::merge(map, json!({"data": {value.key(): null}})))
        } else {
            // An invalid value, which counts as absent, hides another key that would take effect.
            problem.command("kubectl -n kube-system edit configmap amazon-vpc-cni")
        };
    }
    Ok(found)
}

/// Checks DOC02: no legacy Windows support is left.
pub(in super::super) fn legacy(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::state("none of its objects is there");
    let mut left = Vec::new();
    for (kind, names) in LEGACY {
        match snapshot.all(kind) {
            Ok(items) => left.extend(items.iter().filter(|item| {
                let namespace = item["metadata"]["namespace"].as_str();
                names.contains(&name_of(item)) && namespace.is_none_or(|own| own == "kube-system")
            })),
            Err(Unknown(missing)) => found.missing.push(missing),
        }
    }
    for object in left {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = name_of(object);
        let text = match (kind, name) {
            ("Deployment", "vpc-resource-controller") => {
                "while the Deployment kube-system/vpc-resource-controller is there, EKS's own controller gives no Windows pod an address".to_owned()
            }
            _ => format!("the {kind} {name} is left of the legacy webhook"),
        };
        let problem = match kind {
            "Deployment" | "MutatingWebhookConfiguration" => found.fail(text),
            _ => found.warn(text),
        };
        problem.with_fix(Change::delete(object));
    }
    if !found.problems.is_empty() {
        found.state = format!(
            "{} left",
            counted(found.problems.len(), "object", "objects")
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_unreadable_target_counts_as_depends_on_whose_controller_reads_it() {
        let map = json!({
            "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": "kube-system"},
            "data": {IPAM: "true", "warm-ip-target": "x"},
        });
        let mut snapshot = Snapshot::empty();
        snapshot.put("ConfigMap", vec![map]);
        let says = |snapshot: &Snapshot, words: &str| {
            let found = ip_management(snapshot).expect("it may be read");
            let [problem] = found.problems.as_slice() else {
                panic!("{found:?}");
            };
            assert!(problem.text.contains(words), "{}", problem.text);
        };
        says(&snapshot, "EKS's controller takes it for 0");
        snapshot.put("SimulatedAccount", vec![json!({})]);
        says(&snapshot, "the default is used");
    }
}
