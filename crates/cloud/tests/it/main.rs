//! Tests of the simulated EC2, used as controllers use it.

mod addresses;
mod groups;
mod images;
mod ledger;
mod messages;
mod permissions;
mod remote;
mod reservations;
mod simulated_ec2;
mod volumes;

use std::collections::BTreeMap;

use mullion_cloud::{LaunchOption, LaunchRequest, NodeTemplate, Registration};

/// Returns the order of a machine that may be what one option says.
fn order(token: &str, option: LaunchOption, template: NodeTemplate) -> LaunchRequest {
    LaunchRequest {
        client_token: token.to_owned(),
        options: vec![option],
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template,
        registration: Registration::default(),
        tags: BTreeMap::new(),
        class: None,
    }
}
