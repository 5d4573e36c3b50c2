//! Which classes share which view.
//!
//! Pods of one namespace with the same labels and the same rules about other pods see other pods alike, however much room each of them asks for. Their
//! classes share one [`View`], so that a pod that comes or goes is counted once for all of them.

use std::collections::BTreeSet;

use super::table::Table;
use crate::class::{NodeRules, PodClass, PodClassId, PodTerm, SpreadRule};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::profile::ProfileId;
use crate::topology::View;

/// The number of a view. It is given out again once no class has the view any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ViewId(u32);

impl ViewId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// All of a class that its view depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Viewpoint {
    profile: ProfileId,
    namespace: Symbol,
    labels: LabelSet,
    /// Its own spread constraints, or the defaults that apply to it.
    spread: Vec<SpreadRule>,
    /// The constraints are its own.
    declares_spread: bool,
    /// Which nodes its spread constraints count; none where there are no constraints.
    nodes: Option<NodeRules>,
    affinity: Vec<PodTerm>,
    anti_affinity: Vec<PodTerm>,
    preferred_pods: Vec<PodTerm>,
}

impl Viewpoint {
    /// That of a class to which these default spread constraints apply.
    pub(super) fn of(class: &PodClass, defaults: Vec<SpreadRule>) -> Self {
        let declares_spread = !class.spread.is_empty();
        let spread = match declares_spread {
            true => class.spread.clone(),
            false => defaults,
        };
        Viewpoint {
            profile: class.shape.profile,
            namespace: class.namespace,
            labels: class.labels.clone(),
            nodes: (!spread.is_empty()).then(|| class.shape.node_rules()),
            spread,
            declares_spread,
            affinity: class.affinity.clone(),
            anti_affinity: class.anti_affinity.clone(),
            preferred_pods: class.preferred_pods.clone(),
        }
    }

    /// Its own spread constraints, or the defaults that apply to it.
    pub(super) fn spread(&self) -> &[SpreadRule] {
        &self.spread
    }
}

/// The views there are, and which classes have them.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedViews {
    table: Table<Viewpoint, SharedView>,
    /// By class: the view it has, once it was asked about.
    of_class: Vec<Option<ViewId>>,
    /// Views that count nodes or whose classes have terms about other pods: a pod of any new class may matter to them.
    open: BTreeSet<ViewId>,
}

#[derive(Clone, Debug)]
struct SharedView {
    view: Box<View>,
    /// At least one.
    classes: Vec<PodClassId>,
}

impl SharedViews {
    /// The view that a class has.
    pub(super) fn id(&self, class: PodClassId) -> Option<ViewId> {
        self.of_class.get(class.index()).copied().flatten()
    }

    /// The view that classes with this viewpoint have, if one of them does.
    pub(super) fn find(&self, viewpoint: &Viewpoint) -> Option<ViewId> {
        let index = self.table.find(viewpoint)?;
        Some(ViewId(index as u32))
    }

    /// Keeps a view that no other class has so far. It is open if a pod of any new class may matter to it.
    pub(super) fn insert(
        &mut self,
        viewpoint: Viewpoint,
        view: View,
        class: PodClassId,
        is_open: bool,
    ) -> ViewId {
        let shared = SharedView {
            view: Box::new(view),
            classes: Vec::new(),
        };
        let id = ViewId(self.table.insert(viewpoint, shared) as u32);
        if is_open {
            self.open.insert(id);
        }
        self.join(class, id);
        id
    }

    /// Gives a class without a view one that is there.
    pub(super) fn join(&mut self, class: PodClassId, id: ViewId) {
        if let Some(shared) = self.table.get_mut(id.index()) {
            shared.classes.push(class);
        }
        if self.of_class.len() <= class.index() {
            self.of_class.resize(class.index() + 1, None);
        }
        self.of_class[class.index()] = Some(id);
    }

    /// Takes a class's view away. Returns the view if no other class had it: then it is gone.
    pub(super) fn leave(&mut self, class: PodClassId) -> Option<ViewId> {
        let id = self.of_class.get_mut(class.index())?.take()?;
        let shared = self.table.get_mut(id.index())?;
        shared.classes.retain(|other| *other != class);
        if !shared.classes.is_empty() {
            return None;
        }
        self.table.remove(id.index());
        self.open.remove(&id);
        Some(id)
    }

    /// Drops them all.
    pub(super) fn clear(&mut self) {
        *self = SharedViews::default();
    }

    pub(super) fn get(&self, id: ViewId) -> Option<&View> {
        self.table.get(id.index()).map(|shared| &*shared.view)
    }

    pub(super) fn get_mut(&mut self, id: ViewId) -> Option<&mut View> {
        self.table
            .get_mut(id.index())
            .map(|shared| &mut *shared.view)
    }

    /// The classes that have a view, in the order in which they were first asked about.
    pub(super) fn classes(&self, id: ViewId) -> &[PodClassId] {
        self.table
            .get(id.index())
            .map_or(&[], |shared| &shared.classes)
    }

    /// Views to which a pod of any new class may matter.
    pub(super) fn open(&self) -> impl Iterator<Item = ViewId> + '_ {
        self.open.iter().copied()
    }

    /// Changes the open views; each comes with one of the classes that have it, which do not differ for it.
    pub(super) fn change_open(&mut self, mut change: impl FnMut(PodClassId, &mut View)) {
        for id in &self.open {
            if let Some(shared) = self.table.get_mut(id.index())
                && let Some(class) = shared.classes.first()
            {
                change(*class, &mut shared.view);
            }
        }
    }

    /// All views.
    pub(super) fn all(&self) -> impl Iterator<Item = ViewId> + '_ {
        self.table.iter().map(|(index, ..)| ViewId(index as u32))
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::{Cluster, Options};
    use crate::model::{Container, NodeSpec, PodSpec, PodTemplate, ResourceMap, label};
    use crate::model::{LabelSelector, PodAffinityTerm, StringMap};
    use crate::schedule::Decision;

    /// A pod that is alone on its host among pods with the label `app`.
    fn pod(name: &str, app: &str, cpu: &str) -> PodSpec {
        let labels = StringMap::from([("app".to_owned(), app.to_owned())]);
        let mut template = PodTemplate {
            labels: labels.clone(),
            ..PodTemplate::default()
        };
        let mut container = Container::default();
        let cpu = cpu.parse().expect("a quantity");
        container.resources.requests = ResourceMap::from([("cpu".to_owned(), cpu)]);
        template.containers = vec![container];
        let apart = template.affinity.pod_anti_affinity.get_or_insert_default();
        apart.required = vec![PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: labels,
                ..LabelSelector::default()
            }),
            topology_key: label::HOSTNAME.to_owned(),
            ..PodAffinityTerm::default()
        }];
        PodSpec {
            name: name.to_owned(),
            template,
            ..PodSpec::default()
        }
    }

    #[test]
    fn pods_that_differ_in_size_only_share_a_view_and_keep_each_other_away() {
        let mut cluster = Cluster::new(Options::default());
        let room = ResourceMap::from([
            ("cpu".to_owned(), "8".parse().expect("a quantity")),
            ("pods".to_owned(), "9".parse().expect("a quantity")),
        ]);
        let labels = StringMap::from([(label::HOSTNAME.to_owned(), "n".to_owned())]);
        let node = NodeSpec {
            capacity: room.clone(),
            allocatable: room,
            labels,
            ..NodeSpec::named("n")
        };
        cluster.add_node(&node).expect("valid");
        let (small, large, other) = (
            pod("small", "a", "1"),
            pod("large", "a", "2"),
            pod("other", "b", "1"),
        );
        let fits = |cluster: &mut Cluster, pod: &PodSpec| {
            let decision = cluster.schedule_pod(pod, 0).expect("valid");
            !matches!(decision, Decision::Unschedulable(_))
        };
        for pod in [&small, &large, &other] {
            assert!(fits(&mut cluster, pod), "{}", pod.name);
        }
        assert_eq!(cluster.views.all().count(), 2);
        cluster.bind(&small, "n").expect("new");
        assert!(!fits(&mut cluster, &small));
        assert!(!fits(&mut cluster, &large));
        assert!(fits(&mut cluster, &other));
        // The view outlives the class that was the first to have it.
        let first = cluster.pod_class(&small.template).expect("known");
        assert_eq!(cluster.views.leave(first), None);
        assert!(!fits(&mut cluster, &large));
        assert!(!fits(&mut cluster, &small));
        cluster.remove_pod("/small").expect("there");
        assert!(fits(&mut cluster, &large));
        assert!(fits(&mut cluster, &small));
    }
}
