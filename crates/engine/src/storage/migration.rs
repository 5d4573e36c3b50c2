//! The node affinity of a volume of an in-tree plugin on nodes where a CSI driver replaces the plugin: the zone label becomes the driver's own label
//! (Kubernetes: csi-translation-lib).

use std::collections::BTreeSet;

use crate::intern::{Interner, Symbol};
use crate::model::{
    Disk, NodeSelectorRequirement, NodeSelectorTerm, Operator, PersistentVolumeSpec, VolumeSource,
    label,
};
use crate::selector::NodeTerm;

/// The terms of a volume on nodes that have migrated its plugin; it exists only if they differ from the terms on other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Migration {
    /// The name of the plugin, such as `kubernetes.io/aws-ebs`.
    pub(crate) plugin: Symbol,
    pub(crate) terms: Vec<NodeTerm>,
}

/// The plugin of a disk with the zone label of its CSI driver.
struct Driver {
    plugin: &'static str,
    zone: &'static str,
}

/// Returns the driver that replaces a disk's plugin. The drivers of other plugins leave labels as they are, and vSphere volumes are never translated
/// (kube-scheduler: `isCSIMigrationOnForPlugin`).
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
        // Only if the terms say nothing about the zone do the volume's labels.
        if !rename(&mut terms, zone, self.zone)
            && let Some(zones) = spec.labels.get(zone)
        {
            // A volume in several zones has them joined by `__` in its label.
            let zones: Vec<&str> = zones.split("__").collect();
            demand(&mut terms, self.zone, &zones);
        }
        // The beta label for the region is renamed to the current one, because nodes may have only that.
        rename(&mut terms, region, label::REGION);
        terms
    }
}

/// Returns the zone and region labels that apply to a volume: those in its terms, otherwise those among its own labels; current labels come before
/// beta ones.
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

/// Renames a label in all terms, if any requirement on it has values. Returns whether one has.
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

/// Adds a requirement for one of these values to every term.
fn demand(terms: &mut Vec<NodeSelectorTerm>, key: &str, values: &[&str]) {
    let values = values.iter().map(|value| value.trim());
    let values: BTreeSet<_> = values.filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    // A volume without terms is reachable from everywhere, so a first term has to be made.
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
