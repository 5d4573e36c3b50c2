//! Validates the device fields of a pod's status: device health, and the claim for extended resources with the request for each resource.

use std::collections::BTreeSet;

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::fields::{self, Field, Format, MaxBytes, NonEmpty, OneOf, always, required, set};

const DEVICE: &[Field] = &[
    always("health", OneOf(&["Healthy", "Unhealthy", "Unknown"])),
    set(
        "message",
        NonEmpty("must be non-empty if specified", &MaxBytes(1024)),
    ),
];
const EXTENDED: &[Field] = &[required("resourceClaimName", Format(names::dns_subdomain))];
const REQUEST: &str = "must match one of the container's resource requests";
const CLAIM: &str = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";

/// Validates `allocatedResourcesStatus` of every container: each resource is one that the container requests, and each health is known.
pub(super) fn validate_health(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (statuses, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ] {
        let path = path.child(statuses);
        for (index, status) in status.items(statuses).iter().enumerate() {
            let container = named(spec.items(containers), status.text("name"));
            let (at, list) = (path.index(index), "allocatedResourcesStatus");
            let at = at.child(list);
            for (index, resource) in status.items(list).iter().enumerate() {
                health(resource, container, &at.index(index), errors);
            }
        }
    }
    let path = path.child("ephemeralContainerStatuses");
    for (index, status) in status
        .items("ephemeralContainerStatuses")
        .iter()
        .enumerate()
    {
        if status.has("allocatedResourcesStatus") {
            errors.forbidden(
                &path.index(index).child("allocatedResourcesStatus"),
                "must not be specified in container status",
            );
        }
    }
}

fn named<'a>(containers: &'a [Value], name: &str) -> Option<&'a Value> {
    containers
        .iter()
        .find(|container| container.text("name") == name)
}

fn health(resource: &Value, container: Option<&Value>, path: &Path<'_>, errors: &mut Errors) {
    let name = resource.text("name");
    // The status of a container that the spec does not have is not checked.
    let (is_asked_for, why) = match name.strip_prefix("claim:") {
        Some(claim) => (container.is_none_or(|it| claims(it, claim)), CLAIM),
        None => (container.is_none_or(|it| requests(it, name)), REQUEST),
    };
    if !is_asked_for {
        errors.invalid(&path.child("name"), name, why);
    }
    let path = path.child("resources");
    let mut seen = BTreeSet::new();
    for (index, device) in resource.items("resources").iter().enumerate() {
        let at = path.index(index);
        fields::validate(DEVICE, device, &at, errors);
        let id = device.text("resourceID");
        if !seen.insert(id) {
            errors.duplicate(&at.child("resourceID"), id);
        }
    }
}

fn requests(container: &Value, name: &str) -> bool {
    container
        .field("resources")
        .and_then(|resources| resources.field("requests"))
        .is_some_and(|requests| requests.has(name))
}

/// Returns whether the container uses this claim: the claim's name, followed by `/` and the request if the container names one.
fn claims(container: &Value, wanted: &str) -> bool {
    let claims = container
        .field("resources")
        .map_or(&[][..], |resources| resources.items("claims"));
    claims.iter().any(|claim| {
        let rest = wanted.strip_prefix(claim.text("name"));
        match claim.text("request") {
            "" => rest == Some(""),
            request => rest.and_then(|rest| rest.strip_prefix('/')) == Some(request),
        }
    })
}

/// Validates the status of the claim that provides extended resources.
pub(super) fn validate_extended(claim: &Value, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mappings = claim.items("requestMappings");
    let list = path.child("requestMappings");
    if mappings.is_empty() {
        errors.required(&list, "at least one request mapping is required");
    }
    let mut seen = BTreeSet::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let at = list.index(index);
        let [container, resource, request] =
            ["containerName", "resourceName", "requestName"].map(|field| mapping.text(field));
        let owner = named(spec.items("containers"), container)
            .or_else(|| named(spec.items("initContainers"), container));
        match owner {
            Some(owner) if requests(owner, resource) => {}
            Some(_) => errors.invalid(
                &at.child("resourceName"),
                resource,
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
            ),
            None => errors.invalid(
                &at.child("containerName"),
                container,
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ),
        }
        // kube-apiserver reports the path of the claim here, not of the mapping.
        let at_request = path.child("requestName");
        check(errors, &at_request, request, names::dns_label(request));
        if !seen.insert((container, resource, request)) {
            errors.duplicate(&at.child("containerName"), container);
            errors.duplicate(&at.child("resourceName"), resource);
            errors.duplicate(&at.child("requestName"), request);
        }
    }
    fields::validate(EXTENDED, claim, path, errors);
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn health_is_told_of_devices_that_a_container_asks_for() {
        let spec = json!({"containers": [{"name": "a", "resources": {
            "requests": {"e.com/gpu": "1"}, "claims": [{"name": "c"}, {"name": "d", "request": "r"}],
        }}]});
        let found = |name: &str, devices: Value| {
            let status = json!({"containerStatuses": [{"name": "a", "allocatedResourcesStatus": [{"name": name, "resources": devices}]}]});
            causes(|errors| validate_health(&status, &spec, &Path::new("status"), errors))
        };
        for good in ["e.com/gpu", "claim:c", "claim:d/r"] {
            assert_eq!(found(good, json!([])), Vec::<String>::new(), "{good}");
        }
        for bad in ["e.com/tpu", "claim:c/r", "claim:d", "claim:", ""] {
            assert_eq!(found(bad, json!([])).len(), 1, "{bad}");
        }
        let device = |health: &str| json!({"resourceID": "0", "health": health});
        assert_eq!(
            found("claim:c", json!([device("Healthy"), device("Ill")])).len(),
            2
        );
        let message =
            |text: String| json!([{"resourceID": "0", "health": "Unknown", "message": text}]);
        assert_eq!(
            found("claim:c", message("x".repeat(1024))),
            Vec::<String>::new()
        );
        assert_eq!(found("claim:c", message("x".repeat(1025))).len(), 1);
        assert_eq!(found("claim:c", message(String::new())).len(), 1);
    }

    #[test]
    fn an_extended_claim_maps_requests_of_containers() {
        let spec =
            json!({"containers": [{"name": "a", "resources": {"requests": {"e.com/gpu": "1"}}}]});
        let found = |claim: Value| {
            causes(|errors| validate_extended(&claim, &spec, &Path::new("claim"), errors)).len()
        };
        let good = json!({"containerName": "a", "resourceName": "e.com/gpu", "requestName": "r"});
        let other = json!({"containerName": "b", "resourceName": "e.com/gpu", "requestName": "r"});
        let name = "resourceClaimName";
        assert_eq!(found(json!({name: "c", "requestMappings": [good]})), 0);
        assert_eq!(
            found(json!({name: "c", "requestMappings": [good, good]})),
            3
        );
        assert_eq!(found(json!({name: "c", "requestMappings": [other]})), 1);
        assert_eq!(found(json!({})), 2);
    }
}
