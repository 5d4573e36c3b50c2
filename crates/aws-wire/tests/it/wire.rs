//! A client that sends forms and finds elements in answers.

use axum::{body::Body, http::Request};
use http_body_util::BodyExt;
use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion};
use mullion_aws_wire::{Endpoint, Settings};
use mullion_cloud::{Clock, Speed, catalogue::Arch, image::NodeImage, sim};
use tower::ServiceExt;

pub(crate) struct Wire {
    pub(crate) endpoint: Endpoint,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(edit: impl FnOnce(&mut sim::Config)) -> Self {
        let mut config = sim::Config::new("demo", "us-west-2", KubernetesVersion::NEWEST);
        config.speed = Speed::INSTANT;
        edit(&mut config);
        let ec2 = sim::SimulatedEc2::new(config, Clock::system());
        Self {
            endpoint: Endpoint::new(ec2, Settings::default()),
        }
    }

    /// Sends a request of EC2's.
    pub(crate) async fn ec2(&self, action: &str, params: &[(&str, &str)]) -> Answer {
        let all = [("Action", action), ("Version", "2016-11-15")];
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(all.iter().chain(params));
        let request = Request::post("/")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE")
            .body(Body::from(form.finish()))
            .unwrap();
        self.send(request).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.endpoint.router().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Makes a launch template with the newest image of a family.
    pub(crate) async fn template(&self, name: &str, family: AmiFamily) -> String {
        let image = NodeImage::new(family, KubernetesVersion::NEWEST, Arch::Amd64);
        let answer = self
            .ec2(
                "CreateLaunchTemplate",
                &[
                    ("LaunchTemplateName", name),
                    ("LaunchTemplateData.ImageId", &image.id),
                    ("LaunchTemplateData.MetadataOptions.HttpTokens", "required"),
                ],
            )
            .await;
        answer.one("launchTemplateId")
    }

    /// Buys one on-demand instance of a type in a zone, or of the cheapest if the zone is empty.
    pub(crate) async fn fleet(&self, token: &str, kind: &str, zone: &str) -> Answer {
        let prefix = "LaunchTemplateConfigs.1";
        let names = [
            format!("{prefix}.LaunchTemplateSpecification.LaunchTemplateName"),
            format!("{prefix}.LaunchTemplateSpecification.Version"),
            format!("{prefix}.Overrides.1.InstanceType"),
            format!("{prefix}.Overrides.1.AvailabilityZone"),
        ];
        let values = ["al2023", "$Latest", kind, zone];
        let mut params: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values).collect();
        params.extend([
            ("Type", "instant"),
            ("ClientToken", token),
            ("TargetCapacitySpecification.TotalTargetCapacity", "1"),
            (
                "TargetCapacitySpecification.DefaultTargetCapacityType",
                "on-demand",
            ),
        ]);
        self.ec2("CreateFleet", &params).await
    }

    /// Buys an instance and returns its id.
    pub(crate) async fn instance(&self, token: &str) -> String {
        let known = self.ec2("DescribeLaunchTemplates", &[]).await;
        if !known.body.contains(">al2023<") {
            self.template("al2023", AmiFamily::AmazonLinux2023).await;
        }
        let bought = self.fleet(token, "m5.large", "us-west-2a").await;
        bought.all("instanceIds")[0]
            .replace("<item>", "")
            .replace("</item>", "")
    }
}

impl Answer {
    /// Returns the content of every element of a name, those inside others of the name left out.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut found = Vec::new();
        let mut rest = self.body.as_str();
        while let Some((_, after)) = rest.split_once(&open) {
            let (content, after) = after.split_once(&close).expect("a closed element");
            found.push(content.to_owned());
            rest = after;
        }
        found
    }

    /// Returns the content of the only element of a name.
    pub(crate) fn one(&self, name: &str) -> String {
        let mut all = self.all(name);
        assert_eq!(all.len(), 1, "{name} in {}", self.body);
        all.remove(0)
    }

    /// Returns status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status, self.one("Code"))
    }
}
