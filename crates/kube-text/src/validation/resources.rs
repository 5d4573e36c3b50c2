//! Resource names and amounts in nodes, pods, claims and runtime classes (`pkg/apis/core/validation`, `pkg/apis/core/helper`).

use super::check;
use crate::{
    field::{Errors, Path},
    names,
    quantity::Quantity,
};

/// The message for an amount that must be an integer.
pub const NOT_INTEGER: &str = "must be an integer";

/// Returns whether a resource is huge pages, such as `hugepages-2Mi`.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Returns whether a resource is named `attachable-volumes-...`.
pub fn is_attachable_volume(name: &str) -> bool {
    name.starts_with("attachable-volumes-")
}

/// Returns whether a resource is one of Kubernetes' own: without a prefix, or below `kubernetes.io/`.
pub fn is_native(name: &str) -> bool {
    // Kubernetes searches for the text instead of comparing domains, so `mykubernetes.io/x` counts as native.
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns whether a resource is an extended one, such as `nvidia.com/gpu`.
pub fn is_extended(name: &str) -> bool {
    // A quota names the resource with the prefix `requests.`, so that longer name must be valid too.
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Returns whether a resource without a prefix is known to Kubernetes (in containers, quotas or nodes).
pub fn is_standard(name: &str) -> bool {
    const STANDARD: [&str; 27] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "storage",
        "requests.storage",
        "services.nodeports",
        "services.loadbalancers",
        "count/pods",
        "count/services",
        "count/secrets",
        "count/configmaps",
        "count/persistentvolumeclaims",
        "count/replicationcontrollers",
        "count/resourcequotas",
    ];
    STANDARD.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// Returns whether a resource is counted in integers.
pub fn is_integer(name: &str) -> bool {
    const COUNTED: [&str; 10] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
        "count/pods",
    ];
    COUNTED.contains(&name) || is_extended(name)
}

/// Validates a resource's name.
pub fn name(errors: &mut Errors, path: &Path<'_>, value: &str) {
    let sentences = names::qualified_name(value);
    if !sentences.is_empty() {
        return check(errors, path, value, sentences);
    }
    if !value.contains('/') && !is_standard(value) {
        errors.invalid(
            path,
            value,
            "must be a standard resource type or fully qualified",
        );
    }
}

/// Validates the name of a container's resource, or of one in a pod's overhead.
pub fn container_name(errors: &mut Errors, path: &Path<'_>, value: &str) {
    name(errors, path, value);
    let standard = matches!(value, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(value);
    if !value.contains('/') {
        if !standard {
            errors.invalid(path, value, "must be a standard resource for containers");
        }
    } else if !is_native(value) && !is_extended(value) {
        errors.invalid(
            path,
            value,
            "doesn't follow extended resource name standard",
        );
    }
}

/// Validates the amount of a resource: not negative, and an integer where the resource is counted.
pub fn amount(errors: &mut Errors, path: &Path<'_>, resource: &str, text: &str) {
    // Decoding has refused texts that are not quantities.
    let Ok(quantity) = Quantity::parse(text) else {
        return;
    };
    nonnegative(errors, path, text);
    if is_integer(resource) && !quantity.is_integer() {
        errors.invalid(path, text, NOT_INTEGER);
    }
}

/// Records an error if the quantity is negative.
pub fn nonnegative(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if Quantity::parse(text).is_ok_and(|quantity| quantity.is_negative()) {
        errors.invalid(path, text, "must be greater than or equal to 0");
    }
}

/// Records an error if the amount of a volume's resource is negative.
pub fn basic(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if let Ok(quantity) = Quantity::parse(text)
        && quantity.value() < 0
    {
        errors.invalid(path, quantity.value(), "must be a valid resource quantity");
    }
}

/// Records an error unless the quantity is positive.
pub fn positive(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if Quantity::parse(text).is_ok_and(|quantity| quantity.nano() <= 0) {
        errors.invalid(path, text, "must be greater than zero");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_extended_and_whole() {
        assert!(is_extended("nvidia.com/gpu"));
        assert!(!is_extended("kubernetes.io/gpu"));
        let mut errors = Errors::default();
        amount(&mut errors, &Path::new("gpu"), "nvidia.com/gpu", "500m");
        assert_eq!(
            errors.0[0].body(),
            r#"Invalid value: "500m": must be an integer"#
        );
    }
}
