//! TaintNodesByCondition: a new node takes no pods before it is known to be ready.

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{Action, Plugin, Request};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// kube-apiserver: TaintNodesByCondition.
pub(super) struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates("", "nodes")
    }

    fn mutate(&self, _ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let spec = &mut request.object["spec"];
        let tainted = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
        if spec.items("taints").iter().any(tainted) {
            return Ok(());
        }
        let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
        match spec["taints"].as_array_mut() {
            Some(taints) => taints.push(taint),
            None => spec["taints"] = json!([taint]),
        }
        Ok(())
    }
}
