//! DefaultTolerationSeconds: pods stay five minutes on a node that is not ready or cannot be reached, unless they say otherwise.

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{Action, Plugin, Request};

const KEYS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
const SECONDS: i64 = 300;

/// kube-apiserver: DefaultTolerationSeconds.
pub(super) struct DefaultTolerations;

impl Plugin for DefaultTolerations {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.writes("", "pods")
    }

    fn mutate(&self, _ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let spec = &mut request.object["spec"];
        let tolerated = |key: &str, toleration: &Value| matches!(toleration.text("key"), given if given.is_empty() || given == key);
        let evicting = |toleration: &Value| matches!(toleration.text("effect"), "" | "NoExecute");
        let tolerations = spec.items("tolerations");
        let missing: Vec<Value> = KEYS
            .iter()
            // A toleration without a key or an effect covers these taints too.
            .filter(|key| !tolerations.iter().any(|toleration| tolerated(key, toleration) && evicting(toleration)))
            .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS}))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        match spec["tolerations"].as_array_mut() {
            Some(tolerations) => tolerations.extend(missing),
            None => spec["tolerations"] = missing.into(),
        }
        Ok(())
    }
}
