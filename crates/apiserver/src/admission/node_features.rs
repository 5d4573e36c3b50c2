//! NodeDeclaredFeatureValidator: a pod that has a node is changed only in ways that its kubelet knows (`status.declaredFeatures`).

use mullion_kinds::{podspec::defaults::is_restartable_init, request::Ctx};
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Operation, Plugin, Request, node_of_change};

/// A feature that the kubelet must declare, and the test whether the change from the old to the new spec needs it.
type Rule = (&'static str, fn(&Value, &Value) -> bool);

/// The features that 1.36 asks for, by name (k8s.io/component-helpers/nodedeclaredfeatures).
const RULES: [Rule; 2] = [
    ("InPlacePodLevelResourcesVerticalScaling", |old, new| {
        old.field("resources") != new.field("resources")
    }),
    ("InPlacePodVerticalScalingInitContainers", |old, new| {
        let mut pairs = old
            .items("initContainers")
            .iter()
            .zip(new.items("initContainers"));
        pairs.any(|(old, new)| {
            !is_restartable_init(old) && old.field("resources") != new.field("resources")
        })
    }),
];

/// kube-apiserver: NodeDeclaredFeatureValidator.
pub(super) struct NodeFeatures;

impl Plugin for NodeFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.operation == Operation::Update
            && action.is("", "pods")
            && matches!(action.subresource, None | Some("resize"))
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let Some(old) = request.old else {
            return Ok(());
        };
        let (old, new) = (&old["spec"], &request.object["spec"]);
        let wanted = RULES.iter().filter(|(_, asks)| asks(old, new));
        let mut wanted = wanted.map(|(name, _)| *name).peekable();
        if wanted.peek().is_none() {
            return Ok(());
        }
        let Some(node) = node_of_change(ctx, request)? else {
            return Ok(());
        };
        let declared = node["status"].items("declaredFeatures");
        let missing: Vec<&str> = wanted
            .filter(|wanted| !declared.iter().any(|name| name == wanted))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(request.forbidden(&format!(
            "pod update requires features {} which are not available on node {:?}",
            missing.join(", "),
            new.text("nodeName")
        )))
    }
}
