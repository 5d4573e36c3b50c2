//! Reads the request for a fleet.

use std::collections::BTreeMap;

use mullion_cloud::CapacityType;

use super::super::{
    Call,
    launch::LaunchSpec,
    launch_templates::{TemplateRef, check_version, tags_for},
};
use crate::{query::ParamScope, refusal::Refusal};

/// The maximum number of instances of one fleet.
const MOST: i64 = 1000;

/// A launch template and its overrides.
pub(super) struct Config {
    pub(super) template_id: String,
    pub(super) template_name: String,
    pub(super) version: String,
    pub(super) by_id: bool,
    pub(super) spec: LaunchSpec,
    pub(super) overrides: Vec<Override>,
}

/// The values that replace those of a launch template for one option of the fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Override {
    pub(super) instance_type: Option<String>,
    pub(super) subnet: Option<String>,
    pub(super) zone: Option<String>,
    pub(super) image: Option<String>,
    pub(super) priority: Option<f64>,
    pub(super) max_price: Option<f64>,
}

/// A requested fleet.
pub(super) struct Fleet {
    pub(super) configs: Vec<Config>,
    /// The number of instances of each capacity type.
    pub(super) wanted: Vec<(CapacityType, u64)>,
    pub(super) spot: Strategy,
    pub(super) on_demand: Strategy,
    pub(super) tags: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The cheapest first. Spare capacity is alike everywhere here, so EC2's strategies that weigh it come to the same.
    Price,
    /// The one with the lowest number first.
    Priority,
}

pub(super) fn read(call: &Call<'_>) -> Result<Fleet, Refusal> {
    let root = call.root();
    match root.text("Type") {
        Some("instant") => {}
        Some("request" | "maintain") | None => {
            return Err(Refusal::new(
                "UnsupportedOperation",
                "Fleets of type request and maintain are not simulated: the type must be instant.",
            ));
        }
        Some(other) => {
            return Err(Refusal::value(format!(
                "Invalid value '{other}' for the parameter Type."
            )));
        }
    }
    root.accept(&[
        "Context",
        "ExcessCapacityTerminationPolicy",
        "TerminateInstancesWithExpiration",
    ]);
    // A fleet that asks for reserved capacity draws on the reservation of its launch template.
    let reserved = root.at("ReservedCapacityOptions");
    reserved.accept(&["ReservationType"]);
    let (spot, on_demand) = (root.at("SpotOptions"), root.at("OnDemandOptions"));
    spot.accept(&["InstanceInterruptionBehavior"]);
    on_demand.accept(&["CapacityReservationOptions"]);
    let spot = strategy(
        &spot,
        &[
            "lowest-price",
            "price-capacity-optimized",
            "capacity-optimized",
            "diversified",
        ],
        "capacity-optimized-prioritized",
    )?;
    let on_demand = strategy(&on_demand, &["lowest-price"], "prioritized")?;
    let configs = root.each("LaunchTemplateConfigs");
    if configs.is_empty() {
        return Err(Refusal::missing("LaunchTemplateConfigs"));
    }
    let configs = configs.iter().map(|at| config(call, at));
    Ok(Fleet {
        configs: configs.collect::<Result<_, _>>()?,
        wanted: wanted(&root.at("TargetCapacitySpecification"))?,
        spot,
        on_demand,
        tags: tags_for(&root, "instance")?,
    })
}

fn strategy(
    at: &ParamScope<'_>,
    by_price: &[&str],
    by_priority: &str,
) -> Result<Strategy, Refusal> {
    match at.text("AllocationStrategy") {
        None => Ok(Strategy::Price),
        Some(name) if by_price.contains(&name) => Ok(Strategy::Price),
        Some(name) if name == by_priority => Ok(Strategy::Priority),
        Some(other) => Err(Refusal::value(format!(
            "Invalid value '{other}' for the parameter AllocationStrategy."
        ))),
    }
}

/// Reads how many instances are wanted of each capacity type.
fn wanted(at: &ParamScope<'_>) -> Result<Vec<(CapacityType, u64)>, Refusal> {
    let count = |name: &str| -> Result<Option<u64>, Refusal> {
        let Some(number) = at.number(name)? else {
            return Ok(None);
        };
        let is_right = (0..=MOST).contains(&number);
        let number = u64::try_from(number).ok().filter(|_| is_right);
        number
            .map(Some)
            .ok_or_else(|| Refusal::value(format!("{name} must be a number from 0 to {MOST}")))
    };
    let total = count("TotalTargetCapacity")?
        .ok_or_else(|| Refusal::missing("TargetCapacitySpecification.TotalTargetCapacity"))?;
    let mut on_demand = count("OnDemandTargetCapacity")?.unwrap_or_default();
    let mut spot = count("SpotTargetCapacity")?.unwrap_or_default();
    if matches!(at.text("TargetCapacityUnitType"), Some(unit) if unit != "units") {
        return Err(Refusal::value(
            "The target capacity is counted in units here",
        ));
    }
    let rest = total.checked_sub(on_demand + spot).ok_or_else(|| {
        Refusal::value("The on-demand and spot target capacities exceed the total target capacity")
    })?;
    match at.text("DefaultTargetCapacityType") {
        Some("spot") => spot += rest,
        Some("on-demand" | "capacity-block" | "reserved-capacity") => on_demand += rest,
        None if rest == 0 => {}
        None => {
            return Err(Refusal::missing(
                "TargetCapacitySpecification.DefaultTargetCapacityType",
            ));
        }
        Some(other) => {
            return Err(Refusal::value(format!(
                "Invalid value '{other}' for the parameter DefaultTargetCapacityType."
            )));
        }
    }
    Ok(vec![
        (CapacityType::OnDemand, on_demand),
        (CapacityType::Spot, spot),
    ])
}

fn config(call: &Call<'_>, at: &ParamScope<'_>) -> Result<Config, Refusal> {
    let given = at.at("LaunchTemplateSpecification");
    let named = TemplateRef::read(&given)?;
    let version = given.required("Version")?.to_owned();
    let state = call.state();
    let template = state.template(&named)?;
    check_version(template, &version)?;
    let mut overrides = Vec::new();
    for at in at.each("Overrides") {
        overrides.push(Override {
            instance_type: at.text("InstanceType").map(str::to_owned),
            subnet: at.text("SubnetId").map(str::to_owned),
            zone: at.text("AvailabilityZone").map(str::to_owned),
            image: at.text("ImageId").map(str::to_owned),
            priority: at.decimal("Priority")?,
            max_price: at.decimal("MaxPrice")?,
        });
    }
    if overrides.is_empty() {
        overrides.push(Override::default());
    }
    Ok(Config {
        template_id: template.id.clone(),
        template_name: template.name.clone(),
        version,
        by_id: matches!(named, TemplateRef::Id(_)),
        spec: template.spec.clone(),
        overrides,
    })
}
