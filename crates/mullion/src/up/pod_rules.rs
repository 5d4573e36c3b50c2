//! Applies the rules about pods ([`mullion_controllers::admission`]) as plugins of the API server.
//!
//! They run after the API server's own plugins, and again when a webhook has changed the pod.

use std::sync::Arc;

use mullion_apiserver::{
    admission::{self, Action, Ctx, Plugin, Request, User},
    status::Status,
};
use mullion_controllers::admission::{
    Access, ClusterReader, Permission, Refusal, Rule, ServiceAccount, Verdict, Write,
    addresses::WindowsAddresses, gmsa::Gmsa,
};
use serde_json::Value;

use super::image_placement::ImagePlacement;

/// Returns the plugins in the order in which they run: `placement` sets fields that the others read; `controller` is the user of this
/// program's controllers.
pub(super) fn plugins(
    placement: ImagePlacement,
    controller: &str,
    random_host_name: bool,
) -> impl Iterator<Item = Arc<dyn Plugin>> {
    let addresses = WindowsAddresses {
        controllers: vec![controller.to_owned()],
    };
    let rules: [Box<dyn Rule>; 2] = [Box::new(addresses), Box::new(Gmsa { random_host_name })];
    let rules = rules
        .into_iter()
        .map(|rule| Arc::new(PodRule(rule)) as Arc<dyn Plugin>);
    std::iter::once(Arc::new(placement) as Arc<dyn Plugin>).chain(rules)
}

/// A rule as a plugin.
struct PodRule(Box<dyn Rule>);

impl Plugin for PodRule {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.writes("", "pods")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        mutate(&*self.0, ctx, request)
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let verdict = self.0.validate(&write(ctx, request), &Lookups(ctx));
        refuse(verdict.refusal)
    }
}

/// Applies a rule to a pod, which may change or refuse it.
pub(super) fn mutate(
    rule: &dyn Rule,
    ctx: &Ctx<'_>,
    request: &mut Request<'_>,
) -> Result<(), Status> {
    let verdict = rule.mutate(&write(ctx, request), &Lookups(ctx));
    let Verdict {
        changes,
        warnings,
        refusal,
    } = verdict;
    request.warnings.extend(warnings);
    // Before any change is applied: a refused pod must not be half changed.
    refuse(refusal)?;
    for change in changes {
        change.apply(request.object);
    }
    Ok(())
}

/// Converts the request to the form that rules use.
pub(super) fn write<'a>(ctx: &'a Ctx<'_>, request: &'a Request<'_>) -> Write<'a> {
    Write {
        user: &ctx.user.name,
        namespace: request.namespace.unwrap_or_default(),
        pod: request.object,
        old: request.old,
    }
}

/// Converts the refusal to an error. It has no details, because kubectl would print them instead of the text.
fn refuse(refusal: Option<Refusal>) -> Result<(), Status> {
    match refusal {
        Some(Refusal { code, reason, text }) => Err(Status::new(code, reason, text)),
        None => Ok(()),
    }
}

/// Looks up objects and rights in the API server for the rules.
pub(super) struct Lookups<'a>(pub(super) &'a Ctx<'a>);

impl ClusterReader for Lookups<'_> {
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        self.0.lookup.find(group, plural, namespace, name)
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.0.lookup.list(group, plural, namespace)
    }

    fn may(&self, account: &ServiceAccount<'_>, access: &Access<'_>) -> Permission {
        let ServiceAccount { namespace, name } = account;
        let user = User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            ..User::default()
        };
        let access = admission::Access {
            verb: access.verb,
            group: access.group,
            plural: access.plural,
            namespace,
            name: access.name,
        };
        let decision = self.0.decide(&user, &access);
        Permission {
            allowed: decision.allowed,
            reason: decision.reason,
        }
    }
}
