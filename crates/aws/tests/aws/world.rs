//! A simulated EC2 on a loopback port, and an AWS provider that uses it.

use std::collections::BTreeMap;

use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_aws::{Aws, Settings, bootstrap::ClusterFacts};
use mullion_aws_wire::{Endpoint, serve};
use mullion_cloud::{
    CapacityType, Clock, LaunchClass, LaunchOption, LaunchRequest, NodeTemplate, Registration,
    Speed,
    sim::{Config, SimulatedEc2},
};

pub(crate) const WINDOWS: AmiFamily =
    AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
pub(crate) const REGION: &str = "us-west-2";

pub(crate) fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(35).expect("a version")
}

/// The objects that a test uses.
pub(crate) struct World {
    pub(crate) ec2: SimulatedEc2,
    pub(crate) endpoint: Endpoint,
    pub(crate) aws: Aws,
    config: SdkConfig,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(edit: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            speed: Speed::INSTANT,
            ..Config::new("demo", REGION, version())
        };
        edit(&mut config);
        let ec2 = SimulatedEc2::new(config, Clock::system());
        let endpoint = Endpoint::new(ec2.clone(), mullion_aws_wire::Settings::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port of loopback");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        tokio::spawn(serve(listener, endpoint.clone()));
        let config = sdk_config(&url);
        let aws = connect(&config).await;
        Self {
            ec2,
            endpoint,
            aws,
            config,
        }
    }

    /// Connects as another process of the same controller.
    pub(crate) async fn restarted(&self) -> Aws {
        connect(&self.config).await
    }

    /// Returns the names of the existing launch templates.
    pub(crate) async fn template_names(&self) -> Vec<String> {
        let ec2 = aws_sdk_ec2::Client::new(&self.config);
        let answer = ec2.describe_launch_templates().send().await;
        let answer = answer.expect("an answer");
        let names = answer.launch_templates().iter();
        let names = names.filter_map(|own| own.launch_template_name());
        names.map(str::to_owned).collect()
    }

    pub(crate) async fn delete_template(&self, name: &str) {
        let ec2 = aws_sdk_ec2::Client::new(&self.config);
        let call = ec2.delete_launch_template().launch_template_name(name);
        call.send().await.expect("it is deleted");
    }

    /// Returns the role of an instance profile.
    pub(crate) async fn role_of(&self, profile: &str) -> String {
        let iam = aws_sdk_iam::Client::new(&self.config);
        let call = iam.get_instance_profile().instance_profile_name(profile);
        let answer = call.send().await.expect("it is there");
        let profile = answer.instance_profile().expect("it is told");
        profile.roles()[0].role_name().to_owned()
    }
}

fn sdk_config(url: &str) -> SdkConfig {
    let credentials = Credentials::new("AKIDEXAMPLE", "secret", None, None, "test");
    let client = aws_smithy_http_client::Builder::new().build_http();
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(url)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(client)
        // Tests check the result of a single call, not of its retries.
        .retry_config(RetryConfig::disabled())
        .build()
}

async fn connect(config: &SdkConfig) -> Aws {
    let cluster = ClusterFacts {
        name: "demo".to_owned(),
        dns: Some("10.100.0.10".to_owned()),
        ..ClusterFacts::default()
    };
    let settings = Settings {
        cluster,
        interruption_queue: Some("demo".to_owned()),
        isolated_vpc: false,
        reserved_capacity: true,
    };
    let aws = Aws::connect(config, settings).await;
    aws.expect("EKS describes the cluster")
}

pub(crate) fn option(instance_type: &str, zone: &str, capacity_type: CapacityType) -> LaunchOption {
    LaunchOption {
        instance_type: instance_type.to_owned(),
        zone: zone.to_owned(),
        capacity_type,
        reservation: None,
        placement: None,
    }
}

/// Returns the launch request for a claim.
pub(crate) fn order(token: &str, family: AmiFamily, options: &[LaunchOption]) -> LaunchRequest {
    let tags = [
        ("Name", token),
        ("eks:eks-cluster-name", "demo"),
        ("karpenter.sh/nodeclaim", token),
        ("karpenter.sh/nodepool", "web"),
        ("karpenter.k8s.aws/ec2nodeclass", "web"),
    ];
    let tags: BTreeMap<_, _> = tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    LaunchRequest {
        client_token: token.to_owned(),
        options: options.to_vec(),
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template: NodeTemplate::new(family, version()),
        registration: Registration::default(),
        tags,
        class: Some(Box::new(LaunchClass {
            spec: Default::default(),
            instance_profile: "nodes".to_owned(),
        })),
    }
}
