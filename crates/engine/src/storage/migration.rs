//! Where a volume of an in-tree plugin is reached from on nodes whose CSI driver stands in for the plugin: its zone becomes the driver's own
//! label (upstream: csi-translation-lib).

use std::collections::BTreeSet;

use crate::intern::{Interner, Symbol};
use crate::model::{
    Disk, NodeSelectorRequirement, NodeSelectorTerm, Operator, PersistentVolumeSpec, VolumeSource,
    label,
};
use crate::selector::NodeTerm;

/// What a volume asks of nodes that say they have migrated its plugin, where that is something else than what it asks of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Migration {
    /// The plugin, as in `kubernetes.io/aws-ebs`.
    pub(crate) plugin: Symbol,
    pub(crate) terms: Vec<NodeTerm>,
}

/// A plugin with the labels of its driver.
struct Driver {
    plugin: &'static str,
    zone: &'static str,
}

/// Drivers of other plugins leave the labels as they are, and volumes of vSphere are never translated (kube-scheduler:
/// `isCSIMigrationOnForPlugin`).
fn driver(disk: &Disk) -> Option<Driver> {
    let (plugin, zone) = match disk {
        Disk::AwsElasticBlockStore { .. } => {
            ("kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone")
        }
        Disk::GcePersistentDisk { .. } => ("kubernetes.io/gce-pd", "topology.gke.io/zone"),
        Disk::Cinder { .. } => {
            let zone = "topology.cinder.csi.openstack.org/zone";
            ("kubernetes.io/cinder", zone)
        }
        _ => return None,
    };
    Some(Driver { plugin, zone })
}

impl Migration {
    pub(crate) fn of(spec: &PersistentVolumeSpec, names: &mut Interner) -> Option<Self> {
        let Some(VolumeSource::Disk(disk)) = &spec.source else {
            return None;
        };
        let driver = driver(disk)?;
        let own = spec.node_affinity.clone().unwrap_or_default();
        let terms = driver.terms(&own.node_selector_terms, spec);
        if terms == own.node_selector_terms {
            return None;
        }
        let terms = terms.iter();
        Some(Migration {
            plugin: names.intern(driver.plugin),
            terms: terms
                .filter_map(|term| NodeTerm::compile(term, names))
                .collect(),
        })
    }
}

impl Driver {
    fn terms(
        &self,
        own: &[NodeSelectorTerm],
        spec: &PersistentVolumeSpec,
    ) -> Vec<NodeSelectorTerm> {
        let mut terms = own.to_vec();
        let (zone, region) = places(&terms, spec);
        if !rename(&mut terms, zone, self.zone)
            && let Some(zones) = spec.labels.get(zone)
        {
            let zones: Vec<&str> = zones.split("__").collect();
            demand(&mut terms, self.zone, &zones);
        }
        // Nodes may have the label's name of today only.
        rename(&mut terms, region, label::REGION);
        terms
    }
}

/// The labels of zone and region that a volume goes by: those of its terms, or else of its own labels, and those of today before the beta ones.
fn places(terms: &[NodeSelectorTerm], spec: &PersistentVolumeSpec) -> (&'static str, &'static str) {
    const TODAY: (&str, &str) = (label::ZONE, label::REGION);
    const BETA: (&str, &str) = (label::BETA_ZONE, label::BETA_REGION);
    let in_terms = |key: &str| {
        let mut demands = terms.iter().flat_map(|term| &term.match_expressions);
        demands.any(|demand| demand.key == key)
    };
    let in_terms = [TODAY, BETA].into_iter().find(|own| in_terms(own.0));
    let in_labels = || {
        let mut both = [TODAY, BETA].into_iter();
        both.find(|own| spec.labels.contains_key(own.0))
    };
    in_terms.or_else(in_labels).unwrap_or(TODAY)
}

/// Gives a label another name wherever any term asks for values of it; tells whether one does.
fn rename(terms: &mut [NodeSelectorTerm], from: &str, to: &str) -> bool {
    let demands = || terms.iter().flat_map(|term| &term.match_expressions);
    if !demands().any(|own| own.key == from && !own.values.is_empty()) {
        return false;
    }
    for demand in terms
        .iter_mut()
        .flat_map(|term| &mut term.match_expressions)
    {
        if demand.key == from {
            to.clone_into(&mut demand.key);
        }
    }
    true
}

/// Asks for one of these values in every term.
fn demand(terms: &mut Vec<NodeSelectorTerm>, key: &str, values: &[&str]) {
    let values = values.iter().map(|value| value.trim());
    let values: BTreeSet<_> = values.filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.push(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        });
    }
}
