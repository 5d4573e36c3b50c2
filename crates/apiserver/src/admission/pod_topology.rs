//! PodTopologyLabels: a pod that is bound learns the zone and region of its node as labels.

use super::{Ctx, Operation, Plugin, Request, What};
use crate::{kinds::tree::Tree, status::Status};

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

    fn handles(&self, what: &What<'_>) -> bool {
        let bound = match what.operation {
            Operation::Create => matches!(what.subresource, None | Some("binding")),
            Operation::Connect => what.subresource == Some("binding"),
            Operation::Update | Operation::Delete => false,
        };
        bound && (what.is("", "pods") || what.is("", "bindings"))
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
                object["metadata"]["labels"][label] = value.clone();
            }
        }
        Ok(())
    }
}
