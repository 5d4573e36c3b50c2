//! Calls the rules about pods ([`mullion_controllers::admission`]) as plugins of the API server.
//!
//! They stand after the API server's own plugins, and are asked again when a webhook has changed the pod.

use std::sync::Arc;

use mullion_apiserver::{
    admission::{self, Ctx, Plugin, Request, User, What},
    status::Status,
};
use mullion_controllers::admission::{
    Access, Known, Permission, Refusal, Rule, ServiceAccount, Verdict, Write,
    addresses::WindowsAddresses, gmsa::Gmsa,
};
use serde_json::Value;

use super::image_placement::ImagePlacement;

/// Returns the plugins in the order they run: `placement` writes what the others read; `controller` is the user that the controllers of
/// this program run as.
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

    fn handles(&self, what: &What<'_>) -> bool {
        what.writes("", "pods")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        mutate(&*self.0, ctx, request)
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let verdict = self.0.validate(&write(ctx, request), &Lookups(ctx));
        refuse(verdict.refusal)
    }
}

/// Lets a rule change a pod, or refuse it.
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
    refuse(refusal)?;
    for change in changes {
        change.apply(request.object);
    }
    Ok(())
}

/// Returns the write as rules see it.
pub(super) fn write<'a>(ctx: &'a Ctx<'_>, request: &'a Request<'_>) -> Write<'a> {
    Write {
        user: &ctx.user.name,
        namespace: request.namespace.unwrap_or_default(),
        pod: request.object,
        old: request.old,
    }
}

/// Returns the refusal as an error. It has no details: kubectl would print them in place of the text.
fn refuse(refusal: Option<Refusal>) -> Result<(), Status> {
    match refusal {
        Some(Refusal { code, reason, text }) => Err(Status::new(code, reason, text)),
        None => Ok(()),
    }
}

/// The API server's objects and rights as rules look them up.
pub(super) struct Lookups<'a>(pub(super) &'a Ctx<'a>);

impl Known for Lookups<'_> {
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
