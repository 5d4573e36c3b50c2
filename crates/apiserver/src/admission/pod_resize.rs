//! PodResizeValidator: a running pod is not given more than its node has, and nothing else where the node runs no Linux.

use mullion_kinds::{
    podspec::totals::{self, Totals},
    request::Ctx,
};
use mullion_kube_text::{quantity::Quantity, status::Status};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Operation, Plugin, Request, node_of_change};

const OS: &str = "kubernetes.io/os";

/// Converts an amount to the unit in which errors show it.
type Unit = fn(&Quantity) -> i64;

/// kube-apiserver: PodResizeValidator.
pub(super) struct PodResize;

impl Plugin for PodResize {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.operation == Operation::Update
            && action.is("", "pods")
            && action.subresource == Some("resize")
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let Some(node) = node_of_change(ctx, request)? else {
            return Ok(());
        };
        let lacks = lacks(&request.object["spec"], &node);
        if !lacks.is_empty() {
            return Err(request.forbidden(&format!(
                "Node didn't have enough allocatable resources: {}",
                lacks.join("; ")
            )));
        }
        match node["metadata"]["labels"].text(OS) {
            "linux" => Ok(()),
            os => Err(request.forbidden(&format!(
                "pod resize is only supported on linux nodes, node {:?} is {os:?}",
                node["metadata"].text("name")
            ))),
        }
    }
}

/// Returns the resources of which the pod requests more than the node can allocate, in millicores and bytes.
fn lacks(spec: &Value, node: &Value) -> Vec<String> {
    let wanted = totals::charged_requests(spec);
    let there = totals::list(&node["status"]["allocatable"]);
    let units: [(&str, Unit); 2] = [("cpu", Quantity::milli_value), ("memory", Quantity::value)];
    let lacking = units.into_iter().filter_map(|(name, unit)| {
        let amount = |list: &Totals<'_>| list.get(name).map_or(0, unit);
        let (wanted, there) = (amount(&wanted), amount(&there));
        (wanted > there).then(|| format!("{name}, requested: {wanted}, allocatable: {there}"))
    });
    lacking.collect()
}
