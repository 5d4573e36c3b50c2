//! Handles `pods/resize`, which changes only the resources of running containers.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{annotations, defaults::is_restartable_init, qos, totals};

const LISTS: [&str; 2] = ["containers", "initContainers"];
const ONLY_COMPUTE: &str = "only cpu and memory resources are mutable";

/// Keeps only the resources and resize policies of the new pod, and takes the rest of the spec from the old one. If the containers do not
/// match, validation must see and refuse that: a pod with other numbers of containers is left as it is, and a list with other names is
/// kept.
pub(crate) fn prepare(pod: &mut Value, old: &Value) {
    if LISTS
        .iter()
        .any(|list| pod["spec"].items(list).len() != old["spec"].items(list).len())
    {
        return;
    }
    let mut wanted = pod["spec"].take();
    let mut spec = old["spec"].clone();
    let Some(fields) = spec.as_object_mut() else {
        return;
    };
    for list in LISTS {
        let Some(new) = wanted.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        let Some(containers) = fields.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        let pairs = || new.iter().zip(&*containers);
        if pairs().any(|(new, old)| new.text("name") != old.text("name")) {
            *containers = std::mem::take(new);
            continue;
        }
        for (container, new) in containers.iter_mut().zip(new) {
            for field in ["resources", "resizePolicy"] {
                take_over(container, new, field);
            }
        }
    }
    take_over(&mut spec, &mut wanted, "resources");
    pod["spec"] = spec;
    pod["status"] = old["status"].clone();
}

/// Moves a field, or removes it if `from` does not have it.
fn take_over(object: &mut Value, from: &mut Value, field: &str) {
    let Some(object) = object.as_object_mut() else {
        return;
    };
    match from.get_mut(field).map(Value::take) {
        Some(value) if !value.is_null() => object.insert(field.to_owned(), value),
        _ => object.remove(field),
    };
}

/// Validates the resize of a valid pod.
pub(crate) fn validate(pod: &Value, old: &Value, errors: &mut Errors) {
    let refuse = |errors: &mut Errors, detail: &str| {
        // For these pods kube-apiserver reports nothing else.
        errors.0.clear();
        errors.forbidden(&Path::new(""), detail);
    };
    if annotations::is_mirror(old) {
        return refuse(errors, "static pods cannot be resized");
    }
    let (new_spec, old_spec) = (&pod["spec"], &old["spec"]);
    if old_spec
        .field("os")
        .is_some_and(|os| os.text("name") == "windows")
    {
        return refuse(errors, "windows pods cannot be resized");
    }
    let path = Path::new("spec");
    // Like GetPodQOS, this prefers the stored class, which is computed only once, at creation.
    let class = match old["status"].text("qosClass") {
        "" => qos::class(old_spec),
        stored => stored,
    };
    if class != qos::class(new_spec) {
        errors.invalid(
            &path,
            class,
            "Pod QOS Class may not change as a result of resizing",
        );
    }
    if !is_supported(old) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    if totals::has_pod_level(new_spec) || totals::has_pod_level(old_spec) {
        pod_level(new_spec, old_spec, &path, errors);
    }
    // The checks below compare containers of the same index, which need not belong together here.
    if !pairs_up(new_spec, old_spec, &path, errors) {
        return;
    }
    let pairs = |list: &str| {
        let (new, old) = (new_spec.items(list), old_spec.items(list));
        new.iter().zip(old).enumerate()
    };
    for list in ["initContainers", "containers"] {
        let at = path.child(list);
        for (index, (new, old)) in pairs(list) {
            let at = at.index(index);
            removed(new, old, "resource", &at.child("resources"), errors);
        }
    }
    let mut changed = false;
    for (_, (new, old)) in pairs("containers") {
        if !only_compute_changed(new, old) {
            errors.forbidden(&path, ONLY_COMPUTE);
            changed = true;
        }
    }
    let at = path.child("initContainers");
    for (index, (new, old)) in pairs("initContainers") {
        let at = at.index(index);
        if !only_compute_changed(new, old) {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.forbidden(&at, detail);
            changed = true;
        }
        if !is_restartable_init(old) && new != old {
            let policies = new.items("resizePolicy").iter();
            // kube-apiserver repeats the error for each such policy.
            for _ in policies.filter(|policy| policy.text("restartPolicy") == "RestartContainer") {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errors.forbidden(&at, detail);
            }
        }
    }
    // The rest of the spec must be unchanged too. That is checked last, because earlier errors may be about the same fields.
    if !changed && errors.is_empty() && !is_same_elsewhere(new_spec, old_spec) {
        errors.forbidden(&path, ONLY_COMPUTE);
    }
}

/// Checks that pod-level resources are changed but not removed.
fn pod_level(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("resources");
    if old.has("resources") && !new.has("resources") {
        return errors.forbidden(&at, "pod-level resources cannot be removed");
    }
    removed(new, old, "pod-level resource", &at, errors);
    let rest = |spec: &Value| without_compute(spec.get("resources"));
    if rest(new) != rest(old) {
        let detail = "only cpu and memory resources are mutable at pod-level";
        errors.forbidden(path, detail);
    }
}

/// Returns whether the pod has the same containers in the same order, and adds errors if not.
fn pairs_up(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.0.len();
    for list in LISTS {
        let at = path.child(list);
        let (new, old) = (new.items(list), old.items(list));
        if new.len() != old.len() {
            let detail = format!("{list} may not be added or removed on resize");
            errors.forbidden(&at, detail);
            continue;
        }
        for (index, (new, old)) in new.iter().zip(old).enumerate() {
            if new.text("name") != old.text("name") {
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.forbidden(&at.index(index).child("name"), detail);
            }
        }
    }
    errors.0.len() == before
}

/// Returns whether the pod's kubelet supports resizing: such a kubelet reports the resources of running containers.
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

/// Refuses to drop requests or limits of a container or a pod.
fn removed(new: &Value, old: &Value, what: &str, path: &Path<'_>, errors: &mut Errors) {
    for list in ["requests", "limits"] {
        let stays = |name: &str| {
            let resources = new.field("resources");
            let list = resources.and_then(|resources| resources.field(list));
            list.is_some_and(|list| list.has(name))
        };
        let mut before = old
            .get("resources")
            .map(|resources| resources.entries(list))
            .into_iter()
            .flatten();
        if before.any(|(name, _)| !stays(name)) {
            let detail = format!("{what} {list} cannot be removed");
            errors.forbidden(&path.child(list), detail);
        }
    }
}

/// Returns whether two containers differ only in requests and limits of cpu and memory. kube-apiserver compares the old container with a
/// copy of the new one without claims: added claims pass, and a container that has claims cannot be resized.
fn only_compute_changed(new: &Value, old: &Value) -> bool {
    let rest = |container: &Value, has_claims: bool| {
        let mut container = container.clone();
        let mut resources = without_compute(container.get("resources"));
        if let Some(fields) = resources.as_object_mut().filter(|_| !has_claims) {
            fields.remove("claims");
        }
        container["resources"] = if resources.as_object().is_some_and(|it| it.is_empty()) {
            Value::Null
        } else {
            resources
        };
        container
    };
    rest(new, false) == rest(old, true)
}

/// Returns the requirements without cpu and memory, or null if nothing else is left.
fn without_compute(resources: Option<&Value>) -> Value {
    let mut resources = resources.cloned().unwrap_or_default();
    let Some(fields) = resources.as_object_mut() else {
        return Value::Null;
    };
    for list in ["limits", "requests"] {
        let Some(quantities) = fields.get_mut(list).and_then(Value::as_object_mut) else {
            continue;
        };
        quantities.remove("cpu");
        quantities.remove("memory");
        if quantities.is_empty() {
            fields.remove(list);
        }
    }
    if fields.is_empty() {
        return Value::Null;
    }
    resources
}

/// Returns whether the specs are equal outside of containers and pod-level resources.
fn is_same_elsewhere(new: &Value, old: &Value) -> bool {
    let elsewhere = |spec: &Value| {
        let mut spec = spec.clone();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|name, _| name != "resources" && !LISTS.contains(&name.as_str()));
        }
        spec
    };
    elsewhere(new) == elsewhere(old)
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    fn pod(containers: Value) -> Value {
        json!({"metadata": {}, "spec": {"containers": containers, "nodeName": "n"}, "status": {"phase": "Running"}})
    }

    fn container(name: &str, resources: Value) -> Value {
        json!({"name": name, "resources": resources, "image": "i"})
    }

    fn resize(new: Value, old: &Value) -> (Value, Vec<String>) {
        let mut new = new;
        prepare(&mut new, old);
        let found = causes(|errors| validate(&new, old, errors));
        (new, found)
    }

    #[test]
    fn resources_are_taken_over_and_nothing_else() {
        let old = pod(json!([container("a", json!({"requests": {"cpu": "1"}}))]));
        let mut new = pod(json!([container("a", json!({"requests": {"cpu": "2"}}))]));
        new["spec"]["nodeName"] = "m".into();
        new["spec"]["containers"][0]["image"] = "other".into();
        new["status"]["phase"] = "Failed".into();
        let (new, found) = resize(new, &old);
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(
            new,
            pod(json!([container("a", json!({"requests": {"cpu": "2"}}))]))
        );
    }

    #[test]
    fn what_cannot_be_resized_is_refused() {
        let cpu = || json!({"requests": {"cpu": "1"}});
        let old = pod(json!([container("a", cpu()), container("b", cpu())]));
        let mut claims = cpu();
        claims["claims"] = json!([{"name": "c"}]);
        let claiming = pod(json!([container("a", claims.clone())]));
        assert_eq!(
            resize(claiming.clone(), &claiming).1,
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        for (new, expected) in [
            (
                json!([container("a", cpu())]),
                vec![
                    "spec.containers: Forbidden: containers may not be added or removed on resize",
                ],
            ),
            (
                json!([container("b", cpu()), container("a", cpu())]),
                vec![
                    "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
                    "spec.containers[1].name: Forbidden: containers may not be renamed or reordered on resize",
                ],
            ),
            (
                json!([container("a", json!({})), container("b", cpu())]),
                vec![
                    "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
                ],
            ),
            (
                json!([container("a", claims), container("b", cpu())]),
                vec![],
            ),
            (
                json!([
                    container("a", json!({"requests": {"cpu": "1", "e.com/gpu": "1"}})),
                    container("b", cpu())
                ]),
                vec!["spec: Forbidden: only cpu and memory resources are mutable"],
            ),
        ] {
            assert_eq!(resize(pod(new), &old).1, expected);
        }
    }

    #[test]
    fn init_containers_and_the_pod_as_a_whole_are_resized_alike() {
        let with = |cpu: &str| {
            let mut pod = pod(json!([container("a", json!({}))]));
            pod["spec"]["initContainers"] =
                json!([container("i", json!({"requests": {"cpu": cpu}}))]);
            pod["spec"]["resources"] = json!({"requests": {"cpu": cpu}});
            pod
        };
        let old = with("1");
        assert_eq!(resize(with("2"), &old).1, Vec::<String>::new());
        let mut new = with("2");
        new["spec"]["resources"] = Value::Null;
        new["spec"]["initContainers"][0]["resizePolicy"] =
            json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        assert_eq!(
            resize(new, &old).1,
            [
                "spec.resources: Forbidden: pod-level resources cannot be removed",
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable",
                "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
            ]
        );
        let mut new = with("1");
        new["spec"]["resources"]["requests"] = json!({"memory": "1Gi"});
        assert_eq!(
            resize(new, &old).1,
            ["spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"]
        );
    }
}
