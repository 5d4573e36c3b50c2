//! A compiled pod template: everything that filters and scorers read, without strings.
//!
//! A template is compiled once. What depends on other objects (services, namespaces, other pods) is not part of the
//! class but of its [`crate::topology::View`].

use super::{
    ClaimedDevices, ExtendedResource, Features, PodTerm, Shape, ShapeId, SpreadRule, Volume,
};
use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::PodTemplate;
use crate::profile::{ProfileId, Rules};

/// A compiled pod template.
#[derive(Clone, Debug)]
pub(crate) struct PodClass {
    pub(crate) namespace: Symbol,
    pub(crate) labels: LabelSet,
    pub(crate) shape: Shape,
    /// The number that the cluster gave the shape.
    pub(crate) shape_id: ShapeId,
    pub(crate) spread: Vec<SpreadRule>,
    pub(crate) affinity: Vec<PodTerm>,
    pub(crate) anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity terms; anti-affinity terms have negative weights.
    pub(crate) preferred_pods: Vec<PodTerm>,
    pub(crate) priority: i32,
    pub(crate) volumes: Box<[Volume]>,
    /// The features that the kubelet must declare for the pod to run.
    pub(crate) features: Features,
    pub(crate) devices: Option<Box<ClaimedDevices>>,
    /// The extended resources that a DeviceClass may stand for.
    pub(crate) extended: Box<[ExtendedResource]>,
}

impl PodClass {
    pub(crate) fn compile(
        template: &PodTemplate,
        profile: (ProfileId, &Rules),
        names: &mut Interner,
    ) -> Result<Self, ModelError> {
        let shape = Shape::compile(template, profile, names)?;
        let namespace = names.intern(&template.namespace);
        let labels = LabelSet::intern(&template.labels, names);
        let constraints = template.topology_spread_constraints.iter();
        let spread = constraints
            .map(|constraint| SpreadRule::compile(constraint, &labels, names))
            .collect();
        let extended = ExtendedResource::all(template, &shape.requests.real, names);
        let mut class = PodClass {
            namespace,
            labels,
            shape,
            shape_id: ShapeId::default(),
            spread,
            affinity: Vec::new(),
            anti_affinity: Vec::new(),
            preferred_pods: Vec::new(),
            priority: template.priority,
            volumes: template
                .volumes
                .iter()
                .map(|volume| Volume::compile(volume, names))
                .collect(),
            features: Features::needed(template),
            devices: template
                .claims
                .as_deref()
                .map(|claims| Box::new(ClaimedDevices::compile(claims, names))),
            extended,
        };
        class.compile_terms(template, names);
        Ok(class)
    }

    fn compile_terms(&mut self, template: &PodTemplate, names: &mut Interner) {
        let own = self.namespace;
        if let Some(near) = &template.affinity.pod_affinity {
            self.affinity.extend(
                near.required
                    .iter()
                    .map(|term| PodTerm::compile(term, own, 1, names)),
            );
            for preferred in &near.preferred {
                let weight = i64::from(preferred.weight);
                self.preferred_pods.push(PodTerm::compile(
                    &preferred.pod_affinity_term,
                    own,
                    weight,
                    names,
                ));
            }
        }
        if let Some(apart) = &template.affinity.pod_anti_affinity {
            self.anti_affinity.extend(
                apart
                    .required
                    .iter()
                    .map(|term| PodTerm::compile(term, own, 1, names)),
            );
            for preferred in &apart.preferred {
                let weight = -i64::from(preferred.weight);
                self.preferred_pods.push(PodTerm::compile(
                    &preferred.pod_affinity_term,
                    own,
                    weight,
                    names,
                ));
            }
        }
    }

    /// Returns whether the pod has affinity or anti-affinity terms about other pods.
    pub(crate) fn has_pod_terms(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_pods.is_empty())
    }
}
