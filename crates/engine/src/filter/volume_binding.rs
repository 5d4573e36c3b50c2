//! kube-scheduler: VolumeBinding. The volume of every claim must be reachable from the node: the volume it is bound
//! to, an available one, or one that can be provisioned.
//!
//! Unbound claims are matched from the smallest to the largest, each with the smallest volume that is large enough;
//! for a claim without a match a volume is provisioned.

use crate::intern::Symbol;
use crate::reason::{Plugin, Reason, Refusal};
use crate::selector::{Requirement, Site};
use crate::storage::{Bound, Candidate, CsiNode, Migration, Plan, Provision, Unbound, reaches};

/// Returns the reasons for which a node is refused. `csi_node` has the drivers of the node, if known.
pub(crate) fn check(plan: &Plan, site: Site<'_>, csi_node: Option<&CsiNode>) -> Option<Refusal> {
    let mut reasons = [bound(plan, site, csi_node), unbound(plan, site)]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    // kube-scheduler reports a missing volume after the other reasons.
    reasons.sort_by_key(|reason| *reason == Reason::VolumeMissing);
    let mut reasons = reasons.into_iter();
    Some(Refusal {
        plugin: Plugin::VolumeBinding,
        reason: reasons.next()?,
        more: reasons.collect(),
    })
}

/// Returns the reason of the first bound claim whose volume does not exist or cannot be reached.
fn bound(plan: &Plan, site: Site<'_>, csi_node: Option<&CsiNode>) -> Option<Reason> {
    let is_migrated = |own: &&Migration| csi_node.is_some_and(|node| node.has_migrated(own.plugin));
    plan.bound.iter().find_map(|bound| match bound {
        Bound::Missing => Some(Reason::VolumeMissing),
        Bound::To(terms, migration) => {
            let migration = migration.as_ref().filter(is_migrated);
            let terms = migration.map_or(terms.as_deref(), |own| Some(&own.terms));
            let reached = reaches(terms, site.labels, site.names);
            (!reached).then_some(Reason::VolumeAffinity)
        }
    })
}

fn unbound(plan: &Plan, site: Site<'_>) -> Option<Reason> {
    let Some(choice) = choose(plan, site) else {
        return Some(Reason::NoVolumeToBind);
    };
    let mut to_provision = choice.provisioned.into_iter();
    to_provision.find_map(|claim| refuses(&claim.provision, site))
}

/// How the unbound claims of a pod would get their volumes on a node.
#[derive(Default)]
pub(crate) struct Choice<'a> {
    /// The claims that match an existing volume, with the volume's name.
    pub(crate) matched: Vec<(&'a Unbound, Symbol)>,
    /// The claims whose volume would be provisioned.
    pub(crate) provisioned: Vec<&'a Unbound>,
}

/// Chooses volumes for the unbound claims; `None` if a claim is already being provisioned for another node.
pub(crate) fn choose<'a>(plan: &'a Plan, site: Site<'_>) -> Option<Choice<'a>> {
    let mut choice = Choice::default();
    let mut to_match: Vec<&Unbound> = Vec::new();
    for claim in &plan.unbound {
        match claim.selected_node {
            // Another pod's decision (annotation `selected-node`) has the volume provisioned there.
            Some(node) if node != site.name => return None,
            Some(_) => choice.provisioned.push(claim),
            None => to_match.push(claim),
        }
    }
    // Stable, and in kube-scheduler's order: small claims take small volumes, so that large ones are left for large
    // claims.
    to_match.sort_by_key(|claim| claim.request);
    let mut chosen: Vec<Symbol> = Vec::new();
    for claim in to_match {
        match matching(claim, &chosen, site) {
            Some(volume) => {
                // Not yet bound anywhere, so only this list keeps a second claim of the pod from the same volume.
                chosen.push(volume);
                choice.matched.push((claim, volume));
            }
            None => choice.provisioned.push(claim),
        }
    }
    Some(choice)
}

/// Returns the existing volume that a claim would be bound to on this node.
fn matching(claim: &Unbound, chosen: &[Symbol], site: Site<'_>) -> Option<Symbol> {
    let is_open = |own: &&Candidate| !chosen.contains(&own.name);
    let is_reached = |own: &&Candidate| reaches(own.terms.as_deref(), site.labels, site.names);
    let mut set_aside = claim.set_aside.iter().filter(is_open);
    let mut candidates = claim.candidates.iter().filter(is_open);
    // A volume that names the claim is its only choice, even if it cannot be reached from here and others could.
    let found = match set_aside.next() {
        Some(first) => Some(first).filter(is_reached),
        None => candidates.find(is_reached),
    };
    found.map(|own| own.name)
}

/// Returns why no new volume can be provisioned for the node.
fn refuses(provision: &Provision, site: Site<'_>) -> Option<Reason> {
    let meets = |term: &Vec<Requirement>| {
        term.iter()
            .all(|demand| demand.matches(site.labels, site.names))
    };
    // No `allowedTopologies` means every node.
    let allowed = match &provision.topologies {
        None => true,
        Some(terms) => terms.iter().any(meets),
    };
    if !provision.possible || !allowed {
        return Some(Reason::NoVolumeToBind);
    }
    let room = provision.room.as_ref();
    let enough = room.is_none_or(|nodes| {
        nodes
            .iter()
            .any(|nodes| nodes.matches(site.labels, site.names))
    });
    (!enough).then_some(Reason::NoStorageLeft)
}
