//! Priority: a pod's priority is that of its class, or of the default class, or 0; and there is one default class at most.

use std::sync::Arc;

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Plugin, Request};

const GROUP: &str = "scheduling.k8s.io";

/// kube-apiserver: Priority.
pub(super) struct Priority;

impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.writes("", "pods") || action.writes(GROUP, "priorityclasses")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        if !request.action.is("", "pods") {
            return Ok(());
        }
        // A client that sends its own manifest again leaves out what this plugin has set, and validation would refuse the change.
        if let Some(old) = request.old {
            for field in ["priority", "preemptionPolicy"] {
                if !request.object["spec"].has(field) && old["spec"].has(field) {
                    request.object["spec"][field] = old["spec"][field].clone();
                }
            }
            return Ok(());
        }
        settle(ctx, request)
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        if !request.action.is(GROUP, "priorityclasses") || !request.object.flag("globalDefault") {
            return Ok(());
        }
        match default_class(ctx) {
            Some(other)
                if request.old.is_none()
                    || other["metadata"]["name"] != request.object["metadata"]["name"] =>
            {
                let name = other["metadata"].text("name");
                let why = format!(
                    "PriorityClass {name} is already marked as default. Only one default can exist"
                );
                Err(request.forbidden(&why))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the class of pods that name none: the default class, or the one with the lowest value if several are marked.
fn default_class(ctx: &Ctx<'_>) -> Option<Arc<Value>> {
    let classes = ctx.lookup.list(GROUP, "priorityclasses", None).into_iter();
    classes
        .filter(|class| class.flag("globalDefault"))
        .min_by_key(|class| class.integer("value"))
}

fn settle(ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
    let name = request.object["spec"].text("priorityClassName").to_owned();
    let class = if name.is_empty() {
        default_class(ctx)
    } else {
        let found = ctx.lookup.find(GROUP, "priorityclasses", None, &name);
        if found.is_none() {
            return Err(request.forbidden(&format!("no PriorityClass with name {name} was found")));
        }
        found
    };
    let priority = class
        .as_ref()
        .and_then(|class| class.integer("value"))
        .unwrap_or(0);
    let policy = class
        .as_ref()
        .map_or("", |class| class.text("preemptionPolicy"));
    let policy = if policy.is_empty() {
        "PreemptLowerPriority"
    } else {
        policy
    };
    let spec = &request.object["spec"];
    if let Some(given) = spec.integer("priority").filter(|&given| given != priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(request.forbidden(&why));
    }
    if let Some(given) = spec["preemptionPolicy"]
        .as_str()
        .filter(|&given| given != policy)
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(request.forbidden(&why));
    }
    let spec = &mut request.object["spec"];
    // The default class is written down, so that the pod keeps it when another class becomes the default.
    if let (true, Some(class)) = (name.is_empty(), &class) {
        spec["priorityClassName"] = class["metadata"]["name"].clone();
    }
    spec["priority"] = priority.into();
    spec["preemptionPolicy"] = policy.into();
    Ok(())
}
