//! Settings of the kubelet as arguments of its command line.

use std::{collections::BTreeMap, fmt::Display};

use mullion_api::eksctl::Taint;

use super::Input;

impl Input<'_> {
    /// Returns all arguments in a fixed order.
    pub(super) fn kubelet_args(&self) -> Vec<String> {
        let kubelet = &self.kubelet;
        let mut args = Vec::new();
        args.extend(self.label_arg());
        args.push(self.taint_arg());
        let mut flag = |name: &str, value: Option<&dyn Display>| {
            args.extend(value.map(|value| format!("{name}={value}")));
        };
        fn shown<T: Display>(value: &Option<T>) -> Option<&dyn Display> {
            value.as_ref().map(|value| value as &dyn Display)
        }
        flag("--max-pods", shown(&kubelet.max_pods));
        flag("--pods-per-core", shown(&kubelet.pods_per_core));
        let reserved = |list: &mullion_api::karpenter::ResourceList| -> BTreeMap<String, String> {
            list.iter()
                .map(|(name, amount)| (name.clone(), amount.0.clone()))
                .collect()
        };
        let maps = [
            ("--system-reserved", reserved(&kubelet.system_reserved), "="),
            ("--kube-reserved", reserved(&kubelet.kube_reserved), "="),
            // The kubelet's flag takes thresholds as comparisons, other maps as assignments.
            ("--eviction-hard", kubelet.eviction_hard.clone(), "<"),
            ("--eviction-soft", kubelet.eviction_soft.clone(), "<"),
            (
                "--eviction-soft-grace-period",
                kubelet.eviction_soft_grace_period.clone(),
                "=",
            ),
        ];
        for (name, map, sign) in &maps {
            let pairs: Vec<_> = map.iter().map(|(k, v)| format!("{k}{sign}{v}")).collect();
            let text = (!pairs.is_empty()).then(|| format!("\"{}\"", pairs.join(",")));
            flag(name, shown(&text));
        }
        flag(
            "--eviction-max-pod-grace-period",
            shown(&kubelet.eviction_max_pod_grace_period),
        );
        flag(
            "--image-gc-high-threshold",
            shown(&kubelet.image_gc_high_threshold_percent),
        );
        flag(
            "--image-gc-low-threshold",
            shown(&kubelet.image_gc_low_threshold_percent),
        );
        flag("--cpu-cfs-quota", shown(&kubelet.cpu_cfs_quota));
        args
    }

    /// Returns `--node-labels`, if there are any labels.
    pub(super) fn label_arg(&self) -> Option<String> {
        let pairs = self.labels.iter().map(|(k, v)| format!("{k}={v}"));
        let pairs: Vec<_> = pairs.collect();
        (!pairs.is_empty()).then(|| format!("--node-labels=\"{}\"", pairs.join(",")))
    }

    fn taint_arg(&self) -> String {
        let taints: Vec<_> = self.taints.iter().map(written).collect();
        format!("--register-with-taints=\"{}\"", taints.join(","))
    }
}

/// Formats a taint like kubectl and the kubelet.
fn written(taint: &Taint) -> String {
    let Taint { key, value, effect } = taint;
    if value.is_empty() {
        format!("{key}:{}", effect.as_str())
    } else {
        format!("{key}={value}:{}", effect.as_str())
    }
}
