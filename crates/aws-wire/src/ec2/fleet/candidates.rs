//! The options of a fleet, in the order of its allocation strategy.

use mullion_cloud::{
    CapacityType, LaunchOption, Subnet,
    catalogue::{self, InstanceType, Price, price},
    image::NodeImage,
};

use super::{
    super::{
        Call, Name,
        launch::{LaunchSpec, check_architecture, image, unsupported},
    },
    FailedOption,
    request::{Config, Fleet, Override, Strategy},
};
use crate::refusal::Refusal;

/// One option of the fleet: an override in one subnet.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) config: usize,
    pub(super) given: Override,
    pub(super) instance_type: &'static InstanceType,
    pub(super) image: NodeImage,
    pub(super) zone: Name,
    pub(super) subnet: Name,
    pub(super) capacity_type: CapacityType,
    pub(super) price: Price,
}

impl Candidate {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.config == other.config
            && self.instance_type.name == other.instance_type.name
            && self.zone == other.zone
            && self.capacity_type == other.capacity_type
    }

    /// Returns the report about a candidate that cannot be bought.
    pub(super) fn failed(self, code: &str, message: &str) -> FailedOption {
        FailedOption {
            config: self.config,
            given: self.given,
            zone: Some(self.zone),
            capacity_type: self.capacity_type,
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    pub(super) fn option(&self, spec: &LaunchSpec) -> LaunchOption {
        LaunchOption {
            instance_type: self.instance_type.name.to_string(),
            zone: self.zone.to_string(),
            capacity_type: self.capacity_type,
            reservation: match self.capacity_type {
                CapacityType::Reserved => spec.reservation.clone(),
                _ => None,
            },
            placement: None,
        }
    }
}

/// Returns all options, best first. Overrides that no launch can satisfy are reported in `failed`.
pub(super) fn candidates(
    call: &Call<'_>,
    fleet: &Fleet,
    capacity_type: CapacityType,
    failed: &mut Vec<FailedOption>,
) -> Result<Vec<Candidate>, Refusal> {
    let choices = Choices {
        subnets: call.ec2().all_subnets(),
        images: call.ec2().all_images(),
    };
    let mut all = Vec::new();
    for (config, own) in fleet.configs.iter().enumerate() {
        for given in &own.overrides {
            let found = candidates_of(call, config, own, given, capacity_type, &choices);
            match found {
                Ok(found) => all.extend(found),
                Err(refusal) => failed.push(FailedOption {
                    config,
                    given: given.clone(),
                    zone: None,
                    capacity_type,
                    code: refusal.code,
                    message: refusal.message,
                }),
            }
        }
    }
    let strategy = match capacity_type {
        CapacityType::Spot => fleet.spot,
        _ => fleet.on_demand,
    };
    all.sort_by(|a, b| {
        // In EC2 an override without a priority has the lowest one.
        let priority = |own: &Candidate| own.given.priority.unwrap_or(f64::INFINITY);
        let by_priority = match strategy {
            Strategy::Price => std::cmp::Ordering::Equal,
            Strategy::Priority => priority(a).total_cmp(&priority(b)),
        };
        by_priority.then(a.price.cmp(&b.price))
    });
    Ok(all)
}

/// The subnets and images that a request can choose from.
struct Choices {
    subnets: Vec<Subnet>,
    images: Vec<NodeImage>,
}

fn candidates_of(
    call: &Call<'_>,
    config: usize,
    own: &Config,
    given: &Override,
    capacity_type: CapacityType,
    choices: &Choices,
) -> Result<Vec<Candidate>, Refusal> {
    let spec = &own.spec;
    let id = given.image.as_ref().or(spec.image.as_ref());
    let id = id.ok_or_else(|| {
        Refusal::new(
            "MissingParameter",
            "You must specify an ImageId in the launch template or the overrides.",
        )
    })?;
    let image = image(&choices.images, id)?;
    spec.check_groups(call)?;
    let subnets = &choices.subnets;
    let name = given.instance_type.as_ref().or(spec.instance_type.as_ref());
    let name = name.ok_or_else(|| {
        Refusal::new(
            "MissingParameter",
            "You must specify an InstanceType in the launch template or the overrides.",
        )
    })?;
    let not_sold = |zone: &str| {
        Refusal::new(
            "InvalidFleetConfiguration",
            format!(
                "Your requested instance type ({name}) is not supported in your requested Availability Zone ({zone})."
            ),
        )
    };
    let subnet = given.subnet.as_ref().or(spec.subnet.as_ref());
    let zone = given.zone.as_ref().or(spec.zone.as_ref());
    let places: Vec<&Subnet> = match (subnet, zone) {
        (Some(id), _) => {
            let found = subnets.iter().find(|own| *own.id == **id);
            let text = || format!("The subnet ID '{id}' does not exist");
            vec![found.ok_or_else(|| Refusal::new("InvalidSubnetID.NotFound", text()))?]
        }
        (None, Some(zone)) => {
            let found: Vec<_> = subnets.iter().filter(|own| *own.zone == **zone).collect();
            if found.is_empty() {
                let text = format!("The availability zone '{zone}' does not exist");
                return Err(Refusal::value(text));
            }
            found
        }
        (None, None) => subnets.iter().collect(),
    };
    let first = places.first().map_or("", |own| &own.zone);
    let instance_type = catalogue::get(name).ok_or_else(|| not_sold(first))?;
    check_architecture(instance_type, &image)?;
    spec.check_volumes(&image)?;
    let capacity_type = match (capacity_type, &spec.reservation) {
        (CapacityType::OnDemand, Some(_)) => CapacityType::Reserved,
        (own, _) => own,
    };
    let price = price::of(instance_type, image.os(), capacity_type);
    let price = price.filter(|_| instance_type.runs(image.os()));
    // The code is one of those that clients try other types for.
    let price = price.ok_or_else(|| unsupported(name, &image, capacity_type))?;
    if capacity_type == CapacityType::Spot
        && let Some(most) = given.max_price
        && price.usd_per_hour() > most
    {
        return Err(Refusal::new(
            "SpotMaxPriceTooLow",
            format!(
                "Your Spot request price of {most} is lower than the minimum required Spot request fulfillment price of {}.",
                price.usd_per_hour()
            ),
        ));
    }
    let places = places.into_iter().map(|place| Candidate {
        config,
        given: given.clone(),
        instance_type,
        image: image.clone(),
        zone: place.zone.clone(),
        subnet: place.id.clone(),
        capacity_type,
        price,
    });
    Ok(places.collect())
}
