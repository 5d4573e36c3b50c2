//! A cluster with devices, told as Kubernetes' JSON, and pods placed in it one after the other as the scheduler does it.

use std::sync::Arc;

use mullion_engine::model::{
    ClaimAllocation, DeviceChoices, DeviceJudge, DeviceSpec, PodClaim, PodClaims, PodSpec,
    ResourceClaimSpec, ResourceSliceSpec,
};
use mullion_engine::{Cluster, Decision, Options, Profile};
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
        World::without_judge(nodes).judged()
    }

    pub(crate) fn without_judge(nodes: &[&str]) -> Self {
        let nodes: Vec<_> = nodes.iter().map(|name| (*name, json!({}))).collect();
        World::of(&nodes, Profile::default())
    }

    /// Nodes with what they have beside the usual.
    pub(crate) fn of(nodes: &[(&str, Value)], profile: Profile) -> Self {
        let mut cluster = Cluster::with_profiles(Options::default(), &[profile]);
        for (name, more) in nodes {
            let mut node = json!({
                "metadata": { "name": name, "labels": { "zone": format!("z{name}") } },
                "status": { "allocatable": { "cpu": "8", "pods": "20" } },
            });
            let allocatable = node["status"]["allocatable"].as_object_mut();
            let more = more.as_object().expect("an object").clone();
            allocatable.expect("an object").extend(more);
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

    pub(crate) fn judged(mut self) -> Self {
        self.cluster.judge_devices_by(Arc::new(Words));
        self
    }

    /// A class for every device that stands for a resource.
    pub(crate) fn class(&mut self, name: &str, resource: Option<&str>, created: &str) {
        let class = json!({
            "metadata": { "name": name, "creationTimestamp": created },
            "spec": { "extendedResourceName": resource },
        });
        let class = serde_json::from_value(class).expect("a class");
        self.cluster.set_device_class(&class);
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
            left: None,
        }));
        spec
    }

    /// A pod with containers of the names `c0`, `c1`, ..., which ask for this each.
    pub(crate) fn asking(&self, name: &str, requests: &[Value]) -> PodSpec {
        let containers = requests.iter().enumerate().map(|(index, requests)| {
            json!({ "name": format!("c{index}"), "resources": { "requests": requests } })
        });
        let containers: Vec<_> = containers.collect();
        let pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": name },
            "spec": { "containers": containers },
        });
        serde_json::from_value(pod).expect("a pod")
    }

    /// Places a pod, and what its claims got; or the scheduler's message.
    pub(crate) fn place(&mut self, name: &str, claims: &[&str]) -> Result<Vec<String>, String> {
        let spec = self.pod(name, claims);
        self.place_pod(&spec)
    }

    /// The same of any pod; what stands for its extended resources comes last.
    pub(crate) fn place_pod(&mut self, spec: &PodSpec) -> Result<Vec<String>, String> {
        self.placed(spec).map(|choices| {
            let extended = choices.extended.iter();
            let extended = extended.map(|own| chosen("extended", &own.allocation));
            let choices = choices.claims.iter();
            choices
                .map(|(claim, allocation)| chosen(claim, allocation))
                .chain(extended)
                .collect()
        })
    }

    pub(crate) fn placed(&mut self, spec: &PodSpec) -> Result<DeviceChoices, String> {
        let cluster = &mut self.cluster;
        let class = cluster.pod_class(&spec.template).expect("a class");
        match cluster.schedule_pod(spec, 0).expect("valid") {
            Decision::Node(node) => {
                let choices = cluster.device_choices(class, node);
                if let Some(own) = &choices.extended {
                    let claim = ResourceClaimSpec {
                        namespace: "ns".into(),
                        name: format!("{}-extended", spec.name),
                        owner_uid: Some(spec.uid.clone()),
                        is_extended: true,
                        requests: own.requests.clone(),
                        allocation: Some(own.allocation.clone()),
                        ..ResourceClaimSpec::default()
                    };
                    cluster.set_resource_claim(&claim);
                }
                for (claim, allocation) in &choices.claims {
                    let own = self.written.iter_mut().find(|own| own.name == *claim);
                    let own = own.expect("a claim that is there");
                    own.allocation = Some(allocation.clone());
                    cluster.set_resource_claim(own);
                }
                let node = cluster.node_name(node).to_owned();
                cluster.bind(spec, &node).expect("new");
                Ok(choices)
            }
            Decision::Unschedulable(refused) => {
                let preemption = cluster.preempt(class, &spec.name, &refused, 0);
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
