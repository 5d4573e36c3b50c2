//! A cluster with devices, told as Kubernetes' JSON, and pods placed in it one after the other as the scheduler does it.

use std::sync::Arc;

use mullion_engine::model::{
    ClaimAllocation, DeviceJudge, DeviceSpec, PodClaim, PodClaims, PodSpec, ResourceClaimSpec,
    ResourceSliceSpec,
};
use mullion_engine::{Cluster, Decision, Options};
use serde_json::{Value, json};

/// A small language: `true`, `name=NAME`, `ATTRIBUTE=INTEGER`, `fails` and `broken`.
#[derive(Debug)]
struct Words;

impl DeviceJudge for Words {
    fn judge(
        &self,
        expression: &str,
        _driver: &str,
        devices: &[DeviceSpec],
    ) -> Result<Vec<Result<bool, String>>, String> {
        if expression == "broken" {
            return Err("what is this?".into());
        }
        let judge = |device: &DeviceSpec| match expression.split_once('=') {
            None if expression == "fails" => Err("no such key: x".into()),
            None => Ok(expression == "true"),
            Some(("name", name)) => Ok(device.name == name),
            Some((attribute, value)) => Ok(is_int(device, attribute, value)),
        };
        Ok(devices.iter().map(judge).collect())
    }
}

pub(crate) fn is_int(device: &DeviceSpec, attribute: &str, value: &str) -> bool {
    use mullion_engine::model::DeviceAttribute::Int;
    matches!(device.attributes.get(attribute), Some(Int(own)) if own.to_string() == value)
}

/// See the module's words.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    /// Claims as they are written.
    pub(crate) written: Vec<ResourceClaimSpec>,
    slices: usize,
}

impl World {
    /// Nodes, each in a zone of its own (`zn1` for `n1`), and the class `any`.
    pub(crate) fn new(nodes: &[&str]) -> Self {
        let mut world = World::without_judge(nodes);
        world.cluster.judge_devices_by(Arc::new(Words));
        world
    }

    pub(crate) fn without_judge(nodes: &[&str]) -> Self {
        let mut cluster = Cluster::new(Options::default());
        for name in nodes {
            let node = json!({
                "metadata": { "name": name, "labels": { "zone": format!("z{name}") } },
                "status": { "allocatable": { "cpu": "8", "pods": "20" } },
            });
            let node = serde_json::from_value(node).expect("a node");
            cluster.add_node(&node).expect("new");
        }
        let class = json!({ "metadata": { "name": "any" }, "spec": { "selectors": [{ "cel": { "expression": "true" } }] } });
        cluster.set_device_class(&serde_json::from_value(class).expect("a class"));
        World {
            cluster,
            written: Vec::new(),
            slices: 0,
        }
    }

    /// A slice of the driver `d`, in a pool by the name of its node unless it says otherwise.
    pub(crate) fn slice(&mut self, spec: Value) {
        let pool = json!({ "name": spec["nodeName"], "generation": 1, "resourceSliceCount": 1 });
        let mut full = json!({ "driver": "d", "pool": pool });
        let (into, spec) = (full.as_object_mut().expect("an object"), spec);
        into.extend(spec.as_object().expect("an object").clone());
        let slice =
            json!({ "metadata": { "name": format!("slice-{}", self.slices) }, "spec": full });
        self.slices += 1;
        let slice: ResourceSliceSpec = serde_json::from_value(slice).expect("a slice");
        self.cluster.set_resource_slice(&slice);
    }

    pub(crate) fn claim(&mut self, name: &str, devices: Value) {
        let claim = json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": { "devices": devices } });
        let claim: ResourceClaimSpec = serde_json::from_value(claim).expect("a claim");
        self.cluster.set_resource_claim(&claim);
        self.written.push(claim);
    }

    /// Says who uses a claim.
    pub(crate) fn reserve(&mut self, name: &str, consumers: &[&str]) {
        let claim = self.written.iter_mut().find(|claim| claim.name == name);
        let claim = claim.expect("a claim that is there");
        claim.reserved_for = consumers.iter().map(|uid| (*uid).to_owned()).collect();
        self.cluster.set_resource_claim(claim);
    }

    pub(crate) fn pod(&self, name: &str, claims: &[&str]) -> PodSpec {
        let claims = claims.iter().map(|claim| PodClaim {
            claim: Some((*claim).to_owned()),
            generated: false,
        });
        let mut spec = PodSpec {
            uid: name.into(),
            name: name.into(),
            ..PodSpec::default()
        };
        spec.template.namespace = "ns".into();
        spec.template.claims = Some(Box::new(PodClaims {
            pod: name.into(),
            uid: name.into(),
            claims: claims.collect(),
        }));
        spec
    }

    /// Places a pod, and what its claims got; or the scheduler's message.
    pub(crate) fn place(&mut self, name: &str, claims: &[&str]) -> Result<Vec<String>, String> {
        self.placed(name, claims).map(|choices| {
            let choices = choices.iter();
            choices
                .map(|(claim, allocation)| chosen(claim, allocation))
                .collect()
        })
    }

    pub(crate) fn placed(
        &mut self,
        name: &str,
        claims: &[&str],
    ) -> Result<Vec<(String, ClaimAllocation)>, String> {
        let spec = self.pod(name, claims);
        let cluster = &mut self.cluster;
        let class = cluster.pod_class(&spec.template).expect("a class");
        match cluster.schedule_pod(&spec, 0).expect("valid") {
            Decision::Node(node) => {
                let choices = cluster.device_choices(class, node);
                for (claim, allocation) in &choices {
                    let own = self.written.iter_mut().find(|own| own.name == *claim);
                    let own = own.expect("a claim that is there");
                    own.allocation = Some(allocation.clone());
                    cluster.set_resource_claim(own);
                }
                let node = cluster.node_name(node).to_owned();
                cluster.bind(&spec, &node).expect("new");
                Ok(choices)
            }
            Decision::Unschedulable(refused) => {
                let preemption = cluster.preempt(class, name, &refused, 0);
                Err(cluster.message_with_preemption(&refused, &preemption))
            }
        }
    }

    pub(crate) fn node_of(&self, pod: &str) -> Option<String> {
        self.cluster.node_of_pod(pod).map(str::to_owned)
    }
}

/// `claim: request=driver/pool/device @nodes`.
pub(crate) fn chosen(claim: &str, allocation: &ClaimAllocation) -> String {
    let mut text = format!("{claim}:");
    for device in &allocation.devices {
        let (driver, pool, name) = (&device.driver, &device.pool, &device.device);
        text += &format!(" {}={driver}/{pool}/{name}", device.request);
        if device.admin_access == Some(true) {
            text += "(admin)";
        }
        for (name, amount) in device.consumed_capacity.iter().flatten() {
            text += &format!("{{{name}={amount}}}");
        }
    }
    text += " @";
    let terms = allocation.node_selector.iter();
    for term in terms.flat_map(|selector| &selector.node_selector_terms) {
        for field in &term.match_fields {
            text += &field.values.join(",");
        }
        for label in &term.match_expressions {
            text += &format!("{} in {}", label.key, label.values.join(","));
        }
    }
    text
}
