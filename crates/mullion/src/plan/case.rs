//! Reads a case of `mullion plan --cases`: a small cluster, the instance types that can be bought for it, and pending pods.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    io::Read,
    path::Path,
    sync::Arc,
};

use flate2::read::GzDecoder;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::PodTemplateSpec};
use kube::ResourceExt;
use mullion_api::{karpenter::NodePool, labels};
use mullion_controllers::{
    nodepool,
    provisioner::{market::amounts, requirements::to_engine, template::with_types},
    state::convert,
};
use mullion_engine::{
    Cluster, ModelError, Options,
    model::{NodeSpec, PodSpec, PodTemplate, ResourceMap, StringMap},
    provision::{InstanceType, NodeTemplate, Offering, PlanRequest, Requirement},
};
use serde::Deserialize;

use crate::{
    failure::{Failure, file_error},
    input, lines,
};

/// The prefix of label keys that only the cloud provider sets. If an instance type lacks such a label, the label does not exist for its
/// nodes; any other label it lacks may still be chosen by the NodePool.
const PROVIDER: &str = "karpenter.k8s.aws/";

/// The largest number of pods that a case may have.
const MOST_PODS: usize = 1_000_000;

/// The instance types that can be bought, by the name of the EC2NodeClass.
pub(super) type Catalogue = BTreeMap<String, Vec<Arc<InstanceType>>>;

#[derive(Deserialize)]
struct Class {
    types: Vec<Machine>,
}

#[derive(Deserialize)]
struct Machine {
    name: String,
    labels: StringMap,
    capacity: ResourceMap,
    allocatable: ResourceMap,
    offerings: Vec<Sold>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sold {
    zone: String,
    capacity_type: String,
    /// The price in US dollars an hour.
    price: f64,
}

/// Reads `{class: {"types": [...]}}`, gzipped or not.
///
/// # Errors
/// The file cannot be read or is malformed, or a price is none.
pub(super) fn catalogue(path: &Path) -> Result<Catalogue, Failure> {
    let refuse = |why: String| {
        Failure::input(format!("catalogue {} cannot be read: {why}", path.display()))
            .hint(r#"{"NODECLASS": {"types": [{"name", "labels", "capacity", "allocatable", "offerings"}]}}; see docs/plan.md"#)
    };
    let bytes = std::fs::read(path).map_err(|error| refuse(file_error(&error).to_string()))?;
    // Every gzip file begins with these two bytes.
    let text = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        let mut unpacked = GzDecoder::new(&*bytes);
        let read = unpacked.read_to_end(&mut text);
        read.map_err(|error| refuse(error.to_string()))?;
        text
    } else {
        bytes
    };
    let classes: BTreeMap<String, Class> =
        input::json(&text).map_err(|error| refuse(error.to_string()))?;
    let mut catalogue = Catalogue::new();
    for (name, class) in classes {
        let mut types = Vec::with_capacity(class.types.len());
        for machine in class.types {
            types.push(Arc::new(
                machine.read().map_err(|why| refuse(why.to_string()))?,
            ));
        }
        catalogue.insert(name, types);
    }
    Ok(catalogue)
}

/// The reason why a catalogue or a case has no plan.
#[derive(Debug)]
pub(super) enum CaseError {
    /// The line is not JSON of its type.
    Form(serde_json::Error),
    /// An instance type has an impossible price.
    Price { name: String, usd: f64 },
    /// A node, a pod or the plan has an invalid amount.
    Model(ModelError),
    /// There are too many pods.
    TooManyPods,
    /// A pool refers to a class that the catalogue does not have.
    NoClass { pool: String, class: String },
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaseError::Form(error) => f.write_str(&lines::syntax_error(error)),
            CaseError::Price { name, usd } => write!(
                f,
                "{name} costs {usd}, which is no price in US dollars an hour"
            ),
            CaseError::Model(error) => write!(f, "{error}"),
            CaseError::TooManyPods => write!(f, "more than {MOST_PODS} pods"),
            CaseError::NoClass { pool, class } => {
                write!(
                    f,
                    "NodePool {pool}: the catalogue has no node class {class}"
                )
            }
        }
    }
}

impl From<ModelError> for CaseError {
    fn from(error: ModelError) -> Self {
        CaseError::Model(error)
    }
}

impl Machine {
    fn read(self) -> Result<InstanceType, CaseError> {
        let mut offerings = Vec::with_capacity(self.offerings.len());
        for sold in self.offerings {
            if !(0.0..=1e9).contains(&sold.price) {
                return Err(CaseError::Price {
                    name: self.name,
                    usd: sold.price,
                });
            }
            offerings.push(Offering {
                zone: sold.zone,
                capacity_type: sold.capacity_type,
                price_micro_usd: (sold.price * 1e6).round() as u64,
                available: true,
                labels: StringMap::new(),
                reservation: None,
            });
        }
        Ok(InstanceType {
            name: self.name,
            labels: self.labels,
            capacity: self.capacity,
            allocatable: self.allocatable,
            offerings,
        })
    }
}

#[derive(Deserialize)]
struct Line {
    case: Case,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Case {
    /// The names of the available instance types, by node class; if a class has none listed, all types of the catalogue are available.
    types: BTreeMap<String, HashSet<String>>,
    /// The offerings that are unavailable: instance type, zone and capacity type.
    unavailable: HashSet<(String, String, String)>,
    node_pools: Vec<NodePool>,
    daemon_sets: Vec<DaemonSet>,
    nodes: Vec<NodeSpec>,
    bound: Vec<PodSpec>,
    pods: Vec<Group>,
}

/// Pods that share one template; they are named `NAME-0`, `NAME-1` and so on.
#[derive(Deserialize)]
struct Group {
    name: String,
    count: usize,
    template: PodTemplateSpec,
}

/// Reads a line and returns the cluster of the case and the request to plan.
///
/// # Errors
/// The line is malformed or contradicts itself.
pub(super) fn read(
    line: &[u8],
    catalogue: &Catalogue,
) -> Result<(Cluster, PlanRequest), CaseError> {
    let Line { case } = input::json(line).map_err(CaseError::Form)?;
    let mut cluster = Cluster::new(Options { os_filter: false });
    for node in &case.nodes {
        cluster.add_node(node)?;
    }
    for pod in &case.bound {
        cluster.add_pod(pod)?;
    }
    let mut pods = Vec::new();
    for group in &case.pods {
        if pods.len().saturating_add(group.count) > MOST_PODS {
            return Err(CaseError::TooManyPods);
        }
        let template = template_of(&group.template);
        pods.extend((0..group.count).map(|index| PodSpec {
            name: format!("{}-{index}", group.name),
            template: template.clone(),
            ..PodSpec::default()
        }));
    }
    let mut templates = Vec::with_capacity(case.node_pools.len());
    for pool in &case.node_pools {
        templates.push(case.template(pool, catalogue)?);
    }
    let request = PlanRequest {
        pods,
        templates,
        by_cost: true,
        ..PlanRequest::default()
    };
    Ok((cluster, request))
}

fn template_of(template: &PodTemplateSpec) -> PodTemplate {
    let mut metadata = template.metadata.clone().unwrap_or_default();
    metadata.namespace = Some("default".to_owned());
    convert::template(&metadata, &template.spec.clone().unwrap_or_default())
}

impl Case {
    fn template(&self, pool: &NodePool, catalogue: &Catalogue) -> Result<NodeTemplate, CaseError> {
        let name = pool.name_any();
        let class = &pool.spec.template.spec.node_class_ref.name;
        let known = catalogue.get(class).ok_or_else(|| CaseError::NoClass {
            pool: name.clone(),
            class: class.clone(),
        })?;
        let listed = self.types.get(class).filter(|types| !types.is_empty());
        let requirements: Vec<Requirement> = pool
            .spec
            .template
            .spec
            .requirements
            .iter()
            .map(to_engine)
            .collect();
        let provider: Vec<&Requirement> = requirements
            .iter()
            .filter(|own| own.key.starts_with(PROVIDER))
            .collect();
        let types = known
            .iter()
            .filter(|kind| listed.is_none_or(|listed| listed.contains(&kind.name)))
            .filter(|kind| {
                provider
                    .iter()
                    .all(|own| own.is_met_by(kind.labels.get(&own.key)))
            })
            .map(|kind| self.with_what_is_left(kind))
            .collect();
        let labels = pool.spec.template.metadata.labels.clone();
        let daemons = self
            .daemon_sets
            .iter()
            .filter_map(|set| Some(template_of(&set.spec.as_ref()?.template)));
        Ok(NodeTemplate {
            limits_remaining: self.limits_of(pool),
            daemons: daemons.collect(),
            ..with_types(pool, labels, types)
        })
    }

    /// Returns the instance type with every offering marked as available or not.
    fn with_what_is_left(&self, kind: &Arc<InstanceType>) -> Arc<InstanceType> {
        let is_gone = |offering: &Offering| {
            let offering = (
                kind.name.clone(),
                offering.zone.clone(),
                offering.capacity_type.clone(),
            );
            self.unavailable.contains(&offering)
        };
        // Most types are unchanged and shared with the catalogue, so that nothing is copied for them.
        if self.unavailable.is_empty() || !kind.offerings.iter().any(is_gone) {
            return Arc::clone(kind);
        }
        let mut own = InstanceType::clone(kind);
        for (own, offering) in own.offerings.iter_mut().zip(&kind.offerings) {
            own.available = !is_gone(offering);
        }
        Arc::new(own)
    }

    /// Returns what a pool may still buy: its limits minus the capacity of its nodes.
    fn limits_of(&self, pool: &NodePool) -> ResourceMap {
        let mut left = pool.spec.limits.as_ref().map(amounts).unwrap_or_default();
        let name = pool.name_any();
        for node in &self.nodes {
            if node.labels.get(labels::NODEPOOL) == Some(&name) {
                nodepool::take(&mut left, &node.capacity);
            }
        }
        left
    }
}
