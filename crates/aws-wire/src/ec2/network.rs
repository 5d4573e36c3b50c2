//! DescribeSubnets and DescribeSecurityGroups.

use super::{Call, write_tags};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    refusal::Refusal,
};

/// DescribeSubnets.
pub(super) fn describe_subnets(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("SubnetId");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "subnetSet")?;
    call.complete()?;
    let vpc = call.ec2().vpc_id();
    let all = call.ec2().all_subnets();
    if let Some(id) = ids
        .iter()
        .find(|id| !all.iter().any(|own| *own.id == ***id))
    {
        let text = format!("The subnet ID '{id}' does not exist");
        return Err(Refusal::new("InvalidSubnetID.NotFound", text));
    }
    let mut found = Vec::new();
    for subnet in all {
        let is_named = ids.is_empty() || ids.contains(&&*subnet.id);
        let find = |name: &str| match name {
            "subnet-id" => one(&subnet.id),
            "vpc-id" => one(&vpc),
            "availability-zone" | "availabilityZone" => one(&subnet.zone),
            "availability-zone-id" | "availabilityZoneId" => one(&subnet.zone_id),
            "cidr-block" | "cidr" | "cidrBlock" => one(&subnet.cidr),
            "available-ip-address-count" => one(subnet.free_addresses),
            "state" => one("available"),
            "owner-id" => one(call.account_id()),
            "default-for-az" | "defaultForAz" | "ipv6-native" => one("false"),
            _ => None,
        };
        if filters.match_all(&subnet.tags, find)? && is_named {
            found.push(subnet);
        }
    }
    let (found, token) = page.take(found, |own| own.id.to_string());
    Ok(call.answer(|xml| {
        xml.list("subnetSet", &found, |xml, own| {
            xml.leaf("subnetId", &own.id);
            let (region, account) = (&call.ec2().config().region, call.account_id());
            xml.leaf(
                "subnetArn",
                format!("arn:aws:ec2:{region}:{account}:subnet/{}", own.id),
            );
            xml.leaf("state", "available");
            xml.leaf("ownerId", account);
            xml.leaf("vpcId", &vpc);
            xml.leaf("cidrBlock", &own.cidr);
            xml.list("ipv6CidrBlockAssociationSet", [(); 0], |_, ()| ());
            xml.leaf("availableIpAddressCount", own.free_addresses);
            xml.leaf("availabilityZone", &own.zone);
            xml.leaf("availabilityZoneId", &own.zone_id);
            xml.leaf("defaultForAz", false);
            xml.leaf("mapPublicIpOnLaunch", false);
            xml.leaf("assignIpv6AddressOnCreation", false);
            xml.leaf("ipv6Native", false);
            write_tags(xml, &own.tags);
        });
        page::next(xml, token);
    }))
}

/// DescribeSecurityGroups.
pub(super) fn describe_groups(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("GroupId");
    let names = root.list("GroupName");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "groupIdSet")?;
    call.complete()?;
    let vpc = call.ec2().vpc_id();
    let all = call.ec2().all_security_groups();
    if let Some(id) = ids
        .iter()
        .find(|id| !all.iter().any(|own| *own.id == ***id))
    {
        let text = format!("The security group '{id}' does not exist");
        return Err(Refusal::new("InvalidGroup.NotFound", text));
    }
    if let Some(name) = names
        .iter()
        .find(|name| !all.iter().any(|own| own.name == **name))
    {
        let text = format!("The security group '{name}' does not exist in VPC '{vpc}'");
        return Err(Refusal::new("InvalidGroup.NotFound", text));
    }
    let mut found = Vec::new();
    for group in all {
        let is_named = (ids.is_empty() || ids.contains(&&*group.id))
            && (names.is_empty() || names.contains(&group.name.as_str()));
        let find = |name: &str| match name {
            "group-id" => one(&group.id),
            "group-name" => one(&group.name),
            "description" => one(&group.name),
            "vpc-id" => one(&vpc),
            "owner-id" => one(call.account_id()),
            _ => None,
        };
        if filters.match_all(&group.tags, find)? && is_named {
            found.push(group);
        }
    }
    let (found, token) = page.take(found, |own| own.id.to_string());
    Ok(call.answer(|xml| {
        xml.list("securityGroupInfo", &found, |xml, own| {
            xml.leaf("ownerId", call.account_id());
            xml.leaf("groupId", &own.id);
            let (region, account) = (&call.ec2().config().region, call.account_id());
            let id = &own.id;
            let arn = format!("arn:aws:ec2:{region}:{account}:security-group/{id}");
            xml.leaf("securityGroupArn", arn);
            xml.leaf("groupName", &own.name);
            xml.leaf("groupDescription", &own.name);
            xml.leaf("vpcId", &vpc);
            xml.list("ipPermissions", [(); 0], |_, ()| ());
            xml.list("ipPermissionsEgress", [()], |xml, ()| {
                xml.leaf("ipProtocol", -1);
                xml.list("ipRanges", [()], |xml, ()| {
                    xml.leaf("cidrIp", "0.0.0.0/0");
                });
            });
            write_tags(xml, &own.tags);
        });
        page::next(xml, token);
    }))
}
