//! DescribeInstances and TerminateInstances.
//!
//! Invariant: an instance that was launched a moment ago is not described yet, as in EC2, which is eventually consistent.

use std::sync::Arc;

use mullion_api::ami::Os;
use mullion_cloud::{CapacityType, CloudError, CloudProvider, Instance, InstanceId, InstanceState};
use tokio::time::Instant;

use super::{
    Call,
    launch::{LaunchRecord, architecture, lifecycle},
    launch_templates::time,
    write_tags,
};
use crate::{
    filter::{FilterValues, Filters, one},
    page::{self, Page},
    refusal::Refusal,
    xml::Xml,
};

/// DescribeInstances.
pub(super) fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("InstanceId");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "instancesSet")?;
    root.accept(&["IncludeManagedResources"]);
    call.complete()?;
    let candidates = if ids.is_empty() {
        call.seen()
    } else {
        call.named(&ids)?
    };
    let mut found = Vec::new();
    for instance in candidates {
        let launched = call.launched(&instance.id);
        if filters.match_all(&instance.tags, |name| {
            look_up(call, &instance, launched.as_ref(), name)
        })? {
            found.push(instance);
        }
    }
    let (found, token) = page.take(found, |own| own.id.to_string());
    Ok(call.answer(|xml| {
        xml.list("reservationSet", &found, |xml, own| {
            xml.leaf("reservationId", reservation_id(&own.id));
            xml.leaf("ownerId", call.account_id());
            xml.list("groupSet", [(); 0], |_, ()| ());
            xml.list("instancesSet", [own], |xml, own| write(xml, call, own));
        });
        page::next(xml, token);
    }))
}

/// TerminateInstances.
pub(super) async fn terminate(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("InstanceId");
    root.accept(&["Force", "SkipOsShutdown"]);
    if ids.is_empty() {
        return Err(Refusal::missing("InstanceId"));
    }
    call.complete()?;
    // All or none: one that does not exist keeps the others alive.
    let named = call.named(&ids)?;
    let mut changes = Vec::new();
    for before in named {
        let gone = match call.ec2().terminate(before.id.clone()).await {
            Ok(()) => false,
            Err(CloudError::NotFound(_)) => true,
            Err(other) => return Err(other.into()),
        };
        // What is shutting down is not at once described as terminated, however fast it goes.
        let after = if gone || before.state == InstanceState::Terminated {
            InstanceState::Terminated
        } else {
            InstanceState::ShuttingDown
        };
        changes.push((before, after));
    }
    Ok(call.answer(|xml| {
        xml.list("instancesSet", changes, |xml, (before, after)| {
            xml.leaf("instanceId", &before.id);
            xml.node("currentState", |xml| write_state(xml, after));
            xml.node("previousState", |xml| write_state(xml, before.state));
        });
    }))
}

impl Call<'_> {
    pub(super) fn launched(&self, id: &InstanceId) -> Option<LaunchRecord> {
        self.state().launched.get(id).cloned()
    }

    /// Returns the instances that Describe calls show by now.
    pub(super) fn seen(&self) -> Vec<Arc<Instance>> {
        let now = Instant::now();
        let all = self.ec2().instances();
        let mut state = self.state();
        // What the simulated EC2 has forgotten is forgotten here, too.
        if state.launched.len() > 2 * all.len() + 1000 {
            let known: std::collections::HashSet<_> = all.iter().map(|own| &own.id).collect();
            state.launched.retain(|id, _| known.contains(id));
        }
        let is_seen = |own: &Arc<Instance>| {
            let launched = state.launched.get(&own.id);
            launched.is_none_or(|launched| launched.seen_at <= now)
        };
        all.into_iter().filter(is_seen).collect()
    }

    /// Returns the instances with these ids.
    ///
    /// # Errors
    /// `InvalidInstanceID.NotFound` for ids that do not exist or are not shown yet.
    pub(super) fn named(&self, ids: &[&str]) -> Result<Vec<Arc<Instance>>, Refusal> {
        let is_id = |id: &str| {
            let digits = id.strip_prefix("i-").unwrap_or_default();
            matches!(digits.len(), 8 | 17) && digits.bytes().all(|c| c.is_ascii_hexdigit())
        };
        if let Some(id) = ids.iter().find(|id| !is_id(id)) {
            let text = format!("Invalid id: \"{id}\"");
            return Err(Refusal::new("InvalidInstanceID.Malformed", text));
        }
        let now = Instant::now();
        let find = |id: &str| {
            let id = InstanceId(id.into());
            let instance = self.ec2().instance(&id)?;
            let launched = self.launched(&id);
            launched
                .is_none_or(|launched| launched.seen_at <= now)
                .then_some(instance)
        };
        let mut found: Vec<Arc<Instance>> = Vec::new();
        let mut missing: Vec<&str> = Vec::new();
        for id in ids {
            match find(id) {
                Some(own) if found.iter().any(|other| other.id == own.id) => {}
                Some(own) => found.push(own),
                None => missing.push(id),
            }
        }
        match missing.as_slice() {
            [] => Ok(found),
            [one] => Err(Refusal::new(
                "InvalidInstanceID.NotFound",
                format!("The instance ID '{one}' does not exist"),
            )),
            several => Err(Refusal::new(
                "InvalidInstanceID.NotFound",
                format!("The instance IDs '{}' do not exist", several.join(", ")),
            )),
        }
    }

    /// Returns the ARN of an instance profile that a launch gives by name or by ARN.
    pub(super) fn profile_arn(&self, profile: &str) -> String {
        if profile.starts_with("arn:") {
            profile.to_owned()
        } else {
            format!(
                "arn:aws:iam::{}:instance-profile/{profile}",
                self.account_id()
            )
        }
    }
}

fn look_up(
    call: &Call<'_>,
    own: &Instance,
    launched: Option<&LaunchRecord>,
    name: &str,
) -> FilterValues {
    let interface = || interface_id(&own.id);
    match name {
        "instance-id" => one(&own.id),
        "instance-state-name" => one(own.state.as_str()),
        "instance-state-code" => one(state_code(own.state)),
        "instance-type" => one(&own.instance_type.name),
        "image-id" => one(&own.image.id),
        "availability-zone" => one(&own.zone),
        "subnet-id" | "network-interface.subnet-id" => one(&own.subnet),
        "vpc-id" | "network-interface.vpc-id" => one(call.ec2().vpc_id()),
        "private-dns-name" | "network-interface.private-dns-name" => one(&own.private_dns_name),
        "private-ip-address" | "network-interface.addresses.private-ip-address" => {
            one(own.private_ip)
        }
        "instance.group-id" | "network-interface.group-id" => Some(
            own.security_groups
                .iter()
                .map(ToString::to_string)
                .collect(),
        ),
        "network-interface.network-interface-id" => one(interface()),
        "architecture" => one(architecture(own.image.arch)),
        "platform" => Some(platform(own).map(str::to_owned).into_iter().collect()),
        "instance-lifecycle" => Some(
            special_lifecycle(own)
                .map(str::to_owned)
                .into_iter()
                .collect(),
        ),
        "client-token" => Some(
            launched
                .map(|own| own.client_token.clone())
                .into_iter()
                .collect(),
        ),
        "iam-instance-profile.arn" => {
            let profile = launched.and_then(|own| own.profile.as_deref());
            Some(
                profile
                    .map(|profile| call.profile_arn(profile))
                    .into_iter()
                    .collect(),
            )
        }
        "capacity-reservation-id" => Some(
            own.reservation
                .iter()
                .map(|own| own.id.to_string())
                .collect(),
        ),
        "launch-time" => one(time(own.launched_at)),
        "owner-id" => one(call.account_id()),
        "reservation-id" => one(reservation_id(&own.id)),
        "tenancy" => one(own.tenancy.as_str()),
        _ => None,
    }
}

/// Returns EC2's code of a state.
fn state_code(state: InstanceState) -> u8 {
    match state {
        InstanceState::Pending => 0,
        InstanceState::Running => 16,
        InstanceState::ShuttingDown => 32,
        InstanceState::Terminated => 48,
        InstanceState::Stopped => 80,
    }
}

pub(super) fn write_state(xml: &mut Xml, state: InstanceState) {
    xml.leaf("code", state_code(state));
    xml.leaf("name", state.as_str());
}

fn platform(own: &Instance) -> Option<&'static str> {
    (own.os() == Os::Windows).then_some("windows")
}

/// Returns the purchasing option of an instance; EC2 leaves it out for ordinary on-demand instances.
fn special_lifecycle(own: &Instance) -> Option<&'static str> {
    let name = lifecycle(own.capacity_type, own.reservation.as_ref());
    Some(name).filter(|name| *name != "on-demand")
}

fn reservation_id(id: &InstanceId) -> String {
    id.0.replacen("i-", "r-", 1)
}

pub(super) fn interface_id(id: &InstanceId) -> String {
    id.0.replacen("i-", "eni-", 1)
}

/// Returns the MAC address of an instance's interface: a locally administered one with digits of the id.
pub(super) fn mac_address(id: &InstanceId) -> String {
    let digits: Vec<char> = id.0.chars().rev().take(10).collect();
    let pairs = digits.chunks(2).rev();
    let pairs = pairs.map(|pair| pair.iter().rev().collect::<String>());
    let all: Vec<_> = std::iter::once("02".to_owned()).chain(pairs).collect();
    all.join(":")
}

/// Writes an instance.
pub(super) fn write(xml: &mut Xml, call: &Call<'_>, own: &Instance) {
    let launched = call.launched(&own.id);
    let is_there = own.state < InstanceState::ShuttingDown;
    let vpc = call.ec2().vpc_id();
    xml.leaf("instanceId", &own.id);
    xml.leaf("imageId", &own.image.id);
    xml.node("instanceState", |xml| write_state(xml, own.state));
    // Names and addresses go with the interface.
    xml.leaf(
        "privateDnsName",
        if is_there { &own.private_dns_name } else { "" },
    );
    xml.leaf("dnsName", "");
    let reason = if is_there { "" } else { "User initiated" };
    xml.leaf("reason", reason);
    xml.leaf("amiLaunchIndex", 0);
    xml.list("productCodes", [(); 0], |_, ()| ());
    xml.leaf("instanceType", &own.instance_type.name);
    xml.leaf("launchTime", time(own.launched_at));
    xml.node("placement", |xml| {
        xml.leaf("availabilityZone", &own.zone);
        xml.leaf("availabilityZoneId", &own.zone_id);
        xml.leaf("groupName", "");
        xml.leaf("tenancy", own.tenancy.as_str());
    });
    xml.maybe("platform", platform(own));
    let details = match own.os() {
        Os::Windows => ("Windows", "RunInstances:0002"),
        Os::Linux => ("Linux/UNIX", "RunInstances"),
    };
    xml.leaf("platformDetails", details.0);
    xml.leaf("usageOperation", details.1);
    xml.node("monitoring", |xml| xml.leaf("state", "disabled"));
    if is_there {
        xml.leaf("subnetId", &own.subnet);
        xml.leaf("vpcId", &vpc);
        xml.leaf("privateIpAddress", own.private_ip);
    }
    if own.state == InstanceState::ShuttingDown || own.state == InstanceState::Terminated {
        xml.node("stateReason", |xml| {
            xml.leaf("code", "Client.UserInitiatedShutdown");
            xml.leaf(
                "message",
                "Client.UserInitiatedShutdown: User initiated shutdown",
            );
        });
    }
    xml.leaf("architecture", architecture(own.image.arch));
    xml.leaf("rootDeviceType", "ebs");
    let root = own.image.volumes().first().map(|volume| volume.device);
    xml.maybe("rootDeviceName", root);
    xml.list("blockDeviceMapping", [(); 0], |_, ()| ());
    xml.leaf("virtualizationType", "hvm");
    xml.maybe("instanceLifecycle", special_lifecycle(own));
    if own.capacity_type == CapacityType::Spot {
        xml.leaf("spotInstanceRequestId", own.id.0.replacen("i-", "sir-", 1));
    }
    let token = launched.as_ref().map_or("", |own| &own.client_token);
    xml.leaf("clientToken", token);
    write_tags(xml, &own.tags);
    write_groups(xml, call, own);
    xml.leaf(
        "hypervisor",
        if own.instance_type.hypervisor == "xen" {
            "xen"
        } else {
            "nitro"
        },
    );
    xml.list(
        "networkInterfaceSet",
        is_there.then_some(own),
        |xml, own| {
            write_interface(xml, call, own, &vpc);
        },
    );
    if let Some(profile) = launched.as_ref().and_then(|own| own.profile.as_deref()) {
        xml.node("iamInstanceProfile", |xml| {
            xml.leaf("arn", call.profile_arn(profile));
        });
    }
    if let Some(reservation) = &own.reservation {
        xml.leaf("capacityReservationId", &reservation.id);
    }
    xml.leaf("sourceDestCheck", true);
    xml.leaf("ebsOptimized", false);
    xml.leaf("enaSupport", own.instance_type.is_nitro());
}

pub(super) fn write_groups(xml: &mut Xml, call: &Call<'_>, own: &Instance) {
    let all = call.ec2().all_security_groups();
    xml.list("groupSet", &own.security_groups, |xml, id| {
        xml.leaf("groupId", id);
        let known = all.iter().find(|own| own.id == *id);
        xml.maybe("groupName", known.map(|own| &own.name));
    });
}

fn write_interface(xml: &mut Xml, call: &Call<'_>, own: &Instance, vpc: &str) {
    let found = call.ec2().interface_of(&own.id);
    xml.leaf("networkInterfaceId", interface_id(&own.id));
    xml.leaf("subnetId", &own.subnet);
    xml.leaf("vpcId", vpc);
    xml.leaf("ownerId", call.account_id());
    xml.leaf("status", "in-use");
    xml.leaf("interfaceType", "interface");
    xml.leaf("description", "");
    xml.leaf("macAddress", mac_address(&own.id));
    xml.leaf("privateIpAddress", own.private_ip);
    xml.leaf("privateDnsName", &own.private_dns_name);
    xml.leaf("sourceDestCheck", true);
    write_groups(xml, call, own);
    xml.node("attachment", |xml| {
        xml.leaf("attachmentId", own.id.0.replacen("i-", "eni-attach-", 1));
        xml.leaf("deviceIndex", 0);
        xml.leaf("networkCardIndex", 0);
        xml.leaf("status", "attached");
        xml.leaf("attachTime", time(own.launched_at));
        xml.leaf("deleteOnTermination", true);
    });
    let listing = found.map(|own| own.listing).unwrap_or_default();
    let secondary = listing.addresses.iter().map(|own| (own.ip, false));
    let all = [(own.private_ip, true)].into_iter().chain(secondary);
    xml.list("privateIpAddressesSet", all, |xml, (address, primary)| {
        xml.leaf("privateIpAddress", address);
        xml.leaf("primary", primary);
    });
    xml.list("ipv4PrefixSet", &listing.prefixes, |xml, prefix| {
        xml.leaf("ipv4Prefix", prefix);
    });
}
