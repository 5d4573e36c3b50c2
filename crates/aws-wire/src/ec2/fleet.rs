//! CreateFleet, for fleets of type `instant`: what can be had at once of many options, and why the others could not.
//!
//! Invariant: options are tried in the order of the allocation strategy, and each that could not be had is told of once.

use std::collections::BTreeMap;

use mullion_cloud::{
    CapacityType, CloudError, CloudProvider, Instance, LaunchOption, Subnet,
    catalogue::{self, InstanceType, Price, price},
    image::NodeImage,
};

use super::{
    Call, Name,
    launch::{self, Answered, LaunchSpec, Launched, Order, check_architecture, image, lifecycle},
    launch_templates::{Named, check_version, tags_for},
};
use crate::{query::At, refusal::Refusal, xml::Xml};
use tokio::time::Instant;

/// Instances of one fleet at most.
const MOST: i64 = 1000;

/// A launch template and what may be bought with it.
struct Config {
    template_id: String,
    template_name: String,
    version: String,
    by_id: bool,
    spec: LaunchSpec,
    overrides: Vec<Override>,
}

#[derive(Clone, Debug, Default)]
struct Override {
    instance_type: Option<String>,
    subnet: Option<String>,
    zone: Option<String>,
    image: Option<String>,
    priority: Option<f64>,
    max_price: Option<f64>,
}

/// One way to fill the fleet.
#[derive(Clone, Debug)]
struct Candidate {
    config: usize,
    given: Override,
    instance_type: &'static InstanceType,
    image: NodeImage,
    zone: Name,
    subnet: Name,
    capacity_type: CapacityType,
    price: Price,
}

/// An option that could not be had.
struct Failed {
    config: usize,
    given: Override,
    zone: Option<Name>,
    capacity_type: CapacityType,
    code: String,
    message: String,
}

/// What was bought of one candidate.
struct Bought {
    candidate: Candidate,
    instances: Vec<std::sync::Arc<Instance>>,
}

struct Fleet {
    configs: Vec<Config>,
    /// How many instances of each capacity type.
    wanted: Vec<(CapacityType, u64)>,
    spot: Strategy,
    on_demand: Strategy,
    tags: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// The cheapest first. Spare capacity is alike everywhere here, so EC2's strategies that weigh it come to the same.
    Price,
    /// The one with the lowest number first.
    Priority,
}

/// CreateFleet.
pub(super) async fn create(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let fleet = read(call)?;
    let token = call.root().text("ClientToken");
    call.complete()?;
    let Some(token) = token else {
        let (xml, _) = fill(call, &fleet, "").await?;
        return Ok(xml);
    };
    let place = call.kept().tokens.of(token);
    let mut place = place.lock().await;
    let fingerprint = call.params.fingerprint();
    if let Some(before) = &*place {
        return match before.fingerprint == fingerprint {
            true => Ok(before.xml.clone()),
            false => Err(launch::mismatch()),
        };
    }
    let (xml, bought) = fill(call, &fleet, token).await?;
    let instances = bought.iter().flat_map(|own| &own.instances);
    *place = Some(Answered {
        fingerprint,
        instances: instances.map(|own| own.id.clone()).collect(),
        xml: xml.clone(),
    });
    Ok(xml)
}

fn read(call: &Call<'_>) -> Result<Fleet, Refusal> {
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

fn strategy(at: &At<'_>, by_price: &[&str], by_priority: &str) -> Result<Strategy, Refusal> {
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
fn wanted(at: &At<'_>) -> Result<Vec<(CapacityType, u64)>, Refusal> {
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

fn config(call: &Call<'_>, at: &At<'_>) -> Result<Config, Refusal> {
    let given = at.at("LaunchTemplateSpecification");
    let named = Named::read(&given)?;
    let version = given.required("Version")?.to_owned();
    let kept = call.kept();
    let template = kept.template(&named)?;
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
        by_id: matches!(named, Named::Id(_)),
        spec: template.spec.clone(),
        overrides,
    })
}

/// Buys what can be had. Returns the answer and what was bought.
async fn fill(
    call: &Call<'_>,
    fleet: &Fleet,
    token: &str,
) -> Result<(Vec<u8>, Vec<Bought>), Refusal> {
    let id = format!("fleet-{}", call.kept().ids.request());
    let mut bought: Vec<Bought> = Vec::new();
    let mut failed = Vec::new();
    for (capacity_type, count) in &fleet.wanted {
        if *count == 0 {
            continue;
        }
        let mut candidates = candidates(call, fleet, *capacity_type, &mut failed)?;
        for number in 0..*count {
            let name = format!("{id}/{}/{number}", capacity_type.as_str());
            let purchase = Purchase {
                fleet,
                id: &id,
                name,
                token,
            };
            match purchase.make(call, &mut candidates, &mut failed).await {
                Ok(Some((candidate, instance))) => {
                    let same = bought
                        .iter_mut()
                        .find(|own| own.candidate.is_same(&candidate));
                    match same {
                        Some(own) => own.instances.push(instance),
                        None => bought.push(Bought {
                            candidate,
                            instances: vec![instance],
                        }),
                    }
                }
                Ok(None) => break,
                Err(refusal) if bought.is_empty() => return Err(refusal),
                Err(_) => break,
            }
        }
    }
    let xml = call.answer(|xml| write(xml, &id, fleet, &failed, &bought));
    Ok((xml, bought))
}

impl Candidate {
    fn is_same(&self, other: &Self) -> bool {
        self.config == other.config
            && self.instance_type.name == other.instance_type.name
            && self.zone == other.zone
            && self.capacity_type == other.capacity_type
    }

    fn option(&self, spec: &LaunchSpec) -> LaunchOption {
        LaunchOption {
            instance_type: self.instance_type.name.to_string(),
            zone: self.zone.to_string(),
            capacity_type: self.capacity_type,
            reservation: match self.capacity_type {
                CapacityType::Reserved => spec.reservation.clone(),
                _ => None,
            },
        }
    }
}

/// Returns all that may be bought, best first; what can never be had is told of in `failed`.
fn candidates(
    call: &Call<'_>,
    fleet: &Fleet,
    capacity_type: CapacityType,
    failed: &mut Vec<Failed>,
) -> Result<Vec<Candidate>, Refusal> {
    let there = There {
        subnets: call.ec2().all_subnets(),
        images: call.ec2().all_images(),
    };
    let mut all = Vec::new();
    for (config, own) in fleet.configs.iter().enumerate() {
        for given in &own.overrides {
            let found = candidates_of(call, config, own, given, capacity_type, &there);
            match found {
                Ok(found) => all.extend(found),
                Err(refusal) => failed.push(Failed {
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
        let priority = |own: &Candidate| own.given.priority.unwrap_or(f64::INFINITY);
        let by_priority = match strategy {
            Strategy::Price => std::cmp::Ordering::Equal,
            Strategy::Priority => priority(a).total_cmp(&priority(b)),
        };
        by_priority.then(a.price.cmp(&b.price))
    });
    Ok(all)
}

/// What there is to choose from.
struct There {
    subnets: Vec<Subnet>,
    images: Vec<NodeImage>,
}

fn candidates_of(
    call: &Call<'_>,
    config: usize,
    own: &Config,
    given: &Override,
    capacity_type: CapacityType,
    there: &There,
) -> Result<Vec<Candidate>, Refusal> {
    let spec = &own.spec;
    let id = given.image.as_ref().or(spec.image.as_ref());
    let id = id.ok_or_else(|| {
        Refusal::new(
            "MissingParameter",
            "You must specify an ImageId in the launch template or the overrides.",
        )
    })?;
    let image = image(&there.images, id)?;
    spec.check_groups(call)?;
    let subnets = &there.subnets;
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
    let capacity_type = match (capacity_type, &spec.reservation) {
        (CapacityType::OnDemand, Some(_)) => CapacityType::Reserved,
        (own, _) => own,
    };
    let price = price::of(instance_type, image.os(), capacity_type);
    let price = price.filter(|_| instance_type.runs(image.os()));
    let price = price.ok_or_else(|| not_sold(first))?;
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

/// The purchase of one instance of a fleet.
struct Purchase<'a> {
    fleet: &'a Fleet,
    id: &'a str,
    /// What no other purchase is called.
    name: String,
    token: &'a str,
}

impl Purchase<'_> {
    /// Buys one of the candidates; those that could not be had are taken out of them and told of.
    async fn make(
        &self,
        call: &Call<'_>,
        candidates: &mut Vec<Candidate>,
        failed: &mut Vec<Failed>,
    ) -> Result<Option<(Candidate, std::sync::Arc<Instance>)>, Refusal> {
        let mut attempt = 0;
        while let Some(first) = candidates.first() {
            let (config, image) = (first.config, first.image.clone());
            let of_one = |own: &&Candidate| own.config == config && own.image == image;
            let tried = candidates.iter().take_while(of_one).count();
            let tried = &candidates[..tried];
            let template = &self.fleet.configs[config];
            let order = template.spec.order(Order {
                token: format!("{}/{attempt}", self.name),
                image: &image,
                options: tried.iter().map(|own| own.option(&template.spec)).collect(),
                subnets: tried.iter().map(|own| own.subnet.clone()).collect(),
                tags: self.tags(template),
            });
            attempt += 1;
            let (instance, refused) = match call.ec2().launch(order).await {
                Ok(launch) => (Some(launch.instance), launch.refused),
                Err(CloudError::InsufficientCapacity(refused)) => (None, refused),
                Err(other) => return Err(other.into()),
            };
            let is_of = |own: &Candidate, option: &LaunchOption| {
                own.config == config && own.option(&template.spec) == *option
            };
            for error in refused {
                let position = candidates.iter().position(|own| is_of(own, &error.option));
                let Some(position) = position else { continue };
                let own = candidates.remove(position);
                let message = error.to_string();
                let code = error.shortage.code();
                let message = message.strip_prefix(&format!("{code}: "));
                failed.push(Failed {
                    config,
                    given: own.given,
                    zone: Some(own.zone),
                    capacity_type: own.capacity_type,
                    code: code.to_owned(),
                    message: message.unwrap_or_default().to_owned(),
                });
            }
            let Some(instance) = instance else { continue };
            let bought = candidates.iter().find(|own| {
                own.config == config
                    && own.instance_type.name == instance.instance_type.name
                    && own.zone == instance.zone
            });
            let Some(candidate) = bought.cloned() else {
                return Err(Refusal::new(
                    "InternalError",
                    "an instance was bought that was not asked for",
                ));
            };
            self.remember(call, template, &instance);
            return Ok(Some((candidate, instance)));
        }
        Ok(None)
    }

    fn tags(&self, template: &Config) -> BTreeMap<String, String> {
        let mut tags = self.fleet.tags.clone();
        let own = [
            ("aws:ec2launchtemplate:id", template.template_id.clone()),
            ("aws:ec2launchtemplate:version", "1".to_owned()),
            ("aws:ec2:fleet-id", self.id.to_owned()),
        ];
        tags.extend(own.map(|(key, value)| (key.to_owned(), value)));
        tags
    }

    fn remember(&self, call: &Call<'_>, template: &Config, instance: &Instance) {
        let unseen = call.endpoint.settings().unseen_for;
        let unseen = call.ec2().config().speed.scale(unseen);
        let launched = Launched {
            seen_at: Instant::now() + unseen,
            client_token: self.token.to_owned(),
            profile: template.spec.profile.clone(),
        };
        call.kept().launched.insert(instance.id.clone(), launched);
    }
}

fn write(xml: &mut Xml, id: &str, fleet: &Fleet, failed: &[Failed], bought: &[Bought]) {
    xml.leaf("fleetId", id);
    xml.list("errorSet", failed, |xml, own| {
        let config = &fleet.configs[own.config];
        write_option(xml, config, &own.given, own.zone.as_ref());
        xml.leaf("lifecycle", lifecycle(own.capacity_type));
        xml.leaf("errorCode", &own.code);
        xml.leaf("errorMessage", &own.message);
    });
    xml.list("fleetInstanceSet", bought, |xml, own| {
        let candidate = &own.candidate;
        let config = &fleet.configs[candidate.config];
        write_option(xml, config, &candidate.given, Some(&candidate.zone));
        xml.leaf("lifecycle", lifecycle(candidate.capacity_type));
        xml.texts("instanceIds", own.instances.iter().map(|own| &own.id));
        xml.leaf("instanceType", &candidate.instance_type.name);
        if candidate.image.os() == mullion_api::ami::Os::Windows {
            xml.leaf("platform", "windows");
        }
    });
}

fn write_option(xml: &mut Xml, config: &Config, given: &Override, zone: Option<&Name>) {
    xml.node("launchTemplateAndOverrides", |xml| {
        xml.node("launchTemplateSpecification", |xml| {
            xml.leaf("launchTemplateId", &config.template_id);
            if !config.by_id {
                xml.leaf("launchTemplateName", &config.template_name);
            }
            xml.leaf("version", &config.version);
        });
        xml.node("overrides", |xml| {
            let name = given.instance_type.as_ref();
            xml.maybe("instanceType", name.or(config.spec.instance_type.as_ref()));
            xml.maybe("maxPrice", given.max_price);
            xml.maybe("subnetId", given.subnet.as_ref());
            let zone = zone.map(|zone| zone.to_string());
            xml.maybe("availabilityZone", zone.or_else(|| given.zone.clone()));
            xml.maybe("priority", given.priority);
            xml.maybe("imageId", given.image.as_ref());
        });
    });
}
