//! The life of pod classes: a class is made when its template is first seen and collected when no pod has it any more.
//!
//! A collection drops the classes that no pod has and that nobody asked for since the previous collection, with everything
//! cached for them. It runs when new templates have made the table half as long again, never while a checkpoint is open.
//! Invariant: everything that is kept by class or by shape is dropped in [`Cluster::forget_class`] or
//! [`Cluster::forget_shape`].

use super::Cluster;
use crate::class::{PodClass, PodClassId, Shape, ShapeId, ShapeVerdicts};
use crate::error::ModelError;
use crate::model::PodTemplate;

/// The minimum number of new templates between two collections.
const LEAST_NEW: usize = 256;

/// The usage counts of classes and shapes, by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    classes: Vec<Use>,
    /// The number of classes of each shape.
    shapes: Vec<u32>,
    collections: u32,
    /// The number of classes that triggers the next collection.
    enough: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// The number of bound pods plus pods that room is held for.
    pods: u32,
    /// The number of collections that had run when the class was last asked for.
    asked: u32,
}

impl Cluster {
    /// Returns the class of a template; pods with equal templates share it. The id is valid as long as a pod has the class.
    /// Without a pod it stays valid while a checkpoint is open, and otherwise until some hundreds of other templates were
    /// asked for.
    ///
    /// # Errors
    /// [`ModelError::NegativeQuantity`] if a request is below zero.
    pub fn pod_class(&mut self, template: &PodTemplate) -> Result<PodClassId, ModelError> {
        match self.known_class(template) {
            Some(id) => Ok(id),
            None => self.new_class(template.clone()),
        }
    }

    /// Returns the class of a template like [`Cluster::pod_class`], without copying the template of a new class.
    pub(super) fn class_of(&mut self, template: PodTemplate) -> Result<PodClassId, ModelError> {
        match self.known_class(&template) {
            Some(id) => Ok(id),
            None => self.new_class(template),
        }
    }

    fn known_class(&mut self, template: &PodTemplate) -> Option<PodClassId> {
        let index = self.classes.find(template)?;
        // Asked for again, so the next collection leaves it even if no pod has it yet.
        self.uses.classes[index].asked = self.uses.collections;
        Some(PodClassId(index as u32))
    }

    fn new_class(&mut self, template: PodTemplate) -> Result<PodClassId, ModelError> {
        // A rollback needs the classes that existed at its checkpoint, so nothing is collected while one is open.
        if self.checkpoints == 0 && self.classes.len() >= self.uses.enough.max(LEAST_NEW) {
            self.collect_classes();
        }
        let profile = self.profile(&template.scheduler_name);
        let rules = &self.profiles[profile.0 as usize].1;
        let mut class = PodClass::compile(&template, (profile, rules), &mut self.names)?;
        class.shape_id = self.shape(&class.shape);
        let index = self.classes.insert(template, class);
        let id = PodClassId(index as u32);
        // The table reuses numbers of collected classes; only a new number needs a new entry.
        if index == self.affects.len() {
            self.affects.push(Vec::new());
            self.uses.classes.push(Use::default());
        }
        self.uses.classes[index] = Use {
            pods: 0,
            asked: self.uses.collections,
        };
        self.introduce(id);
        Ok(id)
    }

    fn shape(&mut self, shape: &Shape) -> ShapeId {
        let index = self.shapes.find(shape).unwrap_or_else(|| {
            let index = self.shapes.insert(shape.clone(), ());
            if index == self.verdicts.len() {
                self.verdicts.push(ShapeVerdicts::default());
                self.uses.shapes.push(0);
            }
            index
        });
        self.uses.shapes[index] += 1;
        ShapeId(index as u32)
    }

    /// Returns the number of pod classes.
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Counts a pod for its class.
    pub(super) fn use_class(&mut self, id: PodClassId) {
        self.uses.classes[id.index()].pods += 1;
    }

    /// Removes a pod from the count of its class.
    pub(super) fn release_class(&mut self, id: PodClassId) {
        self.uses.classes[id.index()].pods -= 1;
    }

    /// Drops the classes that no pod has and that were not asked for since the last collection.
    pub(super) fn collect_classes(&mut self) {
        let uses = &self.uses;
        let idle = |index: &usize| {
            let own = uses.classes[*index];
            own.pods == 0 && own.asked < uses.collections
        };
        let idle: Vec<usize> = self
            .classes
            .iter()
            .map(|(index, ..)| index)
            .filter(idle)
            .collect();
        let mut gone = Vec::new();
        for index in &idle {
            let class = PodClassId(*index as u32);
            gone.extend(self.views.leave(class));
            self.forget_class(class);
        }
        // Views are shared by classes and go with the last one.
        self.forget_views(gone);
        self.uses.collections += 1;
        // Half as many again, so that the cost of a collection is spread over the classes that made it necessary.
        self.uses.enough = self.classes.len() + self.classes.len() / 2 + LEAST_NEW;
    }

    fn forget_class(&mut self, id: PodClassId) {
        let Some(class) = self.classes.remove(id.index()) else {
            return;
        };
        self.termed.remove(&id.index());
        self.affects[id.index()] = Vec::new();
        self.volume_plans.remove(&id);
        self.device_plans.remove(&id);
        self.boards.forget_class(id);
        let shape = class.shape_id;
        self.uses.shapes[shape.index()] -= 1;
        if self.uses.shapes[shape.index()] == 0 {
            self.forget_shape(shape);
        }
    }

    fn forget_shape(&mut self, id: ShapeId) {
        self.shapes.remove(id.index());
        self.verdicts[id.index()] = ShapeVerdicts::default();
        self.boards.forget_shape(id);
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::{Cluster, Options};
    use crate::model::{NodeSpec, PodSpec, PodTemplate};
    use crate::schedule::Decision;

    fn template(number: usize) -> PodTemplate {
        let labels = [("number".to_owned(), number.to_string())].into();
        let node_selector = [("zone".to_owned(), format!("z{}", number % 700))].into();
        PodTemplate {
            labels,
            node_selector,
            ..PodTemplate::default()
        }
    }

    #[test]
    fn classes_without_pods_do_not_pile_up_and_those_with_pods_stay() {
        let mut cluster = Cluster::new(Options::default());
        cluster.add_node(&NodeSpec::named("n")).expect("valid");
        let kept = PodSpec {
            name: "kept".into(),
            template: template(0),
            ..PodSpec::default()
        };
        cluster.bind(&kept, "n").expect("new");
        let class = cluster.pod_class(&template(0)).expect("valid");
        for number in 1..20_000 {
            let spec = PodSpec {
                name: "passing".into(),
                template: template(number),
                ..PodSpec::default()
            };
            cluster.bind(&spec, "n").expect("new");
            let asked = cluster.schedule_pod(&spec, 0).expect("valid");
            assert!(matches!(asked, Decision::Unschedulable(_)));
            cluster.remove_pod("/passing").expect("there");
        }
        assert!(
            cluster.class_count() < 1500,
            "{} classes",
            cluster.class_count()
        );
        assert!(cluster.shapes.len() <= 700);
        assert_eq!(cluster.template(class), &template(0));
    }
}
