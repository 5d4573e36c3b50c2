//! A simulated EC2 behind the wire protocols of AWS, so that programs made for AWS can be tried without an account.
//!
//! Start with [`Endpoint`]: it holds a [`SimulatedEc2`](mullion_cloud::sim::SimulatedEc2) and the rest of an account, and
//! answers requests of any AWS client. [`serve`] does so on a listener, [`Endpoint::router`] without a socket:
//!
//! ```
//! # async fn example() -> std::io::Result<()> {
//! use mullion_api::eksctl::KubernetesVersion;
//! use mullion_aws_wire::{Endpoint, Settings};
//! use mullion_cloud::{Clock, Speed, sim};
//!
//! let config = sim::Config {
//!     speed: Speed::INSTANT,
//!     ..sim::Config::new("demo", "us-west-2", KubernetesVersion::NEWEST)
//! };
//! let ec2 = sim::SimulatedEc2::new(config, Clock::system());
//! let endpoint = Endpoint::new(ec2.clone(), Settings::default());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! // What AWS_ENDPOINT_URL is to be; credentials may be any.
//! let url = format!("http://{}", listener.local_addr()?);
//! tokio::spawn(mullion_aws_wire::serve(listener, endpoint.clone()));
//! // Faults: of capacity and addresses by the simulated EC2, of calls by the endpoint.
//! ec2.exhaust("m5.large/us-west-2a".parse().expect("a pattern"));
//! endpoint.faults().throttle("ec2:CreateFleet", 2);
//! endpoint.faults().deny("ec2:TerminateInstances");
//! # Ok(())
//! # }
//! ```
//!
//! All services answer at one address, as `AWS_ENDPOINT_URL` wants it: EC2, IAM and STS by the Query protocol (told apart by `Version`), SSM,
//! SQS and the Price List by JSON (by `X-Amz-Target`), EKS by REST (by path), and the instance metadata service without a signature. What is not served is refused with the service's own error for
//! an unknown action or parameter, so that no client believes that an ignored request took effect. Signatures are not verified: any credentials do.
//!
//! Other processes steer faults by `POST /mullion/faults` with JSON such as `{"exhaust": ["m5.large"], "deny": ["ec2:CreateFleet"],
//! "throttle": {"ec2:DescribeInstances": 2}, "cause": [{"fault": "spot-interruption", "target": "i-..."}]}`.
//!
//! Invariant: instances, addresses, prices and faults of capacity are those of the simulated EC2; this crate keeps only what that one has no
//! words for (launch templates, instance profiles, client tokens, who may see a new instance). `ec2` holds the actions of EC2.

// An `expect` says which invariant holds; tests may do without.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod control;
mod ec2;
mod endpoint;
mod faults;
mod filter;
mod iam;
mod imds;
mod json;
mod page;
mod query;
mod refusal;
mod settings;
mod sts;
mod xml;

pub use endpoint::{Endpoint, serve};
pub use faults::Faults;
pub use settings::Settings;
