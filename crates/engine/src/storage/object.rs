//! Storage objects with their names interned and their selectors compiled.

use super::Migration;
use crate::class::Attach;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{
    AccessMode, CsiNodeSpec, CsiStorageCapacitySpec, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, Quantity, StorageClassSpec, VolumeAttachmentSpec, VolumeSource,
};
use crate::selector::{LabelQuery, NodeTerm, Requirement};

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) uid: Symbol,
    pub(crate) owner: Option<Symbol>,
    pub(crate) deleting: bool,
    pub(crate) lost: bool,
    /// Empty while the claim has no volume.
    pub(crate) volume: Symbol,
    /// Whether binding is complete.
    pub(crate) bound: bool,
    pub(crate) selected_node: Option<Symbol>,
    pub(crate) class: Symbol,
    pub(crate) attributes_class: Symbol,
    pub(crate) request: Option<Quantity>,
    pub(crate) access_modes: Vec<AccessMode>,
    pub(crate) block: bool,
    pub(crate) selector: Option<LabelQuery>,
}

impl Claim {
    pub(crate) fn compile(spec: &PersistentVolumeClaimSpec, names: &mut Interner) -> Self {
        Claim {
            uid: names.intern(&spec.uid),
            owner: spec.owner_uid.as_deref().map(|uid| names.intern(uid)),
            deleting: spec.deleting,
            lost: spec.lost,
            volume: names.intern(&spec.volume),
            // kube-scheduler's `isPVCFullyBound`: a claim with a volume but without the annotation is still being
            // bound.
            bound: !spec.volume.is_empty() && spec.bind_completed,
            selected_node: spec.selected_node.as_deref().map(|node| names.intern(node)),
            class: names.intern(&spec.class),
            attributes_class: names.intern(&spec.attributes_class),
            request: spec.request,
            access_modes: spec.access_modes.clone(),
            block: spec.block,
            selector: spec
                .selector
                .as_ref()
                .map(|selector| LabelQuery::compile(Some(selector), names)),
        }
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) labels: LabelSet,
    pub(crate) deleting: bool,
    pub(crate) available: bool,
    /// Namespace, name and UID (empty: any) of the claim that it is bound to or reserved for.
    pub(crate) claim: Option<(Symbol, Symbol, Symbol)>,
    pub(crate) capacity: Quantity,
    pub(crate) access_modes: Vec<AccessMode>,
    pub(crate) block: bool,
    pub(crate) class: Symbol,
    pub(crate) attributes_class: Symbol,
    /// Terms of which a node must match one; terms that cannot be parsed are left out.
    pub(crate) terms: Option<Vec<NodeTerm>>,
    pub(crate) migration: Option<Migration>,
    pub(crate) attach: Option<Attach>,
    /// Whether its source is a CSI driver, not an in-tree plugin.
    pub(crate) is_csi: bool,
    pub(crate) zones: Vec<ZoneDemand>,
}

/// A zone or region label of a volume that nodes must have too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZoneDemand {
    pub(crate) key: Symbol,
    /// The current name of the label, if `key` is its beta name.
    pub(crate) modern: Symbol,
    pub(crate) values: Box<[Symbol]>,
}

/// The labels for zone and region, each with its current name, in kube-scheduler's order.
pub(crate) const PLACES: [(Symbol, Symbol); 4] = [
    (Symbol::BETA_ZONE, Symbol::ZONE),
    (Symbol::BETA_REGION, Symbol::REGION),
    (Symbol::ZONE, Symbol::ZONE),
    (Symbol::REGION, Symbol::REGION),
];

impl Volume {
    pub(crate) fn compile(spec: &PersistentVolumeSpec, names: &mut Interner) -> Self {
        let labels = LabelSet::intern(&spec.labels, names);
        let mut zones = Vec::new();
        for (key, modern) in PLACES {
            let text = labels.value(key).map(|value| names.text(value).to_owned());
            let Some(text) = text else { continue };
            // A list with an empty part is invalid, so the label is ignored.
            if text.split("__").all(|zone| !zone.trim().is_empty()) {
                let values = text.split("__").map(|zone| names.intern(zone.trim()));
                zones.push(ZoneDemand {
                    key,
                    modern,
                    values: values.collect(),
                });
            }
        }
        let attach = match &spec.source {
            Some(VolumeSource::Csi { driver, handle }) => {
                let is_complete = !driver.is_empty() && !handle.is_empty();
                is_complete.then(|| Attach {
                    driver: names.intern(driver),
                    handle: crate::class::Handle::Volume(names.intern(handle)),
                })
            }
            Some(VolumeSource::Disk(disk)) => {
                // The beta label first, as in csi-translation-lib.
                let by_beta = labels.value(Symbol::BETA_ZONE);
                let by_beta = by_beta.filter(|zones| *zones != Symbol::EMPTY);
                let zones = by_beta.or(labels.value(Symbol::ZONE));
                let zones = zones.map(|zones| names.text(zones).to_owned());
                Attach::of_disk(disk, &zones.unwrap_or_default(), names)
            }
            None => None,
        };
        let terms = spec.node_affinity.as_ref().map(|selector| {
            let terms = selector.node_selector_terms.iter();
            terms
                .filter_map(|term| NodeTerm::compile(term, names))
                .collect()
        });
        Volume {
            labels,
            deleting: spec.deleting,
            available: spec.available,
            claim: spec.claim.as_ref().map(|claim| {
                (
                    names.intern(&claim.namespace),
                    names.intern(&claim.name),
                    names.intern(&claim.uid),
                )
            }),
            capacity: spec.capacity,
            access_modes: spec.access_modes.clone(),
            block: spec.block,
            class: names.intern(&spec.class),
            attributes_class: names.intern(&spec.attributes_class),
            terms,
            migration: Migration::of(spec, names),
            attach,
            is_csi: matches!(spec.source, Some(VolumeSource::Csi { .. })),
            zones,
        }
    }

    /// Returns whether the volume is bound to a claim or reserved for it.
    pub(crate) fn is_for(&self, key: super::Key, uid: Symbol) -> bool {
        self.claim.is_some_and(|(namespace, name, own)| {
            (namespace, name) == key && (own == Symbol::EMPTY || own == uid)
        })
    }
}

/// Returns whether a volume's node affinity allows a node with these labels. kube-scheduler passes no node name here, so
/// terms about names are ignored.
pub(crate) fn reaches(terms: Option<&[NodeTerm]>, labels: &LabelSet, names: &Interner) -> bool {
    terms.is_none_or(|terms| terms.iter().any(|term| term.matches_labels(labels, names)))
}

/// A storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) provisioner: Symbol,
    /// Whether it has a provisioner.
    pub(crate) provisions: bool,
    /// The CSI driver that attaches its volumes.
    pub(crate) driver: Option<Symbol>,
    pub(crate) waits: bool,
    /// The allowed topologies; `None` for all nodes.
    pub(crate) topologies: Option<Vec<Vec<Requirement>>>,
}

/// The provisioner of classes whose volumes are created manually.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

impl Class {
    pub(crate) fn compile(spec: &StorageClassSpec, names: &mut Interner) -> Self {
        let mut terms = Vec::new();
        // Empty terms and terms with an invalid requirement match nothing, so they are left out.
        for term in spec
            .allowed_topologies
            .iter()
            .filter(|term| !term.is_empty())
        {
            let demands = term
                .iter()
                .map(|demand| Requirement::one_of(&demand.key, &demand.values, names));
            terms.extend(demands.collect::<Option<Vec<_>>>());
        }
        Class {
            provisioner: names.intern(&spec.provisioner),
            provisions: !spec.provisioner.is_empty() && spec.provisioner != NO_PROVISIONER,
            driver: Attach::of_provisioner(&spec.provisioner, names),
            waits: spec.waits_for_consumer,
            // A list without usable terms allows no node, while an absent list allows all nodes.
            topologies: (!spec.allowed_topologies.is_empty()).then_some(terms),
        }
    }
}

/// The attach limits of a node, from its CSINode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiNode {
    limits: Vec<(Symbol, i64)>,
    migrated: Vec<Symbol>,
}

impl CsiNode {
    pub(crate) fn compile(spec: &CsiNodeSpec, names: &mut Interner) -> Self {
        let limits = spec.limits.iter();
        let plugins = spec.migrated_plugins.iter();
        CsiNode {
            limits: limits
                .map(|(driver, count)| (names.intern(driver), *count))
                .collect(),
            migrated: plugins.map(|plugin| names.intern(plugin)).collect(),
        }
    }

    pub(crate) fn least_limit(&self) -> Option<i64> {
        self.limits.iter().map(|(_, count)| *count).min()
    }

    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Returns how many volumes of a driver the node can attach, if its CSINode says so.
    pub(crate) fn limit(&self, driver: Symbol) -> Option<i64> {
        let found = self.limits.iter().find(|(own, _)| *own == driver);
        found.map(|(_, count)| *count)
    }

    /// Returns whether an in-tree plugin is migrated to a CSI driver on this node, which changes from where its volumes can
    /// be reached.
    pub(crate) fn has_migrated(&self, plugin: Symbol) -> bool {
        self.migrated.contains(&plugin)
    }
}

/// The largest volume that a driver can still provision for some nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) class: Symbol,
    pub(crate) nodes: LabelQuery,
    pub(crate) largest: Option<Quantity>,
}

impl Capacity {
    pub(crate) fn compile(spec: &CsiStorageCapacitySpec, names: &mut Interner) -> Self {
        Capacity {
            class: names.intern(&spec.class),
            nodes: LabelQuery::compile(spec.nodes.as_ref(), names),
            largest: spec.largest_volume,
        }
    }
}

/// A volume attached to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) driver: Symbol,
    pub(crate) node: Symbol,
    pub(crate) volume: Symbol,
}

impl Attachment {
    pub(crate) fn compile(spec: &VolumeAttachmentSpec, names: &mut Interner) -> Self {
        Attachment {
            driver: names.intern(&spec.attacher),
            node: names.intern(&spec.node),
            volume: names.intern(&spec.volume),
        }
    }
}
