//! Addresses and prefixes on the interface of an instance.

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion};
use mullion_cloud::{catalogue::Arch, image::NodeImage};

use crate::wire::{Answer, Wire};

struct Interface {
    wire: Wire,
    id: String,
}

impl Interface {
    async fn new() -> Self {
        let wire = Wire::new();
        let instance = wire.instance("t").await;
        let id = instance.replace("i-", "eni-");
        Self { wire, id }
    }

    async fn call(&self, action: &str, params: &[(&str, &str)]) -> Answer {
        let id = [("NetworkInterfaceId", self.id.as_str())];
        let params: Vec<_> = id.iter().chain(params).copied().collect();
        self.wire.ec2(action, &params).await
    }

    async fn described(&self) -> Answer {
        // A listing lags behind for a second at most.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let id = [("NetworkInterfaceId.1", self.id.as_str())];
        self.wire.ec2("DescribeNetworkInterfaces", &id).await
    }
}

#[tokio::test(start_paused = true)]
async fn prefixes_are_assigned_described_and_given_back() {
    let interface = Interface::new().await;
    let count = [("Ipv4PrefixCount", "2")];
    let given = interface.call("AssignPrivateIpAddresses", &count).await;
    let prefixes = given.all("ipv4Prefix");
    assert_eq!(prefixes.len(), 2, "{given:?}");
    assert!(prefixes.iter().all(|own| own.ends_with("/28")));
    let mut described = interface.described().await.all("ipv4Prefix");
    described.sort();
    let mut sorted = prefixes.clone();
    sorted.sort();
    assert_eq!(described, sorted);
    let one = [("Ipv4Prefix.1", prefixes[0].as_str())];
    let back = interface.call("UnassignPrivateIpAddresses", &one).await;
    assert_eq!(back.one("return"), "true");
    assert_eq!(
        interface.described().await.all("ipv4Prefix"),
        [prefixes[1].as_str()]
    );
    let twice = interface.call("UnassignPrivateIpAddresses", &one).await;
    assert_eq!(twice.refusal().1, "InvalidParameterValue");
}

#[tokio::test(start_paused = true)]
async fn an_interface_has_no_more_than_its_slots() {
    let interface = Interface::new().await;
    // An m5.large has ten addresses, one of which is the instance's own.
    let ten = [("SecondaryPrivateIpAddressCount", "10")];
    let refused = interface.call("AssignPrivateIpAddresses", &ten).await;
    assert_eq!(refused.refusal().1, "PrivateIpAddressLimitExceeded");
    let nine = [("SecondaryPrivateIpAddressCount", "9")];
    let given = interface.call("AssignPrivateIpAddresses", &nine).await;
    assert_eq!(given.all("privateIpAddress").len(), 9);
    assert!(
        interface
            .described()
            .await
            .one("privateIpAddressesSet")
            .contains("<primary>true</primary>")
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_say_too_much_or_too_little_are_refused() {
    let interface = Interface::new().await;
    let refused = async |action: &str, params: &[(&str, &str)]| {
        interface.call(action, params).await.refusal().1
    };
    let assign = "AssignPrivateIpAddresses";
    assert_eq!(refused(assign, &[]).await, "MissingParameter");
    let both = [
        ("SecondaryPrivateIpAddressCount", "1"),
        ("Ipv4PrefixCount", "1"),
    ];
    assert_eq!(refused(assign, &both).await, "InvalidParameterCombination");
    let chosen = [("PrivateIpAddress.1", "10.0.0.9")];
    assert_eq!(refused(assign, &chosen).await, "UnsupportedOperation");
    let none = [("Ipv4PrefixCount", "0")];
    assert_eq!(refused(assign, &none).await, "InvalidParameterValue");
    let unassign = "UnassignPrivateIpAddresses";
    let crooked = [("Ipv4Prefix.1", "10.0.0.0/24")];
    assert_eq!(refused(unassign, &crooked).await, "InvalidParameterValue");
    let gone = [("NetworkInterfaceId.1", "eni-00000000000000000")];
    let gone = interface.wire.ec2("DescribeNetworkInterfaces", &gone).await;
    assert_eq!(gone.refusal().1, "InvalidNetworkInterfaceID.NotFound");
}

#[tokio::test(start_paused = true)]
async fn an_instance_has_the_prefixes_of_its_launch_or_is_not_launched() {
    let wire = Wire::with(|config| config.subnet_bits = Some(25));
    let image = NodeImage::new(
        AmiFamily::AmazonLinux2023,
        KubernetesVersion::NEWEST,
        Arch::Amd64,
    );
    let run = |prefixes: &'static str| {
        [
            ("ImageId", image.id.as_str()),
            ("InstanceType", "m5.large"),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("Placement.AvailabilityZone", "us-west-2c"),
            ("NetworkInterface.1.DeviceIndex", "0"),
            ("NetworkInterface.1.Ipv4PrefixCount", prefixes),
        ]
    };
    let bought = wire.ec2("RunInstances", &run("2")).await;
    assert_eq!(bought.status, 200, "{bought:?}");
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let described = wire.ec2("DescribeInstances", &[]).await;
    assert_eq!(described.all("ipv4Prefix").len(), 2);
    // A subnet of 128 addresses has no room for so many.
    let none = wire.ec2("RunInstances", &run("9")).await;
    assert_eq!(none.refusal().1, "InvalidParameterValue");
    let filter = [
        ("Filter.1.Name", "instance-state-name"),
        ("Filter.1.Value.1", "running"),
    ];
    let running = wire.ec2("DescribeInstances", &filter).await;
    assert_eq!(running.all("imageId").len(), 1);
}
