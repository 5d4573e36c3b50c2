//! Bottlerocket: its settings as TOML. The user's own document is kept, except for the settings that the class and the claim decide.

use mullion_api::karpenter::ResourceList;
use toml_edit::{Array, DocumentMut, Item, Table, Value, value};

use super::{BootstrapError, Input};

/// The first release whose `ephemeral-storage bind` has default directories.
const DEFAULT_BIND: (u32, u32) = (1, 46);

pub(super) fn write(input: &Input<'_>, image_name: &str) -> Result<String, BootstrapError> {
    let unreadable = |error: toml_edit::TomlError| {
        let message = error.message();
        BootstrapError::UserData(format!("it is no TOML: {message}"))
    };
    let mut document: DocumentMut = input.user_data.parse().map_err(unreadable)?;
    let settings = table(document.as_table_mut(), "settings")?;
    settings.set_implicit(true);
    if input.raid0 {
        mount_instance_storage(settings, input.alias, image_name)?;
    }
    let kubernetes = table(settings, "kubernetes")?;
    let cluster = input.cluster;
    // These replace what the user wrote: with other values the machine would not join this cluster.
    kubernetes["cluster-name"] = value(&cluster.name);
    kubernetes["api-server"] = value(&cluster.endpoint);
    if let Some(bundle) = &cluster.ca_bundle {
        kubernetes["cluster-certificate"] = value(bundle);
    }
    set_kubelet(kubernetes, input)?;
    let labels = table(kubernetes, "node-labels")?;
    for (key, text) in &input.labels {
        labels[key] = value(*text);
    }
    // Taints come only from the claim.
    let mut taints = Table::new();
    for taint in input.taints {
        let text = format!("{}:{}", taint.value, taint.effect.as_str());
        let list = taints
            .entry(&taint.key)
            .or_insert_with(|| value(Array::new()));
        list.as_array_mut().into_iter().for_each(|a| a.push(&text));
    }
    kubernetes["node-taints"] = Item::Table(taints);
    Ok(document.to_string())
}

fn set_kubelet(kubernetes: &mut Table, input: &Input<'_>) -> Result<(), BootstrapError> {
    let kubelet = &input.kubelet;
    if let Some(dns) = kubelet.cluster_dns.first() {
        kubernetes["cluster-dns-ip"] = value(dns);
    }
    let numbers = [
        ("max-pods", kubelet.max_pods),
        (
            "eviction-max-pod-grace-period",
            kubelet.eviction_max_pod_grace_period,
        ),
    ];
    for (key, number) in numbers {
        if let Some(number) = number {
            kubernetes[key] = value(i64::from(number));
        }
    }
    let percents = [
        (
            "image-gc-high-threshold-percent",
            kubelet.image_gc_high_threshold_percent,
        ),
        (
            "image-gc-low-threshold-percent",
            kubelet.image_gc_low_threshold_percent,
        ),
    ];
    for (key, percent) in percents {
        if let Some(percent) = percent {
            // Bottlerocket's settings have percentages as text.
            kubernetes[key] = value(percent.to_string());
        }
    }
    if let Some(quota) = kubelet.cpu_cfs_quota {
        kubernetes["cpu-cfs-quota-enforced"] = value(quota);
    }
    let reserved = |list: &ResourceList| -> Vec<(String, String)> {
        list.iter()
            .map(|(name, amount)| (name.clone(), amount.0.clone()))
            .collect()
    };
    let pairs = |map: &std::collections::BTreeMap<String, String>| -> Vec<(String, String)> {
        map.clone().into_iter().collect()
    };
    let maps = [
        ("system-reserved", reserved(&kubelet.system_reserved)),
        ("kube-reserved", reserved(&kubelet.kube_reserved)),
        ("eviction-hard", pairs(&kubelet.eviction_hard)),
        ("eviction-soft", pairs(&kubelet.eviction_soft)),
        (
            "eviction-soft-grace-period",
            pairs(&kubelet.eviction_soft_grace_period),
        ),
    ];
    for (key, pairs) in maps {
        if !pairs.is_empty() {
            let mut own = Table::new();
            for (name, text) in pairs {
                own[&name] = value(text);
            }
            kubernetes[key] = Item::Table(own);
        }
    }
    Ok(())
}

/// Configures the local disks to hold pods, images and logs.
fn mount_instance_storage(
    settings: &mut Table,
    alias: Option<&str>,
    image_name: &str,
) -> Result<(), BootstrapError> {
    let mut bind = vec!["apiclient", "ephemeral-storage", "bind"];
    if !binds_by_default(alias, image_name) {
        bind.extend([
            "--dirs",
            "/var/lib/containerd",
            "/var/lib/kubelet",
            "/var/log/pods",
        ]);
    }
    let list = |words: &[&str]| Value::Array(words.iter().copied().collect());
    let init = list(&["apiclient", "ephemeral-storage", "init"]);
    let commands = table(settings, "bootstrap-commands")?;
    commands.set_implicit(true);
    let mount = table(commands, "000-mount-instance-storage")?;
    mount["commands"] = value(Array::from_iter([init, list(&bind)]));
    mount["mode"] = value("always");
    mount["essential"] = value(true);
    Ok(())
}

/// Returns whether the release is new enough; it is in the alias, or else in the image's name.
fn binds_by_default(alias: Option<&str>, image_name: &str) -> bool {
    let release = match alias.and_then(|alias| alias.split_once('@')) {
        Some((_, "latest")) => return true,
        Some((_, release)) => Some(release),
        None => image_name
            .split('-')
            .find(|part| part.starts_with('v') && part.contains('.')),
    };
    let numbers = release.and_then(|release| {
        let mut parts = release.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    numbers.is_some_and(|numbers: (u32, u32)| numbers >= DEFAULT_BIND)
}

/// Returns the table with this name, which is created if it does not exist.
fn table<'a>(parent: &'a mut Table, key: &str) -> Result<&'a mut Table, BootstrapError> {
    let item = parent
        .entry(key)
        .or_insert_with(|| Item::Table(Table::new()));
    // The user may have written `settings = { ... }`, which is the same table in another notation.
    if let Item::Value(Value::InlineTable(inline)) = item {
        let own = std::mem::take(inline).into_table();
        *item = Item::Table(own);
    }
    item.as_table_mut()
        .ok_or_else(|| BootstrapError::UserData(format!("{key} is no table")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_since_1_46_bind_by_default() {
        let name = |release: &str| format!("bottlerocket-aws-k8s-1.33-x86_64-{release}-431fe75a");
        assert!(binds_by_default(None, &name("v1.46.0")));
        assert!(binds_by_default(None, &name("v2.0.1")));
        assert!(!binds_by_default(None, &name("v1.45.9")));
        assert!(!binds_by_default(None, "my-image"));
        assert!(binds_by_default(
            Some("bottlerocket@latest"),
            &name("v1.1.0")
        ));
        assert!(!binds_by_default(
            Some("bottlerocket@1.20.0"),
            &name("v1.50.0")
        ));
    }
}
