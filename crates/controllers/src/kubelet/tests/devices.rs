//! Tests devices: a pod with claims starts once it has them, and reports what it waits for.

use super::*;
use crate::kubelet::config::{ClaimProblem, Object, ObjectContents};

const REASON: &str = "Warning FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources:";

impl Scene {
    fn has_claim(&mut self, name: &str, trouble: Option<&str>) {
        let keys = ObjectContents {
            problem: trouble.map(|why| ClaimProblem::NotPrepared(why.to_owned())),
            ..ObjectContents::default()
        };
        let object = Object::ResourceClaim(name.to_owned());
        self.objects.insert(object, keys);
    }
}

fn claiming() -> Value {
    let mut pod = one("app:1");
    pod["spec"]["resourceClaims"] = json!([
        { "name": "shared", "resourceClaimName": "gpus" },
        { "name": "own", "resourceClaimTemplateName": "one-nic" },
    ]);
    pod
}

#[test]
fn a_pod_waits_for_each_of_its_claims_in_turn_and_is_looked_at_every_minute() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = claiming();
    let wake = scene.observe(&pod);
    let wake = scene.run(wake, 59);
    scene.expect(&[
        "0s status Pending web=ContainerCreating",
        &format!("0s {REASON} fetch ResourceClaim gpus: resourceclaims.resource.k8s.io \"gpus\" not found"),
    ]);
    scene.has_claim("gpus", Some("ResourceClaim gpus: not allocated"));
    let wake = scene.run(wake, 119);
    scene.expect(&[&format!("60s {REASON} ResourceClaim gpus: not allocated")]);
    scene.has_claim("gpus", None);
    let wake = scene.run(wake, 179);
    let yet = "pod \"ns/p\": ResourceClaim not created yet";
    scene.expect(&[&format!("120s {REASON} {yet}")]);
    let own = json!([{ "name": "own", "resourceClaimName": "p-own-x" }]);
    pod["status"] = json!({ "resourceClaimStatuses": own });
    scene.observe(&pod);
    scene.has_claim("p-own-x", None);
    assert_eq!(scene.run(wake, 300), None);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(last, Some("180s status Running 10.0.1.100 web=Running+"));
}

#[test]
fn devices_for_extended_resources_are_waited_for_too() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("app:1");
    pod["status"] = json!({ "extendedResourceClaimStatus": { "resourceClaimName": "x", "requestMappings": [] } });
    scene.observe(&pod);
    let missing = "fetch ResourceClaim x: resourceclaims.resource.k8s.io \"x\" not found";
    assert_eq!(scene.lines.last(), Some(&format!("0s {REASON} {missing}")));
}

#[test]
fn a_pod_that_waits_for_devices_can_be_deleted() {
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&claiming());
    scene.lines.clear();
    assert_eq!(scene.observe(&deleted(claiming(), 0, 30)), None);
    scene.expect(&[
        "0s status Failed web=ContainerStatusUnknown(137)",
        "0s delete",
    ]);
}
