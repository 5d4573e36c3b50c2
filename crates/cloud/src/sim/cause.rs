//! Faults by kind and target, which a user injects and ends.
//!
//! Invariant: injecting a fault that is in effect already changes nothing, and ending it undoes everything except its
//! effects on instances.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_api::{ami::AmiFamily, fault::FaultKind};

use super::{CapacityPattern, SimulatedEc2, Zone};
use crate::{
    CapacityType, Instance, InstanceId, InstanceState, ZonalShift,
    catalogue::{self, Arch},
    image::NodeImage,
};

/// The tag that Karpenter sets on the instance of a NodeClaim.
const CLAIM: &str = "karpenter.sh/nodeclaim";
/// The maximum number of similar names suggested for an unknown one.
const NEAR: usize = 3;

/// A fault and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// EC2 interrupts a spot instance.
    SpotInterruption(InstanceId),
    /// EC2 recommends to rebalance a spot instance.
    Rebalance(InstanceId),
    /// An instance stops without notice.
    Crash(InstanceId),
    /// All instances of a zone stop, and none can be launched there.
    ZoneOutage(Arc<str>),
    /// The Application Recovery Controller shifts the cluster away from a zone.
    ZonalShift(Arc<str>),
    /// The offerings that match the pattern have no capacity.
    Capacity(CapacityPattern),
    /// A newer image of a family is released.
    NewImage(AmiFamily),
}

/// The reason why a fault cannot be injected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RefusedFault {
    /// The message.
    pub message: String,
    /// Similar names of possible targets.
    pub near: Vec<String>,
}

impl RefusedFault {
    fn new(message: String) -> Self {
        let near = Vec::new();
        Self { message, near }
    }
}

/// Faults in effect that are not stored in an instance.
#[derive(Default)]
pub(super) struct ActiveFaults {
    /// Zones with an outage.
    zones: BTreeSet<Arc<str>>,
    /// Zones that the cluster is shifted away from.
    shifted: BTreeSet<Arc<str>>,
    /// Instances that crashed individually.
    crashed: BTreeSet<InstanceId>,
    /// The offerings of faults of capacity. An outage of a zone exhausts offerings too, possibly the same.
    sold_out: Vec<CapacityPattern>,
}

impl ActiveFaults {
    fn sell_out(&mut self, pattern: &CapacityPattern) {
        if !self.sold_out.contains(pattern) {
            self.sold_out.push(pattern.clone());
        }
    }
}

/// The released image versions by family; a family that is absent has only the first.
#[derive(Default)]
pub(super) struct Releases(BTreeMap<AmiFamily, Release>);

#[derive(Clone, Copy, Default)]
struct Release {
    newest: u32,
    /// The highest release there has been.
    last: u32,
}

impl Releases {
    fn set(&mut self, family: AmiFamily, newest: u32) {
        let release = self.0.entry(family).or_default();
        release.newest = newest;
        // Nodes of a withdrawn release still run, so it stays launchable by name.
        release.last = release.last.max(newest);
    }

    /// Returns the newest release of a family.
    pub(super) fn newest(&self, family: AmiFamily) -> u32 {
        self.0.get(&family).map_or(0, |release| release.newest)
    }

    /// Returns all releases of a family that can be launched, the newest first.
    pub(super) fn all(&self, family: AmiFamily) -> impl Iterator<Item = u32> {
        let release = self.0.get(&family).copied().unwrap_or_default();
        let others = (0..=release.last).rev();
        [release.newest]
            .into_iter()
            .chain(others.filter(move |other| *other != release.newest))
    }
}

impl SimulatedEc2 {
    /// Finds the target of a fault by one of its names.
    ///
    /// # Errors
    /// Returns an error if no target has this name, or the fault does not apply to it.
    pub fn fault(&self, kind: FaultKind, target: &str) -> Result<Fault, RefusedFault> {
        Ok(match kind {
            FaultKind::SpotInterruption => Fault::SpotInterruption(self.spot_instance(target)?),
            FaultKind::Rebalance => Fault::Rebalance(self.spot_instance(target)?),
            FaultKind::Crash => Fault::Crash(self.instance_named(target)?.id.clone()),
            FaultKind::ZoneOutage => Fault::ZoneOutage(self.zone_named(target)?),
            FaultKind::ZonalShift => Fault::ZonalShift(self.zone_named(target)?),
            FaultKind::Capacity => Fault::Capacity(self.offering_named(target)?),
            FaultKind::NewImage => Fault::NewImage(family_named(target)?),
        })
    }

    /// Injects a fault. Returns a sentence about the result.
    pub fn cause(&self, fault: &Fault) -> String {
        match fault {
            Fault::SpotInterruption(id) => {
                self.interrupt(id);
                format!("EC2 takes {} back in two minutes.", self.named(id))
            }
            Fault::Rebalance(id) => {
                self.recommend_rebalance(id);
                format!(
                    "EC2 recommends to replace {}: it is more likely than others to be taken back.",
                    self.named(id)
                )
            }
            Fault::Crash(id) => {
                // Recorded before the stop, so that the end of a zone's outage does not start the instance in
                // between.
                self.state().in_force.crashed.insert(id.clone());
                self.stop(id);
                format!("{} has stopped without notice.", self.named(id))
            }
            Fault::ZoneOutage(zone) => {
                self.state().in_force.zones.insert(Arc::clone(zone));
                // Capacity goes before the instances stop, or their replacements could be bought in the zone.
                self.exhaust(all_of(zone));
                let mut stopped = 0;
                for instance in self.instances() {
                    if instance.zone == *zone && self.stop(&instance.id) {
                        stopped += 1;
                    }
                }
                let instances = match stopped {
                    1 => "1 instance has".to_owned(),
                    count => format!("{count} instances have"),
                };
                format!("{zone} is down: {instances} stopped, and none can be bought there.")
            }
            Fault::ZonalShift(zone) => {
                self.state().in_force.shifted.insert(Arc::clone(zone));
                format!(
                    "The cluster is shifted away from {zone}: within half a minute nothing is bought there any more."
                )
            }
            Fault::Capacity(pattern) => {
                self.state().in_force.sell_out(pattern);
                self.exhaust(pattern.clone());
                format!("EC2 has no capacity for {pattern} any more.")
            }
            Fault::NewImage(family) => {
                let image = self.release(*family, 1);
                format!(
                    "The newest image of {family} is {} ({}).",
                    image.name, image.id
                )
            }
        }
    }

    /// Ends a fault. Returns a sentence about the result.
    pub fn heal(&self, fault: &Fault) -> String {
        match fault {
            Fault::SpotInterruption(id) => {
                if self.call_off_interruption(id) {
                    format!("{} is not taken back.", self.named(id))
                } else {
                    format!("{} has been taken back.", self.named(id))
                }
            }
            Fault::Rebalance(id) => format!("{} is no longer at risk.", self.named(id)),
            Fault::Crash(id) => {
                self.state().in_force.crashed.remove(id);
                if self.start_unless_held(id) {
                    format!("{} starts again.", self.named(id))
                } else {
                    format!("{} cannot start again.", self.named(id))
                }
            }
            Fault::ZoneOutage(zone) => {
                self.state().in_force.zones.remove(zone);
                self.replenish_unless_held(&all_of(zone));
                let mut started = 0;
                for instance in self.instances() {
                    if instance.zone == *zone && self.start_unless_held(&instance.id) {
                        started += 1;
                    }
                }
                format!("{zone} is back: {started} of its instances start again.")
            }
            Fault::ZonalShift(zone) => {
                self.state().in_force.shifted.remove(zone);
                format!("The shift away from {zone} has ended.")
            }
            Fault::Capacity(pattern) => {
                self.state().in_force.sold_out.retain(|own| own != pattern);
                self.replenish_unless_held(pattern);
                format!("EC2 has capacity for {pattern} again.")
            }
            Fault::NewImage(family) => {
                let image = self.release(*family, 0);
                format!(
                    "The newest image of {family} is {} ({}) again.",
                    image.name, image.id
                )
            }
        }
    }

    /// Returns the zones that the cluster is shifted away from.
    pub(super) fn zones_shifted_away(&self) -> Vec<ZonalShift> {
        let shifted = self.state().in_force.shifted.clone();
        let zones = self.inner.zones.iter();
        zones
            .filter(|zone| shifted.contains(&zone.name))
            .map(|zone| ZonalShift {
                zone_id: Arc::clone(&zone.id),
                // A user ends the fault, at no time known in advance.
                expires: None,
            })
            .collect()
    }

    /// Starts every stopped instance that no fault in effect stops.
    pub fn start_forgotten(&self) {
        for instance in self.instances() {
            self.start_unless_held(&instance.id);
        }
    }

    /// Returns whether the fault has no effect any more because its instance is gone.
    pub fn is_over(&self, fault: &Fault) -> bool {
        let (Fault::SpotInterruption(id) | Fault::Rebalance(id) | Fault::Crash(id)) = fault else {
            return false;
        };
        let instance = self.instance(id);
        instance.is_none_or(|own| own.state >= InstanceState::ShuttingDown)
    }

    /// Returns all names by which the target of a fault can be given.
    pub fn names(&self, fault: &Fault) -> Vec<String> {
        match fault {
            Fault::SpotInterruption(id) | Fault::Rebalance(id) | Fault::Crash(id) => {
                let instance = self.instance(id);
                instance.map_or_else(Vec::new, |own| names(&own).map(str::to_owned).collect())
            }
            Fault::ZoneOutage(zone) | Fault::ZonalShift(zone) => vec![zone.to_string()],
            Fault::Capacity(pattern) => vec![pattern.to_string()],
            Fault::NewImage(family) => {
                let names = AmiFamily::alias_families();
                let names = names.filter(|(_, own)| own == family);
                let aliases = names.map(|(name, _)| name.to_ascii_lowercase());
                aliases.chain([family.to_string()]).collect()
            }
        }
    }

    /// Restores the capacity for a pattern, unless another fault in effect exhausts exactly these offerings.
    fn replenish_unless_held(&self, pattern: &CapacityPattern) {
        let is_held = {
            let held = &self.state().in_force;
            let mut zones = held.zones.iter();
            held.sold_out.contains(pattern) || zones.any(|zone| all_of(zone) == *pattern)
        };
        if !is_held {
            self.replenish(pattern);
        }
    }

    fn start_unless_held(&self, id: &InstanceId) -> bool {
        let Some(instance) = self.instance(id) else {
            return false;
        };
        let is_held = {
            let held = &self.state().in_force;
            held.crashed.contains(id) || held.zones.contains(&instance.zone)
        };
        !is_held && self.start(id)
    }

    /// Describes an instance for a message.
    fn named(&self, id: &InstanceId) -> String {
        let Some(instance) = self.instance(id) else {
            return format!("instance {id}");
        };
        format!(
            "instance {id} of node {} ({} {} in {})",
            instance.private_dns_name,
            instance.capacity_type,
            instance.instance_type.name,
            instance.zone
        )
    }

    fn instance_named(&self, target: &str) -> Result<Arc<Instance>, RefusedFault> {
        let all = self.instances();
        let mut there = all
            .iter()
            .filter(|own| own.state < InstanceState::ShuttingDown);
        if let Some(found) = there
            .clone()
            .find(|own| names(own).any(|name| name == target))
        {
            return Ok(Arc::clone(found));
        }
        // A node name belongs to an address and comes again, so living instances are searched first.
        if all.iter().any(|own| names(own).any(|name| name == target)) {
            let message = format!("{target} is being terminated, or has been");
            return Err(RefusedFault::new(message));
        }
        if there.next().is_none() {
            return Err(RefusedFault::new("there are no instances".to_owned()));
        }
        let there = all
            .iter()
            .filter(|own| own.state < InstanceState::ShuttingDown);
        Err(RefusedFault {
            message: format!("{target} is no node, instance or NodeClaim"),
            near: near(target, there.flat_map(|own| names(own))),
        })
    }

    fn spot_instance(&self, target: &str) -> Result<InstanceId, RefusedFault> {
        let instance = self.instance_named(target)?;
        match instance.capacity_type {
            CapacityType::Spot => Ok(instance.id.clone()),
            other => {
                let all = self.instances();
                let spot = all.iter().filter(|own| {
                    own.capacity_type == CapacityType::Spot
                        && own.state < InstanceState::ShuttingDown
                });
                Err(RefusedFault {
                    message: format!(
                        "{target} is {} instance, and EC2 takes back spot instances only",
                        match other {
                            CapacityType::Reserved => "a reserved",
                            _ => "an on-demand",
                        }
                    ),
                    near: spot
                        .take(NEAR)
                        .map(|own| own.private_dns_name.clone())
                        .collect(),
                })
            }
        }
    }

    fn zone_named(&self, target: &str) -> Result<Arc<str>, RefusedFault> {
        let zones = &self.inner.zones;
        let is_it = |zone: &&Zone| *zone.name == *target || *zone.id == *target;
        let found = zones.iter().find(is_it);
        found
            .map(|zone| Arc::clone(&zone.name))
            .ok_or_else(|| RefusedFault {
                message: format!("{target} is no zone of {}", self.inner.config.region),
                near: zones.iter().map(|zone| zone.name.to_string()).collect(),
            })
    }

    fn offering_named(&self, target: &str) -> Result<CapacityPattern, RefusedFault> {
        let mut pattern: CapacityPattern = target
            .parse()
            .map_err(|error: super::ParsePatternError| RefusedFault::new(error.to_string()))?;
        if let Some(name) = &pattern.instance_type
            && catalogue::get(name).is_none()
        {
            let all = catalogue::all().iter();
            return Err(RefusedFault {
                message: format!("{name} is not an EC2 instance type"),
                near: near(name, all.map(|own| &*own.name)),
            });
        }
        // Launches name a zone by its name, so a pattern with its id would match none.
        if let Some(zone) = &mut pattern.zone {
            *zone = self.zone_named(zone)?.to_string();
        }
        Ok(pattern)
    }

    /// Sets the newest release of a family's image and returns that image.
    fn release(&self, family: AmiFamily, release: u32) -> NodeImage {
        let mut state = self.state();
        state.releases.set(family, release);
        let version = self.inner.config.version;
        NodeImage::released(family, version, Arch::Amd64, release)
    }
}

/// Returns the names of an instance: node name, instance id, and the name of its NodeClaim.
fn names(instance: &Instance) -> impl Iterator<Item = &str> {
    let claim = instance.tags.get(CLAIM).map(String::as_str);
    [&*instance.private_dns_name, &*instance.id.0]
        .into_iter()
        .chain(claim)
}

fn all_of(zone: &Arc<str>) -> CapacityPattern {
    CapacityPattern {
        zone: Some(zone.to_string()),
        ..CapacityPattern::default()
    }
}

/// Parses the image family of an alias, with or without a version (`windows2022@latest`), or of another name of the family.
fn family_named(target: &str) -> Result<AmiFamily, RefusedFault> {
    let (name, _) = target.split_once('@').unwrap_or((target, ""));
    let mut aliases = AmiFamily::alias_families();
    let alias = aliases.find(|(own, _)| own.eq_ignore_ascii_case(name));
    let family = alias
        .map(|(_, family)| family)
        .or_else(|| name.parse().ok());
    family.ok_or_else(|| {
        let names: Vec<_> = AmiFamily::alias_families()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        RefusedFault {
            message: format!("{target} is no image alias or family"),
            near: names,
        }
    })
}

/// Returns the names with the smallest edit distance to `target`.
fn near<'a>(target: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<_> = names
        .map(|name| (strsim::damerau_levenshtein(target, name), name))
        .collect();
    names.sort_unstable();
    let names = names.into_iter().take(NEAR);
    names.map(|(_, name)| name.to_owned()).collect()
}
