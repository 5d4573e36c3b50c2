//! Labels of nodes to be bought that neither the machine nor its place decides.
//!
//! A pool may name values of such a label (`In`), or leave it open within bounds (`Exists`, `NotIn`, `Gt`, ...). Karpenter
//! gives a node the value that its pods ask for, and a random number if the pool demands the label and no pod asks for a
//! value. Here the values that pods ask for become choices, beside one that nobody asks for:
//! as many as there are combinations that some pods ask for, not every value of one label with every value of another.
//! Every choice multiplies the options of a pool, so pods that ask for more than 64 combinations are planned in several
//! rounds ([`RequestedLabels::rounds`]), and the pods of a class that accepts more are tried with one part of them after the
//! other ([`RequestedLabels::turns`]).
//!
//! The kubelet and the cloud's controller repeat five labels under the names that they had before Kubernetes 1.17, so nodes to
//! be bought have these names too (Karpenter: `NormalizedLabels`).

use std::collections::{BTreeMap, BTreeSet};

use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::model::{NodeSelectorRequirement, Operator, PodTemplate, StringMap, label};

use super::{NodeTemplate, Requirement};

/// The maximum number of combinations of values that the pods of one round ask for. Each multiplies the options of a
/// pool, of which there may be thousands already.
const MAX_REQUESTED: usize = 64;

/// The maximum number of plans in which the pods of one class are tried.
const MAX_TURNS: usize = 16;

/// The maximum number of combinations that the pods of one class are tried with.
const MAX_TRIED: usize = MAX_TURNS * MAX_REQUESTED;

/// Labels and their former names.
const FORMER: [(&str, &str); 5] = [
    (label::ARCH, "beta.kubernetes.io/arch"),
    (label::OS, "beta.kubernetes.io/os"),
    (label::INSTANCE_TYPE, "beta.kubernetes.io/instance-type"),
    (label::ZONE, label::BETA_ZONE),
    (label::REGION, label::BETA_REGION),
];

/// Adds the former names of labels, with the values that the labels have.
pub(super) fn add_former_names(labels: &mut StringMap) {
    for (name, former) in FORMER {
        if let Some(value) = labels.get(name) {
            labels.insert(former.to_owned(), value.clone());
        }
    }
}

/// Values of labels that suit some pods; one need not name all labels.
type Combination = BTreeMap<String, String>;

/// The values that pods request for labels that pools leave open.
#[derive(Clone, Default)]
pub(super) struct RequestedLabels {
    /// The labels, with all values that pods ask for.
    values: BTreeMap<String, BTreeSet<String>>,
    /// The requirements on each of the labels, by pool.
    bounds: BTreeMap<String, Vec<Vec<Requirement>>>,
    /// The combinations that suit the pods of each class, no more than [`MAX_TRIED`].
    by_class: BTreeMap<PodClassId, BTreeSet<Combination>>,
    /// The classes whose pods accept more than [`MAX_TRIED`] combinations.
    beyond: BTreeSet<PodClassId>,
    /// The combinations that suit the pods of some class.
    combinations: BTreeSet<Combination>,
}

/// Classes of pods that are planned for together: they ask for no more combinations of labels than a plan can look at, or all
/// for the same.
pub(super) struct Round {
    pub(super) classes: BTreeSet<PodClassId>,
    combinations: BTreeSet<Combination>,
}

impl Round {
    fn takes(&self, own: &BTreeSet<Combination>) -> bool {
        self.combinations == *own || self.combinations.union(own).count() <= MAX_REQUESTED
    }
}

/// Returns the requirements of a pool on labels that it leaves open.
pub(super) fn open_requirements(template: &NodeTemplate) -> impl Iterator<Item = &Requirement> {
    let requirements = template.requirements.iter();
    requirements
        .filter(|own| own.operator != Operator::DoesNotExist && !template.is_decided(&own.key))
}

impl RequestedLabels {
    /// Collects the values that pods of these classes select or prefer.
    pub(super) fn of(
        classes: impl Iterator<Item = PodClassId>,
        templates: &[NodeTemplate],
        cluster: &Cluster,
    ) -> Self {
        let mut requested = RequestedLabels::default();
        for template in templates {
            let mut bounds: BTreeMap<&String, Vec<Requirement>> = BTreeMap::new();
            for requirement in open_requirements(template) {
                requested.values.entry(requirement.key.clone()).or_default();
                let own = bounds.entry(&requirement.key).or_default();
                own.push(requirement.clone());
            }
            // Bounds are kept pool by pool: a value is worth trying if one pool allows it, even if another pool
            // forbids it.
            for (key, own) in bounds {
                requested.bounds.entry(key.clone()).or_default().push(own);
            }
        }
        // Without open labels no pod can ask for a value of one, which is so in most clusters.
        if !requested.values.is_empty() {
            for class in classes {
                requested.add(class, cluster.template(class));
            }
        }
        requested
    }

    /// Splits the classes into groups that ask for at most [`MAX_REQUESTED`] combinations each, or all for the same ones.
    pub(super) fn rounds(&self) -> Vec<Round> {
        let mut rounds: Vec<Round> = Vec::new();
        let mut classes: Vec<_> = self.by_class.iter().collect();
        // Classes that ask for the same combinations come together; those that ask for nothing come first.
        classes.sort_by_key(|(_, own)| *own);
        for (class, own) in classes {
            if let Some(round) = rounds.last_mut().filter(|round| round.takes(own)) {
                round.classes.insert(*class);
                round.combinations.extend(own.iter().cloned());
                continue;
            }
            rounds.push(Round {
                classes: BTreeSet::from([*class]),
                combinations: own.clone(),
            });
        }
        rounds
    }

    /// Returns the labels that plans for pods of these classes look at: the next plan is for the pods to which no labels of the
    /// plans before it gave a place. There are several plans, but no more than [`MAX_TURNS`], if the classes accept more than
    /// [`MAX_REQUESTED`] combinations together. Each plan looks at some combinations of every class, and at no more than
    /// [`MAX_REQUESTED`] unless there are more classes than that.
    pub(super) fn turns<'a>(
        &self,
        classes: impl Iterator<Item = &'a PodClassId>,
    ) -> Vec<RequestedLabels> {
        let own = classes.filter_map(|class| self.by_class.get(class));
        let distinct: BTreeSet<&BTreeSet<Combination>> = own.collect();
        let sorted = distinct.into_iter().map(|own| self.by_kind(own));
        let sorted: Vec<Vec<&Combination>> = sorted.collect();
        let all: BTreeSet<&Combination> = sorted.iter().flatten().copied().collect();
        let share = if all.len() <= MAX_REQUESTED {
            MAX_REQUESTED
        } else {
            fair_share(&sorted)
        };
        let count = |own: &Vec<&Combination>| own.len().div_ceil(share).clamp(1, MAX_TURNS);
        let most = sorted.iter().map(count).max().unwrap_or(1);
        let of_turn = |turn: usize| {
            let mut combinations = BTreeSet::new();
            for own in &sorted {
                // `turn % count` starts a class over that has fewer parts than others: its pods wait for the same
                // turns.
                let part = own.chunks(share).nth(turn % count(own));
                let part = part.unwrap_or_default().iter();
                combinations.extend(part.copied().cloned());
            }
            RequestedLabels {
                values: self.values.clone(),
                combinations,
                ..RequestedLabels::default()
            }
        };
        (0..most).map(of_turn).collect()
    }

    /// Sorts combinations so that the first ones include some of each kind: those that the same pools allow. Combinations of one
    /// kind are worth the same to pods that accept all of them, so the first plan misses neither the cheapest pool nor the one
    /// with the highest weight, as long as there are no more kinds than combinations in a plan. If a class accepts more than
    /// [`MAX_TRIED`], only the first of them in the order of the alphabet are sorted here, and kinds of the others may be missing.
    fn by_kind<'a>(&self, combinations: &'a BTreeSet<Combination>) -> Vec<&'a Combination> {
        let mut seen: BTreeMap<Vec<bool>, usize> = BTreeMap::new();
        let mut sorted: Vec<(usize, &Combination)> = Vec::with_capacity(combinations.len());
        for own in combinations {
            let allowed = own.iter().flat_map(|(key, value)| {
                let bounds = self.bounds.get(key).into_iter().flatten();
                bounds.map(move |own| own.iter().all(|own| own.is_met_by(Some(value))))
            });
            let turn = seen.entry(allowed.collect()).or_default();
            sorted.push((*turn, own));
            *turn += 1;
        }
        // By turn first: one combination of every kind, then the second of every kind, and so on.
        sorted.sort();
        sorted.into_iter().map(|(_, own)| own).collect()
    }

    /// Returns whether all pods can be planned for in one round.
    pub(super) fn is_one_round(&self) -> bool {
        self.combinations.len() <= MAX_REQUESTED
    }

    /// Returns how many of the combinations that the pods of a class accept are in these turns; `None` if all are.
    pub(super) fn tried(&self, class: PodClassId, turns: &[RequestedLabels]) -> Option<usize> {
        let own = self.by_class.get(&class)?;
        let is_in_turn = |one: &&Combination| {
            let mut turns = turns.iter();
            turns.any(|turn| turn.combinations.contains(*one))
        };
        let tried = own.iter().filter(is_in_turn).count();
        (tried < own.len() || self.beyond.contains(&class)).then_some(tried)
    }

    /// Returns the first combinations of all, as many as one plan can look at.
    pub(super) fn first(&self) -> RequestedLabels {
        let first = self.combinations.iter().take(MAX_REQUESTED);
        RequestedLabels {
            values: self.values.clone(),
            combinations: first.cloned().collect(),
            ..RequestedLabels::default()
        }
    }

    /// Returns whether [`RequestedLabels::first`] has all combinations that suit the pods of a class.
    pub(super) fn first_has_all_of(&self, class: PodClassId) -> bool {
        let Some(excluded) = self.combinations.iter().nth(MAX_REQUESTED) else {
            return true;
        };
        // Both sets are sorted alike, so a class has all of its combinations in `first` if its last one precedes the
        // first that is left out.
        let last = self.by_class.get(&class).and_then(BTreeSet::last);
        last.is_none_or(|last| last < excluded)
    }

    fn add(&mut self, class: PodClassId, pod: &PodTemplate) {
        if self.by_class.contains_key(&class) {
            return;
        }
        let mut own: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
        for (key, value) in &pod.node_selector {
            own.entry(key).or_default().insert(value);
        }
        let affinity = pod.affinity.node_affinity.iter();
        let terms = affinity.flat_map(|affinity| {
            let required = affinity.required.iter();
            let required = required.flat_map(|selector| &selector.node_selector_terms);
            // Preferences count too: they may be planned as requirements (`preferences`).
            required.chain(affinity.preferred.iter().map(|own| &own.preference))
        });
        let named = |demand: &&NodeSelectorRequirement| demand.operator == Operator::In;
        for demand in terms.flat_map(|term| &term.match_expressions).filter(named) {
            own.entry(&demand.key).or_default().extend(&demand.values);
        }
        let mut combinations = vec![Combination::new()];
        let mut count: usize = 1;
        for (key, values) in own {
            let Some(all) = self.values.get_mut(key) else {
                continue;
            };
            all.extend(values.iter().map(|value| (*value).clone()));
            let bounds = &self.bounds[key];
            let is_allowed = |value: &&String| {
                let mut pools = bounds.iter();
                pools.any(|own| own.iter().all(|own| own.is_met_by(Some(value))))
            };
            let values: Vec<&String> = values.into_iter().filter(is_allowed).collect();
            if !values.is_empty() {
                count = count.saturating_mul(values.len());
                let each = with_each(&combinations, values.into_iter(), |mut one, value| {
                    one.insert(key.to_owned(), value.clone());
                    one
                });
                // Cut at every label, because the product of several labels with many values would not fit in memory.
                combinations = each.take(MAX_TRIED).collect();
            }
        }
        if count > MAX_TRIED {
            self.beyond.insert(class);
        }
        self.combinations.extend(combinations.iter().cloned());
        self.by_class
            .insert(class, combinations.into_iter().collect());
    }

    /// Returns the sets of open labels that a node may have: first those that nobody asks for, then what pods ask for as far
    /// as the requirements allow it. None if the requirements cannot be met. `open` has the requirements by label.
    fn choices(&self, open: &BTreeMap<&str, Vec<&Requirement>>) -> Vec<Labels> {
        let mut unrequested = Labels::new();
        for (key, requirements) in open {
            let Some(requested) = self.values.get(*key) else {
                continue;
            };
            if requirements.iter().all(|own| own.is_met_by(None)) {
                continue;
            }
            match unrequested_value(requested, requirements) {
                Some(value) => unrequested.push(((*key).to_owned(), value)),
                None => return Vec::new(),
            }
        }
        // First, so that a pod which asks for nothing gets a node on which nobody else's value stands.
        let mut choices = vec![unrequested];
        let mut known: BTreeSet<Labels> = choices.iter().cloned().collect();
        for combination in &self.combinations {
            let mut own = choices[0].clone();
            for (key, value) in combination {
                let requirements = open.get(key.as_str());
                let allows = |requirements: &Vec<&Requirement>| {
                    requirements.iter().all(|own| own.is_met_by(Some(value)))
                };
                if requirements.is_some_and(allows) {
                    own.retain(|(other, _)| other != key);
                    own.push((key.clone(), value.clone()));
                }
            }
            // Two combinations that differ only in labels this pool does not have give one choice.
            own.sort();
            if known.insert(own.clone()) {
                choices.push(own);
            }
        }
        choices
    }
}

/// Labels that a node has in addition to those of its machine.
type Labels = Vec<(String, String)>;

/// Returns how many combinations of each list there are room for in one plan: the most for which the lists together give no more
/// than [`MAX_REQUESTED`], and at least one.
fn fair_share(lists: &[Vec<&Combination>]) -> usize {
    let given = |share: usize| -> usize { lists.iter().map(|own| own.len().min(share)).sum() };
    let mut shares = (2..=MAX_REQUESTED).rev();
    let most = shares.find(|share| given(*share) <= MAX_REQUESTED);
    most.unwrap_or(1)
}

/// Returns each of some things with each value.
fn with_each<T: Clone, V: Copy>(
    all: &[T],
    values: impl Iterator<Item = V>,
    with: impl Fn(T, V) -> T,
) -> impl Iterator<Item = T> {
    let each = values.flat_map(move |value| all.iter().map(move |one| (one.clone(), value)));
    each.map(move |(one, value)| with(one, value))
}

/// Returns the first value that the pool names, or else the smallest number that meets the requirements on a label and that
/// no pod asks for.
fn unrequested_value(
    requested: &BTreeSet<String>,
    requirements: &[&Requirement],
) -> Option<String> {
    let mut named = requirements.iter();
    if let Some(names) = named.find(|own| own.operator == Operator::In) {
        let is_met = |value: &&String| requirements.iter().all(|own| own.is_met_by(Some(value)));
        return names.values.iter().find(is_met).cloned();
    }
    let bound = |own: &&Requirement| {
        let bound = own.values.first()?.parse::<u64>().ok()?;
        match own.operator {
            Operator::Gt => bound.checked_add(1),
            Operator::Gte => Some(bound),
            _ => None,
        }
    };
    let least = requirements.iter().filter_map(bound).max().unwrap_or(0);
    let excluded: usize = requirements.iter().map(|own| own.values.len()).sum();
    // One more than the numbers that can be taken or excluded.
    let tried = (least..=u64::MAX).take(requested.len() + excluded + 1);
    tried.map(|number| number.to_string()).find(|value| {
        let is_met = requirements.iter().all(|own| own.is_met_by(Some(value)));
        is_met && !requested.contains(value)
    })
}

/// Returns the label sets that a node can have in addition to the labels whose values `value_of` returns: none if those
/// contradict a requirement, several if a label that the machine does not decide may have several values.
pub(super) fn choices<'a>(
    value_of: impl Fn(&str) -> Option<&'a String>,
    requirements: &[Requirement],
    requested: &RequestedLabels,
) -> Vec<Labels> {
    let mut open: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
    for requirement in requirements {
        match value_of(&requirement.key) {
            Some(value) if !requirement.is_met_by(Some(value)) => return Vec::new(),
            Some(_) => {}
            None => open.entry(&requirement.key).or_default().push(requirement),
        }
    }
    let all = open.clone();
    let is_named = |own: &&&Requirement| own.operator == Operator::In;
    let mut named = Vec::new();
    open.retain(|key, requirements| {
        let Some(names) = requirements.iter().find(is_named) else {
            return true;
        };
        let is_met = |value: &&String| requirements.iter().all(|own| own.is_met_by(Some(value)));
        let values: Vec<&String> = names.values.iter().filter(is_met).collect();
        named.push((*key, values));
        false
    });
    let mut choices = requested.choices(&open);
    let mut count = choices.len();
    for (key, values) in named {
        count = count.saturating_mul(values.len());
        let each = with_each(&choices, values.into_iter(), |mut choice, value| {
            choice.push((key.to_owned(), value.clone()));
            choice
        });
        choices = each.take(MAX_REQUESTED).collect();
    }
    if count <= MAX_REQUESTED {
        return choices;
    }
    // Too many to look at each value that the pool names: those that pods ask for come first.
    let mut asked_for = requested.choices(&all);
    let known: BTreeSet<Labels> = asked_for.iter().cloned().collect();
    for mut choice in choices {
        choice.sort();
        if asked_for.len() < MAX_REQUESTED && !known.contains(&choice) {
            asked_for.push(choice);
        }
    }
    asked_for
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(prefix: char, count: usize) -> BTreeSet<Combination> {
        let one =
            |number| Combination::from([(String::from("team"), format!("{prefix}{number:04}"))]);
        (0..count).map(one).collect()
    }

    /// The turns of some classes, each of which accepts so many values that no other one accepts.
    fn turns_of(counts: &[usize]) -> (RequestedLabels, Vec<RequestedLabels>) {
        let mut requested = RequestedLabels::default();
        for (index, count) in counts.iter().enumerate() {
            let prefix = char::from_u32('a' as u32 + index as u32).expect("a character");
            let own = numbered(prefix, *count);
            requested.combinations.extend(own.iter().cloned());
            requested.by_class.insert(PodClassId(index as u32), own);
        }
        let classes: Vec<PodClassId> = requested.by_class.keys().copied().collect();
        let turns = requested.turns(classes.iter());
        (requested, turns)
    }

    #[test]
    fn no_turn_has_more_combinations_than_a_plan_can_look_at_and_each_has_some_of_every_class() {
        for counts in [&[100][..], &[1024], &[40, 1024, 3], &[500; 10], &[64; 64]] {
            let (requested, turns) = turns_of(counts);
            assert!(turns.len() <= MAX_TURNS, "{counts:?}");
            for turn in &turns {
                assert!(turn.combinations.len() <= MAX_REQUESTED, "{counts:?}");
                let mut classes = requested.by_class.values();
                assert!(classes.all(|own| !own.is_disjoint(&turn.combinations)));
            }
        }
    }

    #[test]
    fn one_class_is_tried_with_all_that_it_accepts() {
        let (requested, turns) = turns_of(&[1000]);
        assert_eq!(turns.len(), 16);
        assert_eq!(requested.tried(PodClassId(0), &turns), None);
    }

    #[test]
    fn classes_that_share_the_turns_know_how_many_combinations_they_are_tried_with() {
        // 64 is 3 + 61.
        let (requested, turns) = turns_of(&[3, 1024]);
        assert_eq!(requested.tried(PodClassId(0), &turns), None);
        assert_eq!(requested.tried(PodClassId(1), &turns), Some(16 * 61));
    }

    #[test]
    fn more_classes_than_a_plan_looks_at_combinations_have_one_each() {
        let (_, turns) = turns_of(&[1; 70]);
        assert_eq!(turns.len(), 1);
        assert_eq!(turns[0].combinations.len(), 70);
    }
}
