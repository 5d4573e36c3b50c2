//! NamespaceLifecycle: nothing is written into a namespace that does not exist, nothing new into one that is going, and three
//! namespaces never go.

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::{Cause, Status};

use super::{Action, Operation, Plugin, Request};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// kube-apiserver: NamespaceLifecycle.
pub(super) struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        match action.operation {
            Operation::Delete => action.is("", "namespaces"),
            Operation::Create => {
                action.resource.namespaced && action.resource.group != "authorization.k8s.io"
            }
            // An existing object proves that its namespace exists, so the many updates need no look-up.
            Operation::Update | Operation::Connect => false,
        }
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let Some(namespace) = request.namespace else {
            return Ok(());
        };
        // In the mutating phase, as in kube-apiserver: no webhook should be asked about an object that cannot be created.
        let Some(found) = ctx.lookup.find("", "namespaces", None, namespace) else {
            return Err(Status::core_not_found("namespaces", namespace));
        };
        if found["status"]["phase"] != "Terminating" {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut status = request.forbidden(&why);
        if let Some(details) = &mut status.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".into(),
            });
        }
        Err(status)
    }

    fn validate(&self, _ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        if request.action.operation == Operation::Delete && IMMORTAL.contains(&request.name) {
            return Err(request.forbidden("this namespace may not be deleted"));
        }
        Ok(())
    }
}
