//! What is on sale for the nodes of a pool, whatever the pool's requirements are: what it could buy if they were others.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::labels::LabelSet;
use crate::model::{Operator, StringMap, label};
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::open_labels::RequestedLabels;
use super::{InstanceType, NodeTemplate, PlanRequest, Requirement};

/// One way to buy a machine, with the labels its node would have. Lists of them are sorted by price.
pub(crate) struct Machine {
    pub(crate) spec: Arc<InstanceType>,
    pub(crate) labels: LabelSet,
    /// The room that is left for pods beside those of DaemonSets.
    pub(crate) room: Amounts,
}

impl NodeTemplate {
    /// Returns all types that the pool's class could buy.
    pub(crate) fn for_sale(&self) -> &[Arc<InstanceType>] {
        if self.for_sale.is_empty() {
            &self.instance_types
        } else {
            &self.for_sale
        }
    }

    /// Returns whether the machine, its zone or its capacity type decides a label, so that the pool cannot choose its
    /// value.
    pub(crate) fn is_decided(&self, key: &str) -> bool {
        let by_offering = [
            label::INSTANCE_TYPE,
            label::ZONE,
            label::CAPACITY_TYPE,
            label::NODE_POOL,
        ];
        let decides = |own: &Arc<InstanceType>| {
            let mut offerings = own.offerings.iter();
            own.labels.contains_key(key) || offerings.any(|sold| sold.labels.contains_key(key))
        };
        by_offering.contains(&key) || self.for_sale().iter().any(decides)
    }

    /// Allows the pool's nodes this value of a label, besides what its requirements allow now.
    pub(crate) fn allow(&mut self, key: &str, value: &str) {
        let mut known = false;
        self.requirements.retain_mut(|own| {
            if own.key != key {
                return true;
            }
            known = true;
            loosen(own, value)
        });
        // A label that machines decide needs no requirement to have the value; any other label would be missing on
        // the nodes.
        if !known && !self.is_decided(key) && !self.labels.contains_key(key) {
            self.requirements.push(Requirement {
                key: key.to_owned(),
                values: vec![value.to_owned()],
                ..Requirement::default()
            });
        }
        if !self.for_sale.is_empty() {
            let admitted = |own: &&Arc<InstanceType>| self.admits_type(&own.labels);
            self.instance_types = self.for_sale.iter().filter(admitted).cloned().collect();
        }
    }

    /// Returns whether a type's labels meet the requirements that machines decide. What an offering decides is looked
    /// at when options are made.
    fn admits_type(&self, labels: &StringMap) -> bool {
        self.requirements.iter().all(|own| {
            let by_type = self
                .for_sale()
                .iter()
                .any(|other| other.labels.contains_key(&own.key));
            !by_type || own.is_met_by(labels.get(&own.key))
        })
    }

    /// Returns the requirements on labels that machines decide.
    pub(crate) fn decided(&self) -> impl Iterator<Item = &Requirement> {
        self.requirements
            .iter()
            .filter(|own| self.is_decided(&own.key))
    }
}

/// Makes a requirement admit a value. Returns `false` if the requirement has to be removed for that.
fn loosen(own: &mut Requirement, value: &str) -> bool {
    if own.is_met_by(Some(&value.to_owned())) {
        return true;
    }
    match own.operator {
        Operator::In => own.values.push(value.to_owned()),
        Operator::NotIn => own.values.retain(|other| other != value),
        _ => return false,
    }
    // A `NotIn` without values excludes nothing but is invalid, so it goes.
    !own.values.is_empty()
}

/// Returns every machine that the pool's class could buy now, cheapest first.
///
/// # Errors
/// An amount of a type or of the DaemonSets is below zero.
pub(crate) fn machines(
    template: &NodeTemplate,
    cluster: &mut Cluster,
) -> Result<Vec<Machine>, ModelError> {
    // Requirements on labels that only the pool decides stay: they say which labels its nodes have.
    let mut open = template.clone();
    open.requirements
        .retain(|own| !template.is_decided(&own.key));
    open.instance_types = template.for_sale().to_vec();
    options(&open, cluster)
}

/// Returns every machine that the pool could buy now, cheapest first.
///
/// # Errors
/// An amount of a type or of the DaemonSets is below zero.
pub(crate) fn options(
    template: &NodeTemplate,
    cluster: &mut Cluster,
) -> Result<Vec<Machine>, ModelError> {
    let requested =
        RequestedLabels::of(std::iter::empty(), std::slice::from_ref(template), cluster);
    let catalog = Catalog::compile(template, &PlanRequest::default(), &requested, cluster)?;
    let machine = |index: usize| {
        let option = &catalog.options[index];
        Machine {
            spec: Arc::clone(&catalog.types[option.type_index]),
            labels: option.labels.clone(),
            room: catalog.room_of(index).free.clone(),
        }
    };
    Ok(catalog.available.ones().map(machine).collect())
}
