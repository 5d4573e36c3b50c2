//! Buying instances.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use mullion_api::{
    account::CapacityReservation,
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::{Speed, catalogue::Arch, image::NodeImage};
use tokio::time::timeout;

use crate::wire::Wire;

async fn ready() -> Wire {
    let wire = Wire::new();
    wire.template("al2023", AmiFamily::AmazonLinux2023).await;
    wire
}

#[tokio::test(start_paused = true)]
async fn a_token_buys_once_and_not_with_another_request() {
    let wire = ready().await;
    let first = wire.fleet("t", "m5.large", "us-west-2a").await;
    assert_eq!(first.status, 200, "{first:?}");
    let again = wire.fleet("t", "m5.large", "us-west-2a").await;
    assert_eq!(again.one("instanceIds"), first.one("instanceIds"));
    assert_eq!(again.one("fleetId"), first.one("fleetId"));
    let other = wire.fleet("t", "m5.xlarge", "us-west-2a").await;
    assert_eq!(
        other.refusal(),
        (400, "IdempotentParameterMismatch".to_owned())
    );
    assert_eq!(wire.endpoint.ec2().instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_launch_whose_client_has_gone_away_is_found_again_by_its_token() {
    let wire = Wire::with(|config| config.speed = Speed::REAL);
    wire.template("al2023", AmiFamily::AmazonLinux2023).await;
    let asked = wire.fleet("t", "m5.large", "us-west-2a");
    let gone = timeout(Duration::from_secs(1), asked).await;
    assert!(gone.is_err(), "the call takes longer");
    let again = wire.fleet("t", "m5.large", "us-west-2a").await;
    let bought = wire.endpoint.ec2().instances();
    assert_eq!(bought.len(), 1);
    assert!(again.one("instanceIds").contains(&*bought[0].id.0));
}

#[tokio::test(start_paused = true)]
async fn user_data_makes_the_labels_and_taints_of_the_node() {
    let wire = Wire::new();
    let image = NodeImage::new(
        AmiFamily::AmazonLinux2,
        KubernetesVersion::NEWEST,
        Arch::Amd64,
    );
    let script = "/etc/eks/bootstrap.sh 'demo' --kubelet-extra-args '--node-labels=\"team=web\" --register-with-taints=\"a=b:NoSchedule\" --max-pods=20'";
    let script = BASE64_STANDARD.encode(script);
    let answer = wire
        .ec2(
            "RunInstances",
            &[
                ("ImageId", image.id.as_str()),
                ("InstanceType", "m5.large"),
                ("MinCount", "1"),
                ("MaxCount", "1"),
                ("UserData", &script),
            ],
        )
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let bought = wire.endpoint.ec2().instances();
    assert_eq!(bought[0].registration.labels["team"], "web");
    assert_eq!(bought[0].registration.taints[0].key, "a");
    assert_eq!(bought[0].capacity.pods, 20);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_had_is_told_for_each_option() {
    let wire = ready().await;
    wire.endpoint.ec2().exhaust("m5.large".parse().unwrap());
    let answer = wire.fleet("t", "m5.large", "us-west-2b").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.one("errorCode"), "InsufficientInstanceCapacity");
    assert_eq!(answer.one("availabilityZone"), "us-west-2b");
    assert_eq!(answer.one("lifecycle"), "on-demand");
    assert!(
        answer
            .one("errorMessage")
            .starts_with("We currently do not")
    );
    assert_eq!(answer.one("fleetInstanceSet"), "");
    let wrong = wire.fleet("u", "zz9.plural", "us-west-2b").await;
    assert_eq!(wrong.one("errorCode"), "InvalidFleetConfiguration");
}

#[tokio::test(start_paused = true)]
async fn a_type_that_is_not_sold_with_windows_is_unsupported_in_a_fleet() {
    let wire = Wire::new();
    let windows = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
    // Fleets of these tests take the template of this name.
    wire.template("al2023", windows).await;
    let answer = wire.fleet("t", "trn1.2xlarge", "us-west-2a").await;
    // Karpenter tries other types for this code alone.
    assert_eq!(answer.one("errorCode"), "Unsupported");
    assert_eq!(answer.one("fleetInstanceSet"), "");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_buys_the_cheapest_and_goes_on_to_the_next_when_it_is_sold_out() {
    let wire = ready().await;
    wire.endpoint
        .ec2()
        .exhaust("m5.large/us-west-2a".parse().unwrap());
    let prefix = "LaunchTemplateConfigs.1";
    let name = format!("{prefix}.LaunchTemplateSpecification.LaunchTemplateName");
    let version = format!("{prefix}.LaunchTemplateSpecification.Version");
    let kinds = ["m5.4xlarge", "m5.large", "m5.xlarge"];
    let overrides: Vec<_> = (1..=3)
        .map(|n| format!("{prefix}.Overrides.{n}"))
        .map(|at| {
            [
                format!("{at}.InstanceType"),
                format!("{at}.AvailabilityZone"),
            ]
        })
        .collect();
    let mut params = vec![
        (name.as_str(), "al2023"),
        (version.as_str(), "1"),
        ("Type", "instant"),
        ("OnDemandOptions.AllocationStrategy", "lowest-price"),
        ("TargetCapacitySpecification.TotalTargetCapacity", "2"),
        (
            "TargetCapacitySpecification.DefaultTargetCapacityType",
            "on-demand",
        ),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "karpenter.sh/nodepool"),
        ("TagSpecification.1.Tag.1.Value", "default"),
    ];
    for (names, kind) in overrides.iter().zip(kinds) {
        params.extend([(names[0].as_str(), kind), (names[1].as_str(), "us-west-2a")]);
    }
    let answer = wire.ec2("CreateFleet", &params).await;
    assert_eq!(answer.all("errorCode"), ["InsufficientInstanceCapacity"]);
    assert_eq!(answer.one("instanceIds").matches("<item>").count(), 2);
    let bought = wire.endpoint.ec2().instances();
    assert!(
        bought
            .iter()
            .all(|own| &*own.instance_type.name == "m5.xlarge")
    );
    assert_eq!(bought[0].tags["karpenter.sh/nodepool"], "default");
    assert_eq!(bought[0].tags["aws:ec2:fleet-id"], answer.one("fleetId"));
}

#[tokio::test(start_paused = true)]
async fn wrong_fleets_are_refused_as_ec2_does() {
    let wire = ready().await;
    let version = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version";
    let name = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
    let one = "TargetCapacitySpecification.TotalTargetCapacity";
    let kind = "TargetCapacitySpecification.DefaultTargetCapacityType";
    let base = [("Type", "instant"), (one, "1"), (kind, "spot")];
    let refused = async |params: &[(&str, &str)]| {
        let params: Vec<_> = base.iter().chain(params).copied().collect();
        wire.ec2("CreateFleet", &params).await.refusal().1
    };
    assert_eq!(refused(&[]).await, "MissingParameter");
    assert_eq!(
        refused(&[(name, "gone"), (version, "1")]).await,
        "InvalidLaunchTemplateName.NotFoundException"
    );
    assert_eq!(
        refused(&[(name, "al2023"), (version, "7")]).await,
        "InvalidLaunchTemplateId.VersionNotFound"
    );
    let strategy = ("SpotOptions.AllocationStrategy", "luck");
    assert_eq!(
        refused(&[(name, "al2023"), (version, "1"), strategy]).await,
        "InvalidParameterValue"
    );
    let unknown = ("SpotOptions.MinTargetCapacity", "1");
    assert_eq!(
        refused(&[(name, "al2023"), (version, "1"), unknown]).await,
        "UnknownParameter"
    );
    let dry = ("DryRun", "true");
    assert_eq!(
        refused(&[(name, "al2023"), (version, "1"), dry]).await,
        "DryRunOperation"
    );
    assert_eq!(wire.endpoint.ec2().instances().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_launch_template_with_a_reservation_runs_in_it_until_it_is_full() {
    let wire = Wire::new();
    let reservation = CapacityReservation {
        instance_type: "m5.large".to_owned(),
        availability_zone: "us-west-2a".to_owned(),
        total_instance_count: 1,
        ..CapacityReservation::default()
    };
    let all = BTreeMap::from([("cr-1".to_owned(), reservation)]);
    wire.endpoint.ec2().reserve(&all);
    let image = NodeImage::new(
        AmiFamily::AmazonLinux2023,
        KubernetesVersion::NEWEST,
        Arch::Amd64,
    );
    let target = "LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";
    let data = [
        ("LaunchTemplateName", "al2023"),
        ("LaunchTemplateData.ImageId", image.id.as_str()),
        (target, "cr-1"),
    ];
    assert_eq!(wire.ec2("CreateLaunchTemplate", &data).await.status, 200);
    let bought = wire.fleet("a", "m5.large", "us-west-2a").await;
    assert_eq!(bought.one("lifecycle"), "on-demand");
    let described = wire.ec2("DescribeInstances", &[]).await;
    assert_eq!(described.one("capacityReservationId"), "cr-1");
    assert_eq!(described.all("instanceLifecycle"), [""; 0]);
    let reserved = wire.ec2("DescribeCapacityReservations", &[]).await;
    assert_eq!(reserved.one("availableInstanceCount"), "0");
    let full = wire.fleet("b", "m5.large", "us-west-2a").await;
    assert_eq!(full.one("errorCode"), "ReservationCapacityExceeded");
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_a_capacity_block_is_told_by_its_lifecycle() {
    let wire = Wire::new();
    let block = CapacityReservation {
        instance_type: "p5.48xlarge".to_owned(),
        availability_zone: "us-west-2a".to_owned(),
        total_instance_count: 1,
        reservation_type: "capacity-block".to_owned(),
        end_date: "2099-01-01T00:00:00Z".to_owned(),
        ..CapacityReservation::default()
    };
    let all = BTreeMap::from([("cr-1".to_owned(), block)]);
    wire.endpoint.ec2().reserve(&all);
    let image = NodeImage::new(
        AmiFamily::AmazonLinux2023,
        KubernetesVersion::NEWEST,
        Arch::Amd64,
    );
    let run = [
        ("ImageId", image.id.as_str()),
        ("InstanceType", "p5.48xlarge"),
        ("MinCount", "1"),
        ("MaxCount", "1"),
        ("InstanceMarketOptions.MarketType", "capacity-block"),
        (
            "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
            "cr-1",
        ),
    ];
    let bought = wire.ec2("RunInstances", &run).await;
    assert_eq!(bought.one("instanceLifecycle"), "capacity-block");
    let again = wire.ec2("RunInstances", &run).await;
    assert_eq!(again.refusal().1, "ReservationCapacityExceeded");
}

#[tokio::test(start_paused = true)]
async fn an_instance_has_the_tenancy_that_its_launch_asks_for() {
    let wire = Wire::new();
    let image = NodeImage::new(
        AmiFamily::AmazonLinux2023,
        KubernetesVersion::NEWEST,
        Arch::Amd64,
    );
    let run = async |tenancy: &str| {
        let run = [
            ("ImageId", image.id.as_str()),
            ("InstanceType", "m5.large"),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("Placement.Tenancy", tenancy),
        ];
        wire.ec2("RunInstances", &run).await
    };
    for tenancy in ["default", "dedicated"] {
        assert_eq!(run(tenancy).await.one("tenancy"), tenancy);
        let filter = [("Filter.1.Name", "tenancy"), ("Filter.1.Value.1", tenancy)];
        let found = wire.ec2("DescribeInstances", &filter).await;
        assert_eq!(found.one("tenancy"), tenancy);
    }
    assert_eq!(run("host").await.refusal().1, "InvalidParameterValue");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_whose_caller_may_not_run_instances_buys_nothing() {
    let wire = ready().await;
    wire.endpoint.faults().deny("ec2:RunInstances");
    let answer = wire.fleet("a", "m5.large", "us-west-2a").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.one("errorCode"), "UnauthorizedOperation");
    assert!(wire.endpoint.ec2().instances().is_empty());
    wire.endpoint.faults().allow("ec2:RunInstances");
    wire.endpoint.ec2().deny(&["ec2:CreateFleet".to_owned()]);
    let answer = wire.fleet("b", "m5.large", "us-west-2a").await;
    assert_eq!(answer.refusal(), (403, "UnauthorizedOperation".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_volume_smaller_than_its_snapshot_fails_each_option_and_every_run() {
    let wire = Wire::new();
    let windows = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
    let image = NodeImage::new(windows, KubernetesVersion::NEWEST, Arch::Amd64);
    let device = "LaunchTemplateData.BlockDeviceMapping.1";
    let names = [
        format!("{device}.DeviceName"),
        format!("{device}.Ebs.VolumeSize"),
    ];
    let template = [
        // Fleets of these tests take the template of this name.
        ("LaunchTemplateName", "al2023"),
        ("LaunchTemplateData.ImageId", image.id.as_str()),
        (names[0].as_str(), "/dev/sda1"),
        (names[1].as_str(), "30"),
    ];
    let made = wire.ec2("CreateLaunchTemplate", &template).await;
    assert_eq!(
        made.status, 200,
        "EC2 does not look at volumes there: {made:?}"
    );
    let snapshot = image.snapshot_id("/dev/sda1");
    let message =
        format!("Volume of size 30GB is smaller than snapshot '{snapshot}', expect size>= 50GB");
    let fleet = wire.fleet("t", "m5.large", "us-west-2a").await;
    assert_eq!(fleet.status, 200);
    assert_eq!(fleet.one("errorCode"), "InvalidBlockDeviceMapping");
    assert_eq!(fleet.one("fleetInstanceSet"), "");
    let unescape = |text: &str| text.replace("&gt;", ">").replace("&apos;", "'");
    assert_eq!(unescape(&fleet.one("errorMessage")), message);
    let mut run = vec![
        ("LaunchTemplate.LaunchTemplateName", "al2023"),
        ("InstanceType", "m5.large"),
        ("MinCount", "1"),
        ("MaxCount", "1"),
    ];
    let code = "InvalidBlockDeviceMapping".to_owned();
    let told = wire.ec2("RunInstances", &run).await;
    assert_eq!(told.refusal(), (400, code.clone()));
    run.push(("DryRun", "true"));
    let tried = wire.ec2("RunInstances", &run).await;
    assert_eq!(tried.refusal(), (400, code));
    assert!(wire.endpoint.ec2().instances().is_empty());
}
