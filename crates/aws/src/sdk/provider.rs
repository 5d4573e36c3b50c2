//! Implements the trait of clouds; the other files here have the code behind each call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mullion_api::{
    ami::{AmiFamily, Os},
    eksctl::KubernetesVersion,
    karpenter::{
        AmiSelectorTerm, CapacityReservationSelectorTerm, EC2NodeClass, PlacementGroupSelector,
    },
};
use mullion_cloud::{
    BoxFuture, CapacityReservation, CloudError, CloudProvider, DeniedCall, Impairment, Instance,
    InstanceId, Launch, LaunchOption, LaunchRequest, Message, Offer, PlacementGroup, SecurityGroup,
    SelectedImages, Subnet, TagSelector, ZonalShift, catalogue::Arch, image::NodeImage,
};
use tokio::time::Instant;

use super::{Aws, lock};

impl CloudProvider for Aws {
    fn region(&self) -> &str {
        &self.inner.region
    }

    fn offers(&self, os: Os) -> BoxFuture<'_, Result<Arc<[Offer]>, CloudError>> {
        Box::pin(self.inner.offers(os))
    }

    fn subnets<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<Subnet>, CloudError>> {
        Box::pin(self.inner.subnets(selectors))
    }

    fn security_groups<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<SecurityGroup>, CloudError>> {
        Box::pin(self.inner.security_groups(selectors))
    }

    fn capacity_reservations<'a>(
        &'a self,
        terms: &'a [CapacityReservationSelectorTerm],
    ) -> BoxFuture<'a, Result<Vec<CapacityReservation>, CloudError>> {
        Box::pin(self.inner.capacity_reservations(terms))
    }

    fn placement_group<'a>(
        &'a self,
        selector: &'a PlacementGroupSelector,
    ) -> BoxFuture<'a, Result<Option<PlacementGroup>, CloudError>> {
        Box::pin(self.inner.placement_group(selector))
    }

    fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> BoxFuture<'_, Result<NodeImage, CloudError>> {
        Box::pin(self.inner.newest_image(family, version, arch))
    }

    fn images<'a>(
        &'a self,
        terms: &'a [AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> BoxFuture<'a, Result<SelectedImages, CloudError>> {
        Box::pin(async move {
            let images = self.inner.images(terms, family, version).await?;
            Ok(SelectedImages {
                images,
                is_fallback: false,
            })
        })
    }

    fn instance_profile<'a>(
        &'a self,
        class: &'a EC2NodeClass,
        cluster: &'a str,
    ) -> BoxFuture<'a, Result<String, CloudError>> {
        Box::pin(self.inner.instance_profile(class, cluster))
    }

    fn heeds_machine_settings(&self) -> bool {
        true
    }

    fn denied_call(
        &self,
        request: LaunchRequest,
    ) -> BoxFuture<'_, Result<Option<DeniedCall>, CloudError>> {
        Box::pin(self.inner.denied_call(request))
    }

    fn launch(&self, request: LaunchRequest) -> BoxFuture<'_, Result<Launch, CloudError>> {
        Box::pin(self.inner.launch(request))
    }

    fn get(&self, id: InstanceId) -> BoxFuture<'_, Result<Arc<Instance>, CloudError>> {
        Box::pin(self.get_batched(id))
    }

    fn list(
        &self,
        tags: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<Vec<Arc<Instance>>, CloudError>> {
        Box::pin(async move { self.inner.list(&tags).await })
    }

    fn terminate(&self, id: InstanceId) -> BoxFuture<'_, Result<(), CloudError>> {
        Box::pin(self.terminate_batched(id))
    }

    fn mark_unavailable(
        &self,
        option: LaunchOption,
    ) -> BoxFuture<'_, Result<Duration, CloudError>> {
        let rests = lock(&self.inner.refusals).refuse(option, Instant::now());
        Box::pin(async move { Ok(rests) })
    }

    fn receive_messages(&self) -> BoxFuture<'_, Result<Vec<Message>, CloudError>> {
        Box::pin(self.inner.receive_messages())
    }

    fn delete_message(&self, message: &Message) -> BoxFuture<'_, Result<(), CloudError>> {
        let message = message.clone();
        Box::pin(async move { self.inner.delete_message(&message).await })
    }

    fn impairments(&self) -> BoxFuture<'_, Result<Vec<Impairment>, CloudError>> {
        Box::pin(self.inner.impairments())
    }

    fn zonal_shifts(&self) -> BoxFuture<'_, Result<Vec<ZonalShift>, CloudError>> {
        Box::pin(self.inner.zonal_shifts())
    }
}
