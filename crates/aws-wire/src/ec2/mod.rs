//! The actions of EC2 (API version 2016-11-15) over the simulated EC2.
//!
//! Invariant: an action reads all of its request, then asks [`Call::complete`], and only then changes anything.

mod fleet;
mod ids;
mod images;
mod instance_types;
mod instances;
mod interfaces;
mod launch;
mod launch_templates;
mod network;
mod places;
mod prices;
mod run;
mod tags;
mod user_data;

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard},
};

use axum::{
    body::Body,
    http::{Response, StatusCode, header},
};
use mullion_cloud::{InstanceId, sim::SimulatedEc2};

pub(crate) use ids::IdGenerator;
pub(crate) use launch_templates::time;
pub(crate) use prices::usd;

use crate::{
    Endpoint,
    endpoint::Blocked,
    query::{ParamScope, Params},
    refusal::Refusal,
    xml::Xml,
};
use launch::{ClientTokens, LaunchRecord};
use launch_templates::LaunchTemplate;

/// The XML namespace of responses.
const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";
const VERSION: &str = "2016-11-15";

/// The state of the endpoint that the simulated EC2 does not have.
pub(crate) struct EndpointState {
    pub(crate) ids: IdGenerator,
    templates: Vec<LaunchTemplate>,
    launched: HashMap<InstanceId, LaunchRecord>,
    tokens: ClientTokens,
}

impl EndpointState {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            ids: IdGenerator::new(seed),
            templates: Vec::new(),
            launched: HashMap::new(),
            tokens: ClientTokens::default(),
        }
    }
}

/// One request and the endpoint that handles it.
struct Call<'a> {
    endpoint: &'a Endpoint,
    params: &'a Params,
    action: &'a str,
    request_id: &'a str,
}

impl<'a> Call<'a> {
    fn ec2(&self) -> &'a SimulatedEc2 {
        self.endpoint.ec2()
    }

    fn root(&self) -> ParamScope<'a> {
        self.params.root()
    }

    fn state(&self) -> MutexGuard<'a, EndpointState> {
        self.endpoint.state()
    }

    fn account_id(&self) -> &'a str {
        &self.endpoint.settings().account_id
    }

    /// Checks that every parameter of the request was read.
    fn complete(&self) -> Result<(), Refusal> {
        self.params.complete()
    }

    fn answer(&self, content: impl FnOnce(&mut Xml)) -> Vec<u8> {
        let root = format!("{}Response", self.action);
        Xml::document(&root, Some(NAMESPACE), |xml| {
            xml.leaf("requestId", self.request_id);
            content(xml);
        })
    }

    /// Refuses a call that is throttled or that the caller may not make.
    fn admit(&self) -> Result<(), Refusal> {
        if self.ec2().throttles() {
            return Err(Refusal::too_many());
        }
        let admitted = self.endpoint.admit("ec2", self.action);
        admitted.map_err(|blocked| match blocked {
            Blocked::Throttled => Refusal::too_many(),
            Blocked::Denied(why) => unauthorized(&why),
        })
    }
}

/// Runs the action of a request and returns the response.
pub(crate) async fn answer(
    endpoint: &Endpoint,
    params: &Params,
    request_id: &str,
) -> Response<Body> {
    let root = params.root();
    let call = Call {
        endpoint,
        params,
        action: root.text("Action").unwrap_or_default(),
        request_id,
    };
    let done = match root.text("Version") {
        Some(VERSION) => run_action(&call).await,
        other => Err(Refusal::new(
            "InvalidAction",
            format!(
                "The action {} is not valid for version {} of this web service; EC2's is {VERSION}.",
                call.action,
                other.unwrap_or("(none)")
            ),
        )),
    };
    match done {
        Ok(xml) => respond(StatusCode::OK, xml),
        Err(refusal) => refuse(&refusal, request_id),
    }
}

async fn run_action(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    if call.action.is_empty() {
        return Err(Refusal::new(
            "MissingAction",
            "The request is missing an action or a required parameter.",
        ));
    }
    call.admit()?;
    match call.action {
        "AssignPrivateIpAddresses" => interfaces::assign(call).await,
        "CreateFleet" => fleet::create(call).await,
        "CreateLaunchTemplate" => launch_templates::create(call),
        "CreateTags" => tags::create(call),
        "DeleteLaunchTemplate" => launch_templates::delete(call),
        "DescribeAvailabilityZones" => places::describe_zones(call),
        "DescribeCapacityReservations" => places::describe_reservations(call),
        "DescribeImages" => images::describe(call),
        "DescribeInstanceStatus" => places::describe_status(call).await,
        "DescribeInstanceTypeOfferings" => instance_types::describe_offerings(call).await,
        "DescribeInstanceTypes" => instance_types::describe(call).await,
        "DescribeInstances" => instances::describe(call),
        "DescribeLaunchTemplates" => launch_templates::describe(call),
        "DescribeNetworkInterfaces" => interfaces::describe(call).await,
        "DescribePlacementGroups" => places::describe_groups(call),
        "DescribeSecurityGroups" => network::describe_groups(call),
        "DescribeSpotPriceHistory" => prices::describe(call).await,
        "DescribeSubnets" => network::describe_subnets(call),
        "RunInstances" => run::run(call).await,
        "TerminateInstances" => instances::terminate(call).await,
        "UnassignPrivateIpAddresses" => interfaces::unassign(call).await,
        other => Err(Refusal::new(
            "InvalidAction",
            format!("The action {other} is not valid for this web service."),
        )),
    }
}

fn unauthorized(why: &str) -> Refusal {
    Refusal::with(
        StatusCode::FORBIDDEN,
        "UnauthorizedOperation",
        format!("You are not authorized to perform this operation. {why}"),
    )
}

/// Writes a refusal as EC2 does.
///
/// EC2 is older than the Query protocol of the other services: its root element is `Response`, its errors are a list, and the id of the request
/// is spelt `RequestID`. SDKs parse it separately.
pub(crate) fn refuse(refusal: &Refusal, request_id: &str) -> Response<Body> {
    let xml = Xml::document("Response", None, |xml| {
        xml.node("Errors", |xml| {
            xml.node("Error", |xml| {
                xml.leaf("Code", &refusal.code);
                xml.leaf("Message", &refusal.message);
            });
        });
        xml.leaf("RequestID", request_id);
    });
    respond(refusal.status, xml)
}

pub(crate) fn respond(status: StatusCode, xml: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(xml));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/xml;charset=UTF-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Writes tags.
fn write_tags<'t>(xml: &mut Xml, tags: impl IntoIterator<Item = (&'t String, &'t String)>) {
    xml.list("tagSet", tags, |xml, (key, value)| {
        xml.leaf("key", key);
        xml.leaf("value", value);
    });
}

/// A name of which clones share the text.
type Name = Arc<str>;
