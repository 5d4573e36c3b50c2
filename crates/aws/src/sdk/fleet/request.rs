//! Builds the request for a fleet: the launch templates, and the candidates as their overrides.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{
    DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest,
    FleetOnDemandAllocationStrategy, FleetReservationType, FleetType, OnDemandOptionsRequest,
    ReservedCapacityOptionsRequest, ResourceType, SpotAllocationStrategy, SpotOptionsRequest,
    TagSpecification, TargetCapacitySpecificationRequest,
};
use mullion_api::labels;
use mullion_cloud::{CapacityType, CloudError, LaunchOption, Reservation, ReservationKind};

use super::{
    super::{
        Inner,
        filters::to_tags,
        template::{Parts, Template},
    },
    Candidate, Order, shared_tags,
};
use crate::bootstrap::{Bootstrap, user_data};

impl Inner {
    /// Returns one template for each image, number of pods and number of Elastic Fabric Adapters, with its candidates.
    pub(super) fn templates_of<'c, 'a>(
        &self,
        order: &Order<'_>,
        candidates: &'c [Candidate<'a>],
        reservation: Option<&Reservation>,
    ) -> Result<Vec<(Template, Vec<&'c Candidate<'a>>)>, CloudError> {
        let mut groups: BTreeMap<(&str, u64, u64), Vec<&Candidate<'a>>> = BTreeMap::new();
        for own in candidates {
            // These are in the user data or in the network interfaces, which overrides cannot change.
            let key = (own.image.id.as_str(), own.max_pods, own.efas);
            groups.entry(key).or_default().push(own);
        }
        let capacity_type = candidates[0].option.capacity_type;
        let mut labels = order.request.registration.labels.clone();
        let paid = capacity_type.as_str().to_owned();
        labels.insert(labels::CAPACITY_TYPE.to_owned(), paid);
        let tags = shared_tags(&order.tags);
        let cluster = &self.settings.cluster;
        let is_ipv6 = |dns: &String| dns.contains(':');
        let mut templates = Vec::new();
        for ((image, max_pods, efas), own) in groups {
            let template = &order.request.template;
            let user_data = user_data(
                template.family,
                &Bootstrap {
                    cluster,
                    class: order.class,
                    max_pods,
                    labels: &labels,
                    taints: &order.request.registration.taints,
                    image_name: &own[0].image.name,
                },
            );
            let user_data = user_data.map_err(|error| CloudError::Invalid(error.to_string()))?;
            let parts = Parts {
                region: &self.region,
                class: order.class,
                family: template.family,
                root_volume_gib: template.root_volume_gib,
                image,
                profile: order.profile,
                security_groups: &order.security_groups,
                efas,
                placement: candidates[0].option.placement.as_ref(),
                tenancy: template.tenancy,
                user_data: &user_data,
                tags: &tags,
                capacity_type,
                reservation,
                targets_reservations: self.settings.reserved_capacity,
                ipv6: cluster.dns.as_ref().is_some_and(is_ipv6),
            };
            templates.push((parts.template(), own));
        }
        Ok(templates)
    }

    /// Returns the request for one instance of these templates' candidates.
    pub(super) fn fleet_request(
        &self,
        order: &Order<'_>,
        templates: &[(Template, Vec<&Candidate<'_>>)],
        reservation: Option<&Reservation>,
        option: &LaunchOption,
    ) -> aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder {
        let configs = templates.iter().map(|(template, candidates)| {
            let overrides = candidates.iter().map(|own| {
                FleetLaunchTemplateOverridesRequest::builder()
                    .instance_type(own.option.instance_type.as_str().into())
                    .subnet_id(&*own.subnet.id)
                    .image_id(&own.image.id)
                    // EC2's errors repeat the zone, which saves looking up the subnet.
                    .availability_zone(&own.option.zone)
                    .priority(own.rank as f64)
                    .build()
            });
            let named = FleetLaunchTemplateSpecificationRequest::builder()
                .launch_template_name(&template.name)
                .version("$Latest");
            FleetLaunchTemplateConfigRequest::builder()
                .launch_template_specification(named.build())
                .set_overrides(Some(overrides.collect()))
                .build()
        });
        let tagged = [
            ResourceType::Instance,
            ResourceType::Volume,
            ResourceType::Fleet,
        ];
        let tagged = tagged.into_iter().map(|kind| {
            TagSpecification::builder()
                .resource_type(kind)
                .set_tags(Some(to_tags(&order.tags)))
                .build()
        });
        let is_block = reservation.is_some_and(|own| own.kind == ReservationKind::CapacityBlock);
        let is_interruptible = reservation.is_some_and(|own| own.interruptible);
        let kind = match option.capacity_type {
            CapacityType::Spot => DefaultTargetCapacityType::Spot,
            CapacityType::Reserved if is_block => DefaultTargetCapacityType::CapacityBlock,
            CapacityType::Reserved if is_interruptible => {
                DefaultTargetCapacityType::ReservedCapacity
            }
            CapacityType::Reserved | CapacityType::OnDemand => DefaultTargetCapacityType::OnDemand,
        };
        let request = self
            .ec2
            .create_fleet()
            .r#type(FleetType::Instant)
            .set_context(order.class.context.clone())
            .set_launch_template_configs(Some(configs.collect()))
            .set_tag_specifications(Some(tagged.collect()))
            .target_capacity_specification(
                TargetCapacitySpecificationRequest::builder()
                    // One machine per claim, whatever the number of candidates.
                    .total_target_capacity(1)
                    .default_target_capacity_type(kind)
                    .build(),
            );
        if option.capacity_type == CapacityType::Spot {
            let spot = SpotOptionsRequest::builder()
                // The cheapest spot capacity is often the next to be interrupted (Karpenter chooses the same
                // strategy).
                .allocation_strategy(SpotAllocationStrategy::PriceCapacityOptimized);
            return request.spot_options(spot.build());
        }
        if is_interruptible {
            let reserved = ReservedCapacityOptionsRequest::builder()
                .reservation_types(FleetReservationType::InterruptibleCapacityReservation);
            return request.reserved_capacity_options(reserved.build());
        }
        if is_block {
            return request;
        }
        let on_demand = OnDemandOptionsRequest::builder()
            .allocation_strategy(FleetOnDemandAllocationStrategy::LowestPrice);
        request.on_demand_options(on_demand.build())
    }
}
