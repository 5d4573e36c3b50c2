//! Nobody grants more than they have: checks of the writers of roles and bindings (upstream: pkg/registry/rbac, `policybased`).
//!
//! Whoever may `escalate` roles or `bind` a role need not have what is in it.

use mullion_kube_text::{
    golang::{quote, quote_all},
    status::{Details, Status},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::rule::{self, Rule};
use crate::{
    rbac::{GROUP, Scope},
    request::{
        Ctx,
        attributes::{Attributes, Resource, Target},
    },
};

/// Checks the writer of a Role or ClusterRole.
pub(crate) fn check_role(
    ctx: &Ctx<'_>,
    scope: Scope,
    name: &str,
    role: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let plural = match scope {
        Scope::Namespace => "roles",
        Scope::Cluster => "clusterroles",
    };
    let target = Resource {
        group: GROUP,
        resource: plural,
        namespace: ctx.namespace,
        // The path of a creation has no name, so a right to escalate certain roles does not cover it.
        name: ctx.path_name.into(),
        ..Resource::default()
    };
    if ctx.user.is_master() || allows(ctx, "escalate", target) || is_for_collector_only(role, old) {
        return Ok(());
    }
    confirm(ctx, plural, &Rule::all_of(role))
        .map_err(|why| forbidden(plural, name, &why.to_string()))?;
    let aggregates = |role: &Value| {
        let selectors = role["aggregationRule"].items("clusterRoleSelectors");
        !selectors.is_empty()
    };
    // A role that aggregates gets the rules of roles that others write later, so its writer must have all rights.
    if (aggregates(role) || old.is_some_and(aggregates))
        && confirm(ctx, plural, &Rule::everything()).is_err()
    {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(forbidden(plural, name, why));
    }
    Ok(())
}

/// Checks the writer of a RoleBinding or ClusterRoleBinding.
pub(crate) fn check_binding(
    ctx: &Ctx<'_>,
    scope: Scope,
    name: &str,
    binding: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let plural = match scope {
        Scope::Namespace => "rolebindings",
        Scope::Cluster => "clusterrolebindings",
    };
    if ctx.user.is_master() || is_for_collector_only(binding, old) {
        return Ok(());
    }
    let role = &binding["roleRef"];
    let (kind, role_name) = (role.text("kind"), role.text("name"));
    let roles = match kind {
        "ClusterRole" => "clusterroles",
        "Role" => "roles",
        _ => {
            let why = format!("unsupported role reference kind: {kind:?}");
            return Err(Status::new(500, "", why));
        }
    };
    let target = Resource {
        group: role.text("apiGroup"),
        resource: roles,
        namespace: ctx.namespace,
        name: role_name.into(),
        ..Resource::default()
    };
    // A user with `bind` may refer to a role that does not exist yet; for all others its rules must be known.
    if allows(ctx, "bind", target) {
        return Ok(());
    }
    let rules = ctx
        .authorizer
        .role(kind, role_name, ctx.namespace)
        .ok_or_else(|| not_found(plural, role_name))?;
    confirm(ctx, plural, &rules).map_err(|why| forbidden(plural, name, &why.to_string()))
}

fn allows(ctx: &Ctx<'_>, verb: &str, target: Resource<'_>) -> bool {
    let attributes = Attributes {
        verb: verb.into(),
        target: Target::Resource(target),
    };
    ctx.authorizer.allows(ctx.user, &attributes)
}

/// The user does not have the rules that they grant.
#[derive(Debug, thiserror::Error)]
#[error(
    "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}{}",
    quote(.user),
    quote_all(.groups),
    missing.join("\n"),
    unresolved(.errors)
)]
struct NotHeld<'c> {
    user: &'c str,
    groups: &'c [String],
    /// The rules that the user does not have.
    missing: Vec<String>,
    /// The errors of roles that could not be found, as Go shows several; empty if there are none.
    errors: String,
}

fn unresolved(errors: &str) -> String {
    if errors.is_empty() {
        String::new()
    } else {
        format!("; resolution errors: [{errors}]")
    }
}

/// Refuses rules that the user does not have in the request's namespace; `plural` is the request's resource.
fn confirm<'c>(ctx: &Ctx<'c>, plural: &str, wanted: &[Rule]) -> Result<(), NotHeld<'c>> {
    // The namespace of a cluster-scoped request is empty, so only rules for the whole cluster count.
    let (owned, unknown) = ctx.authorizer.rules(ctx.user, ctx.namespace);
    let missing = rule::missing(&owned, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    // kube-apiserver reads the roles from storage here, which names the resource of the request instead of the roles'.
    let errors = unknown.iter().map(|role| absent(plural, &role.name));
    let errors = rule::aggregate(errors.collect());
    Err(NotHeld {
        user: &ctx.user.name,
        groups: &ctx.user.groups,
        missing,
        errors,
    })
}

/// Returns whether an update changes only the metadata fields that the garbage collector writes.
fn is_for_collector_only(object: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let reduced = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["finalizers", "managedFields", "ownerReferences"] {
                metadata.remove(field);
            }
        }
        object
    };
    reduced(object) == reduced(old)
}

fn about(plural: &str, name: &str) -> Option<Box<Details>> {
    Some(Box::new(Details {
        name: name.to_owned(),
        group: GROUP.to_owned(),
        kind: plural.to_owned(),
        ..Details::default()
    }))
}

fn forbidden(plural: &str, name: &str, why: &str) -> Status {
    let named = if name.is_empty() {
        String::new()
    } else {
        format!(" {}", quote(name))
    };
    let message = format!("{plural}.{GROUP}{named} is forbidden: {why}");
    let mut status = Status::new(403, "Forbidden", message);
    status.details = about(plural, name);
    status
}

fn absent(plural: &str, name: &str) -> String {
    format!("{plural}.{GROUP} {} not found", quote(name))
}

fn not_found(plural: &str, name: &str) -> Status {
    let mut status = Status::new(404, "NotFound", absent(plural, name));
    status.details = about(plural, name);
    status
}
