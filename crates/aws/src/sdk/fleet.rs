//! Launches instances: one CreateFleet of type `instant` for the options with the same capacity type and reservation.
//!
//! A fleet has the client token of the launch request, so that a launch that is repeated after a crash buys nothing twice. Options that are
//! paid for in another way are tried with a token of their own, after the first ones were refused. A fleet is for one claim only, because
//! its token and its tags are those of the claim.

mod dry_run;
mod request;

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use aws_sdk_ec2::types::{CreateFleetError, CreateFleetInstance};
use jiff::Timestamp;
use mullion_api::karpenter::EC2NodeClassSpec;
use mullion_cloud::{
    CapacityType, CloudError, FleetError, Instance, InstanceId, InstanceState, Launch,
    LaunchOption, LaunchRequest, Reservation, Shortage, Subnet, UNAVAILABLE_FOR,
    catalogue::{InstanceType, allocatable},
    image::NodeImage,
};
use tokio::time::Instant;

use super::{Inner, errors::Failed, lock};
use crate::{codes, limits::Kind};

/// Tags of a single claim, which launch templates that several claims share cannot have.
const OF_ONE_CLAIM: [&str; 2] = ["Name", "karpenter.sh/nodeclaim"];

/// The common input of all fleets of a launch.
struct Order<'a> {
    request: &'a LaunchRequest,
    class: &'a EC2NodeClassSpec,
    profile: &'a str,
    subnets: BTreeMap<Arc<str>, Subnet>,
    security_groups: Vec<String>,
    images: Vec<NodeImage>,
    tags: BTreeMap<String, String>,
}

/// An option with its instance type, image, subnet and number of pods.
struct Candidate<'a> {
    option: &'a LaunchOption,
    instance_type: Arc<InstanceType>,
    image: &'a NodeImage,
    subnet: &'a Subnet,
    max_pods: u64,
    efas: u64,
    /// Its place among the options.
    rank: usize,
}

impl Inner {
    pub(super) async fn launch(&self, request: LaunchRequest) -> Result<Launch, CloudError> {
        if request.options.is_empty() {
            return Err(CloudError::Invalid("no instance type was asked for".into()));
        }
        let usual = EC2NodeClassSpec::default();
        let order = self.order(&request, &usual).await?;
        let mut refused: Vec<FleetError> = Vec::new();
        for (index, options) in paid_alike(&request.options).into_iter().enumerate() {
            let candidates = self.candidates(&order, &options).await;
            // No subnet in the zones or no image for the types; options that are paid for in another way may
            // still do.
            if candidates.is_empty() {
                continue;
            }
            // A token with other parameters is refused, and each way of paying is a request of its own.
            let token = match index {
                0 => request.client_token.clone(),
                index => format!("{}-{}", request.client_token, index + 1),
            };
            match self.fleet(&order, &candidates, &token).await? {
                (Some(instance), more) => {
                    refused.extend(more);
                    return Ok(Launch { instance, refused });
                }
                (None, more) => refused.extend(more),
            }
        }
        if refused.is_empty() {
            // Nothing was requested at all.
            Err(no_candidate())
        } else {
            Err(CloudError::InsufficientCapacity(refused))
        }
    }

    /// Looks up what all fleets of a launch need. `usual` stands for the class of a launch without one.
    async fn order<'a>(
        &self,
        request: &'a LaunchRequest,
        usual: &'a EC2NodeClassSpec,
    ) -> Result<Order<'a>, CloudError> {
        let class = request.class.as_deref();
        Ok(Order {
            class: class.map_or(usual, |own| &own.spec),
            profile: class.map_or("", |own| &own.instance_profile),
            subnets: self.launch_subnets(&request.subnets).await?,
            security_groups: self.launch_groups(request).await?,
            images: self.launch_images(request).await?,
            tags: self.launch_tags(request),
            request,
        })
    }

    async fn launch_groups(&self, request: &LaunchRequest) -> Result<Vec<String>, CloudError> {
        if !request.security_groups.is_empty() {
            let named = request.security_groups.iter();
            return Ok(named.map(ToString::to_string).collect());
        }
        let found = self.security_groups(&[self.of_cluster()]).await?;
        Ok(found.iter().map(|group| group.id.to_string()).collect())
    }

    /// Returns the images that may be launched, as far as they are known; if the request names none, the newest ones of the family.
    async fn launch_images(&self, request: &LaunchRequest) -> Result<Vec<NodeImage>, CloudError> {
        let (family, version) = (request.template.family, request.template.version);
        if request.images.is_empty() {
            let alias = mullion_api::karpenter::AmiSelectorTerm {
                alias: Some("newest@latest".to_owned()),
                ..Default::default()
            };
            return self.images(&[alias], family, version).await;
        }
        let ids = request.images.iter().map(|own| own.id.clone()).collect();
        self.learn_images(ids).await?;
        // The class says which hardware an image is for, because a deployed image does not: the newest images that its alias
        // selects may be other ones by now, and this process may have just started.
        let named = request.images.iter().filter_map(|own| {
            Some(NodeImage {
                family,
                version,
                variant: own.variant,
                ..self.known_image(&own.id)?
            })
        });
        Ok(named.collect())
    }

    /// Returns the tags of the request, and the tag by which AWS's own controllers find the cluster's machines.
    fn launch_tags(&self, request: &LaunchRequest) -> BTreeMap<String, String> {
        let cluster = &self.settings.cluster.name;
        let mut tags = request.tags.clone();
        tags.insert(
            format!("kubernetes.io/cluster/{cluster}"),
            "owned".to_owned(),
        );
        tags
    }

    async fn candidates<'a>(
        &self,
        order: &'a Order<'a>,
        options: &[&'a LaunchOption],
    ) -> Vec<Candidate<'a>> {
        let mut candidates = Vec::new();
        for (rank, option) in options.iter().enumerate() {
            let Some(instance_type) = self.instance_type(&option.instance_type).await else {
                continue;
            };
            let fits = |image: &&NodeImage| {
                image.arch == instance_type.arch && image.variant.fits(&instance_type)
            };
            let image = order.images.iter().find(fits);
            let subnet = order.subnets.get(option.zone.as_str());
            if let (Some(image), Some(subnet)) = (image, subnet) {
                let resources = allocatable::of(&instance_type, &order.request.template);
                candidates.push(Candidate {
                    option,
                    image,
                    subnet,
                    max_pods: resources.capacity.pods,
                    efas: order.request.template.efas_on(&instance_type),
                    rank,
                    instance_type,
                });
            }
        }
        candidates
    }

    /// Requests one instance of these candidates. Returns the instance, if there is one, and the refused options.
    async fn fleet(
        &self,
        order: &Order<'_>,
        candidates: &[Candidate<'_>],
        token: &str,
    ) -> Result<(Option<Arc<Instance>>, Vec<FleetError>), CloudError> {
        let option = candidates[0].option;
        let reservation = option.reservation.as_deref();
        let reservation = reservation.map(|id| self.reservation(id));
        let templates = self.templates_of(order, candidates, reservation.as_ref())?;
        let template_tags = shared_tags(&order.tags);
        let mut tries = 0;
        let answer = loop {
            for (template, _) in &templates {
                self.ensure_template(template, &template_tags).await?;
            }
            let request = self.fleet_request(order, &templates, reservation.as_ref(), option);
            self.may(Kind::Launch).await;
            let sent = request.client_token(token).send().await;
            match sent.map_err(Failed::of) {
                Ok(answer) => break answer,
                // Another process has deleted unused templates, so they are created again, once.
                Err(failed) if is_template_gone(&failed) && tries == 0 => {
                    tries += 1;
                    for (template, _) in &templates {
                        self.miss_template(&template.name);
                    }
                }
                Err(failed) if failed.is("IdempotentParameterMismatch") => {
                    // An earlier attempt used the token with other options, so it may have bought an instance
                    // that must not be bought twice.
                    return self.bought_before(order, failed).await;
                }
                Err(failed) => return Err(failed.into()),
            }
        };
        let refused = self.refused(answer.errors(), candidates, option.capacity_type);
        let bought = answer.instances().iter();
        let bought = bought.filter_map(|own| Some((own, own.instance_ids().first()?)));
        let Some((own, id)) = bought.into_iter().next() else {
            return self.unfulfilled(answer.errors(), refused, option);
        };
        let instance = self.bought(order, candidates, own, id, reservation).await?;
        Ok((Some(instance), refused))
    }

    /// Returns the instance that an earlier attempt bought with the same token but with other best options.
    async fn bought_before(
        &self,
        order: &Order<'_>,
        failed: Failed,
    ) -> Result<(Option<Arc<Instance>>, Vec<FleetError>), CloudError> {
        let claim = order.tags.get("karpenter.sh/nodeclaim");
        let claim = claim.ok_or_else(|| CloudError::from(failed))?;
        let cluster = format!("kubernetes.io/cluster/{}", self.settings.cluster.name);
        let tags = [
            ("karpenter.sh/nodeclaim".to_owned(), claim.clone()),
            (cluster, "owned".to_owned()),
        ];
        let mut found = self.list(&tags.into()).await?;
        // An instance that is ending will not become the claim's node.
        found.retain(|own| own.state < InstanceState::ShuttingDown);
        match found.into_iter().next() {
            Some(instance) => Ok((Some(instance), Vec::new())),
            None => Err(CloudError::NoAnswer(
                "an earlier try to launch for this claim may still succeed".to_owned(),
            )),
        }
    }

    /// Records the refused options, each once.
    fn refused(
        &self,
        errors: &[CreateFleetError],
        candidates: &[Candidate<'_>],
        capacity_type: CapacityType,
    ) -> Vec<FleetError> {
        let mut refused: Vec<FleetError> = Vec::new();
        for error in errors {
            let (code, message) = code_and_message(error);
            let overrides = error.launch_template_and_overrides();
            let overrides = overrides.and_then(|own| own.overrides());
            let (Some(shortage), Some(overrides)) =
                (codes::shortage(code, message, capacity_type), overrides)
            else {
                continue;
            };
            let name = overrides.instance_type().map(|own| own.as_str());
            let subnet = overrides.subnet_id();
            let is_meant = |own: &&Candidate<'_>| {
                let in_zone = match (overrides.availability_zone(), subnet) {
                    (Some(zone), _) => zone == own.option.zone,
                    (None, Some(subnet)) => subnet == &*own.subnet.id,
                    (None, None) => false,
                };
                name == Some(own.option.instance_type.as_str()) && in_zone
            };
            let Some(candidate) = candidates.iter().find(is_meant) else {
                continue;
            };
            if shortage == Shortage::Addresses {
                // The next launch in the zone then takes another subnet, before EC2's description is renewed.
                lock(&self.network).is_full(&candidate.subnet.id);
            }
            // A spread group that is full in a zone is so for every type.
            let is_full = shortage == Shortage::SpreadGroup;
            let zone = &candidate.option.zone;
            let all = candidates.iter().map(|own| own.option);
            let concerned =
                all.filter(|own| *own == candidate.option || (is_full && own.zone == *zone));
            for option in concerned {
                if refused.iter().any(|own| own.option == *option) {
                    continue;
                }
                let unavailable_for = match &option.reservation {
                    // The reservation itself still has room, only not in this placement group.
                    Some(_) if is_full => UNAVAILABLE_FOR,
                    Some(id) => {
                        self.reservation_is_full(id);
                        UNAVAILABLE_FOR
                    }
                    None => lock(&self.refusals).refuse(option.clone(), Instant::now()),
                };
                refused.push(FleetError {
                    option: option.clone(),
                    shortage: shortage.clone(),
                    unavailable_for,
                });
            }
        }
        refused
    }

    /// Returns the result of a fleet without an instance: the refused options if all errors may pass by themselves, else the error that
    /// will not.
    fn unfulfilled(
        &self,
        errors: &[CreateFleetError],
        refused: Vec<FleetError>,
        option: &LaunchOption,
    ) -> Result<(Option<Arc<Instance>>, Vec<FleetError>), CloudError> {
        let passes = |error: &&CreateFleetError| {
            let (code, message) = code_and_message(error);
            codes::shortage(code, message, option.capacity_type).is_some()
        };
        if let Some(lasting) = errors.iter().find(|error| !passes(error)) {
            let (code, message) = code_and_message(lasting);
            return Err(match codes::error(code, message) {
                CloudError::Refused { code, message } => CloudError::Unfulfilled { code, message },
                other => other,
            });
        }
        if refused.is_empty() {
            return Err(CloudError::Refused {
                code: "UnfulfillableCapacity".to_owned(),
                message: "EC2 has launched nothing and does not say why".to_owned(),
            });
        }
        Ok((None, refused))
    }

    /// Returns the instance that a fleet has bought. EC2 has not described its address and name yet.
    async fn bought(
        &self,
        order: &Order<'_>,
        candidates: &[Candidate<'_>],
        own: &CreateFleetInstance,
        id: &str,
        reservation: Option<Reservation>,
    ) -> Result<Arc<Instance>, CloudError> {
        let overrides = own.launch_template_and_overrides();
        let overrides = overrides.and_then(|own| own.overrides());
        let name = own.instance_type().map(|own| own.as_str());
        let name = name.or_else(|| overrides?.instance_type().map(|own| own.as_str()));
        let zone = own.availability_zone();
        let zone = zone.or_else(|| overrides?.availability_zone());
        let subnet = own.subnet_id().or_else(|| overrides?.subnet_id());
        let is_bought = |own: &&Candidate<'_>| {
            let in_zone = zone.is_none_or(|zone| zone == own.option.zone);
            let in_subnet = subnet.is_none_or(|subnet| subnet == &*own.subnet.id);
            name == Some(own.option.instance_type.as_str()) && in_zone && in_subnet
        };
        let id = InstanceId(id.into());
        let Some(candidate) = candidates.iter().find(is_bought) else {
            // A repeated fleet may have launched an option in another subnet.
            let found = self.describe_all(vec![id.clone()]).await;
            return found
                .into_iter()
                .next()
                .unwrap_or(Err(CloudError::NotFound(id)));
        };
        let (option, request) = (candidate.option, order.request);
        let instance_type = &candidate.instance_type;
        let resources = allocatable::of(instance_type, &request.template);
        let (os, zone) = (request.template.family.os(), &option.zone);
        let subnet = candidate.subnet;
        let prefix_len = subnet.cidr.split_once('/');
        let price = self.price(instance_type, os, zone, option.capacity_type);
        let instance = Arc::new(Instance {
            provider_id: format!("aws:///{zone}/{id}"),
            instance_type: Arc::clone(instance_type),
            region: self.region.as_str().into(),
            zone: zone.as_str().into(),
            zone_id: Arc::clone(&subnet.zone_id),
            subnet: Arc::clone(&subnet.id),
            security_groups: order
                .security_groups
                .iter()
                .map(|id| id.as_str().into())
                .collect(),
            subnet_prefix_len: prefix_len
                .and_then(|(_, bits)| bits.parse().ok())
                .unwrap_or_default(),
            capacity_type: option.capacity_type,
            reservation,
            placement: option.placement.clone(),
            tenancy: order.request.template.tenancy,
            price: price.await,
            private_ip: Ipv4Addr::UNSPECIFIED,
            private_dns_name: String::new(),
            image: candidate.image.clone(),
            capacity: resources.capacity,
            allocatable: resources.allocatable,
            registration: request.registration.clone(),
            tags: order.tags.clone(),
            state: InstanceState::Pending,
            booted: false,
            launched_at: Timestamp::now(),
            id,
        });
        lock(&self.refusals).sold(option);
        lock(&self.network).take(&subnet.id);
        if let Some(id) = &option.reservation {
            self.reservation_is_used(id);
        }
        // Until EC2 describes it, so that garbage collection does not take the claim's instance for gone.
        lock(&self.young).add(&instance);
        Ok(instance)
    }
}

fn code_and_message(error: &CreateFleetError) -> (&str, &str) {
    let message = error.error_message().unwrap_or_default();
    (error.error_code().unwrap_or_default(), message)
}

fn no_candidate() -> CloudError {
    CloudError::Invalid("no option has a subnet in its zone and an image for its type".to_owned())
}

fn is_template_gone(failed: &Failed) -> bool {
    failed.is("InvalidLaunchTemplateName.NotFoundException")
        || failed.is("InvalidLaunchTemplateId.NotFound")
}

fn shared_tags(tags: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut tags = tags.clone();
    tags.retain(|key, _| !OF_ONE_CLAIM.contains(&key.as_str()));
    tags
}

/// Groups options that one fleet can request, in the order of the first option of each group.
fn paid_alike(options: &[LaunchOption]) -> Vec<Vec<&LaunchOption>> {
    let mut groups: Vec<Vec<&LaunchOption>> = Vec::new();
    for option in options {
        let is_like = |group: &&mut Vec<&LaunchOption>| {
            let first = group[0];
            first.capacity_type == option.capacity_type && first.reservation == option.reservation
        };
        match groups.iter_mut().find(is_like) {
            Some(group) => group.push(option),
            None => groups.push(vec![option]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_paid_for_alike_go_into_one_fleet() {
        let option = |name: &str, capacity_type, reservation: Option<&str>| LaunchOption {
            instance_type: name.to_owned(),
            zone: "a".to_owned(),
            capacity_type,
            reservation: reservation.map(str::to_owned),
            placement: None,
        };
        use CapacityType::{OnDemand, Reserved, Spot};
        let options = [
            option("a", Reserved, Some("cr-1")),
            option("b", Spot, None),
            option("c", OnDemand, None),
            option("d", Spot, None),
            option("e", Reserved, Some("cr-2")),
        ];
        let groups: Vec<String> = paid_alike(&options)
            .iter()
            .map(|group| group.iter().map(|own| own.instance_type.as_str()).collect())
            .collect();
        assert_eq!(groups, ["a", "bd", "c", "e"]);
    }
}
