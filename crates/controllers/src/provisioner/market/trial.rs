//! The launch that stands for all launches of a class when permissions are checked.

use mullion_api::{
    ami::Os,
    karpenter::{AmiStatus, Requirement},
};
use mullion_cloud::{CapacityType, LaunchOption, Offer, Offering, image::ImageVariant};
use mullion_engine::model::StringMap;

use super::{Market, launch_option, node_labels, rules::allows};

/// The types that are tried if no pool says which, one for each architecture.
const USUAL: [&str; 2] = ["m5.large", "m6g.large"];

impl Market {
    /// Returns the options of a trial launch: one type on demand, in every zone of the class that sells it (AWS provider:
    /// `getPrioritizedInstanceTypes`).
    ///
    /// It is the cheapest type that meets the requirements of one of the class's pools. A type whose image has drivers for
    /// accelerators comes last, because such an image may be larger than the class's volumes. For Windows it is one of the
    /// usual types, as in Karpenter.
    pub(crate) fn trial_options(&self, pools: &[Vec<Requirement>]) -> Vec<LaunchOption> {
        let fixed = self.fixed_labels();
        let labelled = self.offers.iter().map(|offer| {
            let labels = node_labels(&offer.instance_type, &fixed);
            (offer, labels)
        });
        let sold: Vec<_> = labelled
            .filter(|(offer, labels)| {
                self.suits(&offer.instance_type, labels) && self.on_demand(offer).next().is_some()
            })
            .collect();
        let of_pools = |(_, labels): &&(&Offer, StringMap)| {
            self.os() == Os::Linux && pools.iter().any(|own| allows(own, labels))
        };
        let usual = |(offer, _): &&(&Offer, StringMap)| USUAL.contains(&&*offer.instance_type.name);
        let cheapest = |(offer, labels): &&(&Offer, StringMap)| {
            let price = self.on_demand(offer).map(|own| own.price).min();
            let name = offer.instance_type.name.clone();
            (!self.is_image_plain(labels), price, name)
        };
        let tried = sold.iter().filter(of_pools).min_by_key(cheapest);
        let tried = tried.or_else(|| sold.iter().filter(usual).min_by_key(cheapest));
        let tried = tried.or_else(|| sold.iter().min_by_key(cheapest));
        let place = self.launch_place(&[]).flatten();
        let offerings = tried.into_iter().flat_map(|(offer, _)| {
            let all = self.on_demand(offer);
            all.map(move |offering| (&offer.instance_type, offering))
        });
        offerings
            .map(|(instance_type, offering)| launch_option(instance_type, offering, place.as_ref()))
            .collect()
    }

    fn on_demand<'a>(&'a self, offer: &'a Offer) -> impl Iterator<Item = &'a Offering> {
        self.sold_here(offer)
            .filter(|own| own.capacity_type == CapacityType::OnDemand)
    }

    /// Returns whether nodes with these labels boot an image without drivers for accelerators.
    fn is_image_plain(&self, labels: &StringMap) -> bool {
        let variant = |image: &AmiStatus| ImageVariant::requiring(&image.requirements);
        let variant = self.image_for(labels).map(variant);
        matches!(variant, Some(ImageVariant::Any | ImageVariant::Standard))
    }
}

#[cfg(test)]
mod tests {
    use mullion_api::{karpenter::Operator, labels};

    use super::{super::tests::market, *};

    fn of_types(names: &[&str]) -> Vec<Requirement> {
        let names = names.iter().copied();
        let types = Requirement::new(labels::INSTANCE_TYPE, Operator::In, names);
        vec![types, Requirement::is(labels::CAPACITY_TYPE, "spot")]
    }

    fn tried(market: &Market, pools: &[Vec<Requirement>]) -> Vec<String> {
        let options = market.trial_options(pools);
        options.iter().map(ToString::to_string).collect()
    }

    fn in_both_zones(name: &str) -> [String; 2] {
        ["us-west-2a", "us-west-2b"].map(|zone| format!("on-demand {name} in {zone}"))
    }

    #[tokio::test]
    async fn the_cheapest_type_of_a_pool_is_tried_on_demand_in_every_zone() {
        let market = market("AL2023", 31).await;
        let pools = [
            of_types(&["m5.4xlarge"]),
            of_types(&["m5.xlarge", "m5.2xlarge"]),
        ];
        assert_eq!(tried(&market, &pools), in_both_zones("m5.xlarge"));
        assert_eq!(tried(&market, &[]), in_both_zones("m6g.large"));
        let none = [of_types(&["x1.none"])];
        assert_eq!(tried(&market, &none), in_both_zones("m6g.large"));
    }

    #[tokio::test]
    async fn a_type_whose_image_has_drivers_is_tried_only_if_there_is_no_other() {
        let mut market = market("AL2023", 31).await;
        let image = |id: &str, variant: ImageVariant| AmiStatus {
            id: id.to_owned(),
            deprecated: false,
            name: String::new(),
            requirements: variant.requirements(),
        };
        market.images = vec![
            image("ami-nvidia", ImageVariant::Nvidia),
            image("ami-standard", ImageVariant::Standard),
        ];
        let both = [of_types(&["g4dn.xlarge", "m5.24xlarge"])];
        assert_eq!(tried(&market, &both), in_both_zones("m5.24xlarge"));
        let gpus = [of_types(&["g4dn.xlarge"])];
        assert_eq!(tried(&market, &gpus), in_both_zones("g4dn.xlarge"));
    }

    #[tokio::test]
    async fn for_windows_a_usual_type_is_tried_whatever_pools_say() {
        let market = market("Windows2022", 31).await;
        let pools = [of_types(&["c5.large"])];
        assert_eq!(tried(&market, &pools), in_both_zones("m5.large"));
    }
}
