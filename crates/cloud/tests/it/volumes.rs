//! Volumes that are smaller than the snapshots of the images they begin with.

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::{
    CapacityType, Clock, CloudError, CloudProvider, LaunchClass, LaunchOption, LaunchRequest,
    NodeTemplate, Speed,
    sim::{Config, SimulatedEc2},
};
use serde_json::{Value, json};

use crate::order;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn ec2() -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", KubernetesVersion::NEWEST)
    };
    SimulatedEc2::new(config, Clock::system())
}

fn option(name: &str) -> LaunchOption {
    LaunchOption {
        instance_type: name.to_owned(),
        zone: "us-west-2a".to_owned(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        placement: None,
    }
}

fn request(family: AmiFamily, mappings: Value) -> LaunchRequest {
    let spec = json!({ "blockDeviceMappings": mappings });
    let class = LaunchClass {
        spec: serde_json::from_value(spec).unwrap(),
        instance_profile: "nodes".to_owned(),
    };
    let template = NodeTemplate::new(family, KubernetesVersion::NEWEST);
    LaunchRequest {
        class: Some(Box::new(class)),
        ..order(&mappings.to_string(), option("m5.large"), template)
    }
}

/// Returns a mapping of a volume of this size.
fn volume(device: &str, size: &str) -> Value {
    json!({ "deviceName": device, "ebs": { "volumeSize": size } })
}

/// Returns EC2's message on a launch without the snapshot's id, which a dry run has to agree with; `None` if an instance was bought.
async fn refused(family: AmiFamily, mappings: Value) -> Option<String> {
    let ec2 = ec2();
    let request = request(family, mappings);
    let tried = ec2.denied_call(request.clone()).await;
    match (tried, ec2.launch(request).await) {
        (Ok(None), Ok(_)) => None,
        (
            Err(CloudError::Unfulfilled { code, message }),
            Err(CloudError::Unfulfilled { message: again, .. }),
        ) => {
            assert_eq!(code, "InvalidBlockDeviceMapping");
            assert_eq!(message, again);
            assert!(ec2.instances().is_empty());
            let (start, end) = message.split_once(" snapshot 'snap-0").unwrap();
            let (id, end) = end.split_once('\'').unwrap();
            assert_eq!(id.len(), 16);
            Some(format!("{start}{end}"))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_volume_that_is_smaller_than_the_snapshot_of_its_image_is_refused() {
    use AmiFamily::{AmazonLinux2, AmazonLinux2023, Bottlerocket};
    let cases = [
        (WINDOWS, "/dev/sda1", "30Gi", Some((30, 50))),
        (WINDOWS, "/dev/sda1", "50Gi", None),
        // Sizes are rounded up to whole GiB, as Karpenter does.
        (WINDOWS, "/dev/sda1", "53G", None),
        (WINDOWS, "/dev/sda1", "50G", Some((47, 50))),
        (AmazonLinux2023, "/dev/xvda", "10Gi", Some((10, 20))),
        (AmazonLinux2023, "/dev/xvda", "20Gi", None),
        (AmazonLinux2, "/dev/xvda", "4Gi", None),
        (Bottlerocket, "/dev/xvda", "1Gi", Some((1, 2))),
        (Bottlerocket, "/dev/xvdb", "1Gi", None),
        // On any other device the volume is another one, and empty.
        (WINDOWS, "/dev/xvda", "5Gi", None),
    ];
    for (family, device, size, expected) in cases {
        let expected = expected.map(|(size, least): (u64, u64)| {
            format!("Volume of size {size}GB is smaller than, expect size>= {least}GB")
        });
        let told = refused(family, json!([volume(device, size)])).await;
        assert_eq!(told, expected, "{family} {device} {size}");
    }
}

#[tokio::test]
async fn a_volume_without_a_size_or_with_a_snapshot_of_its_own_is_not_compared() {
    assert_eq!(refused(WINDOWS, json!([])).await, None);
    let own = json!({ "volumeSize": "5Gi", "snapshotID": "snap-1" });
    for ebs in [own, json!({ "volumeType": "gp3" })] {
        let mapping = json!([{ "deviceName": "/dev/sda1", "ebs": ebs }]);
        assert_eq!(refused(WINDOWS, mapping).await, None);
    }
}

#[tokio::test]
async fn a_launch_goes_on_to_an_option_whose_image_fits_and_else_tells_of_the_volume() {
    let ec2 = ec2();
    // The image for NVIDIA GPUs has a larger snapshot than the other one.
    let small = json!([volume("/dev/xvda", "2Gi")]);
    let mut request = request(AmiFamily::Bottlerocket, small);
    request.options = vec![option("g4dn.xlarge"), option("m5.large")];
    let bought = ec2.launch(request.clone()).await.unwrap();
    assert_eq!(&*bought.instance.instance_type.name, "m5.large");
    ec2.exhaust("m5.large".parse().unwrap());
    request.client_token = "another".to_owned();
    let told = ec2.launch(request).await.unwrap_err();
    assert!(matches!(told, CloudError::Unfulfilled { .. }), "{told}");
}
