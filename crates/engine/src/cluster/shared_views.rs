//! The views of pod classes, shared between classes that see other pods alike.
//!
//! Pods of one namespace with the same labels and the same rules about other pods see other pods alike, whatever they request. Their classes share
//! one [`View`], so that an added or removed pod is counted once for all of them.

use std::collections::BTreeSet;

use super::table::Table;
use crate::class::{NodeRules, PodClass, PodClassId, PodTerm, SpreadRule};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::profile::ProfileId;
use crate::topology::View;

/// The number of a view. Once no class has the view any more, a new view may get its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ViewId(u32);

impl ViewId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The parts of a class that its view depends on; classes with equal viewpoints share a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Viewpoint {
    profile: ProfileId,
    namespace: Symbol,
    labels: LabelSet,
    /// The spread constraints of the class, or the defaults that apply to it.
    spread: Vec<SpreadRule>,
    /// Whether the constraints are the class's own.
    declares_spread: bool,
    /// The rules that select the nodes which the spread constraints count; `None` without constraints.
    nodes: Option<NodeRules>,
    affinity: Vec<PodTerm>,
    anti_affinity: Vec<PodTerm>,
    preferred_pods: Vec<PodTerm>,
}

impl Viewpoint {
    /// Returns the viewpoint of a class; `defaults` are the default spread constraints, for a class without its own.
    pub(super) fn of(class: &PodClass, defaults: Vec<SpreadRule>) -> Self {
        let declares_spread = !class.spread.is_empty();
        let spread = if declares_spread {
            class.spread.clone()
        } else {
            defaults
        };
        Viewpoint {
            profile: class.shape.profile,
            namespace: class.namespace,
            labels: class.labels.clone(),
            // Node rules matter only to which nodes spread constraints count, so classes without constraints share
            // views across them.
            nodes: (!spread.is_empty()).then(|| class.shape.node_rules()),
            spread,
            declares_spread,
            affinity: class.affinity.clone(),
            anti_affinity: class.anti_affinity.clone(),
            preferred_pods: class.preferred_pods.clone(),
        }
    }

    /// Returns the spread constraints of the class, or the defaults that apply to it.
    pub(super) fn spread(&self) -> &[SpreadRule] {
        &self.spread
    }
}

/// All views, and the classes that have them.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedViews {
    table: Table<Viewpoint, SharedView>,
    /// The view of each class that has been asked about.
    of_class: Vec<Option<ViewId>>,
    /// Views that count nodes, or whose classes have terms about other pods. Pods of any new class may affect them.
    open: BTreeSet<ViewId>,
}

#[derive(Clone, Debug)]
struct SharedView {
    view: Box<View>,
    /// The classes that have the view, at least one.
    classes: Vec<PodClassId>,
}

impl SharedViews {
    /// Returns the view of a class; `None` if the class has none yet.
    pub(super) fn id(&self, class: PodClassId) -> Option<ViewId> {
        self.of_class.get(class.index()).copied().flatten()
    }

    /// Returns the view of the classes with this viewpoint, if there is one.
    pub(super) fn find(&self, viewpoint: &Viewpoint) -> Option<ViewId> {
        let index = self.table.find(viewpoint)?;
        Some(ViewId(index as u32))
    }

    /// Adds a view and gives it to its first class. `is_open` is whether pods of any new class may affect the view.
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

    /// Gives an existing view to a class that has none.
    pub(super) fn join(&mut self, class: PodClassId, id: ViewId) {
        if let Some(shared) = self.table.get_mut(id.index()) {
            shared.classes.push(class);
        }
        if self.of_class.len() <= class.index() {
            self.of_class.resize(class.index() + 1, None);
        }
        self.of_class[class.index()] = Some(id);
    }

    /// Takes the view of a class away. Returns the view's number if no other class has it, in which case the view is dropped.
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

    /// Drops all views.
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

    /// Returns the classes that have a view, in the order in which they were first asked about.
    pub(super) fn classes(&self, id: ViewId) -> &[PodClassId] {
        self.table
            .get(id.index())
            .map_or(&[], |shared| &shared.classes)
    }

    /// Returns the views that pods of any new class may affect.
    pub(super) fn open(&self) -> impl Iterator<Item = ViewId> + '_ {
        self.open.iter().copied()
    }

    /// Changes each open view. The closure gets one of the view's classes; which one makes no difference to the view.
    pub(super) fn change_open(&mut self, mut change: impl FnMut(PodClassId, &mut View)) {
        for id in &self.open {
            if let Some(shared) = self.table.get_mut(id.index())
                && let Some(class) = shared.classes.first()
            {
                change(*class, &mut shared.view);
            }
        }
    }

    /// Returns the numbers of all views.
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

    /// Returns a pod that refuses to share a host with other pods of the label `app`.
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
        // The view must stay when the class that it was made for leaves it.
        let first = cluster.pod_class(&small.template).expect("known");
        assert_eq!(cluster.views.leave(first), None);
        assert!(!fits(&mut cluster, &large));
        assert!(!fits(&mut cluster, &small));
        cluster.remove_pod("/small").expect("there");
        assert!(fits(&mut cluster, &large));
        assert!(fits(&mut cluster, &small));
    }
}
