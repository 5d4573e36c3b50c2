//! Creates and updates the views of pod classes ([`crate::topology`]).
//!
//! A view is computed when its class is first asked about; from then on every change updates it. Invariant: `affects[c]` names
//! exactly the existing views that a pod of class `c` changes. Classes that see other pods alike share a view
//! ([`super::shared_views`]).

use super::shared_views::{ViewId, Viewpoint};
use super::{Cluster, NodeFixed, NodeId, ViewEffects};
use crate::class::{PodClass, PodClassId, SpreadRule, StaticRules, StaticVerdict, Target};
use crate::devices;
use crate::intern::Symbol;
use crate::model::{PodTemplate, label};
use crate::profile::Rules;
use crate::reason::{Plugin, Reason};
use crate::storage::Plan;
use crate::topology::{Effect, PodPresence, View};

/// A pod class in a cluster, with everything that filters and scorers read.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) class: &'a PodClass,
    pub(crate) view: &'a View,
    /// The rules of the pod's profile.
    pub(crate) rules: &'a Rules,
    /// The volume plan; `None` for pods without volumes.
    pub(crate) volumes: Option<&'a Plan>,
    /// The device plan; `None` for pods that neither claim devices nor request resources that DeviceClasses stand for.
    pub(crate) devices: Option<&'a devices::Plan>,
}

impl Question<'_> {
    /// Returns the static verdict for a node.
    pub(crate) fn verdict(&self, id: NodeId) -> StaticVerdict {
        let shape = &self.class.shape;
        // Nodes of one class differ in name, so their common verdict does not hold for this pod.
        if shape.asks_for_name {
            let static_rules = self.cluster.static_rules(shape);
            return StaticVerdict::of(shape, self.target(id), static_rules, &self.cluster.names);
        }
        let class = self.cluster.at(id).fixed.class;
        self.cluster.verdicts[self.class.shape_id.index()].verdict(class)
    }

    /// Returns why a static filter refuses a node; `None` if it accepts the node or is off.
    pub(crate) fn ask_static(&self, plugin: Plugin, id: NodeId) -> Option<Reason> {
        let shape = &self.class.shape;
        let static_rules = self.cluster.static_rules(shape);
        static_rules.ask(plugin, shape, self.target(id), &self.cluster.names)
    }

    fn target(&self, id: NodeId) -> Target<'_> {
        let fixed = &self.cluster.at(id).fixed;
        Target {
            name: fixed.name,
            labels: &fixed.labels,
            taints: &fixed.taints,
            unschedulable: fixed.unschedulable,
        }
    }

    /// Returns whether the static filters accept a node; unless the pod asks for node names this reads a single bit.
    pub(crate) fn passes_static(&self, id: NodeId) -> bool {
        if self.class.shape.asks_for_name {
            return self.verdict(id).refusal.is_none();
        }
        self.cluster.verdicts[self.class.shape_id.index()].fits(self.cluster.at(id).fixed.class)
    }
}

impl Cluster {
    /// Prepares a class and returns its question.
    pub(crate) fn question(&mut self, id: PodClassId) -> Question<'_> {
        self.prepare(id);
        self.prepared(id)
    }

    /// Returns the question of a class that [`Cluster::prepare`] has prepared.
    pub(super) fn prepared(&self, id: PodClassId) -> Question<'_> {
        let view = self.view(id);
        let class = &self.classes[id.index()];
        let volumes = (!class.volumes.is_empty()).then(|| &self.volume_plans[&id].1);
        Question {
            cluster: self,
            class,
            view,
            rules: self.rules(class.shape.profile),
            volumes,
            devices: self
                .is_about_devices(class)
                .then(|| &self.device_plans[&id].1),
        }
    }

    /// Computes the static verdicts, the plans and the view of a class where they are missing.
    pub(crate) fn prepare(&mut self, id: PodClassId) {
        let class = &self.classes[id.index()];
        if !class.shape.asks_for_name {
            let classes = self.node_classes.iter();
            let verdicts = &mut self.verdicts[class.shape_id.index()];
            let static_rules = StaticRules {
                rules: &self.profiles[class.shape.profile.0 as usize].1,
                os_filter: self.options.os_filter,
            };
            verdicts.extend(&class.shape, classes, static_rules, &self.names);
        }
        let class = &self.classes[id.index()];
        let has_devices = self.is_about_devices(class);
        if !class.volumes.is_empty() {
            self.plan_volumes(id);
        }
        if has_devices {
            self.plan_devices(id);
        }
        if self.views.id(id).is_none() {
            self.find_view(id);
        }
    }

    /// Returns the view of a prepared class.
    pub(crate) fn view(&self, id: PodClassId) -> &View {
        let view = self.views.id(id).and_then(|view| self.views.get(view));
        view.expect("prepared before")
    }

    /// Returns the domain with the fewest pods that count for a prepared class's spread constraint with this key and
    /// `maxSkew`, the first by name of several; `None` if the domains are hosts, or if there are fewer than `minDomains`.
    pub(crate) fn emptiest_domain(
        &self,
        id: PodClassId,
        (key, max_skew): (Symbol, i64),
    ) -> Option<Symbol> {
        let view = self.view(id);
        let mut counts = view.hard.iter().chain(&view.soft);
        let is_it = |rule: &SpreadRule| rule.key == key && rule.max_skew == max_skew;
        let counts = counts.find(|counts| is_it(&counts.rule) && key != Symbol::HOSTNAME)?;
        if counts.lacks_domains() {
            return None;
        }
        let is_emptiest = |domain: &Symbol| counts.pods_at(*domain) == counts.fewest();
        let domains = counts.all_places().filter(is_emptiest);
        domains.min_by_key(|domain| self.text(*domain))
    }

    /// Gives a class the view of classes with the same viewpoint, or a new one.
    fn find_view(&mut self, id: PodClassId) {
        let defaults = self.objects.default_spread(
            self.classes
                .key(id.index())
                .expect("a class that is asked about is kept"),
            &self.profiles[self.classes[id.index()].shape.profile.0 as usize].1,
            &mut self.names,
        );
        let viewpoint = Viewpoint::of(&self.classes[id.index()], defaults);
        match self.views.find(&viewpoint) {
            Some(view) => self.views.join(id, view),
            None => self.make_view(id, viewpoint),
        }
    }

    fn make_view(&mut self, id: PodClassId, viewpoint: Viewpoint) {
        let class = &self.classes[id.index()];
        let rules = &self.profiles[class.shape.profile.0 as usize].1;
        // Of an empty list this is true too, which does not matter: without terms the affinity filter lets every node
        // pass.
        let self_affine = class
            .affinity
            .iter()
            .all(|term| term.matches(class, &self.namespaces, &self.names));
        let mut view = View::new(
            class,
            viewpoint.spread().to_vec(),
            self_affine,
            StaticRules {
                rules,
                os_filter: self.options.os_filter,
            },
            &self.names,
        );
        if view.counts_nodes() {
            for node in self.nodes.iter().flatten() {
                view.join(class, node.fixed.spot(), &self.names);
            }
        }
        // A view without node counts and terms of its own changes only by pods with affinity terms, so all other classes are
        // skipped.
        let quiet = !view.counts_nodes() && !class.has_pod_terms();
        let others: Vec<usize> = if quiet {
            self.termed.iter().copied().collect()
        } else {
            self.classes.iter().map(|(index, ..)| index).collect()
        };
        let mut affected: Vec<(usize, Box<[Effect]>)> = Vec::new();
        for index in others {
            let other = &self.classes[index];
            let effects = Effect::all(&view, (class, rules), other, &self.namespaces, &self.names);
            if !effects.is_empty() {
                view.expect(&effects);
                affected.push((index, effects.into()));
            }
        }
        let view_id = self.views.insert(viewpoint, view, id, !quiet);
        let is_affected = !affected.is_empty();
        for (index, effects) in affected {
            self.affects[index].push(ViewEffects {
                view: view_id,
                effects,
            });
        }
        let view = self.views.get_mut(view_id).expect("inserted above");
        for node in self.nodes.iter().flatten().filter(|_| is_affected) {
            for count in &node.classes {
                // The new view's effects were pushed last, so no other entry has to be looked at.
                let affects = &self.affects[count.class.index()];
                let Some(affects) = affects.last().filter(|affects| affects.view == view_id) else {
                    continue;
                };
                let spot = node.fixed.spot();
                view.apply(
                    &affects.effects,
                    spot,
                    count.pods(),
                    PodPresence::of(count.terminating()),
                );
            }
        }
    }

    /// Computes the effects of a new class on the existing views. The class has no pods yet.
    pub(super) fn introduce(&mut self, id: PodClassId) {
        let class = &self.classes[id.index()];
        let concerned: Vec<ViewId> = if class.has_pod_terms() {
            // Its terms may be about pods of any class, so it can change any view; a class without terms only those
            // that count pods.
            self.termed.insert(id.index());
            self.views.all().collect()
        } else {
            self.views.open().collect()
        };
        for view_id in concerned {
            let Some(own) = self.class_of_view(view_id) else {
                continue;
            };
            let own = &self.classes[own.index()];
            let Some(view) = self.views.get_mut(view_id) else {
                continue;
            };
            let rules = &self.profiles[own.shape.profile.0 as usize].1;
            let effects = Effect::all(view, (own, rules), class, &self.namespaces, &self.names);
            if !effects.is_empty() {
                view.expect(&effects);
                let affects = ViewEffects {
                    view: view_id,
                    effects: effects.into(),
                };
                self.affects[id.index()].push(affects);
            }
        }
    }

    /// Returns one of the classes that have a view; which one makes no difference to the view.
    fn class_of_view(&self, view: ViewId) -> Option<PodClassId> {
        self.views.classes(view).first().copied()
    }

    /// Drops the views of the classes whose default spread may have changed.
    pub(super) fn drop_views_of(&mut self, concerns: impl Fn(&PodTemplate) -> bool) {
        let mut gone = Vec::new();
        for (index, template, _) in self.classes.iter() {
            let declares = !template.topology_spread_constraints.is_empty();
            let class = PodClassId(index as u32);
            // Defaults apply only to pods without constraints of their own.
            if declares || self.views.id(class).is_none() || !concerns(template) {
                continue;
            }
            gone.extend(self.views.leave(class));
        }
        self.forget_views(gone);
    }

    /// Drops what boards and effects keep for removed views.
    pub(super) fn forget_views(&mut self, mut gone: Vec<ViewId>) {
        if gone.is_empty() {
            return;
        }
        gone.sort_unstable();
        gone.iter().for_each(|view| self.boards.drop_hosts(*view));
        for affects in &mut self.affects {
            affects.retain(|affects| gone.binary_search(&affects.view).is_err());
        }
    }

    pub(super) fn drop_views(&mut self) {
        self.views.clear();
        self.boards.drop_all_hosts();
        self.affects.iter_mut().for_each(Vec::clear);
    }

    pub(super) fn views_join(&mut self, fixed: &NodeFixed) {
        // Views that count nodes are all among the open ones.
        self.views.change_open(|class, view| {
            if view.counts_nodes() {
                view.join(&self.classes[class.index()], fixed.spot(), &self.names);
            }
        });
    }

    pub(super) fn views_leave(&mut self, fixed: &NodeFixed) {
        self.views.change_open(|_, view| {
            if view.counts_nodes() {
                view.leave(fixed.spot());
            }
        });
    }

    /// Adds `delta` pods of a class on a node to every view that they affect.
    pub(super) fn views_count(
        &mut self,
        class: PodClassId,
        at: NodeId,
        delta: i64,
        presence: PodPresence,
    ) {
        let Some(node) = self.nodes[at.index()].as_ref() else {
            return;
        };
        for affects in &self.affects[class.index()] {
            if let Some(view) = self.views.get_mut(affects.view) {
                view.apply(&affects.effects, node.fixed.spot(), delta, presence);
            }
        }
    }

    /// Removes all pods of a node from the views, before its labels change.
    pub(super) fn views_clear(&mut self, at: NodeId) {
        self.views_shift(at, -1);
    }

    /// Adds all pods of a node to the views, after its labels changed.
    pub(super) fn views_fill(&mut self, at: NodeId) {
        self.views_shift(at, 1);
    }

    fn views_shift(&mut self, at: NodeId, sign: i64) {
        for count in self.at(at).classes.clone() {
            let presence = PodPresence::of(count.terminating());
            self.views_count(count.class, at, sign * count.pods(), presence);
        }
    }

    /// Returns the effects of a pod of a class on the prepared classes.
    pub(crate) fn touches(
        &self,
        id: PodClassId,
    ) -> impl Iterator<Item = (PodClassId, Effect)> + '_ {
        self.affects[id.index()].iter().flat_map(|affects| {
            let classes = self.views.classes(affects.view).iter();
            classes.flat_map(|class| affects.effects.iter().map(|effect| (*class, *effect)))
        })
    }

    /// Returns the topology keys, without the hostname, by which a pod of a class is filtered or by which it is counted for
    /// filters of other pods.
    pub(crate) fn sensitive_keys(&mut self, id: PodClassId) -> Vec<Symbol> {
        if self.views.id(id).is_none() {
            self.prepare(id);
        }
        let own = &self.classes[id.index()];
        let view = self.view(id);
        // Existing pods matter by the keys of the class's own terms, and by those of their anti-affinity against the class.
        let mut keys = view.away_keys().to_vec();
        keys.extend(view.hard.iter().map(|counts| counts.rule.key));
        keys.extend(
            own.affinity
                .iter()
                .chain(&own.anti_affinity)
                .map(|term| term.key),
        );
        // A NodeClaim lists instance types, zones and capacity types separately, so it cannot express which combinations satisfy
        // which alternative.
        let offered = [Some(Symbol::ZONE), self.names.find(label::CAPACITY_TYPE)];
        let alternatives = own.shape.alternative_keys();
        keys.extend(alternatives.filter(|key| offered.contains(&Some(*key))));
        keys.extend(self.counted_keys(id));
        keys.sort_unstable();
        keys.dedup();
        // Every new node is a host of its own, so its name decides nothing before it exists.
        keys.retain(|key| *key != Symbol::HOSTNAME);
        keys
    }

    /// Returns whether a pod of a class may be in any of several places, other than hosts, that admit the pod now: affinity to other
    /// pods alone decides between places, and nobody counts the pod by its place.
    pub(crate) fn is_at_home_in_many(&mut self, id: PodClassId) -> bool {
        if self.views.id(id).is_none() {
            self.prepare(id);
        }
        let own = &self.classes[id.index()];
        let by_place = |key: &Symbol| *key != Symbol::HOSTNAME;
        let spreads = self.view(id).hard.iter().map(|counts| counts.rule.key);
        let apart = own.anti_affinity.iter().map(|term| term.key);
        let mut decisive = spreads.chain(apart).chain(self.counted_keys(id));
        own.affinity.iter().any(|term| by_place(&term.key))
            && own.shape.alternative_keys().next().is_none()
            && !decisive.any(|key| by_place(&key))
    }

    /// Returns the topology keys by which filters of pods count a pod of a class, its own kind included.
    fn counted_keys(&self, id: PodClassId) -> Vec<Symbol> {
        let mut keys = Vec::new();
        for affects in &self.affects[id.index()] {
            if let Some(view) = self.views.get(affects.view)
                && let Some(class) = self.class_of_view(affects.view)
            {
                let class = &self.classes[class.index()];
                let effects = affects.effects.iter();
                keys.extend(effects.flat_map(|effect| effect.filter_keys(view, class)));
            }
        }
        keys
    }
}
