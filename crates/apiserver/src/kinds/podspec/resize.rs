//! `pods/resize`: changing the resources of running containers, and nothing else.

use serde_json::Value;

use super::{annotations, defaults::is_restartable_init, qos, totals::quantity};
use crate::{
    field::{Errors, Path},
    kinds::tree::Tree,
};

const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Only resources and resize policies of the new pod count. A pod whose containers do not pair up is left for validation to refuse.
pub(crate) fn prepare(pod: &mut Value, old: &Value) {
    let pairs_up = LISTS.into_iter().all(|list| {
        let (new, old) = (pod["spec"].items(list), old["spec"].items(list));
        new.len() == old.len()
            && new
                .iter()
                .zip(old)
                .all(|(new, old)| new.text("name") == old.text("name"))
    });
    if !pairs_up {
        return;
    }
    let mut spec = old["spec"].clone();
    for list in LISTS {
        let wanted = pod["spec"].items(list);
        for (container, wanted) in spec
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .zip(wanted)
        {
            for field in ["resources", "resizePolicy"] {
                let Some(container) = container.as_object_mut() else {
                    continue;
                };
                match wanted.get(field) {
                    Some(value) => container.insert(field.to_owned(), value.clone()),
                    None => container.remove(field),
                };
            }
        }
    }
    if let Some(spec) = spec.as_object_mut() {
        match pod["spec"].get("resources") {
            Some(level) => spec.insert("resources".into(), level.clone()),
            None => spec.remove("resources"),
        };
    }
    pod["spec"] = spec;
    pod["status"] = old["status"].clone();
}

/// Whether the resize is possible; the new pod as such is valid.
pub(crate) fn validate(pod: &Value, old: &Value, errors: &mut Errors) {
    let refuse = |errors: &mut Errors, detail: &str| {
        errors.0.clear();
        errors.forbidden(&Path::new(""), detail);
    };
    if annotations::is_mirror(old) {
        return refuse(errors, "static pods cannot be resized");
    }
    if old["spec"]
        .field("os")
        .is_some_and(|os| os.text("name") == "windows")
    {
        return refuse(errors, "windows pods cannot be resized");
    }
    let path = Path::new("spec");
    if qos::class(&old["spec"]) != qos::class(&pod["spec"]) {
        let class = old["status"].get("qosClass").cloned().unwrap_or_default();
        errors.invalid(
            &path,
            class,
            "Pod QOS Class may not change as a result of resizing",
        );
    }
    if !is_supported(old) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    let pairs = |list: &str| {
        let (new, old) = (pod["spec"].items(list), old["spec"].items(list));
        new.iter().zip(old).enumerate()
    };
    for list in ["initContainers", "containers"] {
        let at = path.child(list);
        for (index, (new, old)) in pairs(list) {
            if list == "containers" || is_restartable_init(old) {
                requirements(new, old, &at.index(index).child("resources"), errors);
            }
        }
    }
    for (list, changed) in [
        ("containers", "only cpu and memory resources are mutable"),
        (
            "initContainers",
            "only cpu and memory resources for sidecar containers are mutable",
        ),
    ] {
        for (_, (new, old)) in pairs(list) {
            if list == "containers" || is_restartable_init(old) {
                if !only_compute_changed(new, old) {
                    errors.forbidden(&path, changed);
                }
            } else if new != old {
                let detail = "resources for non-sidecar init containers are immutable";
                errors.forbidden(&path, detail);
            }
        }
    }
}

/// A kubelet that can resize reports the resources of running containers.
fn is_supported(pod: &Value) -> bool {
    let running = |status: &&Value| {
        status
            .get("state")
            .is_some_and(|state| state.has("running"))
    };
    pod["status"]
        .items("containerStatuses")
        .iter()
        .find(running)
        .is_none_or(|status| status.has("resources"))
}

fn requirements(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let listed = |container: &'_ Value, list: &str, name: &str| {
        container
            .get("resources")?
            .get(list)?
            .field(name)
            .map(quantity)
    };
    for (list, what) in [("requests", "requests"), ("limits", "limits")] {
        let before = old
            .get("resources")
            .map(|resources| resources.entries(list))
            .into_iter()
            .flatten();
        if before
            .into_iter()
            .any(|(name, _)| listed(new, list, name).is_none())
        {
            errors.forbidden(
                &path.child(list),
                format!("resource {what} cannot be removed"),
            );
        }
    }
    let policy = new
        .items("resizePolicy")
        .iter()
        .find(|policy| policy.text("resourceName") == "memory");
    let restarts = policy.is_some_and(|policy| policy.text("restartPolicy") == "RestartContainer");
    if let (Some(_), None, false) = (
        listed(new, "limits", "memory"),
        listed(old, "limits", "memory"),
        restarts,
    ) {
        let detail = "memory limits cannot be added unless resizePolicy is RestartContainer";
        errors.forbidden(&path.child("limits").key("memory"), detail);
    }
}

fn only_compute_changed(new: &Value, old: &Value) -> bool {
    let without_compute = |container: &Value| {
        let mut container = container.clone();
        for list in ["limits", "requests"] {
            let Some(resources) = container
                .get_mut("resources")
                .and_then(Value::as_object_mut)
            else {
                continue;
            };
            let Some(quantities) = resources.get_mut(list).and_then(Value::as_object_mut) else {
                continue;
            };
            quantities.remove("cpu");
            quantities.remove("memory");
            if quantities.is_empty() {
                resources.remove(list);
            }
        }
        if let Some(container) = container.as_object_mut() {
            container.remove("resizePolicy");
        }
        container
    };
    without_compute(new) == without_compute(old)
}
