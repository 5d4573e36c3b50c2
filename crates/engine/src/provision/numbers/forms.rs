//! Which of the scheduler's rules for a class can be said in numbers.

use rustc_hash::FxHashMap;

use super::groups;

use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::filter;
use crate::intern::Symbol;
use crate::selector::NamedNodes;
use crate::topology::{Effect, SpreadCounts};

/// The rules of a class in numbers.
pub(super) struct Forms {
    /// Classes of one group are spread or kept together as if they were one class.
    pub(super) group: Option<usize>,
    pub(super) rules: Vec<(PodClassId, Vec<PodClassId>, u32)>,
    pub(super) zones: Zones,
    /// All of its pods are on one node.
    pub(super) is_unit: bool,
}

/// The way in which the class's own pods determine the zones of one another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zones {
    Any,
    /// They are spread by this constraint.
    Spread(usize),
    /// They are spread by this constraint if possible.
    Prefer(usize),
    /// All are in one zone; this constraint spreads them all the same, and so keeps some out.
    One(Option<usize>),
    /// No two are in one zone.
    Apart,
}

/// Which pending classes matter to each other.
pub(super) struct ClassInteractions {
    /// The pending classes whose pods count for each class, and how, in their order.
    counted: FxHashMap<PodClassId, Vec<(PodClassId, Effect)>>,
    /// The classes that take ports of their node.
    with_ports: Vec<PodClassId>,
    /// The place of each pending class among them.
    places: FxHashMap<PodClassId, usize>,
}

impl ClassInteractions {
    /// Collects the effects of pending classes on each other. The views of all classes must be up to date
    /// (`Cluster::prepare`).
    fn of(pending: &[(PodClassId, u32)], cluster: &Cluster) -> Self {
        let mut counted: FxHashMap<PodClassId, Vec<(PodClassId, Effect)>> = pending
            .iter()
            .map(|(class, _)| (*class, Vec::new()))
            .collect();
        for (other, _) in pending {
            for (view, effect) in cluster.touches(*other) {
                if let Some(counted) = counted.get_mut(&view) {
                    counted.push((*other, effect));
                }
            }
        }
        let has_ports = |class: &PodClassId| !cluster.class(*class).shape.host_ports.is_empty();
        let classes = pending.iter().map(|(class, _)| *class);
        ClassInteractions {
            counted,
            with_ports: classes.clone().filter(has_ports).collect(),
            places: classes.zip(0..).collect(),
        }
    }

    /// Returns the index of a class among the pending ones, if it is one of them.
    pub(super) fn place(&self, class: PodClassId) -> Option<usize> {
        self.places.get(&class).copied()
    }

    /// Returns the pending classes whose pods have such an effect on a class.
    pub(super) fn with_effect(
        &self,
        class: PodClassId,
        wanted: impl Fn(Effect) -> bool,
    ) -> Vec<PodClassId> {
        let counted = self.counted.get(&class).into_iter().flatten();
        let found = counted.filter(|(_, effect)| wanted(*effect));
        let mut classes: Vec<PodClassId> = found.map(|(other, _)| *other).collect();
        // A class may have the same effect by several of its terms; equal classes stand next to each other here.
        classes.dedup();
        classes
    }
}

/// Returns the rules of each class in numbers, without classes some of whose rules have no numeric form. Spreading
/// over zones that is only preferred counts if `prefers`.
pub(super) fn all_forms(
    pending: &[(PodClassId, u32)],
    prefers: bool,
    cluster: &Cluster,
) -> Vec<(PodClassId, u32, Forms)> {
    let interactions = ClassInteractions::of(pending, cluster);
    let own = pending
        .iter()
        .map(|(class, _)| forms_of(*class, &interactions, prefers, cluster));
    let mut forms: Vec<Option<Forms>> = own.collect();
    // After all single forms: whether a group can be expressed depends on the forms of all its members.
    groups::join(pending, &mut forms, &interactions, cluster);
    let forms = pending.iter().zip(forms);
    forms
        .filter_map(|((class, count), form)| Some((*class, *count, form?)))
        .collect()
}

/// Returns the rules of one class in numbers, apart from what other classes mean for its zones; `None` if some have
/// no numeric form.
fn forms_of(
    class: PodClassId,
    interactions: &ClassInteractions,
    prefers: bool,
    cluster: &Cluster,
) -> Option<Forms> {
    let own = cluster.class(class);
    // Features, volumes, devices and named nodes depend on more of a node than room, labels and taints, which is all
    // that offers know.
    let plain = own.features.is_empty()
        && own.volumes.is_empty()
        && own.devices.is_none()
        && own.shape.named_nodes == NamedNodes::All;
    if !plain {
        return None;
    }
    let view = cluster.view(class);
    let mut form = Forms {
        group: None,
        rules: Vec::new(),
        zones: Zones::Any,
        is_unit: false,
    };
    for (index, counts) in view.hard.iter().enumerate() {
        match counts.rule.key {
            Symbol::HOSTNAME => {
                // `max_skew` pods may join a new host, because an empty host always counts, so the fewest on any host
                // are none.
                let members =
                    interactions.with_effect(class, |effect| effect == Effect::Hard(index));
                let most = counts.rule.max_skew.clamp(0, i64::from(u32::MAX)) as u32;
                form.rules.push((class, members, most));
            }
            // One zone constraint that counts the class's own pods becomes shares; two of them, or one that counts
            // others, do not.
            Symbol::ZONE if form.zones == Zones::Any && counts.self_match => {
                form.zones = Zones::Spread(index);
            }
            _ => return None,
        }
    }
    if form.zones == Zones::Any && view.soft_declared && prefers {
        let by_zone = |counts: &SpreadCounts| counts.rule.key == Symbol::ZONE && counts.self_match;
        form.zones = view
            .soft
            .iter()
            .position(by_zone)
            .map_or(Zones::Any, Zones::Prefer);
    }
    for term in &own.affinity {
        match term.key {
            // Whom it must be near has to be itself, and nobody else so far.
            _ if !view.self_affine => return None,
            // With rules about company besides, the unit could be larger than a node may hold.
            Symbol::HOSTNAME if view.affinity.is_empty() && form.rules.is_empty() => {
                form.is_unit = true
            }
            Symbol::ZONE => match form.zones {
                Zones::Any | Zones::Prefer(_) => form.zones = Zones::One(None),
                Zones::Spread(index) => form.zones = Zones::One(Some(index)),
                _ => return None,
            },
            _ => return None,
        }
    }
    if own
        .anti_affinity
        .iter()
        .any(|term| term.key == Symbol::ZONE)
    {
        if !matches!(form.zones, Zones::Any | Zones::Prefer(_)) {
            return None;
        }
        form.zones = Zones::Apart;
    }
    // Its own terms, and those of others against it, all say the same of a pair.
    let apart = interactions.with_effect(class, |effect| effect == Effect::Anti(Symbol::HOSTNAME));
    let is_apart_itself = apart.contains(&class);
    if form.is_unit && is_apart_itself {
        return None;
    }
    // A class that keeps itself away may have one pod on a node; one that only others keep away may have none beside
    // them.
    if !apart.is_empty() {
        form.rules.push((class, apart, u32::from(is_apart_itself)));
    }
    let ports = &cluster.class(class).shape;
    for other in &interactions.with_ports {
        let held = &cluster.class(*other).shape.host_ports;
        if filter::node_ports::taken(ports, held).is_some() {
            form.rules
                .push((class, vec![*other], u32::from(*other == class)));
        }
    }
    Some(form)
}

/// Returns whether a pod with this effect on another class may keep that class away from more than its own node.
pub(super) fn is_beyond(view: PodClassId, effect: Effect, cluster: &Cluster) -> bool {
    let keys = effect.filter_keys(cluster.view(view), cluster.class(view));
    matches!(effect, Effect::Affinity) || keys.iter().any(|key| *key != Symbol::HOSTNAME)
}
