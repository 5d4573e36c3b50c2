//! Places that no node is in yet, for rules that count places: zones that pools can buy in, and one more host.

use rustc_hash::{FxHashMap, FxHashSet};

use super::solve::{Pending, Solver};
use crate::class::PodClassId;
use crate::cluster::NodeId;
use crate::intern::Symbol;
use crate::resources::Amounts;

const PLACE: &str = "place/";
const HOST: &str = "host/";

impl Solver<'_> {
    /// Adds one more empty host that counts for pods that must be spread over hosts, because a new host can always be
    /// bought.
    pub(super) fn add_hosts(&mut self, pending: &[Pending]) {
        let mut known = 0;
        for class in classes_of(pending) {
            let view = self.cluster.question(class).view;
            if !view
                .hard
                .iter()
                .any(|counts| counts.rule.key == Symbol::HOSTNAME)
            {
                continue;
            }
            known += 1;
            let name = format!("{HOST}{known}");
            let mut found = None;
            for index in 0..self.catalogs.len() {
                let catalog = &mut self.catalogs[index];
                let mut fits = catalog.verdicts(class, self.cluster).fits.clone();
                fits.intersect_with(&catalog.available);
                if let Some(option) = fits.minimum() {
                    found = Some((index, option));
                    break;
                }
            }
            if let Some((index, option)) = found {
                let catalog = &self.catalogs[index];
                let labels = &catalog.options[option].labels;
                self.cluster
                    // Without any room: it counts as a domain without pods, and nothing can be placed on it.
                    .add_virtual(&name, labels, &catalog.taints, Amounts::default());
                continue;
            }
            // If nothing can be bought for the class, a host like an existing one stands for it, as in Karpenter.
            let view = self.cluster.question(class).view;
            let by_host = view
                .hard
                .iter()
                .find(|counts| counts.rule.key == Symbol::HOSTNAME);
            if let Some(node) = by_host.and_then(|counts| counts.eligible.minimum()) {
                let fixed = &self.cluster.at(NodeId::at(node)).fixed;
                let (labels, taints) = (fixed.labels.clone(), fixed.taints.clone());
                self.cluster
                    .add_virtual(&name, &labels, &taints, Amounts::default());
            }
        }
    }

    /// Adds the places in which pools can buy, without pods, for pods that must be spread and could be there.
    pub(super) fn add_places(&mut self, pending: &[Pending]) {
        // Asked once for each pool and label, because all its options are looked at.
        let mut values: FxHashMap<(usize, Symbol), Vec<Symbol>> = FxHashMap::default();
        for class in classes_of(pending) {
            let view = self.cluster.question(class).view;
            let soft = view.soft.iter().filter(|_| view.soft_declared);
            let rules = view.hard.iter().chain(soft);
            let rules: Vec<(Symbol, FxHashSet<Symbol>)> = rules
                .filter(|counts| counts.rule.key != Symbol::HOSTNAME)
                .map(|counts| (counts.rule.key, counts.all_places().collect()))
                .collect();
            for (key, mut known) in rules {
                for index in 0..self.catalogs.len() {
                    let values = values
                        .entry((index, key))
                        .or_insert_with(|| self.catalogs[index].values(key));
                    for place in values.iter().copied() {
                        if known.contains(&place) {
                            continue;
                        }
                        let Some(option) = self.selectable(index, class, (key, place)) else {
                            continue;
                        };
                        known.insert(place);
                        self.places += 1;
                        let name = format!("{PLACE}{}", self.places);
                        let catalog = &self.catalogs[index];
                        let labels = &catalog.options[option].labels;
                        // It has no room: it only makes the place count when pods are spread.
                        self.cluster.add_virtual(
                            &name,
                            labels,
                            &catalog.taints,
                            Amounts::default(),
                        );
                    }
                }
            }
        }
    }

    /// Returns an available option with this label that the class selects. Taints are not asked: Karpenter counts the
    /// zones of pools whose taints the pod does not tolerate.
    fn selectable(
        &self,
        catalog: usize,
        class: PodClassId,
        (key, value): (Symbol, Symbol),
    ) -> Option<usize> {
        let catalog = &self.catalogs[catalog];
        let shape = &self.cluster.class(class).shape;
        catalog.available.ones().find(|option| {
            let labels = &catalog.options[*option].labels;
            labels.value(key) == Some(value)
                && shape.selects(labels, Symbol::EMPTY, self.cluster.names())
        })
    }
}

/// Returns the classes that pods are planned as and their own classes, each once.
fn classes_of(pending: &[Pending]) -> Vec<PodClassId> {
    let mut known = FxHashSet::default();
    let all = pending.iter().flat_map(|pod| [pod.class, pod.own]);
    all.filter(|class| known.insert(*class)).collect()
}
