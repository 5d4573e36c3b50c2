//! Checks that the zones of pods, pools and ClusterConfigs are those of the cluster's region, and that there are subnets in them: MUL087.
//!
//! A region is known from a ClusterConfig, or from the labels of nodes. Without a region of AWS nothing is said: zones may have any name.

use std::collections::BTreeSet;

use mullion_api::labels;
use serde_json::Value;

use super::{
    Context,
    placement::{AffinityTerm, affinity_terms},
    strings,
};
use crate::check::{
    eksctl,
    finding::Findings,
    fleet::EKSCTL_GROUPS,
    path::Path,
    placeholder::is_placeholder,
    placement::list,
    problem::{LabelEffect, Problem, ZoneFault},
    subject::{Object, Pod},
    table::Severity,
};

const LABELS: [&str; 2] = [labels::ZONE, labels::BETA_ZONE];

/// What is known of the zones of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Zones {
    /// The regions of the ClusterConfigs and nodes. The set is empty if one of them is none of AWS.
    regions: BTreeSet<&'static str>,
    /// The zones of nodes.
    of_nodes: BTreeSet<String>,
    /// Whether nodes outside of AWS may join, whose zones have any name.
    has_other_nodes: bool,
    /// The zones in which the only ClusterConfig has subnets, if the file names them.
    of_subnets: Option<BTreeSet<String>>,
}

impl Zones {
    /// Reads the zones from objects.
    pub(super) fn of(objects: &[Object]) -> Self {
        let mut zones = Zones::default();
        let configs = objects
            .iter()
            .filter(|own| own.is("ClusterConfig", "eksctl.io"));
        let configs: Vec<_> = configs.collect();
        if let [config] = configs.as_slice() {
            zones.of_subnets = zones_of_subnets(&config.value);
        }
        zones.has_other_nodes = configs
            .iter()
            .any(|config| !config.value["remoteNetworkConfig"].is_null());
        let mut regions: Vec<String> = configs
            .iter()
            .map(|config| config.text_at("/metadata/region").to_owned())
            .collect();
        for node in objects.iter().filter(|own| own.is("Node", "")) {
            let label = |key: &str| node.value["metadata"]["labels"][key].as_str();
            regions.extend(label(labels::REGION).map(str::to_owned));
            zones
                .of_nodes
                .extend(label(labels::ZONE).map(str::to_owned));
        }
        let regions = regions.iter().map(|own| region_named(own));
        zones.regions = regions.collect::<Option<_>>().unwrap_or_default();
        zones
    }

    /// Returns why no node of the cluster is in a zone; `None` if that is not known.
    fn fault(&self, zone: &str) -> Option<ZoneFault> {
        if self.regions.is_empty() || is_placeholder(zone) || self.of_nodes.contains(zone) {
            return None;
        }
        let cluster = || self.regions.iter().map(|own| (*own).to_owned()).collect();
        match region_of(zone) {
            Some((region, _)) if !self.regions.contains(region) => Some(ZoneFault::OtherRegion {
                own: region,
                cluster: cluster(),
            }),
            Some((_, true)) => None,
            _ => Some(ZoneFault::NoZone { cluster: cluster() }),
        }
    }

    /// Returns why no node is in a zone, with whether that is certain.
    fn judged(&self, zone: &str) -> Option<(ZoneFault, bool)> {
        let fault = self.fault(zone).map(|fault| {
            let is_form = matches!(fault, ZoneFault::NoZone { .. });
            (fault, !is_form || !self.has_other_nodes)
        });
        fault.or_else(|| {
            let subnets = self.of_subnets.as_ref()?;
            let is_open = is_placeholder(zone) || self.of_nodes.contains(zone);
            // A zone that is no zone of AWS stands for something else.
            let is_one = region_of(zone).is_some_and(|(_, exists)| exists);
            if is_open || !is_one || subnets.contains(zone) {
                return None;
            }
            let zones = subnets.iter().cloned().collect();
            Some((ZoneFault::NoSubnet { class: None, zones }, false))
        })
    }
}

/// Returns the zones in which eksctl makes or finds the subnets of a cluster; `None` if the file does not name all of them.
fn zones_of_subnets(config: &Value) -> Option<BTreeSet<String>> {
    let named = strings(&config["availabilityZones"]).chain(strings(&config["localZones"]));
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    if strings(&config["availabilityZones"]).next().is_some() {
        return (!named.iter().any(|own| is_placeholder(own))).then_some(named);
    }
    let mut zones = BTreeSet::new();
    for (_, subnets) in config["vpc"]["subnets"].as_object()? {
        for (key, subnet) in subnets.as_object().into_iter().flatten() {
            // The key is the zone, or any name beside the field `az`.
            let zone = subnet["az"].as_str().unwrap_or(key);
            region_of(zone).filter(|(_, exists)| *exists)?;
            zones.insert(zone.to_owned());
        }
    }
    (!zones.is_empty()).then_some(zones)
}

/// Returns the region of AWS with this name.
fn region_named(name: &str) -> Option<&'static str> {
    eksctl::REGIONS.iter().copied().find(|own| *own == name)
}

/// Returns the region of AWS to which a zone belongs by its name, with whether there may be such a zone: a region's zones are its name and a
/// letter up to `f`, and local zones and those of networks have a dash there (`us-west-2-lax-1a`).
fn region_of(zone: &str) -> Option<(&'static str, bool)> {
    eksctl::REGIONS.iter().find_map(|region| {
        let rest = zone.strip_prefix(region)?;
        match rest.as_bytes() {
            [] => Some((*region, false)),
            [letter] if letter.is_ascii_lowercase() => Some((*region, *letter <= b'f')),
            [b'-', ..] => Some((*region, true)),
            _ => None,
        }
    })
}

/// Checks the zones that a pod selects.
pub(super) fn check_pod(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let selector = pod.at(&["nodeSelector"]);
    for key in LABELS {
        if let Some(zone) = pod.spec["nodeSelector"][key].as_str()
            && let Some((fault, is_certain)) = context.zones.judged(zone)
        {
            let effect = LabelEffect::Pending;
            let at = selector.key(key);
            report(pod.object, at, zone, (fault, is_certain), effect, found);
        }
    }
    for AffinityTerm {
        path,
        value,
        otherwise,
        ..
    } in affinity_terms(pod)
    {
        let at = path.key("matchExpressions");
        let judged = |zone: &str| context.zones.judged(zone);
        let all = (&at, &value["matchExpressions"]);
        expressions(pod.object, all, otherwise, judged, found);
    }
}

/// Checks the zones of a pool, and those of a ClusterConfig.
pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let fields: &[&str] = if object.is("NodePool", "karpenter.sh") {
        &["spec", "template", "spec"]
    } else if object.is("Provisioner", "karpenter.sh") {
        &["spec"]
    } else {
        if object.is("ClusterConfig", "eksctl.io") {
            config(index, object, found);
        }
        return;
    };
    let at = Path::of(fields);
    let spec = at.get(&object.value).unwrap_or(&Value::Null);
    let class = spec["nodeClassRef"]["name"].as_str().unwrap_or_default();
    let is_it = |own: &&Object| own.is("EC2NodeClass", "karpenter.k8s.aws") && own.name() == class;
    let class_object = context.objects.iter().find(is_it);
    // Karpenter writes into the status of a class which subnets the terms select.
    let of_class = class_object.map(|own| list(&own.value["status"]["subnets"]));
    let of_class = of_class.into_iter().flatten();
    let of_class: BTreeSet<String> = of_class
        .filter_map(|subnet| Some(subnet["zone"].as_str()?.to_owned()))
        .collect();
    let judged = |zone: &str| {
        if of_class.is_empty() {
            return context.zones.judged(zone);
        }
        if of_class.contains(zone) || is_placeholder(zone) {
            return None;
        }
        let of_region = context.zones.fault(zone);
        let of_subnets = || ZoneFault::NoSubnet {
            class: Some(class.to_owned()),
            zones: of_class.iter().cloned().collect(),
        };
        Some((of_region.unwrap_or_else(of_subnets), true))
    };
    let requirements = at.key("requirements");
    let all = (&requirements, &spec["requirements"]);
    expressions(index, all, LabelEffect::NothingBought, judged, found);
}

/// Checks the zones of a ClusterConfig by its own region.
fn config(index: usize, object: &Object, found: &mut Findings) {
    let Some(region) = region_named(object.text_at("/metadata/region")) else {
        return;
    };
    let own = Zones {
        regions: BTreeSet::from([region]),
        ..Zones::default()
    };
    let of_cluster = (Path::default(), &object.value);
    let groups = EKSCTL_GROUPS.into_iter().flat_map(|(field, _)| {
        let groups = list(&object.value[field]).enumerate();
        groups.map(move |(position, group)| (Path::of(&[field]).index(position), group))
    });
    for (at, value) in std::iter::once(of_cluster).chain(groups) {
        for field in ["availabilityZones", "localZones"] {
            for (position, zone) in list(&value[field]).enumerate() {
                let zone = zone.as_str().unwrap_or_default();
                if let Some(fault) = own.fault(zone) {
                    let at = at.key(field).index(position);
                    let effect = LabelEffect::NoSubnet;
                    report(index, at, zone, (fault, true), effect, found);
                }
            }
        }
    }
}

/// Checks expressions of a label, an operator and values at a place. `otherwise` is what becomes of one that no node fulfils.
fn expressions(
    object: usize,
    (at, all): (&Path, &Value),
    otherwise: LabelEffect,
    judged: impl Fn(&str) -> Option<(ZoneFault, bool)>,
    found: &mut Findings,
) {
    for (position, expression) in list(all).enumerate() {
        if !LABELS.iter().any(|key| expression["key"] == *key) {
            continue;
        }
        let is_alone = strings(&expression["values"]).all(|zone| judged(zone).is_some());
        let effect = match expression["operator"].as_str() {
            Some("In") if is_alone => otherwise,
            Some("In") => LabelEffect::OtherValuesCount,
            Some("NotIn") => LabelEffect::NotExcluded,
            _ => continue,
        };
        let at = at.index(position).key("values");
        for (position, zone) in list(&expression["values"]).enumerate() {
            let zone = zone.as_str().unwrap_or_default();
            if let Some(fault) = judged(zone) {
                report(object, at.index(position), zone, fault, effect, found);
            }
        }
    }
}

/// Reports a zone: as an error if nothing comes of its object for certain.
fn report(
    object: usize,
    at: Path,
    zone: &str,
    (fault, is_certain): (ZoneFault, bool),
    effect: LabelEffect,
    found: &mut Findings,
) {
    let problem = Problem::NoSuchZone {
        zone: zone.to_owned(),
        fault,
        effect,
    };
    let finding = found.add("MUL087", object, at, problem);
    let is_fatal = matches!(
        effect,
        LabelEffect::Pending | LabelEffect::NothingBought | LabelEffect::NoSubnet
    );
    if !is_certain || !is_fatal {
        finding.as_a(Severity::Warn);
    }
}
