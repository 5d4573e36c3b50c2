//! A pool as a list of concrete options: one per instance type, offering, and choice of values for labels left open.
//!
//! An option is a possible node with all its labels, so the scheduler's own static filters decide whether a pod may run
//! there; no second implementation of requirements could disagree with them. Options are sorted by price.

use std::cell::OnceCell;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use crate::class::{
    HostPort, NodeRules, NodeTaint, PodClassId, Shape, ShapeId, StaticVerdict, Target,
};
use crate::cluster::{Cluster, Question};
use crate::error::ModelError;
use crate::filter::node_ports;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::model::label;
use crate::reason::{Plugin, Reason, Refusal};
use crate::selector::NamedNodes;

use super::limit::Limits;
use super::open_labels::{RequestedLabels, add_former_names, choices};
use super::pack::Load;
use super::room_table::RoomTable;
use super::rooms::Room;
use super::{InstanceType, MinValuesPolicy, NodeTemplate, PlanRequest, PoolReason, Requirement};

/// The capacity type that EC2 can interrupt.
const SPOT: &str = "spot";

/// The zone label that the EBS CSI driver uses in volumes; a node gets it when the driver runs on it.
const DRIVER_ZONE: &str = "topology.ebs.csi.aws.com/zone";

/// A pool, compiled for one plan.
pub(super) struct Catalog {
    pub(super) pool: String,
    pub(super) weight: i32,
    pub(super) requirements: Vec<Requirement>,
    /// The labels in `requirements` that neither machines nor offerings decide.
    pub(super) undecided: Vec<Symbol>,
    /// The cost of each node in addition to its offering, in micro-dollars per hour.
    pub(super) node_price: u64,
    /// The number of thousandths by which preferences may raise the price of its nodes.
    pub(super) preference_price: u32,
    pub(super) taints: Vec<NodeTaint>,
    pub(super) limits: Limits,
    /// Whether a planned node lists only options that cost little more than its cheapest.
    pub(super) caps_prices: bool,
    /// Whether pods are planned even if `minValues` of the pool is not met.
    relaxes_min_values: bool,
    /// Instance types.
    pub(super) types: Vec<Arc<InstanceType>>,
    /// The rooms that options have for pods, apart from their labels; options of one type usually share one.
    pub(super) rooms: Vec<Room>,
    /// The native resources of each option's room, once they are asked for. The table stays right because options and rooms do not change
    /// after [`Catalog::compile`].
    pub(super) room_table: OnceCell<RoomTable>,
    /// Whether a DaemonSet takes host ports of some option.
    pub(super) daemons_hold_ports: bool,
    /// Whether the labels in `undecided` decide which DaemonSets run on a node.
    pub(super) daemons_select_open_labels: bool,
    /// The options, cheapest first.
    pub(super) options: Vec<Choice>,
    /// The options of each type, cheapest first.
    by_type: Vec<Vec<usize>>,
    /// The options that can be bought now.
    pub(super) available: FixedBitSet,
    /// The number of nodes that may still be planned for each reservation.
    pub(super) reservations: FxHashMap<Symbol, u32>,
    /// The options with a value of a label, or without the label, by key and value.
    by_value: FxHashMap<(Symbol, Option<Symbol>), FixedBitSet>,
    /// The options divided by their values of labels, by the keys of the labels, once they are asked for. Options do not change after
    /// [`Catalog::compile`].
    by_values: FxHashMap<Vec<Symbol>, Vec<FixedBitSet>>,
    /// The verdicts by kind of pod: pods of one kind are equal in everything that the static filters look at.
    verdicts: Vec<Verdicts>,
    kinds: FxHashMap<Kind, usize>,
    kind_of: FxHashMap<ShapeId, usize>,
}

/// The rules of a pod that decide its verdicts, with its host ports in a pool whose DaemonSets hold ports.
type Kind = (NodeRules, Vec<HostPort>);

/// A possible node.
pub(super) struct Choice {
    pub(super) type_index: usize,
    /// Index in the catalog's `rooms`.
    pub(super) room: usize,
    pub(super) offering: usize,
    pub(super) price_micro_usd: u64,
    pub(super) labels: LabelSet,
    /// Id of the capacity reservation that it uses.
    pub(super) reservation: Option<Symbol>,
}

/// The options that the static filters allow for a kind of pods, and the first refusal among the others.
#[derive(Clone)]
pub(super) struct Verdicts {
    pub(super) fits: FixedBitSet,
    pub(super) refusal: Option<(Plugin, Reason)>,
}

impl Catalog {
    /// Compiles what a pool can buy for pods that request these labels.
    ///
    /// # Errors
    /// An amount of a type or of the DaemonSets is below zero.
    pub(super) fn compile(
        template: &NodeTemplate,
        request: &PlanRequest,
        requested: &RequestedLabels,
        cluster: &mut Cluster,
    ) -> Result<Self, ModelError> {
        let undecided = |own: &&Requirement| !template.is_decided(&own.key);
        let undecided = template.requirements.iter().filter(undecided);
        let names = cluster.names_mut();
        let mut catalog = Catalog {
            pool: template.pool.clone(),
            weight: template.weight,
            requirements: template.requirements.clone(),
            undecided: undecided.map(|own| names.intern(&own.key)).collect(),
            node_price: template.node_price_micro_usd,
            preference_price: template
                .preference_price
                .unwrap_or(NodeTemplate::PREFERENCE_PRICE),
            taints: template
                .taints
                .iter()
                .map(|taint| NodeTaint::intern(taint, names))
                .collect(),
            limits: Limits::new(&template.limits_remaining),
            caps_prices: request.by_cost,
            relaxes_min_values: request.min_values == MinValuesPolicy::BestEffort,
            types: Vec::new(),
            rooms: Vec::new(),
            room_table: OnceCell::new(),
            daemons_hold_ports: false,
            daemons_select_open_labels: false,
            options: Vec::new(),
            by_type: Vec::new(),
            available: FixedBitSet::new(),
            reservations: FxHashMap::default(),
            by_value: FxHashMap::default(),
            by_values: FxHashMap::default(),
            verdicts: Vec::new(),
            kinds: FxHashMap::default(),
            kind_of: FxHashMap::default(),
        };
        let mut daemons = Vec::with_capacity(template.daemons.len());
        for pod in &template.daemons {
            daemons.push(cluster.pod_class(pod)?);
        }
        // Rooms need all options, and the sort below moves options, so the order of these steps matters.
        for spec in &template.instance_types {
            catalog.add_type(template, Arc::clone(spec), requested, cluster);
        }
        catalog.make_rooms(&daemons, cluster)?;
        let types = &catalog.types;
        // Names break ties of price, so that equal catalogs give equal plans in every process.
        catalog.options.sort_by(|a, b| {
            let key = |option: &Choice| {
                let spec = &types[option.type_index];
                let offering = &spec.offerings[option.offering];
                (
                    option.price_micro_usd,
                    &spec.name,
                    &offering.zone,
                    &offering.capacity_type,
                    offering.reservation.as_ref().map(|own| &own.id),
                )
            };
            key(a).cmp(&key(b))
        });
        catalog.available.grow(catalog.options.len());
        for (index, option) in catalog.options.iter().enumerate() {
            let available = catalog.types[option.type_index].offerings[option.offering].available;
            catalog.available.set(index, available);
        }
        catalog.by_type = vec![Vec::new(); catalog.types.len()];
        for (index, option) in catalog.options.iter().enumerate() {
            catalog.by_type[option.type_index].push(index);
        }
        Ok(catalog)
    }

    fn add_type(
        &mut self,
        template: &NodeTemplate,
        spec: Arc<InstanceType>,
        requested: &RequestedLabels,
        cluster: &mut Cluster,
    ) {
        // The pool's own labels pin values, so types and offerings with other values cannot become its nodes.
        let contradicts =
            |(key, value): (&String, &String)| spec.labels.get(key).is_some_and(|own| own != value);
        if template.labels.iter().any(contradicts) {
            return;
        }
        let type_index = self.types.len();
        let mut labels = template.labels.clone();
        labels.extend(spec.labels.clone());
        labels.insert(label::INSTANCE_TYPE.to_owned(), spec.name.clone());
        labels.insert(label::NODE_POOL.to_owned(), template.pool.clone());
        // Pods may still select by the deprecated names of these labels, for example `beta.kubernetes.io/arch`.
        add_former_names(&mut labels);
        let common = LabelSet::intern(&labels, cluster.names_mut());
        for (offering, sold) in spec.offerings.iter().enumerate() {
            let mut place = sold.labels.clone();
            place.insert(label::ZONE.to_owned(), sold.zone.clone());
            place.insert(label::CAPACITY_TYPE.to_owned(), sold.capacity_type.clone());
            let is_other = |(key, value): (&String, &String)| {
                template.labels.get(key).is_some_and(|own| own != value)
            };
            if place.iter().any(is_other) {
                continue;
            }
            add_former_names(&mut place);
            let reservation = sold.reservation.as_ref().map(|own| {
                let id = cluster.names_mut().intern(&own.id);
                // Several offerings may name one reservation; the smallest count that any of them states is the safe
                // one.
                let left = self.reservations.entry(id).or_insert(own.left);
                *left = own.left.min(*left);
                id
            });
            // A label that the pool leaves open multiplies options, so only values that pods ask for are tried
            // (`open_labels`).
            let value_of = |key: &str| place.get(key).or_else(|| labels.get(key));
            let choices = choices(value_of, &template.requirements, requested);
            if choices.is_empty() {
                continue;
            }
            let common = common.with_all(place.iter(), cluster.names_mut());
            for choice in choices {
                let more = choice.iter().map(|(key, value)| (key, value));
                self.options.push(Choice {
                    type_index,
                    room: 0,
                    offering,
                    price_micro_usd: sold.price_micro_usd,
                    labels: common.with_all(more, cluster.names_mut()),
                    reservation,
                });
            }
        }
        self.types.push(spec);
    }

    /// Returns the values that a label can have on the pool's nodes.
    pub(super) fn values(&self, key: Symbol) -> Vec<Symbol> {
        self.values_among(&self.available, key)
    }

    /// Returns the values that a label has in some options, sorted.
    pub(super) fn values_among(&self, options: &FixedBitSet, key: Symbol) -> Vec<Symbol> {
        let options = options.ones();
        let mut values: Vec<Symbol> = options
            .filter_map(|option| self.options[option].labels.value(key))
            .collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Returns those of some options that agree with the cheapest on the labels that only the pool decides. A node can have
    /// one value of them, and its claim says which.
    pub(super) fn of_one_value(&self, mut options: FixedBitSet) -> FixedBitSet {
        let Some(cheapest) = options.minimum().filter(|_| !self.undecided.is_empty()) else {
            return options;
        };
        let value = |option: usize, key: &Symbol| self.options[option].labels.value(*key);
        for option in options.clone().ones() {
            let mut undecided = self.undecided.iter();
            let is_alike = undecided.all(|key| value(option, key) == value(cheapest, key));
            options.set(option, is_alike);
        }
        options
    }

    /// Returns the options with this value of a label; `None` stands for options without the label.
    pub(super) fn with_value(&mut self, key: Symbol, value: Option<Symbol>) -> &FixedBitSet {
        let options = &self.options;
        self.by_value.entry((key, value)).or_insert_with(|| {
            let has_value = |option: &usize| options[*option].labels.value(key) == value;
            let mut found = FixedBitSet::with_capacity(options.len());
            found.extend((0..options.len()).filter(has_value));
            found
        })
    }

    /// Returns all options divided by their values of these labels.
    pub(super) fn divided_by(&mut self, keys: &[Symbol]) -> &[FixedBitSet] {
        if !self.by_values.contains_key(keys) {
            let mut places: FxHashMap<Vec<Option<Symbol>>, usize> = FxHashMap::default();
            let mut parts = Vec::new();
            for (index, option) in self.options.iter().enumerate() {
                let values = keys.iter().map(|key| option.labels.value(*key)).collect();
                let place = *places.entry(values).or_insert_with(|| {
                    parts.push(FixedBitSet::with_capacity(self.options.len()));
                    parts.len() - 1
                });
                parts[place].insert(index);
            }
            self.by_values.insert(keys.to_vec(), parts);
        }
        &self.by_values[keys]
    }

    /// Returns the instance type of an option.
    pub(super) fn type_of(&self, option: usize) -> &InstanceType {
        &self.types[self.options[option].type_index]
    }

    /// Returns the options of a type, cheapest first.
    pub(super) fn options_of(&self, type_index: usize) -> &[usize] {
        &self.by_type[type_index]
    }

    /// Returns the price of an option with the pool's cost per node, in micro-dollars per hour.
    pub(super) fn price_of(&self, option: usize) -> u64 {
        self.options[option].price_micro_usd + self.node_price
    }

    /// Returns whether an option is spot capacity.
    pub(super) fn is_spot(&self, option: usize) -> bool {
        let choice = &self.options[option];
        self.types[choice.type_index].offerings[choice.offering].capacity_type == SPOT
    }

    /// Returns the resources that an option has for pods.
    pub(super) fn room_of(&self, option: usize) -> &Room {
        &self.rooms[self.options[option].room]
    }

    /// Returns the static filters' verdicts on every option for a class of pods, computed once per kind.
    pub(super) fn verdicts(&mut self, id: PodClassId, cluster: &Cluster) -> &Verdicts {
        let kind = self.kind(id, cluster);
        &self.verdicts[kind]
    }

    /// Returns the kind of a class of pods; all classes of a kind have the same verdicts.
    pub(super) fn kind(&mut self, id: PodClassId, cluster: &Cluster) -> usize {
        let class = cluster.class(id);
        if let Some(kind) = self.kind_of.get(&class.shape_id) {
            return *kind;
        }
        // Host ports matter to verdicts only where DaemonSets hold some; leaving them out makes fewer kinds.
        let ports = if self.daemons_hold_ports {
            class.shape.host_ports.clone()
        } else {
            Vec::new()
        };
        let rules = (class.shape.node_rules(), ports);
        let kind = match self.kinds.get(&rules) {
            Some(kind) => *kind,
            None => {
                let verdicts = self.work_out(&class.shape, cluster);
                self.verdicts.push(verdicts);
                self.kinds.insert(rules, self.verdicts.len() - 1);
                self.verdicts.len() - 1
            }
        };
        self.kind_of.insert(class.shape_id, kind);
        kind
    }

    /// Drops all verdicts, so that they are found again when they are asked for.
    pub(super) fn forget_verdicts(&mut self) {
        self.verdicts.clear();
        self.kinds.clear();
        self.kind_of.clear();
    }

    fn work_out(&self, shape: &Shape, cluster: &Cluster) -> Verdicts {
        let mut verdicts = Verdicts {
            fits: FixedBitSet::with_capacity(self.options.len()),
            refusal: None,
        };
        if shape.named_nodes != NamedNodes::All {
            // Node names are unknown before launch, so a pod that names its nodes fits none.
            verdicts.refusal = Some((Plugin::PreFilter, Reason::NotNamed));
            return verdicts;
        }
        for (index, option) in self.options.iter().enumerate() {
            let target = Target {
                name: Symbol::EMPTY,
                labels: &option.labels,
                taints: &self.taints,
                unschedulable: false,
            };
            let verdict =
                StaticVerdict::of(shape, target, cluster.static_rules(shape), cluster.names());
            if let Some(refusal) = verdict.refusal {
                verdicts.refusal = verdicts.refusal.or(Some(refusal));
                continue;
            }
            match self.taken_port(shape, option) {
                None => verdicts.fits.insert(index),
                // The options that pass all other filters are the ones to tell about.
                Some(taken) => verdicts.refusal = Some((Plugin::NodePorts, taken)),
            }
        }
        verdicts
    }

    /// Returns the first host port of a pod that DaemonSets take on an option.
    fn taken_port(&self, shape: &Shape, option: &Choice) -> Option<Reason> {
        if self.daemons_hold_ports {
            node_ports::taken(shape, &self.rooms[option.room].ports)
        } else {
            None
        }
    }

    /// Returns those of the options from which the volumes of a class of pods can be reached; an error if there is none, or
    /// if the pods claim devices.
    pub(super) fn reaching(
        &self,
        class: PodClassId,
        mut options: FixedBitSet,
        cluster: &mut Cluster,
    ) -> Result<FixedBitSet, PoolReason> {
        // Drivers publish a node's devices only after it exists, so a plan cannot count on any.
        if cluster.class(class).devices.is_some() {
            return Err(PoolReason::Incompatible {
                plugin: Plugin::DynamicResources,
                reason: Reason::DevicesTaken,
            });
        }
        if cluster.class(class).volumes.is_empty() {
            return Ok(options);
        }
        // An EBS volume asks for the driver's zone label, which a node gets only when the driver runs on it.
        let driver_zone = cluster.names_mut().intern(DRIVER_ZONE);
        let question = cluster.question(class);
        let mut refusal = question.conflict().map(|veto| {
            options.clear();
            Refusal::new(veto.plugin, Reason::Conflict(veto.conflict))
        });
        for option in options.clone().ones() {
            let labels = &self.options[option].labels;
            if let Some(refused) = out_of_reach(&question, labels, driver_zone) {
                options.set(option, false);
                refusal = refusal.or(Some(refused));
            }
        }
        match refusal {
            Some(Refusal { plugin, reason, .. }) if options.is_clear() => {
                Err(PoolReason::Incompatible { plugin, reason })
            }
            _ => Ok(options),
        }
    }

    /// Returns whether the pool has `minValues` that must be met.
    pub(super) fn wants_choice(&self) -> bool {
        let mut demands = self.requirements.iter();
        !self.relaxes_min_values && demands.any(|demand| demand.min_values.is_some())
    }

    /// Returns those of the options that satisfy `minValues` together with the others that have at least the same room and
    /// admit the same pods.
    pub(super) fn with_choice(
        &self,
        options: Vec<(usize, Load, FixedBitSet)>,
        cluster: &Cluster,
    ) -> Vec<(usize, Load, FixedBitSet)> {
        // Options with equal room and equal pods have the same alternatives; each verdict compares with all options.
        let mut verdicts: FxHashMap<(Load, Vec<usize>), bool> = FxHashMap::default();
        let has_choice = |room: &Load, held: &FixedBitSet| {
            let does = |other: &&(usize, Load, FixedBitSet)| {
                room.iter().zip(&other.1).all(|(own, other)| own <= other)
                    && held.is_subset(&other.2)
            };
            let as_good = options.iter().filter(does).map(|other| other.0).collect();
            self.too_few_values(&as_good, cluster).is_none()
        };
        for (_, room, held) in &options {
            let key = (*room, held.ones().collect());
            verdicts
                .entry(key)
                .or_insert_with(|| has_choice(room, held));
        }
        let keep =
            |option: &(usize, Load, FixedBitSet)| verdicts[&(option.1, option.2.ones().collect())];
        options
            .iter()
            .filter(|option| keep(option))
            .cloned()
            .collect()
    }

    /// Returns the `minValues` that these options do not meet, if that excludes pods.
    pub(super) fn too_few_values(
        &self,
        options: &FixedBitSet,
        cluster: &Cluster,
    ) -> Option<PoolReason> {
        if self.relaxes_min_values {
            None
        } else {
            self.missing_values(options, cluster)
        }
    }

    /// Returns the first `minValues` that these options do not meet.
    pub(super) fn missing_values(
        &self,
        options: &FixedBitSet,
        cluster: &Cluster,
    ) -> Option<PoolReason> {
        let demands = self
            .requirements
            .iter()
            .filter_map(|requirement| Some((requirement, requirement.min_values?)));
        for (requirement, wanted) in demands {
            // A label that was never interned is on no option and on no pod, so nothing can be counted.
            let Some(key) = cluster.names().find(&requirement.key) else {
                continue;
            };
            let found = self.values_among(options, key).len() as u32;
            if found < wanted {
                return Some(PoolReason::MinValues {
                    key: requirement.key.clone(),
                    wanted,
                    found,
                });
            }
        }
        None
    }
}

/// Returns why the pod's volumes cannot be reached from a possible node; `None` if they can.
fn out_of_reach(
    question: &Question<'_>,
    labels: &LabelSet,
    driver_zone: Symbol,
) -> Option<Refusal> {
    match labels.value(Symbol::ZONE) {
        Some(zone) => question.check_reach(Symbol::EMPTY, &labels.with(driver_zone, zone)),
        None => question.check_reach(Symbol::EMPTY, labels),
    }
}

/// Returns for each possible node whether the volumes of a class of pods can be reached from it; `false` for pods that claim
/// devices.
pub(crate) fn reachable<'a>(
    class: PodClassId,
    labels: impl Iterator<Item = &'a LabelSet>,
    cluster: &mut Cluster,
) -> Vec<bool> {
    let pod = cluster.class(class);
    if pod.devices.is_some() {
        return labels.map(|_| false).collect();
    }
    if pod.volumes.is_empty() {
        return labels.map(|_| true).collect();
    }
    let driver_zone = cluster.names_mut().intern(DRIVER_ZONE);
    let question = cluster.question(class);
    let is_open = question.conflict().is_none();
    labels
        .map(|labels| is_open && out_of_reach(&question, labels, driver_zone).is_none())
        .collect()
}
