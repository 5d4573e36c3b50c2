//! Network interfaces, and the addresses and prefixes on them. Each instance has only its primary interface.

use std::net::Ipv4Addr;

use mullion_cloud::{
    AddressError, Addresses, InstanceState, InterfaceFound, InterfaceId, MOST_AT_ONCE,
};
use mullion_engine::ip::{Cidr, Kind};

use super::{
    Call,
    instances::{interface_id, mac_address, write_groups},
    launch_templates::time,
    write_tags,
};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    query::ParamScope,
    refusal::Refusal,
};

/// DescribeNetworkInterfaces.
pub(super) async fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("NetworkInterfaceId");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "networkInterfaceIdSet")?;
    root.accept(&["IncludeManagedResources"]);
    call.complete()?;
    let mut there = call.ec2().instances();
    there.retain(|own| own.state != InstanceState::Terminated);
    if let Some(id) = ids
        .iter()
        .find(|id| !there.iter().any(|own| interface_id(&own.id) == **id))
    {
        let missing = AddressError::NoInterface(InterfaceId((*id).into()));
        return Err(missing.into());
    }
    let vpc = call.ec2().vpc_id();
    let mut found = Vec::new();
    for instance in there {
        let id = interface_id(&instance.id);
        let is_named = ids.is_empty() || ids.contains(&id.as_str());
        let find = |name: &str| match name {
            "network-interface-id" => one(&id),
            "attachment.instance-id" => one(&instance.id),
            "attachment.status" => one("attached"),
            "attachment.device-index" => one(0),
            "attachment.instance-owner-id" | "owner-id" => one(call.account_id()),
            "availability-zone" => one(&instance.zone),
            "subnet-id" => one(&instance.subnet),
            "vpc-id" => one(&vpc),
            "status" => one("in-use"),
            "interface-type" => one("interface"),
            "private-ip-address" => one(instance.private_ip),
            "private-dns-name" => one(&instance.private_dns_name),
            "description" => one(""),
            "group-id" => Some(
                instance
                    .security_groups
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            ),
            _ => None,
        };
        // An interface has no tags of its own here.
        if filters.match_all(&Default::default(), find)? && is_named {
            found.push(instance);
        }
    }
    let (found, token) = page.take(found, |own| own.id.to_string());
    let ids: Vec<_> = found.iter().map(|own| own.id.clone()).collect();
    let mut interfaces = Vec::new();
    for ids in ids.chunks(MOST_AT_ONCE) {
        interfaces.extend(call.ec2().interfaces_of(ids).await?);
    }
    Ok(call.answer(|xml| {
        let instance = |own: &InterfaceFound| call.ec2().instance(&own.instance);
        let both = interfaces
            .iter()
            .filter_map(|own| Some((own, instance(own)?)));
        xml.list("networkInterfaceSet", both, |xml, (own, instance)| {
            xml.leaf("networkInterfaceId", &own.facts.id);
            xml.leaf("subnetId", &own.facts.subnet);
            xml.leaf("vpcId", &vpc);
            xml.leaf("availabilityZone", &instance.zone);
            xml.leaf("availabilityZoneId", &instance.zone_id);
            xml.leaf("description", "");
            xml.leaf("ownerId", call.account_id());
            xml.leaf("requesterManaged", false);
            xml.leaf("status", "in-use");
            xml.leaf("interfaceType", "interface");
            xml.leaf("macAddress", mac_address(&instance.id));
            xml.leaf("privateIpAddress", own.facts.primary);
            xml.leaf("privateDnsName", &instance.private_dns_name);
            xml.leaf("sourceDestCheck", true);
            write_groups(xml, call, &instance);
            xml.node("attachment", |xml| {
                let digits = instance.id.0.replacen("i-", "eni-attach-", 1);
                xml.leaf("attachmentId", digits);
                xml.leaf("instanceId", &instance.id);
                xml.leaf("instanceOwnerId", call.account_id());
                xml.leaf("deviceIndex", 0);
                xml.leaf("networkCardIndex", 0);
                xml.leaf("status", "attached");
                xml.leaf("attachTime", time(instance.launched_at));
                xml.leaf("deleteOnTermination", true);
            });
            let secondary = own.listing.addresses.iter().map(|own| (own.ip, false));
            let all = [(own.facts.primary, true)].into_iter().chain(secondary);
            xml.list("privateIpAddressesSet", all, |xml, (address, primary)| {
                xml.leaf("privateIpAddress", address);
                xml.leaf("primary", primary);
            });
            xml.list("ipv4PrefixSet", &own.listing.prefixes, |xml, prefix| {
                xml.leaf("ipv4Prefix", prefix);
            });
            write_tags(xml, []);
        });
        page::next(xml, token);
    }))
}

/// AssignPrivateIpAddresses, for a number of addresses or prefixes that EC2 chooses.
pub(super) async fn assign(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let interface = interface(&root)?;
    let addresses = root.number("SecondaryPrivateIpAddressCount")?;
    let prefixes = root.number("Ipv4PrefixCount")?;
    let named = [root.list("PrivateIpAddress"), root.list("Ipv4Prefix")].concat();
    root.accept(&["AllowReassignment"]);
    let (kind, count) = match (addresses, prefixes, named.as_slice()) {
        (Some(count), None, []) => (Kind::Address, count),
        (None, Some(count), []) => (Kind::Prefix, count),
        (None, None, []) => {
            return Err(Refusal::new(
                "MissingParameter",
                "The request must contain SecondaryPrivateIpAddressCount or Ipv4PrefixCount",
            ));
        }
        (None, None, _) => {
            return Err(Refusal::new(
                "UnsupportedOperation",
                "Addresses and prefixes of the caller's choice are not simulated: give SecondaryPrivateIpAddressCount or Ipv4PrefixCount",
            ));
        }
        _ => {
            return Err(Refusal::new(
                "InvalidParameterCombination",
                "Addresses and prefixes, by number or by name, exclude each other in one request",
            ));
        }
    };
    let count = u32::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| {
        Refusal::value("The number of addresses or prefixes must be greater than 0")
    })?;
    call.complete()?;
    let given = call.ec2().assign(&interface, kind, count).await?;
    Ok(call.answer(|xml| {
        xml.leaf("networkInterfaceId", &interface);
        match kind {
            Kind::Address => {
                xml.list("assignedPrivateIpAddressesSet", given, |xml, own| {
                    xml.leaf("privateIpAddress", own.ip);
                });
            }
            Kind::Prefix => xml.list("assignedIpv4PrefixSet", given, |xml, own| {
                xml.leaf("ipv4Prefix", own);
            }),
        }
        xml.leaf("return", true);
    }))
}

/// UnassignPrivateIpAddresses.
pub(super) async fn unassign(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let interface = interface(&root)?;
    let addresses = root.list("PrivateIpAddress");
    let prefixes = root.list("Ipv4Prefix");
    let (kind, texts) = match (addresses.is_empty(), prefixes.is_empty()) {
        (false, true) => (Kind::Address, addresses),
        (true, false) => (Kind::Prefix, prefixes),
        (true, true) => {
            return Err(Refusal::new(
                "MissingParameter",
                "The request must contain PrivateIpAddress or Ipv4Prefix",
            ));
        }
        (false, false) => {
            return Err(Refusal::new(
                "InvalidParameterCombination",
                "PrivateIpAddress and Ipv4Prefix exclude each other in one request",
            ));
        }
    };
    let blocks = texts.iter().map(|text| block(kind, text));
    let blocks: Vec<Cidr> = blocks.collect::<Result<_, _>>()?;
    call.complete()?;
    call.ec2().give_back(&interface, kind, &blocks).await?;
    Ok(call.answer(|xml| xml.leaf("return", true)))
}

fn block(kind: Kind, text: &str) -> Result<Cidr, Refusal> {
    let wrong = || {
        Refusal::value(format!(
            "Value ({text}) is no {}",
            match kind {
                Kind::Address => "IPv4 address",
                Kind::Prefix => "IPv4 prefix of the form 10.0.0.16/28",
            }
        ))
    };
    match kind {
        Kind::Address => {
            let address: Ipv4Addr = text.parse().map_err(|_| wrong())?;
            Ok(Cidr::new(address, 32))
        }
        Kind::Prefix => {
            let prefix: Cidr = text.parse().map_err(|_| wrong())?;
            Some(prefix).filter(|own| own.bits == 28).ok_or_else(wrong)
        }
    }
}

fn interface(root: &ParamScope<'_>) -> Result<InterfaceId, Refusal> {
    let id = root.required("NetworkInterfaceId")?;
    let digits = id.strip_prefix("eni-").unwrap_or_default();
    if digits.len() == 17 && digits.bytes().all(|c| c.is_ascii_hexdigit()) {
        Ok(InterfaceId(id.into()))
    } else {
        Err(Refusal::new(
            "InvalidNetworkInterfaceId.Malformed",
            format!("Invalid id: \"{id}\""),
        ))
    }
}
