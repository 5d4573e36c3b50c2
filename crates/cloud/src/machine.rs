//! Which instance types the nodes of a template can be, and what its network interfaces take from them.
//!
//! The rules are those of Karpenter's AWS provider (`pkg/providers/instancetype/compatibility`).

use mullion_api::{ami::AmiFamily, karpenter::NetworkInterface};

use crate::{NodeTemplate, catalogue::InstanceType};

/// The interface type of an Elastic Fabric Adapter that has no IP address.
const EFA_ONLY: &str = "efa-only";

impl NodeTemplate {
    /// Returns whether nodes can be of this type: whether it has the cards and interfaces that the class lists, and what its
    /// processor and network options need.
    pub fn suits(&self, instance_type: &InstanceType) -> bool {
        let has_place = |own: &NetworkInterface| {
            let card = u64::try_from(own.network_card_index);
            let device = u64::try_from(own.device_index);
            card.is_ok_and(|card| card < instance_type.network_cards)
                && device.is_ok_and(|device| device < instance_type.max_enis)
        };
        let efa_only = self.interfaces.iter().filter(|own| is_efa_only(own));
        let is_old_arm = instance_type.family() == "a1";
        self.interfaces.iter().all(has_place)
            && efa_only.count() as u64 <= instance_type.efa_interfaces
            && (!self.nests_virtual_machines || supports_nested_virtualization(instance_type))
            && (!self.tracks_connections || instance_type.hypervisor == "nitro")
            // AL2023 needs an ARMv8.2 processor.
            && !(is_old_arm && self.family == AmiFamily::AmazonLinux2023)
    }

    /// Returns how many Elastic Fabric Adapters a node of this type has for pods.
    pub fn efas_on(&self, instance_type: &InstanceType) -> u64 {
        match (self.family, self.interfaces.as_slice()) {
            // Windows has no driver for them.
            (AmiFamily::Windows(..), _) => 0,
            (_, []) if self.has_efas => instance_type.efa_interfaces,
            (_, []) => 0,
            (_, listed) => listed.iter().filter(|own| is_efa_only(own)).count() as u64,
        }
    }

    /// Returns how many interfaces of the first network card have no addresses for pods.
    pub(crate) fn without_addresses(&self) -> u64 {
        let listed = self.interfaces.iter();
        let on_first = listed.filter(|own| own.network_card_index == 0 && is_efa_only(own));
        on_first.count() as u64
    }
}

fn is_efa_only(interface: &NetworkInterface) -> bool {
    interface.interface_type == EFA_ONLY
}

/// Returns whether virtual machines of a type can run virtual machines: EC2's Intel types of generation 8 can.
fn supports_nested_virtualization(instance_type: &InstanceType) -> bool {
    let parts = instance_type.parts();
    parts.generation == Some(8)
        && matches!(parts.category, Some("c" | "m" | "r"))
        && instance_type.cpu_manufacturer.as_deref() == Some("intel")
        && !instance_type.bare_metal
}

#[cfg(test)]
mod tests {
    use mullion_api::{
        ami::{WindowsEdition, WindowsRelease},
        eksctl::KubernetesVersion,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::catalogue::{self, allocatable};

    fn template(spec: Value) -> NodeTemplate {
        let mut spec = spec;
        spec["amiFamily"] = json!("AL2023");
        let spec = serde_json::from_value(spec).unwrap();
        NodeTemplate::from_class(&spec, KubernetesVersion::NEWEST).unwrap()
    }

    fn kind(name: &str) -> &'static InstanceType {
        catalogue::get(name).unwrap()
    }

    #[test]
    fn listed_interfaces_need_their_cards_and_adapters() {
        let interface = |card: i32, device: i32, kind: &str| json!({ "networkCardIndex": card, "deviceIndex": device, "interfaceType": kind });
        let listed = |all: Vec<Value>| template(json!({ "networkInterfaces": all }));
        let first = interface(0, 0, "interface");
        let one = listed(vec![first.clone(), interface(0, 1, "efa-only")]);
        assert!(!one.suits(kind("m5.large")), "it has no adapter");
        assert!(one.suits(kind("c6i.32xlarge")));
        let cards = listed(vec![first.clone(), interface(3, 1, "efa-only")]);
        assert!(!cards.suits(kind("c6i.32xlarge")), "it has one card");
        assert!(cards.suits(kind("p5.48xlarge")));
        let devices = listed(vec![first, interface(0, 2, "interface")]);
        assert!(devices.suits(kind("m5.large")));
        assert!(!devices.suits(kind("p5.48xlarge")), "two on each card");
    }

    #[test]
    fn a_node_has_the_adapters_that_its_class_lists_or_else_those_of_its_type_if_pods_ask_for_them()
    {
        let amounts = |template: &NodeTemplate, name: &str| {
            let capacity = allocatable::of(kind(name), template).capacity;
            let efas = capacity.extended.get(mullion_api::labels::EFA).copied();
            (efas.unwrap_or_default(), capacity.pods)
        };
        let mut plain = template(json!({}));
        assert_eq!(amounts(&plain, "p5.48xlarge"), (0, 100));
        plain.has_efas = true;
        assert_eq!(amounts(&plain, "p5.48xlarge"), (32, 100));
        assert_eq!(amounts(&plain, "m5.large"), (0, 29));
        let listed = template(json!({ "networkInterfaces": [
            { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
            { "networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only" },
            { "networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only" },
        ]}));
        // Of the two interfaces of the first card one has no addresses.
        assert_eq!(amounts(&listed, "p5.48xlarge"), (2, 49 + 2));
        plain.family = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
        assert_eq!(amounts(&plain, "p5.48xlarge"), (0, 110));
    }

    #[test]
    fn options_of_the_class_exclude_types_that_do_not_have_them() {
        let nested = template(json!({ "cpuOptions": { "nestedVirtualization": "enabled" } }));
        for name in ["m8i.large", "c8i-flex.xlarge", "r8id.2xlarge"] {
            assert!(nested.suits(kind(name)), "{name}");
        }
        for name in ["m7i.large", "m8g.large", "m8a.large", "m8i.metal-48xl"] {
            assert!(!nested.suits(kind(name)), "{name}");
        }
        let disabled = template(json!({ "cpuOptions": { "nestedVirtualization": "disabled" } }));
        assert!(disabled.suits(kind("m7i.large")));
        let tracking = template(json!({ "connectionTracking": { "udpTimeout": 30 } }));
        assert!(tracking.suits(kind("m5.large")) && !tracking.suits(kind("t2.micro")));
        let plain = template(json!({}));
        assert!(!plain.suits(kind("a1.large")) && plain.suits(kind("m6g.large")));
        let al2 = NodeTemplate::new(AmiFamily::AmazonLinux2, KubernetesVersion::NEWEST);
        assert!(al2.suits(kind("a1.large")));
    }
}
