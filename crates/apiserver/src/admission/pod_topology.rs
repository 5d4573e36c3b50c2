//! PodTopologyLabels: a pod that is bound learns the zone and region of its node as labels.

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;

use super::{Action, Operation, Plugin, Request};

const LABELS: [&str; 2] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// kube-apiserver: PodTopologyLabels.
pub(super) struct PodTopologyLabels;

impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        let bound = match action.operation {
            Operation::Create => matches!(action.subresource, None | Some("binding")),
            Operation::Connect => action.subresource == Some("binding"),
            Operation::Update | Operation::Delete => false,
        };
        bound && (action.is("", "pods") || action.is("", "bindings"))
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let object = &mut *request.object;
        let node = match object.field("target") {
            Some(target) if target["kind"] == "Node" => target.text("name"),
            Some(_) => "",
            None => object["spec"].text("nodeName"),
        };
        let found = if node.is_empty() {
            None
        } else {
            ctx.lookup.find("", "nodes", None, node)
        };
        let Some(found) = found else { return Ok(()) };
        for label in LABELS {
            if let Some(value) = found["metadata"]["labels"].field(label) {
                // The labels of a Binding are copied to the pod when it is bound.
                object["metadata"]["labels"][label] = value.clone();
            }
        }
        Ok(())
    }
}
